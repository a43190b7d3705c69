// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/nearest"
	"github.com/cohort-ml/cohort/tensor"
)

// Axis is one axis of a mesh. A Size of 0 is inferred from the number of ranks; at most one
// axis of a mesh may have it.
type Axis struct {
	Name string
	Size int
}

// Mesh is a grid of ranks with named axes, as this rank sees it. Ranks are in row-major order:
// along the last axis neighbours have numbers that follow each other.
type Mesh struct {
	axes       []Axis
	base       *dist.Group   // that the mesh was made over; nil for a sketch
	ranks      []int         // by rank in the mesh: the rank in base, or in the mesh of a sketch
	rank       int           // in the mesh, -1 outside
	coordinate []int         // nil outside the mesh
	world      *dist.Group   // of all ranks of the mesh, if there is one
	groups     []*dist.Group // by axis; nil for a sketch, and outside the mesh
	made       []*dist.Group // those of groups and world that Close closes
	plans      plans
}

// AxisError says that a mesh has no axis of a name.
type AxisError struct {
	Axis    string   // what was asked for
	Known   []string // the axes of the mesh
	Nearest string   // the one of them whose name is most like Axis, "" if none is
}

func (e *AxisError) Error() string {
	if e.Nearest != "" {
		return fmt.Sprintf("mesh: there is no axis %q, did you mean %q? The mesh has %s", e.Axis, e.Nearest, strings.Join(e.Known, ", "))
	}
	return fmt.Sprintf("mesh: there is no axis %q: the mesh has %s", e.Axis, strings.Join(e.Known, ", "))
}

// SizeError says that the axes of a mesh do not fit the number of ranks.
type SizeError struct {
	Axes     []Axis
	NumRanks int
	Group    string // the name of the group
}

func (e *SizeError) Error() string {
	if len(e.Axes) == 0 {
		return fmt.Sprintf("mesh: there are no axes for the %d ranks of group %q: give at least one", e.NumRanks, e.Group)
	}
	known, inferred := 1, ""
	for _, a := range e.Axes {
		if a.Size == 0 {
			inferred = a.Name
		} else {
			known *= a.Size
		}
	}
	if inferred != "" {
		return fmt.Sprintf("mesh: %s does not give the %d ranks of group %q: %d is not a multiple of %d, so %s cannot be inferred: change the sizes or the number of ranks",
			equation(e.Axes), e.NumRanks, e.Group, e.NumRanks, known, inferred)
	}
	return fmt.Sprintf("mesh: %s = %d ranks, and group %q has %d: change the sizes or the number of ranks, or leave one size out to have it inferred",
		equation(e.Axes), known, e.Group, e.NumRanks)
}

// equation is the product of the axes as errors show it: "replicate 2 × fsdp 4".
func equation(axes []Axis) string {
	if len(axes) == 0 {
		return "1"
	}
	var b strings.Builder
	for i, a := range axes {
		if i > 0 {
			b.WriteString(" × ")
		}
		if a.Size == 0 {
			fmt.Fprintf(&b, "%s ?", a.Name)
		} else {
			fmt.Fprintf(&b, "%s %d", a.Name, a.Size)
		}
	}
	return b.String()
}

func (m *Mesh) equation() string { return equation(m.axes) }

// New arranges all ranks of g in a mesh, in row-major order. All ranks of g call it with the
// same axes, which they compare. The product of the sizes must be the size of g, otherwise the error is a
// [*SizeError]. The members of an axis make its group among themselves. The group of an axis
// that has all ranks is g itself. [Mesh.Close] closes the groups that New has made. [Over] makes
// a mesh of some of the ranks.
func New(ctx context.Context, g *dist.Group, axes ...Axis) (*Mesh, error) {
	axes, err := settle(axes, g.Size(), g.Name())
	if err != nil {
		return nil, err
	}
	m := arrange(axes, count(g.Size()), g.Rank())
	m.base, m.world = g, g
	if err := m.compare(ctx); err != nil {
		return nil, err
	}
	return m.formed(m.form(ctx))
}

// Over arranges some ranks of g in a mesh. ranks are numbers in g, in the row-major order of the
// mesh. The ranks that are not among them may call Over too: they get a mesh that they are not a
// member of ([Mesh.IsMember]), without any communication. Otherwise Over is like [New].
func Over(ctx context.Context, g *dist.Group, ranks []int, axes ...Axis) (*Mesh, error) {
	axes, err := settle(axes, len(ranks), g.Name())
	if err != nil {
		return nil, err
	}
	for i, r := range ranks {
		if r < 0 || r >= g.Size() || slices.Contains(ranks[:i], r) {
			return nil, fmt.Errorf("mesh: %s over the ranks %v of group %q: rank %d is there twice, or not from 0 to %d", equation(axes), ranks, g.Name(), r, g.Size()-1)
		}
	}
	m := arrange(axes, slices.Clone(ranks), slices.Index(ranks, g.Rank()))
	m.base = g
	if !m.IsMember() {
		return m, nil
	}
	if err := m.formWorld(ctx); err != nil {
		return nil, err
	}
	if err := m.compare(ctx); err != nil {
		return m.formed(err)
	}
	return m.formed(m.form(ctx))
}

