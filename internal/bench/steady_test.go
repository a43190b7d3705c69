// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"flag"
	"runtime"
	"testing"

	"github.com/cohort-ml/cohort/internal/mem"
	"github.com/cohort-ml/cohort/tensor"
)

var steadySteps = flag.Int("steady-steps", 20, "steps that TestSteadyState watches; 1000 shows what a long run does")

// TestSteadyState: a training step leaves nothing behind. After the first few,
// no memory comes from the system, neither for tensors nor for the collector's
// heap, and what a step allocates there stays within bounds.
func TestSteadyState(t *testing.T) {
	for _, c := range []struct {
		model     string
		maxAllocs float64 // a step
	}{{"mlp", 500}, {"gpt", 3500}, {"cnn", 1000}} {
		t.Run(c.model, func(t *testing.T) {
			w := newWorkload(StepOptions{Model: c.model, Batch: 1})
			steps := func(n int) {
				t.Helper()
				for range n {
					if _, err := w.run(t.Context(), w.model); err != nil {
						t.Fatal(err)
					}
				}
			}
			liveBytes := func() int64 {
				runtime.GC()
				runtime.GC() // what the cleanups of the first have let go
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return int64(m.HeapAlloc)
			}
			pool := func() mem.Stats { return tensor.CPU().(interface{ MemoryStats() mem.Stats }).MemoryStats() }

			warmUp := max(5, *steadySteps/10)
			steps(warmUp)
			live, reserved, resident := liveBytes(), pool(), residentBytes()
			before := readUsage()
			steps(*steadySteps - warmUp)
			spent := readUsage().since(before)
			grown := liveBytes() - live
			now := pool()
			t.Logf("resident after %d steps %s, after %d %s; heap %s and %+d bytes; collector %.2f %% of the processor time",
				warmUp, size(resident), *steadySteps, size(residentBytes()), size(live), grown, 100*spent.gcSeconds/spent.cpuSeconds)
			if now.NumRegions != reserved.NumRegions || now.Reserved != reserved.Reserved || now.InUse > reserved.InUse {
				t.Errorf("the pool went from %+v to %+v in %d steps", reserved, now, *steadySteps-warmUp)
			}
			// A step of gpt allocates 150 KB: if steps left theirs behind, megabytes.
			if limit := int64(256 << 10); grown > limit {
				t.Errorf("the live heap grew by %d bytes in %d steps, want at most %d", grown, *steadySteps-warmUp, limit)
			}
			if got := float64(spent.allocs) / float64(*steadySteps-warmUp); got > c.maxAllocs {
				t.Errorf("%.0f allocations a step, want at most %v", got, c.maxAllocs)
			}
		})
	}
}
