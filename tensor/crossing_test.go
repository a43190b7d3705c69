// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// copyAcross records that t goes to another tape, and returns its copy there. The
// copy's tape is to be walked first.
func copyAcross(to *Tape, t *Tensor) *Tensor {
	var back *Tensor
	out := Record("send", t.Detach(), []*Tensor{t}, nil, func(_ context.Context, g *Tensor) ([]*Tensor, error) {
		return []*Tensor{g}, nil
	})
	out.AtGrad(func(context.Context, *Tensor) (*Tensor, error) { return back, nil })
	in := to.Leaf(FromFloat32(t.Float32s(), t.Shape()...))
	in.AtGrad(func(_ context.Context, g *Tensor) (*Tensor, error) {
		back = nil
		if g != nil {
			back = FromFloat32(g.Float32s(), g.Shape()...)
		}
		return nil, nil
	})
	return in
}

// TestAGraphThatCrossesTapes: the gradients are the bits of those under one tape.
// The value that crosses is used on both sides, and once for nothing.
func TestAGraphThatCrossesTapes(t *testing.T) {
	grads := func(crosses bool) []float32 {
		a, b := NewTape(true), NewTape(true)
		defer a.Close()
		defer b.Close()
		sink := &collector{shape: []int{3}}
		x := a.Watch(FromFloat32([]float32{0.1, -0.7, 1.3}), sink)
		y := x.Exp().Mul(x)
		here, there := y, y
		if crosses {
			there = copyAcross(b, y)
			_ = copyAcross(b, y).Mul(FromFloat32([]float32{1, 2, 3})) // feeds nothing
			_ = copyAcross(a, there)                                  // not even that
		}
		z := there.Mul(there).Tanh()
		back := z
		if crosses {
			back = copyAcross(a, z)
		}
		loss := back.Mul(here).Sum()
		if !crosses {
			if err := loss.Backward(t.Context()); err != nil {
				t.Fatal(err)
			}
			return sink.grad.Float32s()
		}
		// One goroutine cannot wait for another tape: it stops where it would, and
		// goes on from there in a second pass.
		stop := errors.New("b first")
		var order []string
		here.AtGrad(func(_ context.Context, g *Tensor) (*Tensor, error) {
			order = append(order, "here")
			if len(order) == 1 {
				return nil, stop
			}
			return g, nil
		})
		if err := a.Backward(t.Context(), []*Tensor{loss}, RetainGraph()); !errors.Is(err, stop) {
			t.Fatalf("Backward returned %v, want %v", err, stop)
		}
		if err := b.Backward(t.Context(), nil, RetainGraph()); err != nil {
			t.Fatal(err)
		}
		if err := a.Backward(t.Context(), []*Tensor{loss}); err != nil {
			t.Fatal(err)
		}
		return sink.grad.Float32s()
	}
	want, got := grads(false), grads(true)
	if !slices.Equal(got, want) {
		t.Errorf("over two tapes the gradient is %v, under one %v", got, want)
	}
}

func TestACrossingIsCalledWithoutGradientToo(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	sink := &collector{shape: []int{2}}
	x := tp.Watch(FromFloat32([]float32{1, 2}), sink)
	used, unused := x.MulScalar(3), x.MulScalar(5)
	var met []bool
	// Comes from elsewhere, and was added first: the last one that is called.
	unused.AtGrad(func(context.Context, *Tensor) (*Tensor, error) { return Full(10, 2), nil })
	for _, v := range []*Tensor{used, unused} {
		v.AtGrad(func(_ context.Context, g *Tensor) (*Tensor, error) { met = append(met, g != nil); return g, nil })
	}
	loss := used.Sum()
	if err := tp.Backward(t.Context(), []*Tensor{loss}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(met, []bool{false, true}) {
		t.Errorf("the crossings met a gradient: %v, want false (the last value, unused) and true", met)
	}
	if got := sink.grad.Float32s(); !slices.Equal(got, []float32{53, 53}) {
		t.Errorf("gradient %v, want 3 + 5·10", got)
	}
	if loss.Item() != 9 {
		t.Errorf("the loss is %v after the pass, want 9", loss.Item())
	}
	mustFail(t, "RetainGraph", func() { _ = tp.Backward(t.Context(), []*Tensor{loss}) })
}

// TestLossesOfOnePass: several losses give the sum of their gradients, each scaled
// as one alone, whichever was computed first.
func TestLossesOfOnePass(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	tp.ScaleGrads(0.5)
	sink := &collector{shape: []int{2}}
	x := tp.Watch(FromFloat32([]float32{1, 2}), sink)
	first := x.Mul(x).Sum()
	second := first.MulScalar(3) // one computed from the other
	third := x.Sum()
	if err := tp.Backward(t.Context(), []*Tensor{third, first, second}); err != nil {
		t.Fatal(err)
	}
	if got := sink.grad.Float32s(); !slices.Equal(got, []float32{4.5, 8.5}) {
		t.Errorf("gradient %v, want half of 1 + 4·2x", got)
	}
	for i, l := range []*Tensor{first, second, third} {
		if want := []float64{5, 15, 3}[i]; l.Item() != want {
			t.Errorf("loss %d is %v after the pass, want %v", i, l.Item(), want)
		}
	}
}

func TestCrossingsAreNotForOnePassUnderOneTape(t *testing.T) {
	tp, other := NewTape(true), NewTape(true)
	defer tp.Close()
	defer other.Close()
	x := tp.Watch(Full(2, 2), &collector{shape: []int{2}})
	y := x.Mul(x)
	y.AtGrad(func(_ context.Context, g *Tensor) (*Tensor, error) { return g, nil })
	loss := y.Sum()
	if grads, err := loss.Grad(t.Context(), nil, []*Tensor{x}); err != nil || grads[0].Float32s()[0] != 4 {
		t.Errorf("Grad gave %v, %v, want 4: it stays under one tape", grads, err)
	}
	mustFail(t, "where this pass does not go", func() { _ = loss.Backward(t.Context(), RetainGraph()) })
	mustFail(t, "under another tape", func() { _ = other.Backward(t.Context(), []*Tensor{loss}) })
	mustFail(t, "wants a loss of one element", func() { _ = tp.Backward(t.Context(), []*Tensor{y}) })
	mustFail(t, "no gradient", func() { Full(1, 2).AtGrad(nil) })

	wrong := x.MulScalar(2)
	wrong.AtGrad(func(context.Context, *Tensor) (*Tensor, error) { return Full(1, 3), nil })
	mustFail(t, "must have the value's shape", func() { _ = tp.Backward(t.Context(), []*Tensor{loss}) })
}

// TestAPassOverTapesFreesWhatItConsumed: nothing is left but losses, leaves, and
// what no gradient reached.
func TestAPassOverTapesFreesWhatItConsumed(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	x := tp.Watch(Full(2, 1000), &collector{shape: []int{1000}})
	y := x.Exp()
	y.AtGrad(func(_ context.Context, g *Tensor) (*Tensor, error) { return g.Add(Full(1, 1000)), nil })
	loss := y.Mul(y).Sum()
	if err := tp.Backward(t.Context(), []*Tensor{loss}); err != nil {
		t.Fatal(err)
	}
	if live := tp.LiveBytes(); live > 1000 {
		t.Errorf("%d bytes live after the pass, want those of the loss", live)
	}
	mustFail(t, "has been freed", func() { y.Float32s() })
}
