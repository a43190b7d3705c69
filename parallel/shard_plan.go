// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// shardPlan takes the place of the ranks when a step of an FSDP is predicted. A copy of the FSDP
// on tensor.Meta runs the passes as the FSDP itself will. Its collectives are noted in place of
// being made, and the memory of full values is counted on the tape of the pass. The methods of
// a nil shardPlan do nothing.
type shardPlan struct {
	tape  *tensor.Tape
	calls []plannedCall // of the present pass
	kept  int64         // bytes of memory that goes from unit to unit, and from step to step
}

// count adds to the bytes that the values of the pass hold.
func (p *shardPlan) count(numBytes int64) {
	if p != nil && p.tape != nil {
		p.tape.Count(numBytes)
	}
}

// keep counts memory that is not given back.
func (p *shardPlan) keep(numBytes int) {
	if p != nil {
		p.kept += int64(numBytes)
	}
}

func (p *shardPlan) note(c plannedCall) { p.calls = append(p.calls, c) }

// fullBytes is the memory of the unit's full values.
func (u *shardUnit) fullBytes() int64 {
	sum := int64(0)
	for _, s := range u.params {
		sum += sizeOf(s.padded, s.dtype)
	}
	return sum
}

// allGather gathers the chunks of parameters, or notes that it would.
func (f *FSDP) allGather(ctx context.Context, dsts []*tensor.Tensor, values []mesh.Tensor) *mesh.Pending {
	if f.plan == nil {
		return mesh.AllGatherAsync(ctx, shardAxis, dsts, values...)
	}
	group := f.shards
	if values[0].Mesh == f.near {
		group = f.near.World()
	}
	f.plan.note(cutCall(operation.AllGather, group, group.Size(), values, group.LocalSize() > 1))
	return planned(shardAxis, mesh.Replicate(), dsts, values)
}

// reduceScatter sums whole gradients over the ranks that have shards, or notes that it would.
func (f *FSDP) reduceScatter(ctx context.Context, dim int, dsts []*tensor.Tensor, values []mesh.Tensor) *mesh.Pending {
	if f.plan == nil {
		return mesh.ReduceScatterAsync(ctx, shardAxis, dim, dsts, values...)
	}
	f.plan.note(cutCall(operation.ReduceScatter, f.shards, f.shards.Size(), values, true))
	return planned(shardAxis, mesh.Shard(dim), dsts, values)
}

// allReduce sums shards of gradients over the ranks that have the same ones, which are those of
// like, or notes that it would.
func (f *FSDP) allReduce(ctx context.Context, like *shardParam, values []mesh.Tensor) *mesh.Pending {
	if f.plan == nil {
		return mesh.AllReduceAsync(ctx, like.sumAxis, values...)
	}
	group := like.sumGroup()
	f.plan.note(cutCall(operation.AllReduce, group, f.shards.Size(), values, group.LocalSize() > 1))
	locals := make([]*tensor.Tensor, len(values))
	for i, v := range values {
		locals[i] = v.Local
	}
	return planned(like.sumAxis, mesh.Replicate(), locals, values)
}

// cutCall is the call by which a group gathers or reduces values, of each of which a rank has one
// of numParts.
func cutCall(op operation.Op, group *dist.Group, numParts int, values []mesh.Tensor, shared bool) plannedCall {
	count := 0
	for _, v := range values {
		count += numElemsOf(v.Shape) / numParts
	}
	c := operation.Call{Op: op, DType: operation.DType(values[0].Local.DType()), Count: count}
	if op.Reduces() {
		c.Reduce = dist.Sum
	}
	return plannedCall{group, c, shared}
}

// planned is a collective that takes no time: its results are in dsts, with another placement on
// an axis.
func planned(axis string, p mesh.Placement, dsts []*tensor.Tensor, values []mesh.Tensor) *mesh.Pending {
	at, _ := values[0].Mesh.Index(axis)
	out := slices.Clone(values)
	for i := range out {
		placements := slices.Clone(out[i].Placements)
		placements[at] = p
		out[i] = out[i].As(placements...)
		out[i].Local = dsts[i]
	}
	return mesh.Planned(out...)
}

