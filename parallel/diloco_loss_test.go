// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/parallel/islands"
)

// TestLossCostsNothing: the steps of the others take as long beside an island that is lost, and that
// comes back, as before. Each step takes 25 ms of virtual time, as steps of the main recipe do. With
// fewer steps between exchanges than half of the silence lasts, the others stand still for the rest of
// it, once.
func TestLossCostsNothing(t *testing.T) {
	const stepTime, steps, goes, comes = 25 * time.Millisecond, 600, 151, 5 * time.Second
	for _, c := range []struct {
		name  string
		every int
		most  time.Duration // that a step may take
	}{
		{"50 steps between exchanges", 50, stepTime},
		{"8 steps between exchanges", 8, stepTime + islands.DefaultSilence/2 + islands.DefaultSilence/4},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lost := errors.New("a fault")
				a := &archipelago{t: t, store: store.NewMemory(), islands: 3, ranks: 1, steps: steps, options: DiLoCoOptions{Every: c.every}}
				ends, slowest := make([]islandEnd, 4), make([]time.Duration, 4)
				away := make(chan struct{})
				var running sync.WaitGroup
				for at, island := range []int{0, 1, 2, 2} {
					if at == 3 {
						<-away
						time.Sleep(comes) // of virtual time, as all here
					}
					b := *a
					last := time.Now()
					b.each = func(_, step int) error {
						if took := time.Since(last); step > 0 {
							slowest[at] = max(slowest[at], took)
						}
						last = time.Now()
						time.Sleep(stepTime)
						if at == 2 && step == goes {
							close(away)
							return lost
						}
						return nil
					}
					running.Go(func() { ends[at] = b.run(t.Context(), island) })
				}
				running.Wait()
				for at, e := range ends {
					if (at == 2) != (e.err != nil) || e.err != nil && !strings.Contains(e.err.Error(), lost.Error()) {
						t.Errorf("start %d: %v", at, e.err)
					}
				}
				for at := range 2 {
					e := ends[at]
					together, alone, again := 0, 0, 0
					for _, x := range e.rounds {
						switch {
						case len(x.Members) == 2:
							alone++
						case alone > 0:
							again++
						default:
							together++
						}
					}
					if together == 0 || alone == 0 || again == 0 || slowest[at] > c.most {
						t.Errorf("island %d: %d, %d and %d exchanges, and its slowest step took %v, want %v at most", at, together, alone, again, slowest[at], c.most)
					}
					t.Logf("island %d: %d exchanges with island 2, %d without it, %d with it again; its slowest step took %v", at, together, alone, again, slowest[at])
				}
			})
		})
	}
}
