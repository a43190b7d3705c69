// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// noisy is a block that draws random numbers and counts its runs.
type noisy struct {
	Up, Down *Linear
	runs     int
	again    int
	breaks   bool // in the second run
}

func newNoisy(b *Build, width int) *noisy {
	return &noisy{Up: NewLinear(b, width, 4*width), Down: NewLinear(b, 4*width, width)}
}

func (n *noisy) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	n.runs++
	if c.Recomputing() {
		n.again++
		if n.breaks {
			x.Add(tensor.Zeros(99))
		}
	}
	h := c.Call(n.Up, x).GELU()
	noise := tensor.Zeros(h.Shape()...)
	c.Generator().Uniform(noise, 0.5, 1.5)
	return x.Add(c.Call(n.Down, h.Mul(c.Tape().Const(noise))))
}

// split has two results, of which the loss may use either.
type split struct{ Lin *Linear }

func (s *split) ForwardN(c *Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	y := c.Call(s.Lin, x[0].Mul(x[1]))
	if x[2] != nil {
		panic("the third input is absent")
	}
	return []*tensor.Tensor{y.Tanh(), y.Mul(y)}
}

type blocks struct {
	Layers []*noisy
	Ends   *split
	Use    []int // the results of Ends that make the loss
}

func (m *blocks) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	h := x
	for _, l := range m.Layers {
		h = c.Call(l, h)
	}
	ends := c.CallN(m.Ends, h, x, nil)
	loss := h.Mean()
	for _, i := range m.Use {
		loss = loss.Add(ends[i].Mean())
	}
	return loss
}

func newBlocks(layers, width int, use ...int) *blocks {
	b := &Build{Generator: tensor.NewGenerator(1)}
	m := &blocks{Ends: &split{NewLinear(b, width, width)}, Use: use}
	for range layers {
		m.Layers = append(m.Layers, newNoisy(b, width))
	}
	return m
}

// train runs a pass and returns the loss; the gradients are in the parameters.
func (m *blocks) train(t *testing.T, x *tensor.Tensor, around ...Interceptor) float64 {
	t.Helper()
	c := Training(t.Context(), WithGenerator(tensor.NewGenerator(7)))
	defer c.Close()
	for _, i := range around {
		c = c.With(i)
	}
	loss := c.Call(m, c.Tape().Const(x))
	if err := loss.Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	return loss.Item()
}

func all(m any) bool {
	_, isModel := m.(*blocks)
	return !isModel
}

func TestRecomputedGradientsAreTheSame(t *testing.T) {
	x := tensor.Zeros(3, 8)
	tensor.NewGenerator(3).Uniform(x, -1, 1)
	for _, use := range [][]int{{0}, {1}, {0, 1}, {}} {
		plain, again := newBlocks(3, 8, use...), newBlocks(3, 8, use...)
		want, got := plain.train(t, x), again.train(t, x, Recompute(all))
		if want != got {
			t.Errorf("use %v: loss %v recomputed, %v plain", use, got, want)
		}
		for _, l := range again.Layers {
			if l.runs != 2 || l.again != 1 {
				t.Errorf("a block ran %d times, %d of them again; want 2 and 1", l.runs, l.again)
			}
		}
		ps, qs := Parameters(plain), Parameters(again)
		for i, p := range ps {
			if p.Grad() == nil || qs[i].Grad() == nil {
				if p.Grad() != nil && slices.Max(p.Grad().Float32s()) != 0 {
					t.Errorf("use %v: %s has no gradient", use, p.Name())
				}
				continue
			}
			if !slices.Equal(p.Grad().Float32s(), qs[i].Grad().Float32s()) {
				t.Errorf("use %v: the gradients of %s differ", use, p.Name())
			}
		}
	}
}

func TestRecomputeHoldsLess(t *testing.T) {
	x := tensor.Zeros(256, 64)
	peak := func(around ...Interceptor) int64 {
		m := newBlocks(12, 64)
		// The memory pool is the process's: what a pass takes at most is seen by
		// how much is live when backward begins.
		var live int64
		c := Training(t.Context(), WithGenerator(tensor.NewGenerator(7)))
		defer c.Close()
		for _, i := range around {
			c = c.With(i)
		}
		c.Tape().BeforeBackward(func(context.Context) error { live = c.Tape().LiveBytes(); return nil })
		if err := c.Call(m, c.Tape().Const(x)).Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
		return live
	}
	plain, again := peak(), peak(Recompute(func(m any) bool { _, ok := m.(*noisy); return ok }))
	if again*5 > plain {
		t.Errorf("%d bytes held with recomputation, %d without: want less than a fifth", again, plain)
	}
}

