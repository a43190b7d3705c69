// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist"
)

// Sub returns the mesh of the ranks that differ from this one only on the given axes, with these
// axes in the given order. It shares the groups of m and communicates nothing; closing it closes
// nothing. Sub of one axis has a [Mesh.World]; Sub of several axes has one only if these are all
// axes of m in their order. An axis that m has not is an [*AxisError]. A rank outside m gets a
// mesh that it is not a member of.
func (m *Mesh) Sub(axes ...string) (*Mesh, error) {
	numbers, err := m.indices(axes)
	if err != nil {
		return nil, err
	}
	picked := make([]Axis, len(numbers))
	for i, a := range numbers {
		picked[i] = m.axes[a]
	}
	if !m.IsMember() {
		sub := arrange(picked, nil, -1)
		sub.base = m.base
		return sub, nil
	}
	ranks, rank := m.ranksOver(numbers)
	sub := arrange(picked, ranks, rank)
	sub.base = m.base
	if m.groups == nil {
		return sub, nil
	}
	for _, a := range numbers {
		sub.groups = append(sub.groups, m.groups[a])
	}
	switch {
	case len(numbers) == 1:
		sub.world = sub.groups[0]
	case slices.Equal(numbers, count(len(m.axes))):
		sub.world = m.world
	}
	return sub, nil
}

// Flatten returns a mesh whose one axis, of the given name, has all ranks that differ from this
// one only on the given axes, in row-major order: this rank alone where no axis is given. The
// members make its group among themselves, so all of them call Flatten; [Mesh.Close] of the result
// closes it. An axis that m has not is an [*AxisError]. A rank outside m gets a mesh that it is not
// a member of.
func (m *Mesh) Flatten(ctx context.Context, name string, axes ...string) (*Mesh, error) {
	sub, err := m.Sub(axes...)
	if err != nil {
		return nil, err
	}
	if name == "" {
		return nil, fmt.Errorf("mesh: Flatten of %s: the axis needs a name", sub.equation())
	}
	flat := arrange([]Axis{{name, sub.Size()}}, sub.ranks, sub.rank)
	flat.base, flat.world = sub.base, sub.world
	if m.groups == nil || !m.IsMember() {
		return flat, nil
	}
	if flat.world == nil {
		if err := flat.formWorld(ctx); err != nil {
			return nil, err
		}
	}
	flat.groups = []*dist.Group{flat.world}
	return flat, nil
}

// Merge returns the mesh of the ranks that differ from this one only on the axes merged and kept.
// Its first axis, of the given name, has the ranks of all merged axes, in row-major order; then
// come the kept axes, with the groups that m has for them. The members of the first axis make its
// group among themselves, so all of them call Merge; [Mesh.Close] of the result closes it. Without
// merged axes it is [Mesh.Sub] of the kept ones.
func (m *Mesh) Merge(ctx context.Context, name string, merged []string, kept ...string) (*Mesh, error) {
	if len(merged) == 0 {
		return m.Sub(kept...)
	}
	all, err := m.Sub(slices.Concat(merged, kept)...)
	if err != nil {
		return nil, err
	}
	flat, err := m.Flatten(ctx, name, merged...)
	if err != nil {
		return nil, err
	}
	if len(kept) == 0 {
		return flat, nil
	}
	joined := arrange(append([]Axis{{name, flat.Size()}}, all.axes[len(merged):]...), all.ranks, all.rank)
	joined.base, joined.world, joined.made = all.base, all.world, flat.made
	if all.groups != nil {
		joined.groups = append([]*dist.Group{flat.world}, all.groups[len(merged):]...)
	}
	return joined, nil
}

// indices returns the numbers of axes given by name.
func (m *Mesh) indices(axes []string) ([]int, error) {
	var numbers []int
	for _, name := range axes {
		a, err := m.Index(name)
		if err != nil {
			return nil, err
		}
		if slices.Contains(numbers, a) {
			return nil, fmt.Errorf("mesh: axis %s of %s is named twice", name, m.equation())
		}
		numbers = append(numbers, a)
	}
	return numbers, nil
}

// ranksOver returns the ranks in base that differ from this one only on some axes, in row-major
// order of these, and which of them this rank is.
func (m *Mesh) ranksOver(axes []int) (ranks []int, rank int) {
	shape := m.Shape()
	sizes := make([]int, len(axes))
	size := 1
	for i, a := range axes {
		sizes[i] = shape[a]
		size *= shape[a]
	}
	for i := range size {
		at := m.Coordinate()
		for j, c := range coordinateOf(sizes, i) {
			at[axes[j]] = c
		}
		r := rankOf(shape, at)
		if r == m.rank {
			rank = i
		}
		ranks = append(ranks, m.ranks[r])
	}
	return ranks, rank
}

// rankOf returns the number of the rank at a coordinate, in row-major order.
func rankOf(shape, at []int) int {
	rank := 0
	for i, n := range shape {
		rank = rank*n + at[i]
	}
	return rank
}
