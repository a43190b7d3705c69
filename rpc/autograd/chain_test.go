// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// values are n numbers that look random, others for each salt.
func values(n, salt int) []float32 {
	x := make([]float32, n)
	for i := range x {
		bits := uint32(uint64(i+1+1000*salt) * 2654435761)
		x[i] = float32(bits>>8)/(1<<24) - 0.5
	}
	return x
}

func param(salt int, shape ...int) *nn.Parameter {
	n := 1
	for _, d := range shape {
		n *= d
	}
	p := nn.NewParameter(tensor.FromFloat32(values(n, salt), shape...))
	return p
}

func wantBits(t testing.TB, what string, got, want *tensor.Tensor) {
	t.Helper()
	if got == nil || want == nil {
		if got != want {
			t.Errorf("%s: gradient %v, in one process %v", what, got, want)
		}
		return
	}
	if g, w := got.Float32s(), want.Float32s(); !slices.Equal(g, w) {
		t.Errorf("%s: gradient %v, in one process %v", what, g, w)
	}
}

// chain is layers of which each worker has one, but the first none. It returns
// their weights' gradients in one process.
func chain(t testing.TB, weights []*nn.Parameter, x *tensor.Tensor) []*tensor.Tensor {
	t.Helper()
	c := nn.Training(t.Context())
	defer c.Close()
	h := c.Tape().Const(x)
	for _, w := range weights {
		h = tensor.Linear(h, c.Param(w), nil).Tanh()
	}
	if err := h.Mul(h).Mean().Backward(c); err != nil {
		t.Fatal(err)
	}
	var out []*tensor.Tensor
	for _, w := range weights {
		out = append(out, w.Grad())
	}
	return out
}

func layer(w *nn.Parameter) handler {
	return func(ctx context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
		c := Ctx(ctx)
		return []*tensor.Tensor{tensor.Linear(in[0], c.Param(w), nil).Tanh()}, nil
	}
}

