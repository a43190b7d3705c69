// SPDX-License-Identifier: Apache-2.0

package disttest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/disttest"
	"github.com/cohort-ml/cohort/tensor"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/cohort-ml/cohort/internal/work.(*worker).serve"))
}

// sums adds up numbers over the ranks, with a pause between.
func sums(steps int, pause time.Duration) func(ctx context.Context, g *dist.Group) error {
	return func(ctx context.Context, g *dist.Group) error {
		for i := range steps {
			x := tensor.Full(float64(g.Rank()+i), 10)
			if err := g.AllReduce(ctx, x, dist.Sum); err != nil {
				return err
			}
			if got, want := x.Float32s()[0], float32(g.Size()*(g.Size()-1)/2+i*g.Size()); got != want {
				return fmt.Errorf("step %d: the sum is %v, want %v", i, got, want)
			}
			time.Sleep(pause)
		}
		return nil
	}
}

func TestRun(t *testing.T) {
	for _, n := range []int{1, 2, 5} {
		res := disttest.Run(t, n, sums(20, time.Second))
		if err := res.Err(); err != nil {
			t.Errorf("%d ranks: %v", n, err)
		}
		if res.Elapsed < 20*time.Second || res.Elapsed > 20*time.Second+100*time.Millisecond {
			t.Errorf("%d ranks: 20 steps of a second took %v", n, res.Elapsed)
		}
		if len(res.Calls) != 20*n {
			t.Errorf("%d ranks: %d calls", n, len(res.Calls))
		}
		for _, r := range res.Ranks {
			if n > 1 && r.Began == 0 || r.Ended < 20*time.Second {
				t.Errorf("%d ranks: a rank began at %v and ended at %v", n, r.Began, r.Ended)
			}
		}
	}
}

// TestEverything runs the kinds of operations, of groups of some ranks too, on
// two nodes of three ranks.
func TestEverything(t *testing.T) {
	res := disttest.Run(t, 6, func(ctx context.Context, g *dist.Group) error {
		if g.LocalSize() != 3 {
			return fmt.Errorf("%d ranks on this node", g.LocalSize())
		}
		sub, err := g.Split(ctx, g.Rank()%2, 0)
		if err != nil {
			return err
		}
		for _, g := range []*dist.Group{g, sub} {
			n, r := g.Size(), g.Rank()
			x := tensor.Full(float64(r), 300_000)
			w := g.AllReduceAsync(ctx, x, dist.Max)
			if err := w.Wait(ctx); err != nil {
				return err
			}
			if x.Float32s()[299_999] != float32(n-1) {
				return fmt.Errorf("%v: the maximum is %v", g, x.Float32s()[299_999])
			}
			all := tensor.New(tensor.CPU(), tensor.Float32, n)
			if err := g.AllGather(ctx, all, tensor.Full(float64(r), 1)); err != nil {
				return err
			}
			if all.Float32s()[n-1] != float32(n-1) {
				return fmt.Errorf("%v: gathered %v", g, all)
			}
			in, out := tensor.Full(0, 1), tensor.Full(float64(r), 1)
			if r%2 == 0 && r+1 < n {
				err = g.Send(ctx, out, r+1)
			} else if r%2 == 1 {
				if err = g.Recv(ctx, in, r-1); err == nil && in.Float32s()[0] != float32(r-1) {
					err = fmt.Errorf("%v: received %v", g, in)
				}
			}
			if err != nil {
				return err
			}
			if err := g.MonitoredBarrier(ctx); err != nil {
				return err
			}
		}
		return g.Barrier(ctx)
	}, disttest.WithNodes(0, 0, 0, 1, 1, 1))
	if err := res.Err(); err != nil {
		t.Error(err)
	}
}

