// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
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

// TestHooksRunOnceInEveryPass puts a hook that multiplies by ten on the operands
// of every operation, and asks for the gradients in every way: they are ten times
// what they are without hooks, and each hook has run once in a pass.
func TestHooksRunOnceInEveryPass(t *testing.T) {
	type pass func(loss *Tensor, leaves []*Tensor, sinks []*collector) ([]*Tensor, error)
	backward := func(opts ...BackwardOption) pass {
		return func(loss *Tensor, _ []*Tensor, sinks []*collector) ([]*Tensor, error) {
			err := loss.Backward(t.Context(), opts...)
			grads := make([]*Tensor, len(sinks))
			for i, s := range sinks {
				if s.holds {
					grads[i], s.grad, s.holds = s.grad, nil, false
				}
			}
			return grads, err
		}
	}
	grad := func(opts ...BackwardOption) pass {
		return func(loss *Tensor, leaves []*Tensor, _ []*collector) ([]*Tensor, error) {
			return loss.Grad(t.Context(), nil, leaves, opts...)
		}
	}
	ways := []struct {
		name      string
		creates   bool
		recompute bool
		passes    int
		pass      pass
	}{
		{"backward", false, false, 1, backward()},
		{"retain", false, false, 2, backward(RetainGraph())},
		{"create", true, false, 2, backward(CreateGraph())},
		{"grad", false, false, 2, grad()},
		{"grad create", true, false, 2, grad(CreateGraph())},
		{"recompute", false, true, 1, backward()},
		{"recompute retain", false, true, 2, backward(RetainGraph())},
		{"recompute grad", false, true, 2, grad()},
	}
	eachCase(t, CPU(), func(t *testing.T, c opCase, in []*Tensor, seed uint64) {
		for _, way := range ways {
			if way.creates && c.once != "" {
				continue
			}
			// run returns the gradients of each pass, and how often each hook has run.
			run := func(hooked bool) (all [][]*Tensor, calls []int) {
				tp := NewTape(true)
				defer tp.Close()
				leaves, sinks, operands := make([]*Tensor, len(in)), make([]*collector, len(in)), make([]*Tensor, len(in))
				calls = make([]int, len(in))
				for i, x := range in {
					sinks[i] = &collector{shape: x.shape}
					leaves[i] = tp.Watch(x, sinks[i])
					operands[i] = leaves[i].MulScalar(1)
					if hooked {
						operands[i].OnGrad(func(g *Tensor) *Tensor { calls[i]++; return g.MulScalar(10) })
					}
				}
				apply := func(in []*Tensor) []*Tensor { return []*Tensor{c.apply(in)} }
				var loss *Tensor
				if way.recompute {
					loss = tp.Recompute(operands, apply)[0]
				} else {
					loss = apply(operands)[0]
				}
				loss = loss.Mul(tp.Const(Full(0.5, loss.shape...))).Sum()
				for range way.passes {
					grads, err := way.pass(loss, leaves, sinks)
					if err != nil {
						t.Fatal(way.name, err)
					}
					for i, g := range grads {
						if g != nil {
							grads[i] = g.Detach().Clone().Keep()
						}
					}
					all = append(all, grads)
				}
				return all, calls
			}
			plain, _ := run(false)
			hooked, calls := run(true)
			for pass := range way.passes {
				for i, want := range plain[pass] {
					got := hooked[pass][i]
					if want == nil || got == nil {
						if want != got {
							t.Errorf("%s, pass %d, operand %d: gradient %v, without hooks %v", way.name, pass, i, got, want)
						}
						continue
					}
					compareValues(t, fmt.Sprintf("%s, pass %d, operand %d: the gradient behind a hook", way.name, pass, i),
						got.Float32s(), widen(want.MulScalar(10).Float32s()), 1e-4)
				}
			}
			for i, n := range calls {
				if want := way.passes; n != want && plain[0][i] != nil {
					t.Errorf("%s: the hook of operand %d ran %d times in %d passes", way.name, i, n, want)
				}
			}
		}
	})
}

// A hook may return a value that was there before the pass, in every pass and for
// several values. It stays as it is.
func TestAHookReturnsAValueOfTheTape(t *testing.T) {
	for _, opts := range [][]BackwardOption{nil, {RetainGraph()}} {
		tp := NewTape(true)
		sink := &collector{shape: []int{2}}
		x := tp.Watch(Full(1, 2), sink)
		seven := tp.Const(Full(3.5, 2)).MulScalar(2)
		a, b := x.MulScalar(1), x.MulScalar(1)
		for _, y := range []*Tensor{a, b} {
			y.OnGrad(func(*Tensor) *Tensor { return seven })
		}
		loss := a.Add(b.AddScalar(1)).Sum()
		for pass := range 1 + len(opts) {
			if err := loss.Backward(t.Context(), opts...); err != nil {
				t.Fatal(err)
			}
			if got, want := sink.grad.Float32s()[0], 14*float32(pass+1); got != want {
				t.Errorf("pass %d: gradient %v, want %v", pass, got, want)
			}
		}
		wantFloats(t, "the hook's value", seven, 7, 7)
		tp.Close()
	}
}
