// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"testing"

	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

// TestAbandonedCall: a call that is to be answered later is given up by its caller. The
// backward pass does without it, and what its handler has begun computes on with its
// own memory, also when the pass is over and the context has been closed.
func TestAbandonedCall(t *testing.T) {
	all, _ := agents(t, "pipe", 2)
	s := newStage(1)
	begun, goOn := make(chan bool), make(chan bool)
	type result struct {
		values []float32
		err    error
	}
	results := make(chan result, 1)
	err := all[1].Offer(
		rpc.Serve(layerMethod, func(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			return s.forward(Ctx(ctx), x), nil
		}),
		rpc.ServeAsync(relayMethod, func(ctx context.Context, x *tensor.Tensor) *rpc.Future[*tensor.Tensor] {
			f, resolve := rpc.NewFuture[*tensor.Tensor]()
			go func() {
				c := Ctx(ctx)
				h := x.Exp()
				y, err := layerMethod.Call(c, rpc.AgentOf(ctx).Self(), h)
				if err != nil {
					resolve(nil, err)
					return
				}
				begun <- true
				<-goOn
				defer func() {
					if v := recover(); v != nil {
						results <- result{err: v.(error)}
					}
				}()
				z := y.Mul(c.Param(s.model.Bias)).Add(h)
				results <- result{values: z.Float32s()}
				resolve(z, nil)
			}()
			return f
		}))
	if err != nil {
		t.Fatal(err)
	}
	w, to := param(7, 2, 4), all[0].PeerRank(1)
	var want []float32
	for _, closed := range []bool{false, true} {
		dc, err := NewContext(all[0])
		if err != nil {
			t.Fatal(err)
		}
		c, err := dc.Pass(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(c)
		x := c.Param(w)
		f := relayMethod.Async(ctx, to, x)
		<-begun
		if closed {
			cancel()
			if _, err := f.Wait(t.Context()); rpc.KindOf(err) != rpc.KindCanceled {
				t.Errorf("the call ended as %v", err)
			}
			y, err := layerMethod.Call(c, to, x)
			if err != nil {
				t.Fatal(err)
			}
			if err := dc.Backward(t.Context(), y.Sum()); err != nil {
				t.Error(err)
			}
			dc.Close()
			e, _ := engineOf(all[1])
			agenttest.Eventually(t, "the context is over", func() bool { return len(e.all()) == 0 })
			for range 20 { // what has been freed is used again
				tensor.Full(9, 2, 4)
			}
		}
		goOn <- true
		got := <-results
		if got.err != nil {
			t.Fatalf("what the handler has begun: %v", got.err)
		}
		if !closed {
			want = got.values
			if _, err := f.Wait(t.Context()); err != nil {
				t.Error(err)
			}
			dc.Close()
		}
		for i := range want {
			if got.values[i] != want[i] {
				t.Fatalf("after the end of the context the handler computes %v, want %v", got.values, want)
			}
		}
		cancel()
	}
}
