// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

// TestInterrupts: contexts that another process ends, and steps that are canceled, at
// any time: everything ends soon, what is being computed keeps its memory, and
// nothing of the context is left. Run it with -race.
func TestInterrupts(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 11))
		all, workers := agents(t, []string{"pipe", "shm", "unix"}[seed%3], 3)
		for range 4 {
			dc, err := NewContext(all[0])
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			c, err := dc.Pass(ctx)
			if err != nil {
				t.Fatal(err)
			}
			how, after := rng.IntN(3), time.Duration(rng.IntN(3000))*time.Microsecond
			done := make(chan struct{})
			go func() {
				defer close(done)
				time.Sleep(after)
				switch how {
				case 0: // as who has failed does, or has lost who made it
					e, err := engineOf(all[1])
					if err != nil {
						break
					}
					if s, err := e.state(dc.ID()); err == nil {
						s.learn(first(0), first(2))
						e.release(s, ErrReleased, "the test", nil)
					}
				case 1:
					cancel()
				}
			}()
			began := time.Now()
			x := c.Param(workers[0].params[0])
			var fs []*rpc.Future[travelled]
			for i := range 8 {
				choices, _ := rand.NewPCG(uint64(i), seed).MarshalBinary()
				fs = append(fs, bodyMethod.Async(c, all[0].PeerRank(1+i%2), travelling{choices, 5, 3, 2, 1, []*tensor.Tensor{x}}))
			}
			sum := x.Sum()
			for _, f := range fs {
				if out, err := f.Wait(ctx); err == nil && len(out.Out) > 0 {
					sum = sum.Add(out.Out[0].Sum())
				}
			}
			if err := dc.Backward(ctx, sum); err != nil && how == 2 {
				t.Errorf("seed %d: %v", seed, err)
			}
			<-done
			dc.Close()
			cancel()
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("seed %d: it took %v", seed, took)
			}
		}
		wantReleased(t, all)
		for _, a := range all {
			a.Close()
		}
	}
}

// TestTapesOutliveTheirContext: another process ends the context while its maker
// computes. What was computed stays readable.
func TestTapesOutliveTheirContext(t *testing.T) {
	cl := newCluster(2)
	dc, loss := step(t, cl, func(int) error { return nil })
	c, err := dc.Pass(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	y := c.Param(param(3, 4)).Exp()
	want := append([]float32(nil), y.Float32s()...)
	s, err := cl.engines[1].state(dc.ID())
	if err != nil {
		t.Fatal(err)
	}
	cl.engines[1].release(s, ErrReleased, "the test", nil)
	cl.wantNothingLeft(t)
	y = y.Add(c.Param(param(4, 4)))
	if got := y.Sub(c.Param(param(4, 4))); len(got.Float32s()) != len(want) {
		t.Errorf("got %v, want about %v", got, want)
	}
	if err := dc.Backward(t.Context(), loss); !errors.Is(err, ErrReleased) {
		t.Errorf("backward in a released context: %v", err)
	}
}
