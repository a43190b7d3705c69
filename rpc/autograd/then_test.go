// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

// TestThenInAPass: what follows an answer of a pass is computed where it is waited for,
// and not while the pass's goroutine computes; outside of passes it is not waited for.
func TestThenInAPass(t *testing.T) {
	all, _ := agents(t, "pipe", 2)
	s := newStage(1)
	err := all[1].Offer(
		rpc.Serve(layerMethod, func(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			return s.forward(Ctx(ctx), x), nil
		}),
		// A handler that answers with what follows a call of its own.
		rpc.ServeAsync(relayMethod, func(ctx context.Context, x *tensor.Tensor) *rpc.Future[*tensor.Tensor] {
			c := Ctx(ctx)
			f := layerMethod.Async(c, rpc.AgentOf(ctx).Self(), x.Exp())
			return rpc.Then(f, func(y *tensor.Tensor) (*tensor.Tensor, error) { return y.Mul(c.Param(s.model.Bias)), nil })
		}))
	if err != nil {
		t.Fatal(err)
	}
	w, to := param(7, 2, 4), all[0].PeerRank(1)
	step := func(async bool) (gradients []*tensor.Tensor) {
		dc, err := NewContext(all[0])
		if err != nil {
			t.Fatal(err)
		}
		defer dc.Close()
		c, err := dc.Pass(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		sum := c.Param(w).Sum()
		follow := func(y *tensor.Tensor) (*tensor.Tensor, error) { return y.Mul(c.Param(w)).Exp(), nil }
		again := func(y *tensor.Tensor) (*tensor.Tensor, error) { return y.Sum(), nil }
		for range 4 {
			x := c.Param(w).Tanh()
			if !async {
				y, err := relayMethod.Call(c, to, x)
				if err != nil {
					t.Fatal(err)
				}
				y, _ = follow(y)
				y, _ = again(y)
				sum = sum.Add(y)
				continue
			}
			called := false
			f := relayMethod.Async(c, to, x)
			g := rpc.Then(rpc.Then(f, func(y *tensor.Tensor) (*tensor.Tensor, error) { called = true; return follow(y) }), again)
			for range 50 {
				_ = c.Param(w).Exp() // what feeds nothing has no part in the gradient
			}
			<-g.Done()
			if called {
				t.Error("what follows ran before it was waited for")
			}
			y, err := g.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			sum = sum.Add(y)
		}
		if err := dc.Backward(t.Context(), sum); err != nil {
			t.Fatal(err)
		}
		return []*tensor.Tensor{dc.Gradient(w).Clone()}
	}
	wantBits(t, "the gradient of w", step(true)[0], step(false)[0])

	// An error is the next future's, and what follows is not called.
	dc, _ := NewContext(all[0])
	c, _ := dc.Pass(t.Context())
	dc.Close()
	g := rpc.Then(relayMethod.Async(c, to, tensor.Full(1, 2, 4)), func(*tensor.Tensor) (int, error) { t.Error("called"); return 0, nil })
	if _, err := g.Wait(t.Context()); !errors.Is(err, ErrReleased) {
		t.Errorf("a call of a closed context: %v", err)
	}

	e := nn.Evaluation(t.Context())
	defer e.Close()
	ran := make(chan bool, 1)
	rpc.Then(relayMethod.Async(e, to, tensor.Full(1, 2, 4)), func(*tensor.Tensor) (int, error) { ran <- true; return 0, nil })
	<-ran
}
