// SPDX-License-Identifier: Apache-2.0

package disttest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/disttest"
	"github.com/cohort-ml/cohort/tensor"
)

// More programs: go test ./dist/disttest -run TestTheSameAgain -programs 1000.
// Others: -seed N.
var numPrograms = flag.Int("programs", 12, "how many random programs to play again")

// program returns a main that makes the calls that a seed chooses: all kinds of
// them, of up to so many elements, asynchronous ones several at a time.
func program(seed uint64, most int) func(ctx context.Context, g *dist.Group) error {
	return func(ctx context.Context, g *dist.Group) error {
		random := rand.New(rand.NewPCG(seed, 1)) // alike on all ranks
		n, r := g.Size(), g.Rank()
		next, before := (r+1)%n, (r+n-1)%n
		var half *dist.Group
		for step := range 25 {
			kind, size := random.IntN(8), 1+random.IntN(1+random.IntN(most))
			root, pause := random.IntN(n), time.Duration(random.IntN(4))*5*time.Millisecond
			a, b := tensor.Full(1, size), tensor.Full(1, size)
			var err error
			switch kind {
			case 0:
				err = g.AllReduce(ctx, a, dist.Sum)
			case 1:
				first, second := g.AllReduceAsync(ctx, a, dist.Sum), g.AllReduceAsync(ctx, b, dist.Max)
				err = errors.Join(first.Wait(ctx), second.Wait(ctx))
			case 2:
				err = g.AllGather(ctx, tensor.New(tensor.CPU(), tensor.Float32, n, size), a)
			case 3:
				err = g.Broadcast(ctx, a, root)
			case 4:
				if half == nil {
					half, err = g.Split(ctx, r%2, 0)
				}
				if err == nil {
					err = half.AllReduce(ctx, a, dist.Sum)
				}
			case 5:
				if r%2 == 0 && r+1 < n {
					err = g.Send(ctx, a, r+1)
				} else if r%2 == 1 {
					err = g.Recv(ctx, a, r-1)
				}
			case 6:
				err = errors.Join(g.Barrier(ctx), g.MonitoredBarrier(ctx))
			case 7:
				in, out := g.RecvAsync(ctx, b, before), g.SendAsync(ctx, a, next)
				err = errors.Join(in.Wait(ctx), out.Wait(ctx))
			}
			if err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
			time.Sleep(pause)
		}
		return nil
	}
}

// TestTheSameAgain plays random programs with random faults over lines of all
// kinds again, and compares everything.
func TestTheSameAgain(t *testing.T) {
	tensor.CPU() // outside of the bubbles
	first := *firstSeed
	if first == 0 {
		first = rand.Uint64()
	}
	num := *numPrograms
	if testing.Short() {
		num = min(num, 4)
	}
	for seed := first; seed < first+uint64(num); seed++ {
		random := rand.New(rand.NewPCG(seed, 2))
		n, faults, most := 2+random.IntN(5), random.IntN(3), []int{100, 10_000, 400_000}[random.IntN(3)]
		link := disttest.Link{
			Latency:        []time.Duration{0, 100 * time.Microsecond, time.Millisecond, 5 * time.Millisecond}[random.IntN(4)],
			Jitter:         []time.Duration{0, 0, time.Millisecond}[random.IntN(3)],
			BytesPerSecond: []float64{0, 1e8, 1e7}[random.IntN(3)],
		}
		play := func(drawn uint64) (trace string) {
			synctest.Test(t, func(t *testing.T) { // Run would print every seed
				res, err := disttest.Simulate(t.Context(), n, program(seed, most), disttest.WithSeed(drawn), disttest.WithLink(link),
					disttest.WithRandomFaults(faults, time.Second), disttest.WithInit(dist.WithTimeout(20*time.Second)))
				if err != nil {
					t.Fatal(err)
				}
				trace = res.Trace()
			})
			return trace
		}
		want := play(seed)
		for range 2 {
			if got := play(seed); got != want {
				t.Fatalf("seed %d: two runs differ:\n%s\n%s", seed, want, got)
			}
		}
		if link.Jitter > 0 && play(seed+1) == want {
			t.Errorf("seed %d: another seed of the lines makes no difference", seed)
		}
	}
	t.Logf("%d programs from seed %d", num, first)
}
