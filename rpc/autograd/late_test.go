// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

func identity(_ context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) { return in, nil }

// soon is for passes that end at once, or never.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// begun waits until a pass runs at an engine.
func begun(t testing.TB, e *engine, id uint64) {
	t.Helper()
	agenttest.Eventually(t, "the pass has begun", func() bool {
		s, err := e.state(id)
		if err != nil {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.asked > 0
	})
}

// TestACallThatComesWhileThePassRuns has no part in it, and does not hold it up;
// neither does one that never comes.
func TestACallThatComesWhileThePassRuns(t *testing.T) {
	for _, comes := range []bool{true, false} {
		cl := newCluster(2)
		w := param(1, 4)
		dc := newContext(cl.engines[0], nil)
		c, _ := dc.Pass(t.Context())
		args := []*tensor.Tensor{c.Param(w).Exp()}
		extra, err := cl.engines[0].sendCall(c, first(1), "late", args)
		if err != nil {
			t.Fatal(err)
		}
		end := make(chan error, 1)
		go func() { end <- dc.Backward(soon(t), c.Param(w).Sum()) }()
		begun(t, cl.engines[1], dc.ID())
		if comes {
			e := cl.engines[1]
			ctx, err := e.receiveCall(t.Context(), first(0), "late", extra, copies(args))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := e.sendReply(ctx, 0, "late", false, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-end; err != nil {
			t.Errorf("comes %t: %v", comes, err)
		}
		wantBits(t, "w", dc.Gradient(w), tensor.Full(1, 4))
		dc.Close()
		cl.wantNothingLeft(t)
	}
}

// TestACallThatNeverCameFailsAFastPass, which needs all of them.
func TestACallThatNeverCameFailsAFastPass(t *testing.T) {
	cl := newCluster(2)
	dc := newContext(cl.engines[0], nil)
	c, _ := dc.Pass(t.Context())
	x := c.Param(param(1, 4))
	if _, err := cl.engines[0].sendCall(c, first(1), "lost", []*tensor.Tensor{x}); err != nil {
		t.Fatal(err)
	}
	wantError(t, dc.Backward(soon(t), x.Sum(), WithMode(Fast)), ErrUnreached, "argument of lost 0 never came to worker1")
	cl.wantNothingLeft(t)
}

// TestACallOnToANewWorkerWhileThePassWaits: the callee is told that a pass has
// been asked for, and answers that what it got is no part of it.
func TestACallOnToANewWorkerWhileThePassWaits(t *testing.T) {
	cl := newCluster(3)
	w := param(1, 4)
	dc := newContext(cl.engines[0], nil)
	c, _ := dc.Pass(t.Context())
	goOn := make(chan struct{})
	slow := func(ctx context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
		<-goOn
		return cl.async(Ctx(ctx), 1, 2, "identity", identity, in[0].Exp())()
	}
	wait := cl.async(c, 0, 1, "slow", slow, c.Param(w).Exp())
	// Worker 1 has a context only once the call has come.
	agenttest.Eventually(t, "the call runs", func() bool {
		s, err := cl.engines[1].state(dc.ID())
		return err == nil && s.quietSince(time.Now().Add(time.Hour)) == 0
	})
	end := make(chan error, 1)
	go func() { end <- dc.Backward(soon(t), c.Param(w).Sum()) }()
	begun(t, cl.engines[1], dc.ID())
	close(goOn)
	if err := <-end; err != nil {
		t.Error(err)
	}
	wantBits(t, "w", dc.Gradient(w), tensor.Full(1, 4))
	if _, err := wait(); err != nil {
		t.Error(err)
	}
	dc.Close()
	cl.wantNothingLeft(t)
}

// TestAnAnswerThatCouldNotBeSent holds nothing up.
func TestAnAnswerThatCouldNotBeSent(t *testing.T) {
	cl := newCluster(2)
	w := param(1, 4)
	dc := newContext(cl.engines[0], nil)
	c, _ := dc.Pass(t.Context())
	args := []*tensor.Tensor{c.Param(w).Exp()}
	extra, _ := cl.engines[0].sendCall(c, first(1), "big", args)
	e, got := cl.engines[1], copies(args)
	ctx, err := e.receiveCall(t.Context(), first(0), "big", extra, got)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.sendReply(ctx, 0, "big", false, []*tensor.Tensor{got[0].Exp()}); err != nil {
		t.Fatal(err)
	}
	extra, err = e.sendReply(ctx, 0, "big", true, nil) // it was too large, say
	if err != nil {
		t.Fatal(err)
	}
	if err := cl.engines[0].receiveReply(c, 1, "big", true, extra, nil); err != nil {
		t.Fatal(err)
	}
	cl.before = func(_, to int, what string) error {
		if what == "missing" {
			t.Errorf("worker%d is asked for what was never sent", to)
		}
		return nil
	}
	if err := dc.Backward(soon(t), c.Param(w).Sum()); err != nil {
		t.Error(err)
	}
	dc.Close()
	cl.wantNothingLeft(t)
}

// TestACallThatWasRefused, before its hook saw it, leaves the context as it is.
func TestACallThatWasRefused(t *testing.T) {
	all, workers := agents(t, "unix", 2)
	dc, err := NewContext(all[0])
	if err != nil {
		t.Fatal(err)
	}
	defer dc.Close()
	c, _ := dc.Pass(t.Context())
	x := c.Param(workers[0].params[0])
	if _, err := layerMethod.Call(c, all[0].Peer("worker1"), x); err == nil {
		t.Fatal("a test worker serves no layer")
	}
	if err := dc.Backward(soon(t), x.Sum()); err != nil {
		t.Error(err)
	}
	wantBits(t, "x", dc.Gradient(workers[0].params[0]), tensor.Full(1, width))
}

// TestWhatIsOnItsWayIsNotFreed: who sends may still read the memory of what was
// sent when the context ends, as long as nobody has said that it arrived.
func TestWhatIsOnItsWayIsNotFreed(t *testing.T) {
	for _, arrived := range []bool{false, true} {
		cl := newCluster(2)
		dc := newContext(cl.engines[0], nil)
		c, _ := dc.Pass(t.Context())
		x := c.Param(param(1, 4)).Exp()
		y := cl.call(t, c, 0, 1, "identity", identity, x)[0]
		if arrived {
			if err := dc.Backward(t.Context(), y.Sum(), WithRetainGraph()); err != nil {
				t.Fatal(err)
			}
		}
		dc.Close()
		freed := func() (freed bool) {
			defer func() { freed = recover() != nil }()
			x.Float32s()
			return
		}()
		if freed != arrived {
			t.Errorf("arrived %t, freed %t", arrived, freed)
		}
	}
}

// TestPartsOfAGradientAreAddedInOrder, whichever is ready first.
func TestPartsOfAGradientAreAddedInOrder(t *testing.T) {
	const n = 6
	p := param(1, 16)
	var want []float32
	for seed := range uint64(50) {
		var gs gradients
		var parts []*part
		for range n {
			parts = append(parts, gs.leaf(p))
		}
		gs.begin(parts)
		order := rand.New(rand.NewPCG(seed, 3)).Perm(n)
		var none []*part
		for _, i := range order {
			if i == 2 {
				none = append(none, parts[i]) // no gradient reached it
				gs.settle(none)
				continue
			}
			buf, _ := parts[i].GradBuffer()
			buf.CopyFrom(tensor.FromFloat32(values(16, 30+i)).MulScalar(float64(int(1) << (5 * i))))
			if err := parts[i].GradReady(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		g, _ := gs.get(p)
		if want == nil {
			want = g.Float32s()
		} else if got := g.Float32s(); !slices.Equal(got, want) {
			t.Fatalf("ready in the order %v the sum is %v, in another %v", order, got, want)
		}
	}
}

// TestAPassThatFailsBeforeItBegins leaves the context usable.
func TestAPassThatFailsBeforeItBegins(t *testing.T) {
	cl := newCluster(2)
	w := param(1, 4)
	dc := newContext(cl.engines[0], nil)
	c, _ := dc.Pass(t.Context())
	loss := cl.call(t, c, 0, 1, "identity", identity, c.Param(w))[0].Sum()
	if err := dc.Backward(t.Context(), nn.NewParameter(tensor.Zeros()).Data()); err == nil || errors.Is(err, ErrReleased) {
		t.Errorf("a loss of no pass: %v", err)
	}
	if err := dc.Backward(soon(t), loss); err != nil {
		t.Error(err)
	}
	dc.Close()
}
