// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
)

// drawn returns a tensor of random numbers.
func drawn(r *rand.Rand, shape ...int) *Tensor {
	x := Zeros(shape...)
	x.WithFloat32s(func(data []float32) {
		for i := range data {
			data[i] = float32(r.NormFloat64())
		}
	})
	return x
}

// splitPass is a forward pass with leaves of all kinds, which returns two values.
type splitPass struct {
	leaves []*collector
	data   []*Tensor
	x      *Tensor
	run    func(tp *Tape, x *Tensor, leaf []*Tensor) (a, b *Tensor)
}

// backward runs the pass and its backward pass, and returns the gradients of the leaves and of x.
func (p *splitPass) backward(t *testing.T, seeds [2]*Tensor, split bool) (grads [][]float32) {
	t.Helper()
	tp := NewTape(true)
	defer tp.Close()
	var leaf []*Tensor
	for i, c := range p.leaves {
		c.holds = false
		leaf = append(leaf, tp.Watch(p.data[i], c))
	}
	x := tp.Leaf(p.x)
	var dx []float32
	inputs := 0
	x.OnGrad(func(g *Tensor) *Tensor { dx, inputs = slices.Clone(g.Float32s()), inputs+1; return nil })
	a, b := p.run(tp, x, leaf)
	ended := 0
	tp.AfterBackward(func(context.Context) error { ended++; return nil })
	var opts []BackwardOption
	if split {
		opts = append(opts, DeferWeights())
	}
	if err := tp.BackwardFrom(t.Context(), []*Tensor{a, b}, seeds[:], opts...); err != nil {
		t.Fatal(err)
	}
	if split {
		if inputs != 1 || ended != 0 {
			t.Errorf("after the first part the input has had %d gradients, and %d passes have ended, want 1 and 0", inputs, ended)
		}
		if err := tp.BackwardWeights(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if ended != 1 {
		t.Errorf("%d passes have ended, want 1", ended)
	}
	for _, c := range p.leaves {
		if !c.holds {
			grads = append(grads, nil)
			continue
		}
		grads = append(grads, slices.Clone(c.grad.Float32s()))
	}
	return append(grads, dx)
}

// splitPasses are forward passes in which leaves are used in many ways.
func splitPasses(r *rand.Rand) map[string]*splitPass {
	make := func(x *Tensor, run func(tp *Tape, x *Tensor, w []*Tensor) (a, b *Tensor), data ...*Tensor) *splitPass {
		p := &splitPass{x: x, run: run, data: data}
		for _, d := range data {
			p.leaves = append(p.leaves, &collector{shape: d.Shape()})
		}
		return p
	}
	ids := FromInt64([]int64{2, 0, 2, 6})
	two := func(y *Tensor) (a, b *Tensor) { return y, y.Square().Sum() }
	return map[string]*splitPass{
		"layers": make(drawn(r, 4, 5), func(_ *Tape, x *Tensor, w []*Tensor) (a, b *Tensor) {
			y := Linear(LayerNorm(x, w[0], w[1], 1e-5), w[2], w[3]).GELU()
			return two(Affine(y, w[4], nil))
		}, drawn(r, 5), drawn(r, 5), drawn(r, 6, 5), drawn(r, 6), drawn(r, 6, 3)),
		"shared": make(drawn(r, 4, 5), func(_ *Tape, x *Tensor, w []*Tensor) (a, b *Tensor) {
			// One weight in products, in another operation between them, and in one that adds alone.
			y := Linear(x, w[0], nil).Mul(w[0].Narrow(0, 0, 4))
			y = Linear(y.Add(x.MatMul(w[0])), w[0], nil)
			return two(Affine(y, w[0], nil).Add(w[0].Sum()))
		}, drawn(r, 5, 5)),
		"tied": make(drawn(r, 4, 5), func(_ *Tape, x *Tensor, w []*Tensor) (a, b *Tensor) {
			y := Embedding(w[0], ids).Add(x)
			return two(Linear(Linear(y, w[1], nil).Add(Embedding(w[0], ids)), w[0], nil))
		}, drawn(r, 7, 5), drawn(r, 5, 5)),
		"products": make(drawn(r, 3, 4, 5), func(_ *Tape, x *Tensor, w []*Tensor) (a, b *Tensor) {
			return two(x.MatMul(w[0]).MatMul(w[1]).MatMul(w[0]).MatMul(w[1]).MatMul(w[1].T()))
		}, drawn(r, 5, 6), drawn(r, 3, 6, 5)),
		"recomputed": make(drawn(r, 4, 5), func(tp *Tape, x *Tensor, w []*Tensor) (a, b *Tensor) {
			y := Linear(x, w[0], nil)
			for range 2 {
				y = tp.Recompute([]*Tensor{y}, func(in []*Tensor) []*Tensor {
					return []*Tensor{Linear(Linear(in[0], w[0], w[1]).GELU(), w[2], nil).Add(in[0].MatMul(w[2]))}
				})[0]
			}
			return two(y)
		}, drawn(r, 5, 5), drawn(r, 5), drawn(r, 5, 5)),
		"images": make(drawn(r, 2, 3, 6, 6), func(_ *Tape, x *Tensor, w []*Tensor) (a, b *Tensor) {
			return two(Conv2d(Conv2d(x, w[0], w[1], Conv2dOptions{Padding: [2]int{1, 1}}).ReLU(), w[2], nil, Conv2dOptions{}))
		}, drawn(r, 4, 3, 3, 3), drawn(r, 4), drawn(r, 2, 4, 1, 1)),
		"unused": make(drawn(r, 4, 5), func(_ *Tape, x *Tensor, w []*Tensor) (a, b *Tensor) {
			_ = Linear(x, w[1], nil)
			return two(Linear(x, w[0], nil))
		}, drawn(r, 5, 5), drawn(r, 5, 5)),
		"bfloat16": make(drawn(r, 4, 5), func(tp *Tape, x *Tensor, w []*Tensor) (a, b *Tensor) {
			tp.SetAutocast(BFloat16)
			return two(Linear(Linear(x, w[0], w[1]).GELU(), w[0], nil).To(Float32))
		}, drawn(r, 5, 5), drawn(r, 5)),
	}
}

// TestASplitBackwardPassGivesTheSameBits: the two parts together are one pass.
func TestASplitBackwardPassGivesTheSameBits(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 0))
	for name, p := range splitPasses(r) {
		t.Run(name, func(t *testing.T) {
			tp := NewTape(false)
			var leaf []*Tensor
			for _, d := range p.data {
				leaf = append(leaf, tp.Const(d))
			}
			a, _ := p.run(tp, tp.Const(p.x), leaf)
			seeds := [2]*Tensor{drawn(r, a.Shape()...), nil}
			tp.Close()
			before := slices.Clone(seeds[0].Float32s())
			want := p.backward(t, seeds, false)
			got := p.backward(t, seeds, true)
			for i := range want {
				if !slices.Equal(got[i], want[i]) {
					t.Errorf("gradient %d is %v in two parts, %v in one", i, got[i], want[i])
				}
			}
			if !slices.Equal(seeds[0].Float32s(), before) {
				t.Error("the gradient that was given has been written to")
			}
		})
	}
}

