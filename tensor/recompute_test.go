// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"
	"testing"
)

// twoResults recomputes x² and eˣ.
func twoResults(tp *Tape, x *Tensor) []*Tensor {
	return tp.Recompute([]*Tensor{x}, func(in []*Tensor) []*Tensor { return []*Tensor{in[0].Square(), in[0].MulScalar(3)} })
}

// A graph that is retained can be gone through again, recomputed parts too.
func TestRecomputingARetainedGraphTwice(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	sink := &collector{shape: []int{2}}
	x := tp.Watch(FromFloat32([]float32{1, 2}), sink)
	outs := twoResults(tp, x)
	loss := outs[0].Add(outs[1]).Sum()
	for range 2 {
		grads, err := loss.Grad(t.Context(), nil, []*Tensor{x})
		if err != nil || !slices.Equal(grads[0].Float32s(), []float32{5, 7}) {
			t.Fatalf("gradient %v, want [5 7]; error %v", grads, err)
		}
	}
	if err := loss.Backward(t.Context(), RetainGraph()); err != nil {
		t.Fatal(err)
	}
	if got := sink.grad.Float32s(); !slices.Equal(got, []float32{5, 7}) {
		t.Errorf("gradient %v, want [5 7]", got)
	}
}

// The first result of a recomputed part has no gradient where only another one
// is used.
func TestGradOfAnUnusedResultOfRecompute(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	x := tp.Watch(FromFloat32([]float32{1, 2}), &collector{shape: []int{2}})
	outs := twoResults(tp, x)
	grads, err := outs[1].Sum().Grad(t.Context(), nil, []*Tensor{outs[0], x})
	if err != nil || grads[0] != nil || !slices.Equal(grads[1].Float32s(), []float32{3, 3}) {
		t.Errorf("gradients %v, want none and [3 3]; error %v", grads, err)
	}
}

func TestWatchingALeafInsideOfRecompute(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	x := tp.Watch(Full(2, 2), &collector{shape: []int{2}})
	w := &collector{shape: []int{2}}
	out := tp.Recompute([]*Tensor{x}, func(in []*Tensor) []*Tensor { return []*Tensor{in[0].Mul(tp.Watch(Full(5, 2), w))} })
	mustFail(t, "call Watch outside", func() { _ = out[0].Sum().Backward(t.Context()) })
}

func TestAHookInsideOfRecompute(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	sink := &collector{shape: []int{2}}
	x := tp.Watch(Full(2, 2), sink)
	calls := 0
	out := tp.Recompute([]*Tensor{x}, func(in []*Tensor) []*Tensor {
		y := in[0].Square()
		y.OnGrad(func(g *Tensor) *Tensor { calls++; return g.MulScalar(10) })
		return []*Tensor{y.MulScalar(1)}
	})
	if err := out[0].Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := sink.grad.Float32s(); calls != 1 || !slices.Equal(got, []float32{40, 40}) {
		t.Errorf("gradient %v after %d calls, want 40 after 1", got, calls)
	}
}
