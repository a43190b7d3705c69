// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/liveness"
	"github.com/cohort-ml/cohort/internal/agentpipe"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// strayLast has the last rank call something else than the others, a moment
// after it has said that it is about to.
func strayLast(ctx context.Context, g *Group) error {
	if err := g.Barrier(ctx); err != nil {
		return err
	}
	if g.Rank() < g.Size()-1 {
		return g.AllReduce(ctx, vec(4), Sum)
	}
	fmt.Println("ready")
	time.Sleep(10 * time.Millisecond)
	err := g.Barrier(ctx)
	fmt.Printf("found at %d\n", time.Now().UnixNano())
	return err
}

// lastWordsTries is how often TestLastWords tries what it cannot tell because the
// rank was held up: its last words are waited for, but not long.
const lastWordsTries = 10

// TestLastWords has the agent tell of a rank's end before the group hears what
// the rank has found: the others have the mismatch, not the death.
func TestLastWords(t *testing.T) {
	for _, kind := range []string{"shm", "tcp", "unix"} {
		t.Run(kind, func(t *testing.T) {
			for try := 1; ; try++ {
				ps := startRanks(t, 3, "stray", envvar.Transport.Assign(kind))
				ps[2].saidLine(t, "ready", 20*time.Second)
				told := time.Now()
				for _, p := range ps[:2] {
					_ = p.agent.Send(agentpipe.Event{Kind: agentpipe.KindExited, Rank: 2, Code: 7})
				}
				wrong := ""
				for r, p := range ps {
					_ = p.await(t, 20*time.Second)
					if out := p.output(); !strings.Contains(out, "called different things") {
						wrong += fmt.Sprintf("rank %d has no mismatch: %s\n", r, out)
					}
				}
				var found int64
				if _, err := fmt.Sscan(ps[2].saidLine(t, "found at ", time.Second), &found); err != nil {
					t.Fatal(err)
				}
				if late := time.Duration(found - told.UnixNano()); late > liveness.LastWords/2 && try < lastWordsTries {
					t.Logf("the rank took %v", late)
					continue
				}
				if wrong != "" {
					t.Error(wrong)
				}
				return
			}
		})
	}
}
