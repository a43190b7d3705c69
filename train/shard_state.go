// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// isSharded reports whether ranks hold different parts of a model, or share out its passes.
// Then every pass is a call of all ranks.
func isSharded(model any) bool {
	s, ok := model.(parallel.Strategy)
	if _, composed := s.(staged); composed {
		return true
	}
	return ok && slices.ContainsFunc(nn.Parameters(s), func(p *nn.Parameter) bool { return isShard(s.Layout(p)) })
}

func isShard(l mesh.Layout) bool {
	return slices.ContainsFunc(l.Placements, func(p mesh.Placement) bool { return !p.IsReplicate() })
}

// staged is a strategy that may have given parameters to other ranks than this one: those of
// other stages of a pipeline. Such a parameter is away, and has no data here. The layouts of
// the strategy are on the mesh without the axis of the pipeline.
type staged interface {
	parallel.Strategy
	Mesh() *mesh.Mesh // with all axes
	IsAway(p *nn.Parameter) bool
}

// residence is where a parameter is.
type residence struct {
	mesh.Layout
	away, frozen bool
}

// residences returns where the parameters of a model are, in their order.
func residences(model parallel.Strategy) (params []*nn.Parameter, at []residence) {
	s, _ := model.(staged)
	for _, p := range nn.Parameters(model) {
		r := residence{Layout: model.Layout(p), frozen: p.Frozen}
		switch {
		case s != nil && s.Mesh().Has(axisPP):
			// Also of a whole parameter: other ranks may lack it.
			r.Layout, r.away = onAllAxes(r.Layout, s.Mesh()), s.IsAway(p)
		case !isShard(r.Layout):
			r.Layout = mesh.Layout{} // the same on all ranks
		}
		params, at = append(params, p), append(at, r)
	}
	return params, at
}

// onAllAxes returns a layout on a mesh of more axes, over which the value is replicated.
func onAllAxes(l mesh.Layout, m *mesh.Mesh) mesh.Layout {
	all := mesh.Layout{Mesh: m, Shape: l.Shape}
	for _, axis := range m.Axes() {
		placement := mesh.Replicate()
		if l.Mesh != nil && l.Mesh.Has(axis.Name) {
			i, _ := l.Mesh.Index(axis.Name) // it has it
			placement = l.Placements[i]
		}
		all.Placements = append(all.Placements, placement)
	}
	return all
}

// ModelParts returns what this rank holds of a model's state, by the model's own names, but of
// published mixtures of experts by the names of their files ([models.FileParts]): what
// [checkpoint.Save] saves and [checkpoint.Checkpoint.LoadParts] loads.
func ModelParts(model parallel.Strategy) []checkpoint.Part {
	return inFiles(model, partsOf(model, model.StateDict()))
}

// inFiles returns parts of a model's state as its files hold them.
func inFiles(model any, parts []checkpoint.Part) []checkpoint.Part {
	parts, err := models.FileParts(model, parts)
	if err != nil { // this rank is not on the mesh of its own model
		panic(err)
	}
	return parts
}

// partsOf returns what this rank holds of tensors: of parameters of a model what the
// strategy says, and everything else whole.
func partsOf(model parallel.Strategy, tensors nn.NamedTensors) []checkpoint.Part {
	params, at := residences(model)
	of := make(map[*tensor.Tensor]residence)
	for i, p := range params {
		of[p.Data()] = at[i]
	}
	var parts []checkpoint.Part
	for _, t := range tensors {
		parts = append(parts, part(t, of[t.Tensor]))
	}
	return parts
}

func part(t nn.NamedTensor, r residence) checkpoint.Part {
	return checkpoint.Part{Name: t.Name, Tensor: mesh.Tensor{Local: t.Tensor, Layout: r.Layout}, Away: r.away, Frozen: r.frozen}
}

// StateOf returns what this rank holds of a model and of its optimizer: what a program with a
// loop of its own gives to [checkpoint.Save] and [checkpoint.Load].
func StateOf(model parallel.Strategy, opt optim.Optimizer) checkpoint.State {
	return checkpoint.State{Sections: map[string][]checkpoint.Part{
		checkpoint.Model: ModelParts(model), checkpoint.Optimizer: OptimizerParts(model, opt),
	}}
}

