// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

// TestAgentsGoInMidStep: an agent, the context's maker too, is closed at any time of a
// step. Nobody waits for it, and the others keep nothing of the context.
func TestAgentsGoInMidStep(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 13))
		all, workers := agents(t, []string{"pipe", "shm", "tcp"}[seed%3], 3)
		goes, after := all[rng.IntN(3)], time.Duration(rng.IntN(3000))*time.Microsecond
		closed := make(chan error, 1)
		time.AfterFunc(after, func() { closed <- goes.Close() })
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		for closing := false; !closing; closing = closing || ctx.Err() != nil {
			dc, err := NewContext(all[0])
			if rpc.KindOf(err) == rpc.KindClosed && goes == all[0] {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			c, err := dc.Pass(ctx)
			if err != nil {
				break
			}
			x := c.Param(workers[0].params[0])
			sum := x.Sum()
			for i := range 4 {
				choices, _ := rand.NewPCG(uint64(i), seed).MarshalBinary()
				f := bodyMethod.Async(c, all[0].PeerRank(1+i%2), travelling{choices, 5, 3, 2, 1, []*tensor.Tensor{x}})
				out, err := f.Wait(ctx)
				closing = closing || rpc.KindOf(err) != ""
				if err == nil && len(out.Out) > 0 {
					sum = sum.Add(out.Out[0].Sum())
				}
			}
			closing = dc.Backward(ctx, sum) != nil || closing
			dc.Close()
		}
		cancel()
		if err := <-closed; err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("seed %d: it took %v", seed, took)
		}
		wantReleased(t, all)
		for _, a := range all {
			a.Close()
		}
	}
}

// TestACallOfWhoHasGone does not bring a context to a process: neither to one whose
// agent has been closed, nor when the caller was lost while its call waited for its turn.
// Nobody would say that the context is over.
func TestACallOfWhoHasGone(t *testing.T) {
	cl := newCluster(2)
	dc := newContext(cl.engines[0], nil)
	c, err := dc.Pass(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	extra, err := cl.engines[0].sendCall(c, first(1), "call", []*tensor.Tensor{c.Param(param(1, 4))})
	if err != nil {
		t.Fatal(err)
	}
	lost, end := context.WithCancelCause(t.Context())
	end(errLost)
	receive := func(ctx context.Context) error {
		_, err := cl.engines[1].receiveCall(ctx, first(0), "call", extra, []*tensor.Tensor{tensor.Full(1, 4)})
		return err
	}
	wantError(t, receive(lost), errLost, "call from worker0")
	cl.engines[1].close()
	wantError(t, receive(t.Context()), ErrReleased, "its agent has been closed")
	dc.Close()
	cl.wantNothingLeft(t)
}