// TestBackwardFromValuesAddsUp: the gradients of several values are those of the sum of their
// products with what is given.
func TestBackwardFromValuesAddsUp(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 1))
	x, g, h := drawn(r, 3), drawn(r, 3), drawn(r, 3)
	grads := func(run func(tp *Tape, y, z *Tensor) error) []float32 {
		tp := NewTape(true)
		defer tp.Close()
		tp.ScaleGrads(0.5)
		c := &collector{shape: []int{3}}
		w := tp.Watch(x, c)
		y := w.Square()
		if err := run(tp, y, y.Exp()); err != nil {
			t.Fatal(err)
		}
		return c.grad.Float32s()
	}
	got := grads(func(tp *Tape, y, z *Tensor) error {
		return tp.BackwardFrom(t.Context(), []*Tensor{z, y, z.Sum()}, []*Tensor{g, h, nil})
	})
	want := grads(func(tp *Tape, y, z *Tensor) error {
		sum := z.Mul(g).Sum().MulScalar(2).Add(y.Mul(h).Sum().MulScalar(2)).Add(z.Sum())
		return sum.Backward(t.Context())
	})
	for i := range want {
		if d := got[i] - want[i]; d > 1e-4 || d < -1e-4 {
			t.Errorf("gradient %v, want %v: what is given is not scaled, a loss is", got, want)
			break
		}
	}
}