// divided is an optimizer whose state is divided among the ranks of a mesh of one axis: a rank has
// the whole state of some parameters. *parallel.ZeroRedundancyOptimizer is one.
type divided interface {
	optim.Optimizer
	Mesh() *mesh.Mesh
	Holds(p *nn.Parameter) bool
}

// OptimizerParts returns what this rank holds of the state of a model's optimizer. A
// state lies as its parameter does, and counts of updates are whole. The state that another rank
// holds (parallel.ZeroRedundancyOptimizer) is away.
func OptimizerParts(model parallel.Strategy, opt optim.Optimizer) []checkpoint.Part {
	params, at := residences(model)
	of := make(map[string]residence)
	z, isDivided := opt.(divided)
	for i, p := range params {
		if of[p.Name()] = at[i]; isDivided {
			whole := mesh.Layout{Shape: p.Data().Shape()}
			of[p.Name()] = residence{Layout: onAllAxes(whole, z.Mesh()), away: !z.Holds(p), frozen: p.Frozen}
		}
	}
	var parts []checkpoint.Part
	for _, t := range opt.State() {
		kind, name, _ := strings.Cut(t.Name, ".")
		r := of[name]
		if kind == "step" && r.Mesh != nil {
			r.Layout = mesh.Layout{Mesh: r.Mesh, Shape: t.Tensor.Shape()}
			for range r.Mesh.Axes() {
				r.Placements = append(r.Placements, mesh.Replicate())
			}
		}
		parts = append(parts, part(t, r))
	}
	return parts
}

func (r *trainer[B]) weightParts() []checkpoint.Part { return inFiles(r.model, r.heldWeights()) }

// heldWeights are weightParts under the model's own names, as they lie in memory.
func (r *trainer[B]) heldWeights() []checkpoint.Part {
	parts := partsOf(r.model, r.weights())
	if e := r.task.Elsewhere; e != nil {
		more, _ := e.Parts()
		parts = append(parts, more...)
	}
	return parts
}

func (r *trainer[B]) optimizerParts() []checkpoint.Part {
	parts := OptimizerParts(r.model, r.opt)
	if e := r.task.Elsewhere; e != nil {
		_, more := e.Parts()
		parts = append(parts, more...)
	}
	return parts
}

// sharding says what is sharded over what, and what a rank holds of it; "" where nothing
// is.
func (r *trainer[B]) sharding() string {
	if !r.sharded {
		return ""
	}
	held, whole := 0, 0
	add := func(p checkpoint.Part, times int) {
		size := times * p.Local.DType().Size()
		if !p.Away {
			held += size * p.Local.NumElems()
		}
		all := p.Local.NumElems()
		if p.Mesh != nil {
			all = 1
			for _, n := range p.Shape {
				all *= n
			}
		}
		whole += size * all
	}
	params, at := residences(r.model)
	for i, p := range params {
		times := 2 // its gradient lies as it does; that by rows depends on the batch
		if p.Frozen || p.Sparse {
			times = 1
		}
		add(part(nn.NamedTensor{Name: p.Name(), Tensor: p.Data()}, at[i]), times)
	}
	for _, p := range r.optimizerParts() {
		add(p, 1)
	}
	return fmt.Sprintf("%v: of %s of parameters, gradients and optimizer state %s holds %s",
		r.model, data.ByteSize(int64(whole)), r.whoHolds(), data.ByteSize(int64(held)))
}

// turns keeps the passes of an evaluation together. Where parameters are sharded, a pass
// gathers them on all ranks: a rank whose share is done runs passes for the others, and
// all give up at the same pass.
type turns struct {
	world   *dist.Group
	sharded bool
}

// turnsOf returns those of the evaluation of a wrapped model.
func turnsOf(model any, axes Axes) turns { return turns{axes.World, isSharded(model)} }

// next says whether this rank runs another pass: more is whether it has a batch left. The
// error is errCut where a rank is to stop.
func (t turns) next(ctx context.Context, more bool) (pass bool, err error) {
	stop := phaseOf(ctx).stopping()
	if t.sharded {
		votes := tensor.FromInt64([]int64{0, 0})
		votes.Select(0, 0).Fill(asNumber(more))
		votes.Select(0, 1).Fill(asNumber(stop))
		if err := t.world.AllReduce(ctx, votes, dist.Max); err != nil {
			return false, err
		}
		all := votes.Int64s()
		more, stop = all[0] > 0, all[1] > 0
	}
	if more && stop {
		return false, errCut
	}
	return more, nil
}

func asNumber(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
