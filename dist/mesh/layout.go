// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"slices"
)

const (
	maxPieces = 1 << 16 // of a strided shard
	maxBoxes  = 1 << 20 // of one rank
	maxElems  = 1 << 43 // of a tensor; a dim of no elements counts as 1
	maxRanks  = 1 << 18 // of a mesh
)

// Layout says how a tensor is spread over a mesh. Shape is the global shape. Placements has one
// entry for each axis of Mesh. The zero Layout, without a mesh, stands for a value that is not
// spread.
type Layout struct {
	Mesh       *Mesh
	Shape      []int
	Placements []Placement
}

// Box is a part of a tensor that a rank holds without gaps. It begins at Start of the global
// tensor and at LocalStart of the rank's local tensor, and has the shape Shape in both. All
// three have one number for each dim.
type Box struct {
	Start, Shape, LocalStart []int
}

// Boxes returns which parts of a tensor of the global shape the rank at coordinate holds on a
// mesh of meshShape, in the order of the local tensor's dims. The boxes do not overlap, and
// together fill the local tensor. A rank that holds no element has no boxes. Axes that do not
// cut the tensor (Replicate, Partial, Varying) do not matter.
//
// Boxes is the only function that computes offsets. It depends on its arguments alone, and every
// rank can ask it for every other rank. An error says which argument is wrong.
func Boxes(shape, meshShape []int, placements []Placement, coordinate []int) ([]Box, error) {
	spans, err := spansOf(shape, meshShape, placements, coordinate)
	if err != nil {
		return nil, err
	}
	numBoxes := 1
	for d, s := range spans {
		if numBoxes *= len(s); numBoxes > maxBoxes {
			return nil, fmt.Errorf("mesh: %v of a tensor of shape %v on a mesh of shape %v: a rank would hold more than %d boxes at dim %d: use fewer pieces", placements, shape, meshShape, maxBoxes, d)
		}
	}
	boxes := make([]Box, numBoxes)
	numDims := len(shape)
	numbers := make([]int, 3*numDims*numBoxes)
	for i := range boxes {
		take := func() []int {
			part := numbers[:numDims:numDims]
			numbers = numbers[numDims:]
			return part
		}
		b := Box{Start: take(), Shape: take(), LocalStart: take()}
		for d, at := numDims-1, i; d >= 0; d-- {
			s := spans[d][at%len(spans[d])]
			at /= len(spans[d])
			b.Start[d], b.Shape[d], b.LocalStart[d] = s.start, s.length, s.local
		}
		boxes[i] = b
	}
	return boxes, nil
}

// LocalShape returns the shape of the local tensor of the rank at coordinate. See [Boxes] for
// the arguments and errors.
func LocalShape(shape, meshShape []int, placements []Placement, coordinate []int) ([]int, error) {
	spans, err := spansOf(shape, meshShape, placements, coordinate)
	if err != nil {
		return nil, err
	}
	return extents(spans), nil
}

// Check says what is wrong with the placements for a tensor of the given shape on a mesh of
// meshShape, nil if nothing.
func Check(shape, meshShape []int, placements []Placement) error {
	_, err := cutsOf(shape, meshShape, placements)
	return err
}

// Validate says what is wrong with the layout, nil if nothing.
func (l Layout) Validate() error {
	if l.Mesh == nil {
		if len(l.Placements) > 0 {
			return fmt.Errorf("mesh: a layout has the placements %v and no mesh: give the mesh", l.Placements)
		}
		return nil
	}
	if err := Check(l.Shape, l.Mesh.Shape(), l.Placements); err != nil {
		return fmt.Errorf("%w (mesh %s)", err, l.Mesh.equation())
	}
	return nil
}

// LocalShape returns the shape of this rank's part of the tensor.
func (l Layout) LocalShape() ([]int, error) {
	if l.Mesh == nil {
		return slices.Clone(l.Shape), nil
	}
	if !l.Mesh.IsMember() {
		return nil, l.outside()
	}
	return LocalShape(l.Shape, l.Mesh.Shape(), l.Placements, l.Mesh.Coordinate())
}

// Boxes returns the boxes of the tensor that this rank holds.
func (l Layout) Boxes() ([]Box, error) {
	if l.Mesh == nil {
		return Boxes(l.Shape, nil, nil, nil)
	}
	if !l.Mesh.IsMember() {
		return nil, l.outside()
	}
	return Boxes(l.Shape, l.Mesh.Shape(), l.Placements, l.Mesh.Coordinate())
}

// BoxesOf returns the boxes that the rank of the mesh with the given number (see [Mesh.Rank])
// holds.
func (l Layout) BoxesOf(rank int) ([]Box, error) {
	if l.Mesh == nil {
		return Boxes(l.Shape, nil, nil, nil)
	}
	at, err := l.Mesh.CoordinateOf(rank)
	if err != nil {
		return nil, err
	}
	return Boxes(l.Shape, l.Mesh.Shape(), l.Placements, at)
}

func (l Layout) outside() error {
	return fmt.Errorf("mesh: this rank is not in the mesh %s and holds no part of the tensor of shape %v: ask Mesh.IsMember first", l.Mesh.equation(), l.Shape)
}

// Equal reports whether two layouts have the same mesh, shape and placements.
func (l Layout) Equal(other Layout) bool {
	return l.Mesh == other.Mesh && slices.Equal(l.Shape, other.Shape) && slices.Equal(l.Placements, other.Placements)
}

