// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist/mesh"
)

// Part is what this rank holds of a tensor, with the name of the tensor. A Part without a mesh
// is the whole tensor, the same on all ranks; it needs no Shape.
//
// If only some ranks of the mesh have the tensor, as the ranks of one stage of a pipeline do, all
// ranks list it nevertheless, with its layout on the whole mesh. Away is true on the ranks that
// have nothing of it. Their Local only says what dtype the tensor has: it may be on tensor.Meta.
//
// Frozen says that the tensor is not trained. A save links the file of frozen tensors of the
// checkpoint before, if their bytes have the same checksums, and writes none of them.
type Part struct {
	Name string
	mesh.Tensor
	Away   bool
	Frozen bool
}

// Whole returns tensors of which this rank holds everything.
func Whole(tensors Tensors) []Part {
	var parts []Part
	for name, t := range tensors {
		parts = append(parts, Part{Name: name, Tensor: mesh.Tensor{Local: t}})
	}
	return parts
}

// shape returns that of the whole tensor.
func (p Part) shape() []int {
	if p.Mesh == nil {
		return p.Local.Shape()
	}
	return p.Shape
}

// isWhole reports whether a rank that holds something holds everything.
func (p Part) isWhole() bool {
	return p.Mesh == nil || !slices.ContainsFunc(p.Placements, func(pl mesh.Placement) bool { return !pl.IsReplicate() })
}

// boxes returns the parts of the tensor that this rank holds.
func (p Part) boxes() ([]mesh.Box, error) {
	switch {
	case p.Away:
		return nil, nil
	case p.isWhole():
		zeros := make([]int, len(p.shape()))
		return []mesh.Box{{Start: zeros, Shape: p.shape(), LocalStart: zeros}}, nil
	}
	return p.Boxes()
}

// numBytes returns the bytes that this rank holds.
func (p Part) numBytes() int64 {
	if p.Away {
		return 0
	}
	return int64(p.Local.NumElems()) * int64(p.Local.DType().Size())
}

// check reports a part from which the tensor cannot be put together.
func (p Part) check() error {
	switch {
	case p.Away && p.Mesh == nil:
		return errors.New("is away on this rank, and has no mesh on which it is: give its layout")
	case p.isWhole():
		return nil
	}
	if !p.Mesh.IsMember() {
		return fmt.Errorf("lies on a mesh of the axes %v, and this rank is not in it: leave the tensor out here", p.Mesh.Axes())
	}
	for i, pl := range p.Placements {
		if _, ok := pl.IsShard(); !ok && !pl.IsReplicate() {
			return fmt.Errorf("is %v on the axis %s: reduce it first", pl, p.Mesh.Axes()[i].Name)
		}
	}
	want, err := p.LocalShape()
	if err == nil && !p.Away && !slices.Equal(want, p.Local.Shape()) {
		err = fmt.Errorf("has the shape %v on this rank, and of %v its layout gives it %v", p.Local.Shape(), p.Shape, want)
	}
	return err
}

// placements describes how the tensor lies, for people.
func (p Part) placements() []string {
	if p.Mesh == nil {
		return nil
	}
	list := make([]string, len(p.Placements))
	for i, pl := range p.Placements {
		list[i] = fmt.Sprint(pl)
	}
	return list
}
