// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/tensor"
)

// testdata/rnn.py made the values. First values are equal bit by bit, and so are
// names and their order.
func TestRecurrentLayersAgreeWithPyTorch(t *testing.T) {
	file, err := safetensors.Open(filepath.Join("testdata", "rnn.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	deep := RNNOptions{NumLayers: 2, Bidirectional: true, BatchFirst: true}
	for name, build := range map[string]func(b *Build) ModuleN{
		"lstm":       func(b *Build) ModuleN { return NewLSTM(b, 5, 4, RNNOptions{}) },
		"lstm deep":  func(b *Build) ModuleN { return NewLSTM(b, 5, 4, deep) },
		"lstm plain": func(b *Build) ModuleN { return NewLSTM(b, 3, 4, RNNOptions{NumLayers: 3, NoBias: true}) },
		"gru":        func(b *Build) ModuleN { return NewGRU(b, 5, 4, RNNOptions{}) },
		"gru deep":   func(b *Build) ModuleN { return NewGRU(b, 5, 4, deep) },
		"gru plain":  func(b *Build) ModuleN { return NewGRU(b, 3, 4, RNNOptions{NumLayers: 3, NoBias: true}) },
		"lstm cell":  func(b *Build) ModuleN { return NewLSTMCell(b, 5, 4) },
		"gru cell":   func(b *Build) ModuleN { return NewGRUCell(b, 5, 4) },
	} {
		t.Run(name, func(t *testing.T) {
			g := transformerGolden{t, file, name}
			m := build(&Build{Generator: tensor.NewGenerator(11)})
			var inputs []*Parameter // as parameters, for their gradients
			for i := 0; g.read(fmt.Sprintf("in/%d", i)) != nil; i++ {
				inputs = append(inputs, NewParameter(g.read(fmt.Sprintf("in/%d", i))))
			}
			params := Parameters(m)
			for i, p := range params {
				first := g.read(fmt.Sprintf("param/%02d/%s", i, p.Name()))
				if first == nil || !slices.Equal(first.Float32s(), p.Data().Float32s()) || !slices.Equal(first.Shape(), p.Data().Shape()) {
					t.Fatalf("parameter %d, %s%v, is not PyTorch's, %v", i, p.Name(), p.Data().Shape(), first)
				}
			}
			if _, err := Backward(t.Context(), func(c *Ctx) *tensor.Tensor {
				xs := make([]*tensor.Tensor, len(inputs))
				for i, p := range inputs {
					xs[i] = c.Param(p)
				}
				loss := tensor.Zeros()
				for i, y := range c.CallN(m, xs...) {
					g.compare(fmt.Sprintf("result %d", i), y, g.read(fmt.Sprintf("out/%d", i)), 1e-5)
					loss = loss.Add(y.Mul(g.read(fmt.Sprintf("weights/%d", i))).Sum())
				}
				return loss
			}); err != nil {
				t.Fatal(err)
			}
			for i, p := range inputs {
				g.compare(fmt.Sprintf("gradient of input %d", i), p.Grad(), g.read(fmt.Sprintf("ingrad/%d", i)), 1e-4)
			}
			for _, p := range params {
				g.compare("gradient of "+p.Name(), p.Grad(), g.read("grad/"+p.Name()), 1e-4)
			}
		})
	}
}

// Wide layers, which threads share, have the gradient of their definition.
func TestWideRecurrentLayers(t *testing.T) {
	for name, build := range map[string]func(b *Build) Module{
		"lstm": func(b *Build) Module { return NewLSTM(b, 20, 300, RNNOptions{}) },
		"gru":  func(b *Build) Module { return NewGRU(b, 20, 300, RNNOptions{}) },
	} {
		m := build(&Build{})
		x := tensor.Zeros(3, 5, 20)
		tensor.NewGenerator(2).Uniform(x, -1, 1)
		fused := wideGrads(t, m, x)
		recorded := wideGrads(t, m, x, tensor.CreateGraph())
		for i, p := range Parameters(m) {
			transformerGolden{t: t}.compare(name+" "+p.Name(), fused[i], recorded[i], 1e-5)
		}
	}
}

func wideGrads(t *testing.T, m Module, x *tensor.Tensor, opts ...tensor.BackwardOption) []*tensor.Tensor {
	t.Helper()
	c := Training(t.Context())
	defer c.Close()
	var leaves []*tensor.Tensor
	y := c.Call(m, x)
	for _, p := range Parameters(m) {
		leaves = append(leaves, c.Param(p))
	}
	grads, err := y.Mul(y).Sum().Grad(t.Context(), nil, leaves, opts...)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range grads {
		g.Keep()
	}
	return grads
}

// Under autocast the products of the inputs are of bfloat16, and the rest is
// close to float32.
func TestRecurrentAutocast(t *testing.T) {
	x := tensor.Zeros(6, 4, 16)
	tensor.NewGenerator(2).Uniform(x, -1, 1)
	for name, build := range map[string]func(b *Build) Module{
		"lstm": func(b *Build) Module { return NewLSTM(b, 16, 16, RNNOptions{NumLayers: 2, Bidirectional: true}) },
		"gru":  func(b *Build) Module { return NewGRU(b, 16, 16, RNNOptions{NumLayers: 2, Bidirectional: true}) },
	} {
		var losses [2]float64
		var grads [2][]float32
		for i, opts := range [][]CtxOption{nil, {WithAutocast(tensor.BFloat16)}} {
			m := build(&Build{})
			loss, err := Backward(t.Context(), func(c *Ctx) *tensor.Tensor {
				y := c.Call(m, x).To(tensor.Float32)
				return y.Mul(y).Sum()
			}, opts...)
			if err != nil {
				t.Fatal(err)
			}
			losses[i], grads[i] = loss, Parameters(m)[1].Grad().Float32s()
		}
		if losses[0] == losses[1] || math.Abs(losses[1]/losses[0]-1) > 0.02 {
			t.Errorf("%s: loss %v in bfloat16, %v in float32", name, losses[1], losses[0])
		}
		largest := 0.0
		for _, g := range grads[0] {
			largest = max(largest, math.Abs(float64(g)))
		}
		for i, g := range grads[0] {
			if d := math.Abs(float64(grads[1][i] - g)); !(d <= 0.05*largest) {
				t.Fatalf("%s: element %d of the gradient is %v in bfloat16, %v in float32", name, i, grads[1][i], g)
			}
		}
	}
}

// Dropout is between layers, in training alone.
func TestRecurrentDropout(t *testing.T) {
	x := tensor.Full(1, 4, 2, 3)
	build := func(p float64, layers int) *LSTM {
		return NewLSTM(&Build{Generator: tensor.NewGenerator(3)}, 3, 8, RNNOptions{NumLayers: layers, Dropout: p})
	}
	run := func(m Module, c *Ctx) []float32 {
		defer c.Close()
		return c.Call(m, x).Float32s()
	}
	plain := run(build(0, 2), Evaluation(t.Context()))
	if got := run(build(0.5, 2), Evaluation(t.Context())); !slices.Equal(got, plain) {
		t.Error("dropout acts in evaluation")
	}
	if got := run(build(0.5, 2), Training(t.Context(), WithGenerator(tensor.NewGenerator(1)))); slices.Equal(got, plain) {
		t.Error("dropout does not act in training")
	}
	if got := run(build(0.5, 1), Training(t.Context())); !slices.Equal(got, run(build(0, 1), Evaluation(t.Context()))) {
		t.Error("dropout acts after the last layer")
	}
}

func TestRecurrentMisuse(t *testing.T) {
	for want, fn := range map[string]func(c *Ctx){
		"three dims": func(c *Ctx) { c.Call(NewGRU(&Build{}, 3, 4, RNNOptions{}), tensor.Zeros(2, 3)) },
		"the first state must have shape [1 2 4]": func(c *Ctx) { c.CallN(NewGRU(&Build{}, 3, 4, RNNOptions{}), tensor.Zeros(5, 2, 3), tensor.Zeros(2, 4)) },
		"the weight takes 3":                      func(c *Ctx) { c.Call(NewLSTM(&Build{}, 3, 4, RNNOptions{}), tensor.Zeros(5, 2, 7)) },
		"at least one step":                       func(c *Ctx) { c.Call(NewLSTM(&Build{}, 3, 4, RNNOptions{}), tensor.Zeros(0, 2, 3)) },
	} {
		err := func() (err error) {
			c := Evaluation(t.Context())
			defer c.Close()
			defer c.Recover(&err)
			fn(c)
			return nil
		}()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// The uniform initialisers give PyTorch's bits; the normal ones its deviations.
func TestInitialisers(t *testing.T) {
	file, err := safetensors.Open(filepath.Join("testdata", "rnn.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	g := transformerGolden{t, file, "init"}
	for name, fn := range map[string]func(g *tensor.Generator, p *Parameter){
		"uniform": func(g *tensor.Generator, p *Parameter) { InitUniform(g, p, -0.3, 0.7) },
		"xavier":  func(g *tensor.Generator, p *Parameter) { InitXavierUniform(g, p, Gain("tanh", 0)) },
		"kaiming": func(g *tensor.Generator, p *Parameter) { InitKaimingUniform(g, p, KaimingOptions{A: 0.2}) },
		"kaiming fan out": func(g *tensor.Generator, p *Parameter) {
			InitKaimingUniform(g, p, KaimingOptions{Nonlinearity: "relu", FanOut: true})
		},
	} {
		p := (&Build{}).Empty(6, 5, 3, 3)
		fn(tensor.NewGenerator(13), p)
		if want := g.read(name); want == nil || !slices.Equal(p.Data().Float32s(), want.Float32s()) {
			t.Errorf("%s: the bits are not PyTorch's", name)
		}
	}
	p := (&Build{}).Empty(200, 50)
	for name, c := range map[string]struct {
		fn  func(g *tensor.Generator)
		std float64
	}{
		"normal":  {func(g *tensor.Generator) { InitNormal(g, p, 0, 0.02) }, 0.02},
		"xavier":  {func(g *tensor.Generator) { InitXavierNormal(g, p, 2) }, 2 * math.Sqrt(2.0/250)},
		"kaiming": {func(g *tensor.Generator) { InitKaimingNormal(g, p, KaimingOptions{FanOut: true}) }, math.Sqrt(2.0 / 200)},
	} {
		c.fn(tensor.NewGenerator(5))
		if std := math.Sqrt(p.Data().SumSquares() / 10000); math.Abs(std/c.std-1) > 0.03 {
			t.Errorf("%s: deviation %v, want %v", name, std, c.std)
		}
	}
	InitConstant(p, 3)
	if got := p.Data().Float32s()[77]; got != 3 {
		t.Errorf("constant: %v", got)
	}
}
