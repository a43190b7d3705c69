// SPDX-License-Identifier: Apache-2.0

package disttest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/disttest"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/tensor"
)

// More runs: go test ./dist/disttest -run TestRandomFaults -runs 1000. One of
// them again: -runs 1 -seed N.
var (
	numRuns   = flag.Int("runs", 25, "how many runs with random faults to play")
	firstSeed = flag.Uint64("seed", 1, "the seed of the first of them, 0 for a random one")
)

// TestRandomFaults plays jobs of 2 to 8 ranks with faults that a seed chooses.
// However they fall, every rank ends well, or within the silence limit and a
// second with an error that says whom it is about.
func TestRandomFaults(t *testing.T) {
	tensor.CPU() // outside of the bubbles
	const limit = 20 * time.Second
	first := *firstSeed
	if first == 0 {
		first = rand.Uint64()
	}
	failed := 0
	for i := range uint64(*numRuns) {
		seed := first + i
		n := 2 + int(seed%7)
		main := func(ctx context.Context, g *dist.Group) error {
			for step := range 40 {
				x := tensor.Full(1, 1+step*step*40)
				if err := g.AllReduce(ctx, x, dist.Sum); err != nil {
					return err
				}
				if x.Float32s()[0] != float32(n) {
					return errors.New("the sum is wrong")
				}
				time.Sleep(20 * time.Millisecond)
			}
			return nil
		}
		var res *disttest.Result
		synctest.Test(t, func(t *testing.T) { // Run would print every seed
			var err error
			res, err = disttest.Simulate(t.Context(), n, main, disttest.WithSeed(seed), disttest.WithRandomFaults(1+int(seed%2), time.Second),
				disttest.WithInit(dist.WithTimeout(limit)), disttest.WithLink(disttest.Link{Latency: 100 * time.Microsecond, Jitter: 200 * time.Microsecond, BytesPerSecond: 1e8}))
			if err != nil {
				t.Fatal(err)
			}
		})
		if err := res.Err(); err != nil && len(res.Faults) == 0 {
			t.Errorf("seed %d: nothing happened, and %v", seed, err)
		}
		most := limit
		for r, rank := range res.Ranks {
			var other *dist.RankError
			var late *dist.TimeoutError
			if rank.Began == 0 { // ranks have the time to come that they are given
				most = dist.DefaultInitTimeout + time.Second
			}
			switch err := rank.Err; {
			case err == nil:
				continue
			case errors.Is(err, disttest.ErrKilled) || errors.Is(err, disttest.ErrStopped):
			case errors.As(err, &other) && (other.Rank != r || errors.Is(other, dist.ErrSilent) || rank.Began == 0):
			case errors.As(err, &late) && len(late.Missing) > 0:
			case rank.Began == 0 && errors.As(err, new(*transport.Error)) && strings.Contains(err.Error(), " rank 0 "): // not reached: whose fault that is, is not known
			default:
				t.Errorf("seed %d: rank %d ended with %v, which names nobody:\n%v", seed, r, err, res)
			}
			failed++
			if took := rank.Ended - res.Faults[len(res.Faults)-1].At; rank.Began > 0 && took > silence && !errors.Is(rank.Err, disttest.ErrStopped) {
				t.Errorf("seed %d: rank %d ended %v after the last fault:\n%v", seed, r, took, res)
			}
			// A rank that the fault is about may find others silent, any of them.
			if len(res.Faults) != 1 {
				continue
			}
			if culprits := res.Faults[0].Fault.Ranks(); !slices.Contains(culprits, r) && !mentions(rank.Err, culprits) {
				t.Errorf("seed %d: rank %d ended with %v, which does not name who is at fault:\n%v", seed, r, rank.Err, res)
			}
		}
		if res.Elapsed > most {
			t.Errorf("seed %d: it took %v, want %v at most:\n%v", seed, res.Elapsed, most, res)
		}
	}
	t.Logf("%d runs from seed %d: %d ranks ended with an error", *numRuns, first, failed)
}

// mentions reports whether an error's text has one of some ranks.
func mentions(err error, ranks []int) bool {
	return slices.ContainsFunc(ranks, func(r int) bool { return strings.Contains(err.Error(), fmt.Sprintf("rank %d", r)) })
}
