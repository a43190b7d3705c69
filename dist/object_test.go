// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// TestObjectsStayWhole has several goroutines of a rank send objects to one rank,
// where as many receive them.
func TestObjectsStayWhole(t *testing.T) {
	const num = 16
	onEveryTransport(t, []int{2}, func(ctx context.Context, g *Group) error {
		var wg sync.WaitGroup
		errs, lengths := make([]error, num), make([]int, num)
		for i := range num {
			wg.Go(func() {
				if g.Rank() == 0 {
					errs[i] = SendObject(ctx, g, strings.Repeat("x", 10*i), 1)
					return
				}
				text, err := RecvObject[string](ctx, g, 0)
				errs[i], lengths[i] = err, len(text)
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil || g.Rank() == 0 {
			return err
		}
		slices.Sort(lengths)
		for i, n := range lengths {
			if n != 10*i {
				return fmt.Errorf("texts of %v bytes came", lengths)
			}
		}
		return nil
	})
}

// TestObjectBehindAnother gives up the wait for another object's turn without harm
// to the group.
func TestObjectBehindAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := Spawn(t.Context(), 2, func(ctx context.Context, g *Group) error {
			if g.Rank() == 1 {
				if err := g.Barrier(ctx); err != nil {
					return err
				}
				return SendObject(ctx, g, "late", 0)
			}
			var wg sync.WaitGroup
			var first error
			wg.Go(func() { _, first = RecvObject[string](ctx, g, 1) })
			synctest.Wait()
			limit, cancel := context.WithCancel(ctx)
			cancel()
			if _, err := RecvObject[string](limit, g, 1); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "not begun") {
				return fmt.Errorf("an object behind another gave %v", err)
			}
			err := g.Barrier(ctx)
			wg.Wait()
			return errors.Join(err, first)
		})
		if err != nil {
			t.Error(err)
		}
	})
}
