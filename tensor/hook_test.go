// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"
	"testing"
)

func TestHooksSeeAndReplaceGradients(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	sink := &collector{shape: []int{2}}
	x := tp.Watch(FromFloat32([]float32{1, 2}), sink)
	y := x.MulScalar(3)
	var seen [][]float32
	y.OnGrad(func(g *Tensor) *Tensor { seen = append(seen, g.Float32s()); return g.MulScalar(10) })
	y.OnGrad(func(g *Tensor) *Tensor { seen = append(seen, g.Float32s()); return nil })
	x.OnGrad(func(g *Tensor) *Tensor { return g.AddScalar(1) })
	if err := y.Mul(y).Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	// dy = 2y = 6, 12; ten times that; times 3, plus 1.
	if want := [][]float32{{6, 12}, {60, 120}}; !slices.EqualFunc(seen, want, slices.Equal) {
		t.Errorf("the hooks saw %v, want %v", seen, want)
	}
	if got := sink.grad.Float32s(); !slices.Equal(got, []float32{181, 361}) {
		t.Errorf("gradient %v, want [181 361]", got)
	}
	mustFail(t, "no gradient", func() { Full(1, 2).OnGrad(func(*Tensor) *Tensor { return nil }) })
}

// A hook on a leaf sees the whole gradient, also where kernels would write
// into the leaf's buffer.
func TestAHookOnALeafSeesItsWholeGradient(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	sink := &collector{shape: []int{2, 2}}
	w := tp.Watch(Full(1, 2, 2), sink)
	x := tp.Const(Full(1, 3, 2))
	calls := 0
	w.OnGrad(func(g *Tensor) *Tensor { calls++; return g.MulScalar(2) })
	if err := Linear(x, w, nil).Sum().Add(w.Sum()).Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := sink.grad.Float32s(); calls != 1 || !slices.Equal(got, []float32{8, 8, 8, 8}) {
		t.Errorf("gradient %v after %d calls, want 8 after 1", got, calls)
	}
}
