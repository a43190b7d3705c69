// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// placements returns how a parameter lies on the axes of a pass, before fsdp cuts it.
func (p *Parallel) placements(l *lay) []mesh.Placement {
	var at []mesh.Placement
	for _, a := range p.pass.Axes() {
		at = append(at, l.at[a.Name]) // the zero placement is Replicate
	}
	return at
}

// checkLays fails where a part has said what cannot be.
func (p *Parallel) checkLays() error {
	for _, q := range nn.Parameters(p.Model) {
		l := p.lays[q]
		if err := mesh.Check(l.shape, p.pass.Shape(), p.placements(l)); err != nil {
			return fmt.Errorf("%s: %w", q.Name(), err)
		}
	}
	return nil
}

// cut gives each parameter this rank's part of its value.
func (p *Parallel) cut() error {
	for _, q := range nn.Parameters(p.Model) {
		l, whole := p.lays[q], q.Data()
		if whole.Device() == tensor.Meta {
			p.origins[q] = whole
		}
		shape, err := mesh.LocalShape(l.shape, p.pass.Shape(), p.placements(l), p.pass.Coordinate())
		if err != nil {
			return fmt.Errorf("%s: %w", q.Name(), err)
		}
		dev := whole.Device()
		switch {
		case l.away:
			dev = tensor.Meta
		case slices.Equal(shape, l.shape):
			continue
		}
		local := tensor.New(dev, whole.DType(), shape...)
		if dev != tensor.Meta {
			boxes, err := mesh.Boxes(l.shape, p.pass.Shape(), p.placements(l), p.pass.Coordinate())
			if err != nil {
				return fmt.Errorf("%s: %w", q.Name(), err)
			}
			for _, b := range boxes {
				boxOf(local, b.LocalStart, b.Shape).CopyFrom(boxOf(whole, b.Start, b.Shape))
			}
		}
		q.SetData(local)
		q.SetGrad(nil)
		q.SetGradBuffer(nil)
	}
	return nil
}

// boxOf returns the part of a tensor that begins at start, as a view.
func boxOf(t *tensor.Tensor, start, shape []int) *tensor.Tensor {
	for d := range start {
		t = t.Narrow(d, start[d], shape[d])
	}
	return t
}

// Layout returns how a parameter is spread over the axes of a pass: all of the mesh but pp.
func (p *Parallel) Layout(q *nn.Parameter) mesh.Layout {
	l := p.lays[q]
	at := p.placements(l)
	if f, ok := p.engine.(*FSDP); ok && !(q.Sparse && !q.Frozen) {
		i, _ := p.pass.Index(shardAxis)
		dim := f.dimOf(q)
		numPieces := l.pieces(dim)
		for _, a := range p.pass.Axes()[i+1:] {
			if d, cut := l.at[a.Name].IsShard(); cut && d == dim {
				numPieces *= a.Size
			}
		}
		at[i] = mesh.StridedShard(dim, numPieces)
	}
	return mesh.Layout{Mesh: p.pass, Shape: slices.Clone(l.shape), Placements: at}
}

// pieces returns into how many equal pieces, one after the other, an axis has cut a dim before it
// cut each of them.
func (l *lay) pieces(dim int) int {
	n := 1
	for _, at := range l.at {
		if d, cut := at.IsShard(); cut && d == dim {
			n *= at.NumPieces()
		}
	}
	return n
}

// isCut reports whether a rank has not all of a value.
func isCut(l mesh.Layout) bool {
	return slices.ContainsFunc(l.Placements, func(p mesh.Placement) bool { _, cut := p.IsShard(); return cut })
}

// counts reports whether this rank counts its part of a parameter in a norm: of ranks that have
// the same part, the first does.
func (p *Parallel) counts(q *nn.Parameter) bool {
	if l := p.lays[q]; l.away || l.second {
		return false
	}
	coordinate := p.pass.Coordinate()
	for i, at := range p.Layout(q).Placements {
		if _, cut := at.IsShard(); !cut && coordinate[i] > 0 {
			return false
		}
	}
	return true
}

// Materialize gives a model that was on [tensor.Meta] when it was split its values on dev. Each
// rank makes what it holds, with the bits that a model has that was built on one rank. The
// optimizer is made afterwards.
//
// Every rank has built the model alike, with the same seed. A rank that would make other values
// is an error on every rank, which names the parameter. So is a parameter of which nobody
// remembers the values (see tensor.Materialize).
func (p *Parallel) Materialize(ctx context.Context, dev tensor.Device) error {
	if dev == tensor.Meta {
		return fmt.Errorf("parallelize: materialize: device %s has no data: give another one, such as tensor.CPU()", dev.Name())
	}
	err := p.compareOrigins(ctx)
	if err == nil {
		err = p.materialize(dev)
	}
	if err != nil {
		return fmt.Errorf("parallelize: materialize: %w", err)
	}
	return nil
}

// compareOrigins returns the same error on every rank if the ranks would make different values.
func (p *Parallel) compareOrigins(ctx context.Context) error {
	var text strings.Builder
	for _, q := range nn.Parameters(p.Model) {
		if o := p.origins[q]; o != nil {
			fmt.Fprintf(&text, "%s from %s\n", q.Name(), o.Origin())
		}
	}
	noteBuffers(&text, p.Model)
	return sameOrigins(ctx, p.mesh.World(), text.String())
}

// materialize is Materialize on this rank.
func (p *Parallel) materialize(dev tensor.Device) error {
	if f, ok := p.engine.(*FSDP); ok {
		return f.materialize(dev, p.fill)
	}
	var params []*nn.Parameter
	var into []*tensor.Tensor
	for _, q := range nn.Parameters(p.Model) {
		if p.origins[q] != nil && !p.lays[q].away {
			params = append(params, q)
			into = append(into, tensor.New(dev, q.Data().DType(), q.Data().Shape()...))
		}
	}
	if err := p.fill(params, into); err != nil {
		return err
	}
	for i, q := range params {
		q.SetData(into[i])
	}
	if err := nn.MaterializeBuffers(p.Model, dev); err != nil {
		return err
	}
	d, err := replicate(p.Model, p.split, p.config.DDP)
	if err == nil {
		p.engine = d
	}
	return err
}

// fill makes the values of parameters that were on tensor.Meta: of each this rank's part.
func (p *Parallel) fill(params []*nn.Parameter, into []*tensor.Tensor) error {
	var dsts, srcs []*tensor.Tensor
	var later []func()
	for i, q := range params {
		boxes, err := p.Layout(q).Boxes()
		if err != nil {
			return fmt.Errorf("%s: %w", q.Name(), err)
		}
		for _, b := range boxes {
			dst := boxOf(into[i], b.LocalStart, b.Shape)
			if !dst.IsContiguous() {
				view := dst
				dst = tensor.New(view.Device(), view.DType(), b.Shape...)
				later = append(later, func() { view.CopyFrom(dst) })
			}
			dst.SetName(q.Name())
			dsts, srcs = append(dsts, dst), append(srcs, boxOf(p.origins[q], b.Start, b.Shape))
		}
	}
	if err := tensor.Materialize(dsts, srcs); err != nil {
		return err
	}
	for _, copy := range later {
		copy()
	}
	return nil
}
