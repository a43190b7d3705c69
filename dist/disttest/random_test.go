// SPDX-License-Identifier: Apache-2.0

package disttest_test

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/disttest"
	"github.com/cohort-ml/cohort/tensor"
)

// More runs: go test ./dist/disttest -run TestRandomFaults -runs 1000.
var numRuns = flag.Int("runs", 25, "how many runs with random faults to play")

// TestRandomFaults plays jobs of 2 to 8 ranks with faults that a seed chooses.
// However they fall, every rank ends in time, and with an error that says whom
// it is about, or well.
func TestRandomFaults(t *testing.T) {
	const limit = 20 * time.Second
	first := rand.Uint64()
	failed := 0
	for i := range uint64(*numRuns) {
		seed := first + i
		n := 2 + int(seed%7)
		res := disttest.Run(t, n, func(ctx context.Context, g *dist.Group) error {
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
		}, disttest.WithSeed(seed), disttest.WithRandomFaults(1+int(seed%2), time.Second), disttest.WithInit(dist.WithTimeout(limit)),
			disttest.WithLink(disttest.Link{Latency: 100 * time.Microsecond, Jitter: 200 * time.Microsecond, BytesPerSecond: 1e8}))
		for r, rank := range res.Ranks {
			var other *dist.RankError
			var late *dist.TimeoutError
			switch err := rank.Err; {
			case err == nil:
				continue
			case errors.Is(err, disttest.ErrKilled) || errors.Is(err, disttest.ErrStopped):
			case errors.As(err, &other) && (other.Rank != r || errors.Is(other, dist.ErrSilent)):
			case errors.As(err, &late) && len(late.Missing) > 0:
			default:
				t.Errorf("seed %d: rank %d ended with %v, which names nobody:\n%v", seed, r, err, res)
			}
			failed++
		}
		if most := limit + keepAlive + 10*time.Second; res.Elapsed > most {
			t.Errorf("seed %d: it took %v, want %v at most:\n%v", seed, res.Elapsed, most, res)
		}
	}
	t.Logf("%d runs from seed %d: %d ranks ended with an error", *numRuns, first, failed)
}

// keepAlive is how long the system's sockets take to give up a silent peer.
const keepAlive = 25 * time.Second
