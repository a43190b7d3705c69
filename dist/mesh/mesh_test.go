// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
)

func TestAxes(t *testing.T) {
	for _, c := range []struct {
		ranks int
		axes  []Axis
		want  string // the shape, or part of the error
	}{
		{8, []Axis{{"replicate", 2}, {"fsdp", 4}}, "[2 4]"},
		{8, []Axis{{"replicate", 0}, {"fsdp", 4}}, "[2 4]"},
		{1, []Axis{{Name: "fsdp"}}, "[1]"},
		{1, nil, "[]"},
		{8, []Axis{{"replicate", 2}, {"fsdp", 3}}, `replicate 2 × fsdp 3 = 6 ranks, and group "world" has 8`},
		{8, []Axis{{"replicate", 0}, {"fsdp", 3}}, "8 is not a multiple of 3, so replicate cannot be inferred"},
		{8, []Axis{{"replicate", 0}, {"fsdp", 0}}, "only one can be inferred"},
		{8, []Axis{{"fsdp", 2}, {"fsdp", 4}}, "the axis fsdp twice"},
		{8, []Axis{{"fsdp", -8}}, "axis fsdp has the size -8"},
		{8, []Axis{{"", 8}}, "axis 0 of 1 has no name"},
		{8, []Axis{{"a", 1 << 40}, {"b", 1 << 40}}, "change the sizes"},
	} {
		axes, err := settle(c.axes, c.ranks, "world")
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: error %q, want %q", c.axes, err, c.want)
			}
			continue
		}
		if got := fmt.Sprint((&Mesh{axes: axes}).Shape()); got != c.want {
			t.Errorf("%v: shape %s, want %s", c.axes, got, c.want)
		}
	}
}

func TestNearestAxis(t *testing.T) {
	m, err := Sketch(0, Axis{"replicate", 2}, Axis{"fsdp", 2})
	if err != nil {
		t.Fatal(err)
	}
	for asked, want := range map[string]string{"fsdq": "fsdp", "dp": "fsdp", "replica": "replicate", "FSDP": "fsdp", "pipeline": ""} {
		_, err := m.Group(asked)
		var e *AxisError
		if !errors.As(err, &e) || e.Nearest != want || e.Axis != asked {
			t.Errorf("%s: %v, want the nearest to be %q", asked, err, want)
		}
	}
}

// TestGroups: on meshes of several shapes, the group of each axis has the ranks that differ
// only there.
func TestGroups(t *testing.T) {
	for _, shape := range [][]int{{4}, {2, 2}, {1, 4}, {2, 3}, {2, 2, 2}} {
		size := 1
		var axes []Axis
		for i, n := range shape {
			axes = append(axes, Axis{string(rune('a' + i)), n})
			size *= n
		}
		err := dist.Spawn(t.Context(), size, func(ctx context.Context, g *dist.Group) error {
			m, err := New(ctx, g, axes...)
			if err != nil {
				return err
			}
			defer m.Close()
			at := m.Coordinate()
			for i, a := range m.Axes() {
				group, err := m.Group(a.Name)
				if err != nil {
					return err
				}
				var want []int
				for r := range size {
					other := coordinateOf(shape, r)
					other[i] = at[i]
					if slices.Equal(other, at) {
						want = append(want, r)
					}
				}
				if !slices.Equal(group.Ranks(), want) || group.Rank() != at[i] {
					return fmt.Errorf("axis %s of %v: ranks %v, want %v; rank %d, want %d", a.Name, shape, group.Ranks(), want, group.Rank(), at[i])
				}
				if err := group.Barrier(ctx); err != nil {
					return err
				}
			}
			return m.Close()
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestAxesThatDiffer: ranks that give other axes get an error that says so, all of them, and do
// not wait for each other.
func TestAxesThatDiffer(t *testing.T) {
	for _, c := range []struct {
		axes [2][]Axis // of ranks 0 and 1, and of ranks 2 and 3
		want string
	}{
		{[2][]Axis{{{"replicate", 2}, {"fsdp", 2}}, {{"fsdp", 4}}}, "mesh: rank 2 has given the axes fsdp 4, and rank 0 replicate 2 × fsdp 2: give the same axes on all ranks"},
		{[2][]Axis{{{"replicate", 2}, {"fsdp", 2}}, {{"fsdp", 2}, {"replicate", 2}}}, "rank 2 has given the axes fsdp 2 × replicate 2"},
		{[2][]Axis{{{strings.Repeat("x", 300), 4}}, {{strings.Repeat("x", 300) + "y", 4}}}, "rank 2 has given the axes xxx"},
	} {
		errs := make([]error, 4)
		_ = dist.Spawn(t.Context(), 4, func(ctx context.Context, g *dist.Group) error {
			_, errs[g.Rank()] = New(ctx, g, c.axes[g.Rank()/2]...)
			return nil
		})
		for rank, err := range errs {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("rank %d: %v, want %q", rank, err, c.want)
			}
		}
	}
}
