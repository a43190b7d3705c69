// SPDX-License-Identifier: Apache-2.0

package disttest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/disttest"
)

// named checks that a rank's error names another rank and has a cause.
func named(t *testing.T, res *disttest.Result, rank, culprit int, cause error) {
	t.Helper()
	var failed *dist.RankError
	if err := res.Ranks[rank].Err; !errors.As(err, &failed) || failed.Rank != culprit || !errors.Is(failed, cause) {
		t.Errorf("rank %d ended with %v, want an error that names rank %d (%v)", rank, err, culprit, cause)
	}
}

func TestKill(t *testing.T) {
	for _, victim := range []int{0, 2} {
		res := disttest.Run(t, 4, sums(100, 10*time.Millisecond), disttest.WithFaults(disttest.Kill(victim).AtCall(victim, 17)))
		for r, rank := range res.Ranks {
			if r == victim {
				if !errors.Is(rank.Err, disttest.ErrKilled) {
					t.Errorf("rank %d ended with %v", r, rank.Err)
				}
				continue
			}
			named(t, res, r, victim, dist.ErrDied)
			if took := rank.Ended - res.Faults[0].At; took > time.Second {
				t.Errorf("rank %d learned of it after %v", r, took)
			}
		}
	}
}

// TestKilledWhileForming kills a rank that has come, but before the group is
// there, at many moments of that.
func TestKilledWhileForming(t *testing.T) {
	formed := disttest.Run(t, 4, sums(1, 0), disttest.WithSeed(1)).Ranks[0].Began
	for at := 10 * time.Microsecond; at < formed; at += formed / 50 {
		res := disttest.Run(t, 4, sums(1, 0), disttest.WithSeed(1), disttest.WithFaults(disttest.Kill(3).At(at)))
		for r, rank := range res.Ranks {
			var failed *dist.RankError
			var late *dist.TimeoutError
			switch {
			case r == 3 && errors.Is(rank.Err, disttest.ErrKilled):
			case r != 3 && errors.As(rank.Err, &failed) && failed.Rank == 3:
			case r != 3 && errors.As(rank.Err, &late) && len(late.Missing) == 1 && late.Missing[0].Rank == 3:
			default:
				t.Errorf("killed at %v: rank %d ended with %v after %v", at, r, rank.Err, rank.Ended)
			}
		}
	}
}

// TestStopForSomeTime: a rank that goes on in time has cost time only.
func TestStopForSomeTime(t *testing.T) {
	res := disttest.Run(t, 3, sums(10, 100*time.Millisecond), disttest.WithFaults(disttest.Stop(1).At(450*time.Millisecond).For(2*time.Second)))
	if err := res.Err(); err != nil {
		t.Error(err)
	}
	if res.Elapsed < 2900*time.Millisecond || res.Elapsed > 3*time.Second {
		t.Errorf("10 steps of 100 ms and a stop of 2 s within one took %v", res.Elapsed)
	}
}

// TestLineThatComesBack: what is sent into a line that is cut comes later.
func TestLineThatComesBack(t *testing.T) {
	for _, f := range []disttest.Fault{disttest.Cut(0, 2), disttest.CutOneWay(2, 0), disttest.Isolate(0)} {
		res := disttest.Run(t, 3, sums(10, 100*time.Millisecond), disttest.WithFaults(f.At(450*time.Millisecond).For(2*time.Second)))
		if err := res.Err(); err != nil {
			t.Errorf("%v: %v", f, err)
		}
		if res.Elapsed < 2400*time.Millisecond || res.Elapsed > 3100*time.Millisecond {
			t.Errorf("%v: the run took %v", f, res.Elapsed)
		}
	}
}

// silence is how long a rank may be silent by default, and what finding it out
// may take.
const silence = 4 * time.Second

// TestPartition: two halves that do not hear of each other end all the same,
// each with a name of the other half.
func TestPartition(t *testing.T) {
	res := disttest.Run(t, 4, sums(100, 10*time.Millisecond), disttest.WithFaults(disttest.Isolate(2, 3).At(300*time.Millisecond)))
	for r, rank := range res.Ranks {
		var failed *dist.RankError
		if !errors.As(rank.Err, &failed) || failed.Rank/2 == r/2 || !errors.Is(failed, dist.ErrSilent) {
			t.Errorf("rank %d ended with %v, want an error that names one of the other half", r, rank.Err)
		}
		if took := rank.Ended - res.Faults[0].At; took > silence {
			t.Errorf("rank %d learned of it after %v", r, took)
		}
	}
}

