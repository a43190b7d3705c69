// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/tensor"
)

// TestErrorsTellBothRanks: what goes wrong in a group of some ranks names the
// culprit by its number there and in the job.
func TestErrorsTellBothRanks(t *testing.T) {
	for name, tc := range map[string]struct {
		culprit func(ctx context.Context, g *Group) error
		want    string // about rank 1 of the group, on its rank 0
	}{
		"time-out": {func(context.Context, *Group) error { return nil }, `waiting for rank 1 of "evens" (rank 2 of the job`},
		"mismatch": {func(ctx context.Context, g *Group) error { return g.AllReduce(ctx, private(tensor.Float32, 4), Sum) }, `rank 1 of "evens" (rank 2 of the job) all_reduce`},
		"left":     {func(_ context.Context, g *Group) error { return g.Close() }, `rank 1 of "evens" (rank 2 of the job`},
	} {
		t.Run(name, func(t *testing.T) {
			failingAtOnce(t, 3, func(ctx context.Context, g *Group) error {
				if g.Rank() == 1 {
					return nil
				}
				evens, err := g.NewGroup(ctx, []int{0, 2}, WithName("evens"))
				if err != nil {
					return err
				}
				if got := evens.Ranks(); !slices.Equal(got, []int{0, 2}) {
					return fmt.Errorf("the ranks are %v", got)
				}
				if evens.Rank() == 1 {
					return tc.culprit(ctx, evens)
				}
				if name == "time-out" {
					limit, cancel := context.WithTimeout(ctx, 150*time.Millisecond)
					defer cancel()
					ctx = limit
				}
				return evens.Barrier(ctx)
			}, func(errs []error) error {
				if errs[0] == nil || !strings.Contains(errs[0].Error(), tc.want) || strings.Contains(errs[0].Error(), "rank 0 of the job") {
					return fmt.Errorf("rank 0: got %w, want %q", errs[0], tc.want)
				}
				var other *RankError
				var late *TimeoutError
				var mismatch *MismatchError
				switch err := errs[0]; {
				case errors.As(err, &other) && other.Rank == 1 && other.JobRank() == 2:
				case errors.As(err, &late) && late.Missing[0].JobRank() == 2:
				case errors.As(err, &mismatch) && mismatch.Here.JobRank() == 0 && mismatch.There.JobRank() == 2:
				default:
					return fmt.Errorf("got %#v, want rank 2 of the job", err)
				}
				return nil
			})
		})
	}
}

// TestRanks: groups of groups know what their ranks are in the job.
func TestRanks(t *testing.T) {
	t.Parallel()
	onEveryTransport(t, []int{4}, func(ctx context.Context, g *Group) error {
		if got := g.Ranks(); !slices.Equal(got, []int{0, 1, 2, 3}) {
			return fmt.Errorf("the ranks of all are %v", got)
		}
		back, err := g.NewGroup(ctx, []int{3, 2, 1, 0})
		if err != nil {
			return err
		}
		half, err := back.Split(ctx, back.Rank()/2, 0)
		if err != nil {
			return err
		}
		want := []int{3, 2}
		if g.Rank() < 2 {
			want = []int{1, 0}
		}
		if got := half.Ranks(); !slices.Equal(got, want) || got[half.Rank()] != g.Rank() || half.Members()[0].JobRank() != want[0] {
			return fmt.Errorf("the ranks of a half are %v, want %v", got, want)
		}
		got := half.Ranks()
		got[0] = -1 // the caller's own
		if half.Ranks()[0] != want[0] {
			return errors.New("Ranks gives out what the group needs")
		}
		return half.Barrier(ctx)
	})
}
