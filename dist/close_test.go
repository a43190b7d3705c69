// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// TestCloseUnderWay closes a group on one rank with an operation under way:
// there it ends because the group is closed, elsewhere because that rank has
// left.
func TestCloseUnderWay(t *testing.T) {
	const closer = 1
	var closed sync.WaitGroup
	closed.Add(1)
	failing(t, 3, func(ctx context.Context, g *Group) error {
		x := filled(tensor.Float32, 1000, g.Rank())
		switch g.Rank() {
		case closer:
			w, queued := g.AllReduceAsync(ctx, x, Max), g.BarrierAsync(ctx)
			if err := g.Close(); err != nil {
				return err
			}
			closed.Done()
			err := w.Wait(ctx)
			if later := queued.Wait(ctx); !errors.Is(later, ErrClosed) {
				return fmt.Errorf("what was to come after it: %w", later)
			}
			return err
		case 2: // keeps the others from getting through until they know
			closed.Wait()
			if err := g.Recv(ctx, filled(tensor.Float32, 1, 0), closer); !errors.Is(err, ErrLeft) {
				return fmt.Errorf("what was to come from the rank that has left: %w", err)
			}
		}
		return g.AllReduce(ctx, x, Max)
	}, func(errs []error) error {
		closed.Add(1) // for the next transport
		for r, err := range errs {
			var other *RankError
			named := errors.As(err, &other)
			switch {
			case r == closer && (!errors.Is(err, ErrClosed) || named):
				return fmt.Errorf("rank %d has closed the group: %w", r, err)
			case r != closer && (!errors.Is(err, ErrLeft) || !named || other.Rank != closer):
				return fmt.Errorf("rank %d: %w, want that rank %d has left", r, err, closer)
			}
		}
		return nil
	})
}