// compare makes sure that all ranks of the mesh have given the same axes. Ranks with other axes
// would wait for each other where they make groups.
func (m *Mesh) compare(ctx context.Context) error {
	const most = 248 // bytes of the text that ranks exchange, before its checksum
	text := m.equation()
	mine := make([]byte, most, most+8)
	copy(mine, text)
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(text)) // never fails
	mine = sum.Sum(mine)
	words := make([]int64, len(mine)/8)
	for i := range words {
		words[i] = int64(binary.LittleEndian.Uint64(mine[8*i:]))
	}
	all := tensor.New(tensor.CPU(), tensor.Int64, m.Size(), len(words))
	if err := m.world.AllGather(ctx, all, tensor.FromInt64(words)); err != nil {
		return fmt.Errorf("mesh: compare the axes %s of the ranks: %w", text, err)
	}
	of := func(rank int) (words []int64, text string) {
		words = all.Narrow(0, rank, 1).Int64s()
		var b []byte
		for _, w := range words {
			b = binary.LittleEndian.AppendUint64(b, uint64(w))
		}
		return words, strings.TrimRight(string(b[:most]), "\x00")
	}
	first, axes := of(0)
	for rank := 1; rank < m.Size(); rank++ {
		if other, has := of(rank); !slices.Equal(first, other) {
			return fmt.Errorf("mesh: rank %d has given the axes %s, and rank 0 %s: give the same axes on all ranks", rank, has, axes)
		}
	}
	return nil
}

// Sketch returns a mesh without groups as the rank with the given number would see it. Layouts
// over it can be computed, and nothing can be sent. It serves plans, pictures and tests. All
// sizes must be given.
func Sketch(rank int, axes ...Axis) (*Mesh, error) {
	size := 1
	for _, a := range axes {
		size *= min(max(a.Size, 1), maxRanks)
		size = min(size, maxRanks)
	}
	axes, err := settle(axes, size, "sketch")
	if err != nil {
		return nil, err
	}
	if rank < 0 || rank >= size {
		return nil, fmt.Errorf("mesh: a sketch of %s for rank %d: want a rank from 0 to %d", equation(axes), rank, size-1)
	}
	return arrange(axes, count(size), rank), nil
}

// arrange returns the mesh as a rank sees it, without groups.
func arrange(axes []Axis, ranks []int, rank int) *Mesh {
	m := &Mesh{axes: axes, ranks: ranks, rank: rank}
	if rank >= 0 {
		m.coordinate = coordinateOf(m.Shape(), rank)
	}
	return m
}

