// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

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
	return g.Barrier(ctx)
}

// TestLastWords has the agent tell of a rank's end before the group hears what
// the rank has found: the others have the mismatch, not the death.
func TestLastWords(t *testing.T) {
	for _, kind := range []string{"shm", "tcp", "unix"} {
		t.Run(kind, func(t *testing.T) {
			ps := startRanks(t, 3, "stray", envvar.Transport.Assign(kind))
			select {
			case <-ps[2].line:
			case <-time.After(20 * time.Second):
				t.Fatalf("a rank is not ready: %s", ps[2].stacks())
			}
			for _, p := range ps[:2] {
				_ = p.agent.Send(agentpipe.Event{Kind: agentpipe.KindExited, Rank: 2, Code: 7})
			}
			for r, p := range ps {
				_ = p.await(t, 20*time.Second)
				if out := p.output(); !strings.Contains(out, "called different things") {
					t.Errorf("rank %d has no mismatch: %s", r, out)
				}
			}
		})
	}
}
