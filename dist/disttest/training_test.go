// SPDX-License-Identifier: Apache-2.0

package disttest_test

import (
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/disttest"
)

// TestTraining is the test of the example's loop.
func TestTraining(t *testing.T) { survives(t) }

// TestTrainingEnds: without a fault the loop learns, in the time that its steps
// and its lines take.
func TestTrainingEnds(t *testing.T) {
	for _, l := range []disttest.Link{disttest.DefaultLink, {Latency: 5 * time.Millisecond}} {
		res := disttest.Run(t, 3, train, disttest.WithLink(l))
		if err := res.Err(); err != nil {
			t.Error(err)
		}
		step := (res.Elapsed - res.Ranks[0].Began) / 200
		if step < 30*time.Millisecond || step > 31*time.Millisecond+3*l.Latency {
			t.Errorf("over a line of %v a step took %v", l, step)
		}
	}
}

// TestTrainingAgain: a training loop under faults goes the same way again.
func TestTrainingAgain(t *testing.T) {
	for seed := range uint64(3) {
		run := func() string {
			return disttest.Run(t, 3, train, disttest.WithSeed(seed), disttest.WithRandomFaults(2, 3*time.Second),
				disttest.WithLink(disttest.Link{Latency: time.Millisecond, Jitter: time.Millisecond}), disttest.WithInit(dist.WithTimeout(10*time.Second))).Trace()
		}
		first := run()
		for range 3 {
			if again := run(); again != first {
				t.Fatalf("seed %d: two runs differ:\n%s\n%s", seed, first, again)
			}
		}
	}
}