// span is a stretch of a dim that a rank holds without gaps.
type span struct {
	start, length int
	local         int // where it begins in the local tensor
}

// cut is one division of a dim, into size chunks. A rank holds the chunk of its coordinate on
// axis, or its part of all chunks if axis is everyPiece.
type cut struct {
	axis, size int
}

const everyPiece = -1

// spansOf returns for each dim the stretches of it that the rank at coordinate holds.
func spansOf(shape, meshShape []int, placements []Placement, coordinate []int) ([][]span, error) {
	cuts, err := cutsOf(shape, meshShape, placements)
	if err != nil {
		return nil, err
	}
	if len(coordinate) != len(meshShape) {
		return nil, fmt.Errorf("mesh: the mesh of shape %v has %d axes, and the coordinate %v has %d numbers", meshShape, len(meshShape), coordinate, len(coordinate))
	}
	for a, n := range meshShape {
		if coordinate[a] < 0 || coordinate[a] >= n {
			return nil, fmt.Errorf("mesh: the coordinate %v on a mesh of shape %v: %d on axis %d, want 0 to %d", coordinate, meshShape, coordinate[a], a, n-1)
		}
	}
	return spansAt(shape, cuts, coordinate), nil
}

// spansAt is spansOf for cuts that cutsOf has made.
func spansAt(shape []int, cuts [][]cut, coordinate []int) [][]span {
	spans := make([][]span, len(shape))
	for d, n := range shape {
		spans[d] = spansOfDim(n, cuts[d], coordinate)
	}
	return spans
}

func spansOfDim(n int, cuts []cut, coordinate []int) []span {
	spans := apply(cuts, coordinate, 0, n, nil)
	local := 0
	for i := range spans {
		spans[i].local = local
		local += spans[i].length
	}
	return spans
}

// cutsOf returns for each dim the cuts of it, in their order.
func cutsOf(shape, meshShape []int, placements []Placement) ([][]cut, error) {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("mesh: %v of a tensor of shape %v on a mesh of shape %v: %s", placements, shape, meshShape, fmt.Sprintf(format, args...))
	}
	if len(placements) != len(meshShape) {
		return nil, wrong("the mesh has %d axes, and there are %d placements: give one for each axis", len(meshShape), len(placements))
	}
	numElems := 1
	for d, n := range shape {
		if n < 0 || n > maxElems/max(1, numElems) {
			return nil, wrong("dim %d has the size %d: want at least 0, and at most %d elements in all", d, n, maxElems)
		}
		numElems *= max(n, 1)
	}
	size := 1
	for a, n := range meshShape {
		if n < 1 || n > maxRanks/size {
			return nil, wrong("axis %d has the size %d: want at least 1, and at most %d ranks in all", a, n, maxRanks)
		}
		size *= n
	}
	cuts := make([][]cut, len(shape))
	for a := len(placements) - 1; a >= 0; a-- {
		p := placements[a]
		problem := p.check(len(shape))
		if problem == "" && p.kind == shard {
			cuts[p.dim], problem = insertCut(cuts[p.dim], cut{a, meshShape[a]}, p.NumPieces())
		}
		if problem == "" {
			problem = p.checkBeside(placements[a+1:])
		}
		if problem != "" {
			return nil, wrong("%v on axis %d: %s", p, a, problem)
		}
	}
	return cuts, nil
}

// insertCut puts the cut of an axis into the cuts of a dim by the later axes, in the order in
// which they cut: after those that make numPieces pieces. What no later axis cuts is cut into
// pieces all of which the rank holds.
func insertCut(cuts []cut, c cut, numPieces int) ([]cut, string) {
	made, at := 1, 0
	for at < len(cuts) && made < numPieces {
		made *= cuts[at].size
		at++
	}
	switch {
	case made == numPieces:
		return slices.Insert(cuts, at, c), ""
	case made < numPieces && numPieces%made == 0:
		return append(cuts, cut{everyPiece, numPieces / made}, c), ""
	}
	sizes := make([]int, len(cuts))
	for i, c := range cuts {
		sizes[i] = c.size
	}
	return nil, fmt.Sprintf("the later axes cut the dim into %v pieces, one after the other, and no product of the first of these is %d, nor a divisor of it if all are taken", sizes, numPieces)
}

// apply cuts a stretch of a dim and adds what the rank at coordinate holds of it to out.
func apply(cuts []cut, coordinate []int, start, length int, out []span) []span {
	if length == 0 {
		return out
	}
	if len(cuts) == 0 {
		if n := len(out); n > 0 && out[n-1].start+out[n-1].length == start {
			out[n-1].length += length
			return out
		}
		return append(out, span{start: start, length: length})
	}
	c, rest := cuts[0], cuts[1:]
	if c.axis != everyPiece {
		first, n := chunk(length, c.size, coordinate[c.axis])
		return apply(rest, coordinate, start+first, n, out)
	}
	for i := range c.size {
		first, n := chunk(length, c.size, i)
		if n == 0 {
			break
		}
		out = apply(rest, coordinate, start+first, n, out)
	}
	return out
}

// chunk returns where chunk i of numChunks of a dim of n elements begins, and how many elements
// it has, by the rule of torch.chunk.
func chunk(n, numChunks, i int) (start, length int) {
	c := n / numChunks
	if n%numChunks > 0 {
		c++
	}
	start = min(n, c*i)
	return start, min(n, start+c) - start
}
