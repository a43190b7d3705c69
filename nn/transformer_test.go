// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/tensor"
)

// transformerGolden reads what testdata/transformer.py wrote.
type transformerGolden struct {
	t    *testing.T
	file *safetensors.File
	name string // of the case
}

// read returns an entry of the case, nil if there is none.
func (g transformerGolden) read(key string) *tensor.Tensor {
	e, ok := g.file.Lookup(g.name + "/" + key)
	if !ok {
		return nil
	}
	x := tensor.Zeros(e.Shape...)
	if err := g.file.ReadTensor(e.Name, x.Buffer().Data); err != nil {
		g.t.Fatal(err)
	}
	return x
}

func (g transformerGolden) compare(what string, got, want *tensor.Tensor, tolerance float64) {
	g.t.Helper()
	if got == nil || want == nil || !slices.Equal(got.Shape(), want.Shape()) {
		g.t.Errorf("%s: got %v, PyTorch has %v", what, got, want)
		return
	}
	w := want.Float32s()
	scale := 1.0
	for _, v := range w {
		scale = max(scale, math.Abs(float64(v)))
	}
	for i, v := range got.Float32s() {
		if d := math.Abs(float64(v) - float64(w[i])); !(d <= tolerance*scale) {
			g.t.Errorf("%s: element %d is %v, PyTorch has %v", what, i, v, w[i])
			return
		}
	}
}

func TestTransformerAgreesWithPyTorch(t *testing.T) {
	const width, numHeads = 12, 3
	file, err := safetensors.Open(filepath.Join("testdata", "transformer.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	seen := tensor.FromBool([]bool{true, true, false, true, false, true, true, true}, 2, 1, 1, 4)
	options := TransformerOptions{Width: width, NumHeads: numHeads, Hidden: 20}
	normFirst, causal := options, options
	normFirst.NormFirst, causal.Causal = true, true
	both := normFirst
	both.Causal = true
	attention := func(b *Build, causal bool) *MultiheadAttention {
		m := NewMultiheadAttention(b, width, numHeads)
		m.Causal = causal
		return m
	}
	type inputs = []*tensor.Tensor
	for _, k := range []struct {
		name      string
		numInputs int
		build     func(b *Build) any
		call      func(c *Ctx, m any, x inputs) *tensor.Tensor
	}{
		{"self", 1, func(b *Build) any { return attention(b, true) },
			func(c *Ctx, m any, x inputs) *tensor.Tensor { return c.Call(m.(Module), x[0]) }},
		{"cross", 2, func(b *Build) any { return attention(b, false) },
			func(c *Ctx, m any, x inputs) *tensor.Tensor {
				return c.CallN(m.(ModuleN), x[0], x[1], x[1], seen)[0]
			}},
		{"encoder layer", 1, func(b *Build) any { return NewTransformerEncoderLayer(b, options) },
			func(c *Ctx, m any, x inputs) *tensor.Tensor { return c.Call(m.(Module), x[0]) }},
		{"encoder layer masked", 1, func(b *Build) any {
			o := normFirst
			o.Activation, o.Eps = "gelu", 1e-3
			return NewTransformerEncoderLayer(b, o)
		}, func(c *Ctx, m any, x inputs) *tensor.Tensor { return c.CallN(m.(ModuleN), x[0], seen)[0] }},
		{"encoder", 1, func(b *Build) any {
			e := NewTransformerEncoder(b, 2, both)
			e.Norm = NewLayerNorm(b, width)
			return e
		}, func(c *Ctx, m any, x inputs) *tensor.Tensor { return c.Call(m.(Module), x[0]) }},
		{"decoder layer", 2, func(b *Build) any { return NewTransformerDecoderLayer(b, causal) },
			func(c *Ctx, m any, x inputs) *tensor.Tensor { return c.CallN(m.(ModuleN), x[0], x[1], seen)[0] }},
		{"decoder", 2, func(b *Build) any { return NewTransformerDecoder(b, 2, both) },
			func(c *Ctx, m any, x inputs) *tensor.Tensor { return c.CallN(m.(ModuleN), x[0], x[1])[0] }},
	} {
		t.Run(k.name, func(t *testing.T) {
			g := transformerGolden{t, file, k.name}
			m := k.build(&Build{Generator: tensor.NewGenerator(7)})
			params := Parameters(m)
			for _, p := range params {
				first := g.read("first/" + p.Name())
				if first == nil || !slices.Equal(p.Data().Float32s(), first.Float32s()) {
					t.Errorf("%s: the first values are not PyTorch's for the same seed", p.Name())
				}
				p.Data().CopyFrom(g.read("param/" + p.Name()))
			}
			num := 0
			for _, e := range file.Infos() {
				if len(e.Name) > len(k.name)+7 && e.Name[:len(k.name)+7] == k.name+"/param/" {
					num++
				}
			}
			if num != len(params) {
				t.Errorf("%d parameters, PyTorch has %d", len(params), num)
			}

			c := Training(t.Context())
			defer c.Close()
			var leaves []*Parameter
			var x inputs
			for i := range k.numInputs {
				leaf := NewParameter(g.read(fmt.Sprint("in/", i)))
				leaves = append(leaves, leaf)
				x = append(x, c.Tape().Watch(leaf.Data(), leaf))
			}
			y := k.call(c, m, x)
			g.compare("the result", y, g.read("out"), 1e-5)
			if err := y.Mul(g.read("weights")).Sum().Backward(c); err != nil {
				t.Fatal(err)
			}
			for i, leaf := range leaves {
				g.compare(fmt.Sprintf("the gradient of input %d", i), leaf.Grad(), g.read(fmt.Sprint("ingrad/", i)), 1e-4)
			}
			for _, p := range params {
				g.compare("the gradient of "+p.Name(), p.Grad(), g.read("grad/"+p.Name()), 1e-4)
			}
		})
	}
}

// Dropout acts in training alone, and once for a generator's state.
func TestTransformerDropout(t *testing.T) {
	l := NewTransformerEncoderLayer(&Build{}, TransformerOptions{Width: 8, NumHeads: 2, Hidden: 16, Dropout: 0.5})
	x := tensor.Full(0.3, 1, 4, 8)
	run := func(c *Ctx) []float32 {
		defer c.Close()
		return c.Call(l, x).Float32s()
	}
	training := func(seed int64) []float32 {
		return run(Training(t.Context(), WithGenerator(tensor.NewGenerator(seed))))
	}
	plain := run(Evaluation(t.Context()))
	if a := training(1); !slices.Equal(a, training(1)) || slices.Equal(a, training(2)) || slices.Equal(a, plain) {
		t.Error("dropout does not follow its generator")
	}
	c := Training(t.Context())
	var err error
	func() {
		defer c.Close()
		defer c.Recover(&err)
		c.Call(l, x)
	}()
	if err == nil {
		t.Error("dropout without a generator: no error")
	}
}

func TestTransformerMisuse(t *testing.T) {
	for name, call := range map[string]func(){
		"heads": func() { NewMultiheadAttention(&Build{}, 10, 3) },
		"activation": func() {
			NewTransformerEncoderLayer(&Build{}, TransformerOptions{Width: 4, NumHeads: 2, Activation: "elu"})
		},
		"attention's inputs": func() {
			c := Evaluation(context.Background())
			defer c.Close()
			x := tensor.Zeros(1, 1, 4)
			c.CallN(NewMultiheadAttention(&Build{}, 4, 2), x, x, x, x, x)
		},
		"decoder's inputs": func() {
			c := Evaluation(context.Background())
			defer c.Close()
			c.CallN(NewTransformerDecoderLayer(&Build{}, TransformerOptions{Width: 4, NumHeads: 2, Hidden: 4}), tensor.Zeros(1, 1, 4))
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if e, ok := recover().(*tensor.Error); !ok {
					t.Errorf("no *tensor.Error but %v", e)
				}
			}()
			call()
		})
	}
}

