// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
)

func wantRanks(g *dist.Group, want ...int) error {
	if g == nil {
		return fmt.Errorf("no group, want the ranks %v", want)
	}
	if !slices.Equal(g.Ranks(), want) {
		return fmt.Errorf("the group has the ranks %v, want %v", g.Ranks(), want)
	}
	return nil
}

func TestSubAndFlatten(t *testing.T) {
	err := dist.Spawn(t.Context(), 8, func(ctx context.Context, g *dist.Group) error {
		m, err := New(ctx, g, Axis{"pp", 2}, Axis{"dp", 2}, Axis{"tp", 2})
		if err != nil {
			return err
		}
		defer m.Close()
		pp, dp, tp := g.Rank()/4, g.Rank()/2%2, g.Rank()%2

		one, err := m.Sub("dp")
		if err != nil {
			return err
		}
		if err := wantRanks(one.World(), 4*pp+tp, 4*pp+2+tp); err != nil {
			return fmt.Errorf("sub dp: %w", err)
		}
		turned, err := m.Sub("tp", "pp")
		if err != nil {
			return err
		}
		if at := turned.Coordinate(); !slices.Equal(at, []int{tp, pp}) || turned.World() != nil {
			return fmt.Errorf("sub tp, pp: coordinate %v, group %v", at, turned.World())
		}
		flat, err := m.Flatten(ctx, "data", "pp", "dp")
		if err != nil {
			return err
		}
		group, err := flat.Group("data")
		if err != nil {
			return err
		}
		if err := wantRanks(group, tp, 2+tp, 4+tp, 6+tp); err != nil {
			return fmt.Errorf("flatten pp, dp: %w", err)
		}
		if flat.Rank() != group.Rank() || flat.Rank() != 2*pp+dp {
			return fmt.Errorf("flatten pp, dp: rank %d, in the group %d", flat.Rank(), group.Rank())
		}
		if err := group.Barrier(ctx); err != nil {
			return err
		}
		all, err := m.Flatten(ctx, "all", "pp", "dp", "tp")
		if err != nil {
			return err
		}
		if all.World() != g {
			return fmt.Errorf("all axes as one: %v, want the group of all", all.World())
		}
		merged, err := m.Merge(ctx, "sum", []string{"pp", "tp"}, "dp")
		if err != nil {
			return err
		}
		defer merged.Close()
		if at, text := merged.Coordinate(), merged.equation(); !slices.Equal(at, []int{2*pp + tp, dp}) || text != "sum 4 × dp 2" {
			return fmt.Errorf("merge pp, tp beside dp: coordinate %v in %s", at, text)
		}
		for axis, want := range map[string][]int{"sum": {2 * dp, 2*dp + 1, 2*dp + 4, 2*dp + 5}, "dp": {4*pp + tp, 4*pp + 2 + tp}} {
			group, err := merged.Group(axis)
			if err == nil {
				err = wantRanks(group, want...)
			}
			if err != nil {
				return fmt.Errorf("merge pp, tp beside dp, axis %s: %w", axis, err)
			}
		}
		if _, err := m.Sub("dp", "dp"); err == nil || !strings.Contains(err.Error(), "named twice") {
			return fmt.Errorf("sub dp, dp: %v", err)
		}
		return flat.Close()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestOver: a mesh of some ranks, in an order of their own, beside ranks that are outside.
func TestOver(t *testing.T) {
	ranks := []int{5, 1, 3, 4}
	err := dist.Spawn(t.Context(), 6, func(ctx context.Context, g *dist.Group) error {
		m, err := Over(ctx, g, ranks, Axis{"dp", 2}, Axis{"tp", 2})
		if err != nil {
			return err
		}
		defer m.Close()
		layout := Layout{m, []int{4}, []Placement{Replicate(), Shard(0)}}
		if at := slices.Index(ranks, g.Rank()); at < 0 {
			sub, err := m.Sub("tp")
			if err != nil {
				return err
			}
			if m.IsMember() || sub.IsMember() || m.World() != nil || m.Coordinate() != nil {
				return fmt.Errorf("rank %d is outside, and the mesh does not say so", g.Rank())
			}
			if _, err := m.Group("tp"); err == nil || !strings.Contains(err.Error(), "outside") {
				return fmt.Errorf("a group outside the mesh: %v", err)
			}
			if _, err := layout.Boxes(); err == nil || !strings.Contains(err.Error(), "not in the mesh dp 2 × tp 2") {
				return fmt.Errorf("boxes outside the mesh: %v", err)
			}
			return nil
		} else if m.Rank() != at {
			return fmt.Errorf("rank %d has the number %d in the mesh, want %d", g.Rank(), m.Rank(), at)
		}
		if err := wantRanks(m.World(), ranks...); err != nil {
			return err
		}
		tp, err := m.Group("tp")
		if err != nil {
			return err
		}
		want := ranks[:2]
		if m.Rank() >= 2 {
			want = ranks[2:]
		}
		if err := wantRanks(tp, want...); err != nil {
			return err
		}
		return m.World().Barrier(ctx)
	})
	if err != nil {
		t.Error(err)
	}
}
