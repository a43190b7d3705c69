// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestCancellingSaysWhy cancels an operation with a reason, before it begins and
// while it waits: callers find their reason and that it was a cancelling.
func TestCancellingSaysWhy(t *testing.T) {
	mine := errors.New("my own reason")
	failingAtOnce(t, 2, func(ctx context.Context, g *Group) error {
		if g.Rank() == 1 {
			return nil
		}
		stop, cancel := context.WithCancelCause(ctx)
		w := g.BarrierAsync(stop)
		cancel(mine)
		return errors.Join(w.Wait(ctx), g.Barrier(stop))
	}, func(errs []error) error {
		joined, ok := errs[0].(interface{ Unwrap() []error })
		if !ok || len(joined.Unwrap()) != 2 {
			return errors.New("want the errors of both barriers")
		}
		for _, err := range joined.Unwrap() {
			if !errors.Is(err, mine) || !errors.Is(err, context.Canceled) {
				return fmt.Errorf("got %w, want the reason and context.Canceled", err)
			}
		}
		if text := joined.Unwrap()[0].Error(); !strings.Contains(text, "cancelled (my own reason) while waiting for rank 1") {
			return fmt.Errorf("the text is %q", text)
		}
		return nil
	})
}