// TestKVCache holds passes of a few positions at a time against one over all.
func TestKVCache(t *testing.T) {
	const width, time = 8, 7
	e := NewTransformerEncoder(&Build{}, 2, TransformerOptions{Width: width, NumHeads: 2, Hidden: 16, Causal: true})
	data := make([]float32, 2*time*width)
	for i := range data {
		data[i] = float32(math.Sin(float64(i * i)))
	}
	x := tensor.FromFloat32(data, 2, time, width)
	c := Evaluation(t.Context())
	defer c.Close()
	want := c.Call(e, x)

	cache := NewKVCache(time)
	step := func(x *tensor.Tensor) (y *tensor.Tensor, err error) {
		c := Evaluation(t.Context(), WithKVCache(cache))
		defer c.Close()
		defer c.Recover(&err)
		return c.Call(e, x).Keep(), nil
	}
	for range 2 { // the second time in the same memory
		at := 0
		for _, n := range []int{3, 1, 1, 2} {
			if cache.Len() != at || cache.Past(e.Layers[1].SelfAttn) != at {
				t.Errorf("the cache holds %d positions, want %d", cache.Len(), at)
			}
			y, err := step(x.Narrow(1, at, n))
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range y.Float32s() {
				if w := want.Narrow(1, at, n).Float32s()[i]; !(math.Abs(float64(v-w)) <= 1e-5) {
					t.Fatalf("%d positions from %d on: element %d is %v, want %v", n, at, i, v, w)
				}
			}
			at += n
		}
		if _, err := step(x.Narrow(1, 0, 1)); !errors.As(err, new(*tensor.Error)) {
			t.Errorf("a position too many: %v", err)
		}
		cache.Reset()
	}
	if cache.Cap() != time || (*KVCache)(nil).Len() != 0 || (*KVCache)(nil).Past(e) != 0 {
		t.Error("the size of a cache is wrong")
	}
	if _, err := step(x); err != nil {
		t.Fatal(err)
	}
	if _, err := step(x.Narrow(0, 0, 1)); err == nil {
		t.Error("another batch was taken")
	}
	// After a Reset, passes may compute in another dtype; before, they may not.
	half := func() (err error) {
		c := Evaluation(t.Context(), WithKVCache(cache), WithAutocast(tensor.BFloat16))
		defer c.Close()
		defer c.Recover(&err)
		c.Call(e, x.Narrow(1, 0, 2))
		return nil
	}
	cache.Reset()
	if _, err := step(x.Narrow(1, 0, 1)); err != nil {
		t.Fatal(err)
	}
	if err := half(); err == nil || !strings.Contains(err.Error(), "another dtype") {
		t.Errorf("bfloat16 into a cache of float32: %v", err)
	}
	cache.Reset()
	if err := half(); err != nil {
		t.Error(err)
	}
	c2 := Training(t.Context(), WithKVCache(NewKVCache(time)))
	defer c2.Close()
	var err error
	func() { defer c2.Recover(&err); c2.Call(e, x) }()
	if err == nil {
		t.Error("a pass with gradients was taken")
	}
}