// TestLineIsFelt: latency and rate are seen in the times of calls.
func TestLineIsFelt(t *testing.T) {
	const bytes = 8 << 20
	run := func(l disttest.Link, faults ...disttest.Fault) (barrier, reduce time.Duration) {
		res := disttest.Run(t, 2, func(ctx context.Context, g *dist.Group) error {
			if err := errors.Join(g.Barrier(ctx), g.Barrier(ctx)); err != nil { // the first opens connections
				return err
			}
			x := tensor.Full(1, bytes/4)
			return errors.Join(g.AllReduce(ctx, x, dist.Sum), g.AllReduce(ctx, x, dist.Sum))
		}, disttest.WithLink(l), disttest.WithFaults(faults...))
		if err := res.Err(); err != nil {
			t.Fatal(err)
		}
		took := func(i int) time.Duration { // from the first rank's begin to the last one's end
			return max(res.Calls[2*i].Ended, res.Calls[2*i+1].Ended) - res.Calls[2*i].Began
		}
		return took(1), took(3)
	}
	near := func(what string, got, want time.Duration) {
		t.Helper()
		if got < want*95/100 || got > want*115/100 {
			t.Errorf("%s took %v, want about %v", what, got, want)
		}
	}
	// Two ranks halve the data: each sends one half, then the other one's sum.
	line := disttest.Link{Latency: 20 * time.Millisecond, BytesPerSecond: 100e6}
	barrier, reduce := run(line)
	near("a barrier, to a root and back, over 20 ms", barrier, 40*time.Millisecond)
	near("an all-reduce of 8 MiB over 100 MB/s", reduce, 84*time.Millisecond+40*time.Millisecond)
	slow := disttest.Link{Latency: 20 * time.Millisecond, BytesPerSecond: 10e6}
	_, reduce = run(line, disttest.Slow(0, 1, slow))
	near("an all-reduce of 8 MiB over 10 MB/s", reduce, 840*time.Millisecond+40*time.Millisecond)
}

// TestLeavesAtOnce: ranks that have nothing to do leave as soon as their Init has returned,
// while that of others has yet to hear from them.
func TestLeavesAtOnce(t *testing.T) {
	for seed := range uint64(20) {
		res := disttest.Run(t, 3, func(context.Context, *dist.Group) error { return nil },
			disttest.WithSeed(seed), disttest.WithLink(disttest.Link{Latency: time.Millisecond, Jitter: 50 * time.Millisecond}))
		if err := res.Err(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// TestSimulate runs where it is called: in real time, and in a bubble.
func TestSimulate(t *testing.T) {
	run := func(ctx context.Context) error {
		res, err := disttest.Simulate(ctx, 3, sums(5, time.Millisecond))
		if err != nil {
			return err
		}
		return res.Err()
	}
	if err := run(t.Context()); err != nil {
		t.Error(err)
	}
	synctest.Test(t, func(t *testing.T) {
		if err := run(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestMainThatBreaksOff: a panic and FailNow are errors of their rank.
func TestMainThatBreaksOff(t *testing.T) {
	for name, breakOff := range map[string]func(){
		"boom": func() { panic("boom") },
		"FailNow": func() {
			// As t.FailNow would, but for the failure.
			(&testing.T{}).SkipNow()
		},
	} {
		res := disttest.Run(t, 2, func(ctx context.Context, g *dist.Group) error {
			if g.Rank() == 1 {
				breakOff()
			}
			return g.Barrier(ctx)
		})
		var failed *dist.RankError
		if err := res.Ranks[1].Err; err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: rank 1 ended with %v", name, err)
		}
		if err := res.Ranks[0].Err; !errors.As(err, &failed) || failed.Rank != 1 {
			t.Errorf("%s: rank 0 ended with %v, want an error that names rank 1", name, err)
		}
	}
}

func TestBadOptions(t *testing.T) {
	for _, tc := range []struct {
		n    int
		opt  disttest.Option
		want string
	}{
		{0, disttest.WithSeed(1), "run of 0 ranks"},
		{2, disttest.WithNodes(1), "the nodes of 1 ranks"},
		{2, disttest.WithLink(disttest.Link{Latency: -1}), "none below 0"},
		{2, disttest.WithFaults(disttest.Kill(2)), "no rank 2 of 2"},
		{2, disttest.WithFaults(disttest.Cut(1, 1)), "rank 1 is there twice"},
		{2, disttest.WithFaults(disttest.Isolate()), "want some of 2 ranks"},
		{2, disttest.WithFaults(disttest.Isolate(0, 1)), "want some of 2 ranks"},
		{2, disttest.WithFaults(disttest.Kill(1).For(1)), "killed for a time"},
		{2, disttest.WithFaults(disttest.Stop(1).At(-1)), "below 0"},
		{2, disttest.WithFaults(disttest.Stop(1).AtCall(1, 0)), "a call from 1"},
		{2, disttest.WithFaults(disttest.Fault{}), "no kind"},
		{2, disttest.WithRandomFaults(1, 0), "1 faults within"},
		{1, disttest.WithRandomFaults(1, 1), "no lines"},
	} {
		if _, err := disttest.Simulate(t.Context(), tc.n, sums(1, 0), tc.opt); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got %v, want an error with %q", err, tc.want)
		}
	}
	if err := disttest.Inject(t.Context(), disttest.Kill(0)); err == nil {
		t.Error("Inject outside of a run")
	}
}