// TestChainHasTheBitsOfOneProcess: the maker calls layer after layer, each on
// another worker, in both modes and several times over.
func TestChainHasTheBitsOfOneProcess(t *testing.T) {
	weights := []*nn.Parameter{param(1, 5, 4), param(2, 6, 5), param(3, 3, 6), param(4, 7, 3)}
	x := tensor.FromFloat32(values(8, 0), 2, 4)
	want := chain(t, weights, x)
	for _, mode := range []Mode{Smart, Fast} {
		cl := newCluster(len(weights))
		dc := newContext(cl.engines[0], nil)
		c, err := dc.Pass(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h := tensor.Linear(x, c.Param(weights[0]), nil).Tanh()
		for i, w := range weights[1:] {
			h = cl.call(t, c, 0, i+1, "layer", layer(w), h)[0]
		}
		loss := h.Mul(h).Mean()
		for pass := range 2 { // twice over one graph gives twice the gradient
			opts := []BackwardOption{WithMode(mode)}
			if pass == 0 {
				opts = append(opts, WithRetainGraph())
			}
			if err := dc.Backward(t.Context(), loss, opts...); err != nil {
				t.Fatalf("%v: %v", mode, err)
			}
			for i, w := range weights {
				got := (&Context{s: stateOf(t, cl.engines[i], dc.ID())}).Gradient(w)
				wantBits(t, fmt.Sprintf("%v, pass %d, layer %d", mode, pass, i), got, want[i].MulScalar(float64(pass+1)))
				if w.Grad() != want[i] {
					t.Error("a pass of a context has touched the parameter's own gradient")
				}
			}
		}
		dc.Close()
		cl.wantNothingLeft(t)
	}
}

func stateOf(t testing.TB, e *engine, id uint64) *state {
	t.Helper()
	s, err := e.state(id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestNestedCalls: each worker calls the next before it answers, and the last one
// calls the first.
func TestNestedCalls(t *testing.T) {
	weights := []*nn.Parameter{param(1, 4, 4), param(2, 4, 4), param(3, 4, 4), param(4, 4, 4)}
	x := tensor.FromFloat32(values(8, 0), 2, 4)
	want := chain(t, weights, x)
	for _, mode := range []Mode{Smart, Fast} {
		cl := newCluster(3)
		where := []int{0, 1, 2, 0} // the last layer is with the first again
		var from func(i, at int) handler
		from = func(i, at int) handler {
			return func(ctx context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
				out, _ := layer(weights[i])(ctx, in)
				if i+1 == len(weights) {
					return out, nil
				}
				return cl.async(Ctx(ctx), at, where[i+1], "layer", from(i+1, where[i+1]), out...)()
			}
		}
		dc := newContext(cl.engines[0], nil)
		c, _ := dc.Pass(t.Context())
		out, err := from(0, 0)(c, []*tensor.Tensor{x})
		if err != nil {
			t.Fatal(err)
		}
		if err := dc.Backward(t.Context(), out[0].Mul(out[0]).Mean(), WithMode(mode)); err != nil {
			t.Fatal(err)
		}
		for i, w := range weights {
			wantBits(t, fmt.Sprintf("%v, layer %d", mode, i), (&Context{s: stateOf(t, cl.engines[where[i]], dc.ID())}).Gradient(w), want[i])
		}
		dc.Close()
		cl.wantNothingLeft(t)
	}
}

// TestAnArgumentThatFeedsNothing hangs PyTorch's pass. Here it holds nothing up in
// mode Smart, and is named in mode Fast.
func TestAnArgumentThatFeedsNothing(t *testing.T) {
	for _, mode := range []Mode{Smart, Fast} {
		cl := newCluster(3)
		w := param(1, 4)
		dc := newContext(cl.engines[0], nil)
		c, _ := dc.Pass(t.Context())
		x := c.Param(w).Exp()
		deaf := func(_ context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			return []*tensor.Tensor{tensor.Full(1, 4)}, nil
		}
		double := func(_ context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			out := []*tensor.Tensor{in[0].MulScalar(2)}
			if mode == Smart {
				out = append(out, in[0].MulScalar(3)) // a result that feeds nothing
			}
			return out, nil
		}
		cl.call(t, c, 0, 1, "deaf", deaf, x)
		y := cl.call(t, c, 0, 2, "double", double, x)
		err := dc.Backward(t.Context(), y[0].Sum(), WithMode(mode))
		if mode == Fast {
			wantError(t, err, ErrUnreached, "worker1", "argument of deaf 0 from worker0")
		} else if err != nil {
			t.Error(err)
		} else {
			wantBits(t, "w", dc.Gradient(w), x2(w))
		}
		dc.Close()
		cl.wantNothingLeft(t)
	}
}

func x2(w *nn.Parameter) *tensor.Tensor { return w.Data().Exp().MulScalar(2) }

func wantError(t testing.TB, err, is error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one of %q", texts)
		return
	}
	if is != nil && !errorsIs(err, is) {
		t.Errorf("%v: it is no %v", err, is)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v: does not say %q", err, text)
		}
	}
}

// TestABackwardThatIsWaitedForInVain: the error says who waits for whom.
func TestABackwardThatIsWaitedForInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(2)
		dc := newContext(cl.engines[0], nil)
		c, _ := dc.Pass(t.Context())
		release := make(chan struct{})
		stuck := func(context.Context, []*tensor.Tensor) ([]*tensor.Tensor, error) { <-release; return nil, nil }
		wait := cl.async(c, 0, 1, "stuck", stuck, c.Param(param(1, 4)))
		synctest.Wait() // the call runs
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		err := dc.Backward(ctx, c.Param(param(2, 4)).Sum())
		wantError(t, err, context.DeadlineExceeded, "on worker1 (rank 1)", "waiting for stuck, called by worker0")
		close(release)
		if _, err := wait(); err == nil {
			t.Error("the answer was taken though the context is over")
		}
		cl.wantNothingLeft(t)
	})
}