// TestCutBetweenTwo: two ranks that reach rank 0 but not each other are found
// out, and all hear of it.
func TestCutBetweenTwo(t *testing.T) {
	for _, f := range []disttest.Fault{disttest.Cut(1, 2), disttest.CutOneWay(1, 2)} {
		res := disttest.Run(t, 3, sums(100, 10*time.Millisecond), disttest.WithFaults(f.At(300*time.Millisecond)))
		for r, rank := range res.Ranks {
			var failed *dist.RankError
			if !errors.As(rank.Err, &failed) || failed.Rank == 0 || !errors.Is(failed, dist.ErrSilent) || !strings.Contains(failed.Error(), "the line between the two is cut") {
				t.Errorf("%v: rank %d ended with %v, want an error that names the cut line", f, r, rank.Err)
			}
			if took := rank.Ended - res.Faults[0].At; took > silence {
				t.Errorf("%v: rank %d learned of it after %v", f, r, took)
			}
		}
	}
}

// TestStoppedForGood: a rank that never goes on is found silent.
func TestStoppedForGood(t *testing.T) {
	for _, victim := range []int{0, 2} {
		res := disttest.Run(t, 3, sums(100, 10*time.Millisecond), disttest.WithFaults(disttest.Stop(victim).AtCall(victim, 5)))
		for r, rank := range res.Ranks {
			if r == victim {
				if !errors.Is(rank.Err, disttest.ErrStopped) {
					t.Errorf("rank %d ended with %v", r, rank.Err)
				}
				continue
			}
			named(t, res, r, victim, dist.ErrSilent)
			if took := rank.Ended - res.Faults[0].At; took > silence {
				t.Errorf("rank %d learned of it after %v", r, took)
			}
		}
	}
}

// TestStoppedTooLong: a rank that goes on late hears that the others have given
// it up, and accuses nobody.
func TestStoppedTooLong(t *testing.T) {
	for _, victim := range []int{0, 1} {
		res := disttest.Run(t, 3, sums(100, 10*time.Millisecond), disttest.WithFaults(disttest.Stop(victim).At(200*time.Millisecond).For(time.Minute)))
		for r := range res.Ranks {
			named(t, res, r, victim, dist.ErrSilent)
		}
	}
}

// TestWithoutSilence: where silence is no fault, the operation's time limit
// ends the wait.
func TestWithoutSilence(t *testing.T) {
	res := disttest.Run(t, 3, sums(100, 10*time.Millisecond), disttest.WithFaults(disttest.Stop(1).AtCall(1, 5)),
		disttest.WithInit(dist.WithSilence(0), dist.WithTimeout(10*time.Minute)))
	var late *dist.TimeoutError
	if err := res.Ranks[0].Err; !errors.As(err, &late) || len(late.Missing) != 1 || late.Missing[0].Rank != 1 {
		t.Errorf("rank 0 ended with %v, want a time-out that misses rank 1", err)
	}
	if res.Elapsed < 10*time.Minute || res.Elapsed > 11*time.Minute {
		t.Errorf("the run took %v", res.Elapsed)
	}
}

// TestInject lets main choose the moment.
func TestInject(t *testing.T) {
	res := disttest.Run(t, 3, func(ctx context.Context, g *dist.Group) error {
		if g.Rank() == 0 {
			time.Sleep(time.Second)
			if err := disttest.Inject(ctx, disttest.Kill(1)); err != nil {
				return err
			}
		}
		return errors.Join(g.Barrier(ctx), g.Barrier(ctx))
	})
	named(t, res, 0, 1, dist.ErrDied)
	named(t, res, 2, 1, dist.ErrDied)
	if at := res.Faults[0].At; at < time.Second || at > 1010*time.Millisecond {
		t.Errorf("the fault happened at %v", at)
	}
}

// TestSurvivorsGoOn: the others make a group of their own and go on.
func TestSurvivorsGoOn(t *testing.T) {
	for victim := range 4 {
		var formed [4]time.Duration
		res := disttest.Run(t, 4, func(ctx context.Context, g *dist.Group) error {
			for {
				err := g.Barrier(ctx)
				if err == nil {
					time.Sleep(time.Millisecond)
					continue
				}
				if ctx.Err() != nil {
					return err
				}
				var failed *dist.RankError
				if !errors.As(err, &failed) {
					return err
				}
				var left []int
				for r := range g.Size() {
					if r != failed.Rank {
						left = append(left, r)
					}
				}
				start := time.Now()
				sub, err := g.NewGroup(ctx, left)
				if err != nil {
					return err
				}
				formed[g.Rank()] = time.Since(start)
				return sums(10, time.Millisecond)(ctx, sub)
			}
		}, disttest.WithFaults(disttest.Kill(victim).At(500*time.Millisecond)))
		for r, rank := range res.Ranks {
			if r != victim && rank.Err != nil {
				t.Errorf("rank %d died; rank %d ended with %v", victim, r, rank.Err)
			}
			if formed[r] > 100*time.Millisecond {
				t.Errorf("rank %d died; rank %d needed %v for a new group", victim, r, formed[r])
			}
		}
	}
}
