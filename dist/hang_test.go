// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// hangingRank makes calls until rank 1 hangs.
func hangingRank(ctx context.Context, g *Group) error {
	g.watchdog.SetFloor(500 * time.Millisecond)
	for range 10 {
		if err := g.AllReduce(ctx, vec(4), Sum); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	if g.Rank() == 1 {
		hangHere(make(chan struct{}))
	}
	return g.AllReduce(ctx, vec(4), Sum)
}

func hangHere(never chan struct{}) { <-never }

// TestHangingRank: the first rank that waits for one that hangs says so, where that one is
// and on what stack, and no other.
func TestHangingRank(t *testing.T) {
	for _, kind := range []string{"shm", "tcp"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			ps := startRanks(t, 3, "hang", envvar.Transport.Assign(kind))
			for _, p := range ps {
				p.saidLine(t, "ready", 20*time.Second)
			}
			ps[0].saidLine(t, "cohort: rank 0 has been waiting for rank 1 for ", 20*time.Second)
			said := ps[0].saidLine(t, "cohort: rank 1 (", 20*time.Second)
			if !strings.Contains(said, ": it is at dist/hang_test.go:30 dist.hangHere; its last call was all_reduce") {
				t.Errorf("of rank 1 is said: %s", said)
			}
			ps[0].saidLine(t, "    dist/hang_test.go:25 dist.hangingRank", 20*time.Second)
			for r, p := range ps[1:] {
				if strings.Contains(p.output(), "has been waiting") {
					t.Errorf("rank %d says it too: %s", r+1, p.output())
				}
			}
		})
	}
}
