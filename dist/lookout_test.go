// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// TestMonitoredBarrierWithoutARank: a rank that leaves, or fails, ends the others'
// wait in the store long before their time.
func TestMonitoredBarrierWithoutARank(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, leave := range map[string]func(g *Group) error{
		"leaves": (*Group).Close,
		"fails":  func(g *Group) error { g.fail(boom); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			failing(t, 3, func(ctx context.Context, g *Group) error {
				if g.Rank() == 1 {
					return leave(g)
				}
				return g.MonitoredBarrier(ctx)
			}, func(errs []error) error {
				for _, r := range []int{0, 2} {
					var re *RankError
					if !errors.As(errs[r], &re) || re.Rank != 1 || re.Op != "monitored_barrier" || re.Site == "" || name == "leaves" && !errors.Is(re, ErrLeft) {
						return fmt.Errorf("rank %d does not name rank 1, the operation and the line: %v", r, errs[r])
					}
				}
				return errs[1]
			})
		})
	}
}

// TestCollectiveThatARankHasLeft: nobody waits for the rank that has left, but for
// each other.
func TestCollectiveThatARankHasLeft(t *testing.T) {
	failing(t, 4, func(ctx context.Context, g *Group) error {
		switch g.Rank() {
		case 0:
			_, err := g.RecvAny(ctx, number(0))
			return err
		case 3:
			return g.Close()
		}
		return g.Barrier(ctx)
	}, func(errs []error) error {
		for r := range 3 {
			var re *RankError
			if !errors.As(errs[r], &re) || re.Rank != 3 || !errors.Is(re, ErrLeft) {
				return fmt.Errorf("rank %d does not say that rank 3 has left: %v", r, errs[r])
			}
		}
		return errs[3]
	})
}
