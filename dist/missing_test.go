// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// TestMissingCall leaves out a call on one rank: the others say what that rank
// did instead, and where.
func TestMissingCall(t *testing.T) {
	for name, tc := range map[string]struct {
		instead func(ctx context.Context, g *Group) error
		texts   []string
	}{
		"nothing more": {func(ctx context.Context, g *Group) error { return nil },
			[]string{"timed out", "(its last call was barrier, number ", "of group \"world\", at dist/missing_test.go:", "which ended "}},
		"a message": {func(ctx context.Context, g *Group) (err error) {
			// A goroutine that has made no other call: else the two that wait for each
			// other are found before the time is up.
			var other sync.WaitGroup
			other.Go(func() { err = g.Recv(ctx, private(tensor.Float32, 3), 2) })
			other.Wait()
			return err
		},
			[]string{"recv of 3 float32 from rank 2, number 1 of group \"world\", at dist/missing_test.go:"}},
		"leaves": {func(ctx context.Context, g *Group) error { return g.Close() },
			[]string{"has left the group", "(its last call was barrier, number ", "of group \"world\", at dist/missing_test.go:"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			failingAtOnce(t, 3, func(ctx context.Context, g *Group) error {
				if err := g.Barrier(ctx); err != nil {
					return err
				}
				if g.Rank() == 1 {
					return tc.instead(ctx, g)
				}
				ctx, cancel := context.WithTimeout(ctx, waitLimit()) // in which the other ranks make their calls
				defer cancel()
				return g.AllReduce(ctx, private(tensor.Float32, 10), Sum)
			}, func(errs []error) error {
				for _, r := range []int{0, 2} {
					for _, want := range tc.texts {
						if errs[r] == nil || !strings.Contains(errs[r].Error(), want) {
							return fmt.Errorf("rank %d: no %q", r, want)
						}
					}
					var late *TimeoutError
					var other *RankError
					switch {
					case errors.As(errs[r], &late):
						if len(late.Instead) != 1 || !strings.Contains(late.Instead[0].Site, "missing_test.go") {
							return fmt.Errorf("rank %d: what rank 1 does instead is %+v", r, late.Instead)
						}
					case !errors.As(errs[r], &other):
						return fmt.Errorf("rank %d: neither a time-out nor told of one", r)
					}
				}
				return nil
			})
		})
	}
}
