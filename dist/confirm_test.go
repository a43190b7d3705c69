// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/loaded"
)

// lastRootTries is how often TestLastRoot tries what it cannot tell because ranks
// were late: a rank waits for others for a quarter of a second before it leaves.
const lastRootTries = 5

// TestLastRoot has one rank take another for the root of the last call before
// Close: some ranks have done their part then, but none ends without a word.
func TestLastRoot(t *testing.T) {
	const n = 4
	for _, tc := range []struct {
		name string
		call func(ctx context.Context, g *Group, root int) error
		more func(ctx context.Context, g *Group) error
	}{
		{"broadcast", func(ctx context.Context, g *Group, root int) error { return g.Broadcast(ctx, vec(4), root) }, nil},
		{"broadcast and a sleep", func(ctx context.Context, g *Group, root int) error { return g.Broadcast(ctx, vec(4), root) },
			func(context.Context, *Group) error { time.Sleep(300 * time.Millisecond); return nil }},
		{"broadcast and another that fits", func(ctx context.Context, g *Group, root int) error { return g.Broadcast(ctx, vec(4), root) },
			func(ctx context.Context, g *Group) error { return g.Broadcast(ctx, vec(4), 2) }},
		{"reduce", func(ctx context.Context, g *Group, root int) error { return g.Reduce(ctx, vec(4), root, Sum) }, nil},
		{"one in a barrier", func(ctx context.Context, g *Group, root int) error {
			if root == 1 {
				return g.Barrier(ctx)
			}
			return g.Broadcast(ctx, vec(4), 0)
		}, nil},
	} {
		for _, tr := range transports {
			t.Run(tc.name+"/"+tr.name, func(t *testing.T) {
				for try := 1; ; try++ {
					errs := make([]error, n)
					var late atomic.Bool // a rank has left without a word, after its time for that
					_ = tr.run(t.Context(), n, func(ctx context.Context, g *Group) error {
						root := 0
						if g.Rank() == 1 {
							root = 1
						}
						err := g.Barrier(ctx) // all have returned from Init
						if err == nil {
							err = tc.call(ctx, g, root)
						}
						if err == nil && tc.more != nil {
							err = tc.more(ctx, g)
						}
						begun := time.Now()
						if closed := g.Close(); err == nil {
							err = closed
						}
						if err == nil && time.Since(begun) >= 250*time.Millisecond {
							late.Store(true)
						}
						errs[g.Rank()] = err
						return nil
					})
					if late.Load() && try < lastRootTries {
						continue
					}
					for r, err := range errs {
						var m *MismatchError
						if !errors.As(err, &m) {
							t.Errorf("rank %d: not a mismatch: %v", r, err)
						} else if m.Here.Rank != 1 && m.There.Rank != 1 {
							t.Errorf("rank %d: rank 1 is not named: %v", r, err)
						}
					}
					return
				}
			})
		}
	}
}

// TestCloseAfterRooted closes groups after a rooted call that fits: nobody waits
// where all have made it, and not for long where one is late.
func TestCloseAfterRooted(t *testing.T) {
	t.Parallel()
	const n = 4
	for _, tr := range transports {
		for _, late := range []time.Duration{0, 2 * time.Second} {
			t.Run(fmt.Sprint(tr.name, " ", late), func(t *testing.T) {
				t.Parallel()
				var mu sync.Mutex
				var took []time.Duration
				err := tr.run(t.Context(), n, func(ctx context.Context, g *Group) error {
					if err := g.Barrier(ctx); err != nil {
						return err
					}
					for range 20 {
						if err := g.Broadcast(ctx, vec(1), 0); err != nil {
							return err
						}
					}
					if g.Rank() == 3 {
						time.Sleep(late)
					}
					if err := g.Broadcast(ctx, vec(1), 0); err != nil {
						return err
					}
					start := time.Now()
					err := g.Close()
					if g.Rank() > 0 { // rank 0 has the store, for as long as others need it
						mu.Lock()
						took = append(took, time.Since(start))
						mu.Unlock()
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				if most := slices.Max(took); most > loaded.Allow(1500*time.Millisecond) {
					t.Errorf("closing took %v", took)
				} else {
					t.Logf("closing took %v", took)
				}
			})
		}
	}
}
