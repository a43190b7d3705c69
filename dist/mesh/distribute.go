// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// Cut spreads a tensor that every rank of the mesh has with the same values. Each rank keeps its
// part, and nothing is sent. Gradients go through it, as through [Tensor.Redistribute] from
// Replicate. On a rank outside the mesh the result has no values.
func Cut(t *tensor.Tensor, m *Mesh, placements ...Placement) (Tensor, error) {
	whole := Tensor{t, Layout{m, t.Shape(), make([]Placement, len(m.axes))}}
	// Nothing waits: all steps that begin at Replicate are local.
	return whole.Redistribute(context.Background(), placements...)
}

// header is what the rank that has a tensor tells the others before it sends their parts.
type header struct {
	Shape   []int
	DType   tensor.DType
	Problem string // why there is nothing to send
}

// Distribute spreads the tensor that one rank of the mesh has. src is this rank's number in the
// mesh, and t is used there alone. Each rank receives only its part. The ranks of an axis that owes a
// sum get zeros, but for the first of them. All ranks of the mesh call Distribute. If the rank src
// cannot send, all ranks get an error. The result is on the CPU, except on the rank src, where it
// is on the device of t. No gradient goes through it. On a rank outside the mesh the result has no values.
func Distribute(ctx context.Context, t *tensor.Tensor, m *Mesh, src int, placements ...Placement) (Tensor, error) {
	if src < 0 || src >= m.Size() {
		return Tensor{}, fmt.Errorf("mesh: distribute from rank %d over %s: want a rank from 0 to %d", src, m.equation(), m.Size()-1)
	}
	if !m.IsMember() {
		return Tensor{Layout: Layout{Mesh: m, Placements: slices.Clone(placements)}}, nil
	}
	if m.world == nil {
		return Tensor{}, fmt.Errorf("mesh: distribute over %s: the mesh has no group of all its ranks: use the mesh that it was taken from, or Mesh.Flatten", m.equation())
	}
	var h header
	if m.rank == src {
		h = headerOf(t, m, placements)
	}
	h, err := dist.BroadcastObject(ctx, m.world, h, src)
	if err != nil {
		return Tensor{}, fmt.Errorf("mesh: distribute from rank %d over %s: %w", src, m.equation(), err)
	}
	if h.Problem != "" {
		return Tensor{}, fmt.Errorf("mesh: distribute from rank %d over %s: %s", src, m.equation(), h.Problem)
	}
	held := slices.Clone(placements)
	for a, p := range held {
		if !p.holdsPart() {
			held[a] = Replicate()
		}
	}
	out := Tensor{Layout: Layout{m, h.Shape, held}}
	if out.Local, err = out.receive(ctx, t, h.DType, src); err != nil {
		return Tensor{}, fmt.Errorf("mesh: distribute from rank %d as %v: %w", src, out.Layout, err)
	}
	return out.Redistribute(ctx, placements...)
}

// headerOf is what the rank that has t tells the others.
func headerOf(t *tensor.Tensor, m *Mesh, placements []Placement) header {
	if t == nil {
		return header{Problem: "that rank gave no tensor"}
	}
	h := header{Shape: t.Shape(), DType: t.DType()}
	if err := Check(h.Shape, m.Shape(), placements); err != nil {
		h.Problem = err.Error()
	}
	return h
}

// receive returns this rank's part of the tensor whole of the rank src.
func (t Tensor) receive(ctx context.Context, whole *tensor.Tensor, dtype tensor.DType, src int) (*tensor.Tensor, error) {
	m := t.Mesh
	shape, err := t.LocalShape()
	if err != nil {
		return nil, err
	}
	device := tensor.CPU()
	if m.rank == src {
		device = whole.Device()
	}
	local := tensor.New(device, dtype, shape...)
	if m.rank == src {
		whole = whole.Detach()
	}
	if !slices.ContainsFunc(t.Placements, func(p Placement) bool { return p.kind == shard }) {
		if m.rank == src {
			local.CopyFrom(whole)
		}
		return local, m.world.Broadcast(ctx, local, src)
	}
	var srcs []*tensor.Tensor
	if m.rank == src {
		all := spansAt(t.Shape, make([][]cut, len(t.Shape)), nil)
		cuts, err := cutsOf(t.Shape, m.Shape(), t.Placements)
		if err != nil {
			return nil, err
		}
		for r := range m.Size() {
			srcs = append(srcs, take(whole, commonParts(all, spansAt(t.Shape, cuts, coordinateOf(m.Shape(), r)))))
		}
	}
	return local, m.world.Scatter(ctx, local, srcs, src)
}

// FromLocal returns the tensor of which each rank has the part local, and checks that the parts
// fit: all ranks of the mesh call it, and tell each other the shapes and dtypes of their parts. If
// they do not fit, every rank gets the same error, which names the rank. A nil shape is inferred
// from the parts. It does not check that ranks with Replicate have the same values. Gradients go
// through to local.
//
// To state a layout without a check and without communication, as in a forward pass, write
// Tensor{local, layout}.
func FromLocal(ctx context.Context, local *tensor.Tensor, m *Mesh, shape []int, placements ...Placement) (Tensor, error) {
	out := Tensor{local, Layout{m, slices.Clone(shape), slices.Clone(placements)}}
	if !m.IsMember() {
		out.Local = nil
		return out, nil
	}
	if m.world == nil {
		return Tensor{}, fmt.Errorf("mesh: from local over %s: the mesh has no group of all its ranks: use the mesh that it was taken from, or Mesh.Flatten", m.equation())
	}
	mine := header{Problem: "has no local tensor"}
	if local != nil {
		mine = header{Shape: local.Shape(), DType: local.DType()}
	}
	parts, err := dist.AllGatherObject(ctx, m.world, mine)
	if err != nil {
		return Tensor{}, fmt.Errorf("mesh: from local over %s: %w", m.equation(), err)
	}
	if shape == nil {
		out.Shape = inferShape(parts, m.Shape(), placements)
	}
	if err := out.Validate(); err != nil {
		return Tensor{}, err
	}
	for r, part := range parts {
		at := coordinateOf(m.Shape(), r)
		want, err := LocalShape(out.Shape, m.Shape(), placements, at)
		switch {
		case err != nil:
			return Tensor{}, err
		case part.Problem != "":
			return Tensor{}, fmt.Errorf("mesh: from local as %v: rank %d at %v %s: give it one of shape %v", out.Layout, r, at, part.Problem, want)
		case !slices.Equal(part.Shape, want):
			return Tensor{}, fmt.Errorf("mesh: from local as %v: rank %d at %v has a part of shape %v, want %v: chunks have the sizes of torch.chunk", out.Layout, r, at, part.Shape, want)
		case part.DType != parts[0].DType:
			return Tensor{}, fmt.Errorf("mesh: from local as %v: rank %d at %v has a part of dtype %v, and rank 0 of %v", out.Layout, r, at, part.DType, parts[0].DType)
		}
	}
	return out, nil
}

// inferShape returns the global shape that the parts of all ranks give: along the axes that cut a
// dim their sizes add up.
func inferShape(parts []header, meshShape []int, placements []Placement) []int {
	shape := slices.Clone(parts[0].Shape)
	for d := range shape {
		shape[d] = 0
		for r, part := range parts {
			adds := d < len(part.Shape)
			for a, c := range coordinateOf(meshShape, r) {
				dim, cut := 0, false
				if a < len(placements) {
					dim, cut = placements[a].IsShard()
				}
				adds = adds && (c == 0 || cut && dim == d)
			}
			if adds {
				shape[d] += part.Shape[d]
			}
		}
	}
	return shape
}