// sketch returns a copy of the FSDP on tensor.Meta, with parameters of its own: what happens to
// it does not touch the FSDP.
func (f *FSDP) sketch() *FSDP {
	g := &FSDP{
		Model: f.Model, mesh: f.mesh, split: f.split, shards: f.shards, device: tensor.Meta,
		unitOf: map[any]*shardUnit{}, paramOf: map[*nn.Parameter]*shardParam{}, world: f.world,
		numTrained: f.numTrained, keep: f.keep, near: f.near, sync: true, outlines: map[bool][]outline{}, types: typeCheck{done: true}, plan: &shardPlan{},
	}
	of := map[*shardParam]*shardParam{}
	for _, u := range f.units {
		v := &shardUnit{f: g, path: u.path, module: u.module}
		for _, s := range u.params {
			r := s.sketch(v)
			of[s] = r
			v.params = append(v.params, r)
			g.paramOf[s.param] = r
		}
		v.prepare()
		g.units = append(g.units, v)
		g.unitOf[u.module] = v
	}
	for _, s := range f.params {
		g.params = append(g.params, of[s])
	}
	return g
}

// sketch returns a copy of a parameter on tensor.Meta.
func (s *shardParam) sketch(u *shardUnit) *shardParam {
	meta := func(dtype tensor.DType, shape []int) *tensor.Tensor {
		t := tensor.New(tensor.Meta, dtype, shape...)
		t.SetName(s.name)
		return t
	}
	r := &shardParam{
		name: s.name, unit: u, index: s.index, dim: s.dim, rows: s.rows, numPieces: s.numPieces, shape: s.shape, dtype: s.dtype, frozen: s.frozen,
		fullDType: s.fullDType, gradDType: s.gradDType, padded: s.padded, chunkShape: s.chunkShape, device: tensor.Meta, mesh: s.mesh, sumAxis: s.sumAxis, sharded: s.sharded, owing: s.owing, whole: s.whole,
		chunk: meta(s.dtype, s.chunkShape), base: meta(s.fullDType, s.padded),
	}
	if s.wire != nil {
		r.wire = meta(s.fullDType, s.chunkShape)
	}
	r.data = r.local(r.chunk)
	r.full = r.present(r.base, s.shape[s.dim])
	r.full.SetName(s.name)
	r.base.Release()
	r.param = nn.NewParameter(r.data)
	r.param.Frozen = s.frozen
	return r
}

func (f *FSDP) forecast() forecast {
	g := f.sketch()
	o := forecast{
		model: f.Model, strategy: g, shape: whole, whole: func(p *nn.Parameter) []int { return f.Layout(p).Shape },
		binds: func(p *nn.Parameter) bool { return g.paramOf[p] != nil },
		begin: func(tape *tensor.Tape) {
			g.plan.tape, g.plan.calls = tape, nil
			for _, s := range g.params {
				s.param.ZeroGrad()
			}
		},
		passes: 2, // the first one learns in which order the units are called
		result: func() ([]plannedCall, int64) { return g.plan.calls, g.plan.kept },
	}
	for _, s := range f.shared {
		o.extra += sizeOf(s.flat.Shape(), s.flat.DType())
		o.calls = append(o.calls, broadcastOf(f.world.group(), s))
	}
	for _, s := range f.params {
		padding := sizeOf(s.chunkShape, s.dtype) - sizeOf(s.data.Shape(), s.dtype)
		o.extra += padding
		if s.wire != nil {
			o.extra += sizeOf(s.chunkShape, s.fullDType)
		}
		switch {
		case s.frozen:
		case s.gradDType != s.dtype: // what is reduced is not what the optimizer sees
			o.extra += sizeOf(s.chunkShape, s.gradDType)
		default:
			o.extra += padding
		}
	}
	if len(f.sparse) > 0 {
		o.noSent = fmt.Errorf("predict: %s is sparse, so the bytes that are sent depend on the rows that a batch uses", f.sparse[0].Name())
	}
	return o
}
