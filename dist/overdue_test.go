// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// TestLateTogether has three ranks wait for a fourth until their limit: each has
// a time-out that names it, whoever of them was the first.
func TestLateTogether(t *testing.T) {
	const n = 4
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			t.Parallel()
			errs := make([]error, n)
			var ended sync.WaitGroup
			ended.Add(n - 1)
			err := tr.run(t.Context(), n, func(ctx context.Context, g *Group) error {
				if err := g.Barrier(ctx); err != nil {
					return err
				}
				if g.Rank() != 1 {
					errs[g.Rank()] = g.AllReduce(ctx, vec(4), Sum)
					ended.Done()
				}
				ended.Wait()
				return nil
			}, WithTimeout(time.Second+waitLimit()))
			if err != nil {
				t.Fatal(err)
			}
			for r, err := range errs {
				if r == 1 {
					continue
				}
				var late *TimeoutError
				if !errors.As(err, &late) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("rank %d: not a time-out: %v", r, err)
				} else if len(late.Missing) != 1 || late.Missing[0].Rank != 1 {
					t.Errorf("rank %d: rank 1 is not the one that is missing: %v", r, err)
				}
			}
		})
	}
}