// TestOperandsOfWeightsStayUntilTheSecondPart: memory falls to what the weights need, and then to
// nothing.
func TestOperandsOfWeightsStayUntilTheSecondPart(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	const size = 4 * 16 * 32
	w := [2]*collector{{shape: []int{32, 32}}, {shape: []int{32, 32}}}
	x := tp.Leaf(Full(1, 16, 32))
	y := x.MulScalar(2)
	for _, c := range w {
		y = Linear(y, tp.Watch(Full(0.1, 32, 32), c), nil).GELU()
	}
	loss := y.Sum()
	if err := loss.Backward(t.Context(), DeferWeights()); err != nil {
		t.Fatal(err)
	}
	// Of each product its input and the gradient of its result, and the loss.
	if got := tp.LiveBytes(); got != 4*size+4 {
		t.Errorf("after the first part the tape holds %d bytes, want %d", got, 4*size+4)
	}
	for range 2 {
		if err := tp.BackwardWeights(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := tp.LiveBytes(); got != 4 {
		t.Errorf("after the second part the tape holds %d bytes, want those of the loss", got)
	}
	if w[0].grad == nil || w[1].grad == nil {
		t.Error("the weights have no gradients")
	}
}

// TestFailuresOfASplitBackwardPass: each part tells wrappers that it failed.
func TestFailuresOfASplitBackwardPass(t *testing.T) {
	want := errors.New("rank 1 died")
	tp := NewTape(true)
	defer tp.Close()
	failed := 0
	tp.AfterFailure(func() { failed++ })
	w := tp.Watch(Full(1, 2, 2), &failingLeaf{collector{shape: []int{2, 2}}, want})
	x := tp.Leaf(Full(1, 2))
	y := Linear(x, w, nil)
	if err := tp.BackwardFrom(t.Context(), []*Tensor{y}, []*Tensor{Full(1, 2)}, DeferWeights()); err != nil {
		t.Fatal(err)
	}
	mustFail(t, "call Tape.BackwardWeights first", func() { _ = y.Sum().Backward(t.Context()) })
	failed = 0
	if err := tp.BackwardWeights(t.Context()); !errors.Is(err, want) || failed != 1 {
		t.Errorf("BackwardWeights returned %v, and wrappers heard of %d failures; want %v and 1", err, failed, want)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(want)
	if err := tp.BackwardWeights(ctx); err != nil {
		t.Errorf("there is nothing left to do, and BackwardWeights returned %v", err)
	}
	mustFail(t, "the gradient must have the shape and dtype", func() {
		_ = tp.BackwardFrom(t.Context(), []*Tensor{y}, []*Tensor{Full(1, 3)})
	})
	mustFail(t, "a gradient for each value", func() { _ = tp.BackwardFrom(t.Context(), nil, nil) })
	other := NewTape(true)
	defer other.Close()
	mustFail(t, "under another tape", func() {
		_ = other.BackwardFrom(t.Context(), []*Tensor{y}, []*Tensor{Full(1, 2)})
	})
}