// count returns the numbers from 0 to n-1.
func count(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// formWorld makes the group of all ranks of the mesh.
func (m *Mesh) formWorld(ctx context.Context) (err error) {
	if m.world, err = m.newGroup(ctx, m.ranks); err != nil {
		return fmt.Errorf("mesh: the group of all ranks of %s: %w", m.equation(), err)
	}
	return nil
}

// form makes the groups of the axes. If that fails, it closes what the mesh has made.
func (m *Mesh) form(ctx context.Context) error {
	m.groups = make([]*dist.Group, 0, len(m.axes))
	for a, axis := range m.axes {
		if m.world != nil && axis.Size == m.world.Size() {
			m.groups = append(m.groups, m.world)
			continue
		}
		ranks := m.ranksAlong(m.rank, a)
		for i, r := range ranks {
			ranks[i] = m.ranks[r]
		}
		group, err := m.newGroup(ctx, ranks)
		if err != nil {
			_ = m.Close()
			return fmt.Errorf("mesh: the group of axis %s of %s: %w", axis.Name, m.equation(), err)
		}
		m.groups = append(m.groups, group)
	}
	return nil
}

// formed returns the mesh unless it could not be formed.
func (m *Mesh) formed(err error) (*Mesh, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}

// newGroup makes a group of some ranks of base, which only these ranks call for.
func (m *Mesh) newGroup(ctx context.Context, ranks []int) (*dist.Group, error) {
	if len(ranks) == m.base.Size() && slices.Equal(ranks, count(len(ranks))) {
		return m.base, nil
	}
	if m.base.PyTorchVersion() != "" {
		return nil, fmt.Errorf(`mesh: the ranks %v of group %q: the group has PyTorch's wire, on which all ranks of the job make a group. Make a group of the Go ranks by WithBackend("native"), and the mesh over it`, ranks, m.base.Name())
	}
	group, err := m.base.NewGroup(ctx, ranks)
	if err != nil {
		return nil, err
	}
	m.made = append(m.made, group)
	return group, nil
}

// settle checks the axes and infers the size that is left out.
func settle(axes []Axis, numRanks int, group string) ([]Axis, error) {
	axes = slices.Clone(axes)
	known, inferred := 1, -1
	for i, a := range axes {
		switch {
		case a.Name == "":
			return nil, fmt.Errorf("mesh: axis %d of %d has no name: name it", i, len(axes))
		case slices.ContainsFunc(axes[:i], func(b Axis) bool { return b.Name == a.Name }):
			return nil, fmt.Errorf("mesh: %s has the axis %s twice: give each a name of its own", equation(axes), a.Name)
		case a.Size < 0:
			return nil, fmt.Errorf("mesh: axis %s has the size %d: want at least 1, or 0 to infer it", a.Name, a.Size)
		case a.Size == 0 && inferred >= 0:
			return nil, fmt.Errorf("mesh: the sizes of the axes %s and %s are left out: only one can be inferred", axes[inferred].Name, a.Name)
		case a.Size == 0:
			inferred = i
		case a.Size > maxRanks/known:
			return nil, &SizeError{Axes: axes, NumRanks: numRanks, Group: group}
		default:
			known *= a.Size
		}
	}
	if inferred >= 0 && numRanks%known == 0 {
		axes[inferred].Size = numRanks / known
		known = numRanks
	}
	if known != numRanks || inferred >= 0 && axes[inferred].Size == 0 {
		return nil, &SizeError{Axes: axes, NumRanks: numRanks, Group: group}
	}
	return axes, nil
}

// Axes returns the axes, with the sizes that were inferred.
func (m *Mesh) Axes() []Axis { return slices.Clone(m.axes) }

// Shape returns the sizes of the axes.
func (m *Mesh) Shape() []int {
	shape := make([]int, len(m.axes))
	for i, a := range m.axes {
		shape[i] = a.Size
	}
	return shape
}

// Size returns the number of ranks in the mesh.
func (m *Mesh) Size() int {
	n := 1
	for _, a := range m.axes {
		n *= a.Size
	}
	return n
}

// Rank returns this rank's number in the mesh, in row-major order, and -1 outside the mesh.
func (m *Mesh) Rank() int { return m.rank }

// Ranks returns the ranks of the mesh, in its order, as numbers in the world (see
// [dist.Group.Ranks]); of a [Sketch] the numbers in the sketch.
func (m *Mesh) Ranks() []int {
	if m.base == nil {
		return slices.Clone(m.ranks)
	}
	ranks, world := make([]int, len(m.ranks)), m.base.Ranks()
	for i, r := range m.ranks {
		ranks[i] = world[r]
	}
	return ranks
}

// IsMember reports whether this rank is in the mesh.
func (m *Mesh) IsMember() bool { return m.rank >= 0 }

// Coordinate returns this rank's place on each axis, and nil outside the mesh.
func (m *Mesh) Coordinate() []int { return slices.Clone(m.coordinate) }

// CoordinateOf returns the place on each axis of the rank of the mesh with the given number.
func (m *Mesh) CoordinateOf(rank int) ([]int, error) {
	if rank < 0 || rank >= m.Size() {
		return nil, fmt.Errorf("mesh: there is no rank %d in %s: want 0 to %d", rank, m.equation(), m.Size()-1)
	}
	return coordinateOf(m.Shape(), rank), nil
}

// Index returns the number of the axis of the given name, from 0. The error is an [*AxisError].
func (m *Mesh) Index(axis string) (int, error) {
	var known []string
	for i, a := range m.axes {
		if a.Name == axis {
			return i, nil
		}
		known = append(known, a.Name)
	}
	return -1, &AxisError{Axis: axis, Known: known, Nearest: nearest.Name(axis, known)}
}

// Has reports whether the mesh has an axis of the given name.
func (m *Mesh) Has(axis string) bool {
	return slices.ContainsFunc(m.axes, func(a Axis) bool { return a.Name == axis })
}

// Group returns the group of the ranks that differ from this one only on the given axis. A
// rank's number in the group is its coordinate on the axis. If there is no such axis, the error
// is an [*AxisError].
func (m *Mesh) Group(axis string) (*dist.Group, error) {
	i, err := m.Index(axis)
	if err != nil {
		return nil, err
	}
	if m.groups == nil {
		return nil, fmt.Errorf("mesh: axis %s of %s has no group on this rank: the mesh is a sketch, or the rank is outside", axis, m.equation())
	}
	return m.groups[i], nil
}

// World returns the group of all ranks of the mesh. It is nil for a [Sketch], for a rank outside
// the mesh, and for a mesh made by [Mesh.Sub] of several axes. [Mesh.Flatten] makes one of these.
func (m *Mesh) World() *dist.Group { return m.world }

// Close closes the groups that the mesh has made, but not the group that it was made over.
func (m *Mesh) Close() error {
	var first error
	for _, g := range m.made {
		if err := g.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// ranksAlong returns the ranks of the mesh that differ from rank only on one axis, in order.
func (m *Mesh) ranksAlong(rank, axis int) []int {
	stride := 1
	for _, a := range m.axes[axis+1:] {
		stride *= a.Size
	}
	size := m.axes[axis].Size
	first := rank - rank/stride%size*stride
	ranks := make([]int, size)
	for i := range ranks {
		ranks[i] = first + i*stride
	}
	return ranks
}

// coordinateOf returns the place of a rank in row-major order.
func coordinateOf(shape []int, rank int) []int {
	at := make([]int, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		at[i] = rank % shape[i]
		rank /= shape[i]
	}
	return at
}