// A pass without gradients holds what it returns, and on the way not much more
// than one module's inside.
func TestEvaluationFreesAsItGoes(t *testing.T) {
	m := NewSequential()
	b := &Build{}
	for range 20 {
		m.Layers = append(m.Layers, newNoisy(b, 64), &ReLU{})
	}
	c := Evaluation(t.Context(), WithGenerator(tensor.NewGenerator(1)))
	defer c.Close()
	x := tensor.Zeros(256, 64)
	var most int64
	y := c.With(watcher(func() { most = max(most, c.Tape().LiveBytes()) })).Call(m, x)
	const value = 256 * 64 * 4
	if got := c.Tape().LiveBytes(); got != value {
		t.Errorf("%d bytes are held after the pass, the result has %d", got, value)
	}
	if most > 16*value { // a block's inside has some thirteen
		t.Errorf("%d bytes were held between modules, want at most sixteen values of %d", most, value)
	}
	if len(y.Float32s()) != 256*64 {
		t.Error("the result is gone")
	}
	kept := c.Call(m.Layers[0].(*noisy), x).Keep()
	c.Close()
	kept.Float32s()
}

// watcher looks around after every call.
type watcher func()

func (w watcher) InterceptCall(c *Ctx, _ any, x []*tensor.Tensor, next func(*Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	y := next(c, x)
	w()
	return y
}

func (watcher) InterceptParam(c *Ctx, _ *Parameter, next func(*Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}

func TestErrorsOfTheSecondRunNameTheModule(t *testing.T) {
	m := newBlocks(2, 4)
	m.Layers[1].breaks = true
	step := func() (err error) {
		c := Training(t.Context(), WithGenerator(tensor.NewGenerator(7))).With(Recompute(all))
		defer c.Close()
		defer c.Recover(&err)
		return c.Call(m, tensor.Zeros(2, 4)).Backward(t.Context())
	}
	var fe *ForwardError
	if err := step(); !errors.As(err, &fe) || fe.Module != "layers.1" {
		t.Errorf("error %v does not name layers.1", err)
	}
}

// normedBlock is a block whose norms have a residual and running statistics.
type normedBlock struct {
	Lin          *Linear
	Norm1, Norm2 *BatchNorm1d
}

func (m *normedBlock) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	h := m.Norm1.ReLU(c, c.Call(m.Lin, x))
	return m.Norm2.AddReLU(c, c.Call(m.Lin, h), h.AddScalar(1))
}

// Statistics move once a step, also where the norm, or what contains it, is run
// twice; the residual's gradient arrives.
func TestRecomputedBatchNorm(t *testing.T) {
	x := tensor.Zeros(6, 4)
	tensor.NewGenerator(3).Uniform(x, -1, 1)
	isNorm := func(m any) bool { _, ok := m.(*BatchNorm); return ok }
	isBlock := func(m any) bool { _, ok := m.(*normedBlock); return ok }
	pass := func(around ...Interceptor) (state, grads map[string][]float32) {
		b := &Build{Generator: tensor.NewGenerator(1)}
		m := &normedBlock{NewLinear(b, 4, 4), NewBatchNorm1d(b, 4, BatchNormOptions{}), NewBatchNorm1d(b, 4, BatchNormOptions{Cumulative: true})}
		for range 2 {
			c := Training(t.Context())
			for _, i := range around {
				c = c.With(i)
			}
			if err := c.Call(m, c.Tape().Const(x)).Sum().Backward(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.Close()
		}
		state, grads = map[string][]float32{}, map[string][]float32{}
		for name, v := range StateDict(m).All() {
			state[name] = v.To(tensor.Float32).Float32s()
		}
		for _, p := range Parameters(m) {
			grads[p.Name()] = p.Grad().Float32s()
		}
		return state, grads
	}
	wantState, wantGrads := pass()
	for name, match := range map[string]func(any) bool{"norms": isNorm, "block": isBlock, "both": func(m any) bool { return isNorm(m) || isBlock(m) }} {
		state, grads := pass(Recompute(match))
		for key, want := range wantState {
			if !slices.Equal(state[key], want) {
				t.Errorf("%s recomputed: %s is %v, want %v", name, key, state[key], want)
			}
		}
		for key, want := range wantGrads {
			if !slices.Equal(grads[key], want) {
				t.Errorf("%s recomputed: the gradient of %s is %v, want %v", name, key, grads[key], want)
			}
		}
	}
}
