// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// typeCheck has the sharding types of a strategy's first training pass checked. What
// is wrong ends the forward pass, or the backward pass before its first gradient: no
// optimizer has stepped then.
type typeCheck struct {
	pass *sharding.Pass // that is under way, nil for none
	done bool           // a whole pass has been checked
}

// begin checks the pass over a tape, unless one has been checked. The strategy then
// says how the parameters lie. The result is nil where nothing is checked.
func (t *typeCheck) begin(tape *tensor.Tape, axes ...sharding.Axis) *sharding.Pass {
	if !t.done {
		t.pass = sharding.Begin(tape, axes...)
	}
	return t.pass
}

// end comes with the backward pass, by which the whole pass has been checked.
func (t *typeCheck) end() {
	t.done = t.done || t.pass.Checked()
	t.pass = nil
}

// checkTypes has the types of the first training pass checked: the parameters are
// replicated, and their gradients are each rank's part of a sum.
func (r *nativeReducer) checkTypes(tape *tensor.Tape) {
	pass := r.types.begin(tape, sharding.Axis{Name: replicateAxis, Data: true})
	if pass == nil {
		return
	}
	for _, p := range r.params {
		use := sharding.Parameter{Name: p.Name(), Value: sharding.Type{mesh.Replicate()}}
		if !p.Frozen {
			use.Gradient = sharding.Type{mesh.Partial(dist.Sum)}
		}
		pass.Param(p.Data(), use)
	}
}

// checkTypes has the types of the first training pass checked. What the model reads
// of a parameter is told where it is read; what is told here is the shard, which is
// no operand of a model.
func (f *FSDP) checkTypes(tape *tensor.Tape) {
	if f.types.done {
		return
	}
	var axes []sharding.Axis
	for _, a := range f.mesh.Axes() {
		axes = append(axes, sharding.Axis{Name: a.Name, Data: true})
	}
	pass := f.types.begin(tape, axes...)
	if pass == nil {
		return
	}
	for _, s := range f.params {
		pass.Param(s.data, s.use(s.sharded))
	}
	for _, p := range f.rows.sparse {
		pass.Param(p.Data(), sharding.Parameter{
			Name: p.Name(), Value: sharding.Uniform(axes, mesh.Replicate()), Gradient: sharding.Uniform(axes, mesh.Partial(dist.Sum)),
		})
	}
}

// use says how the parameter lies where something reads it.
func (s *shardParam) use(at []mesh.Placement) sharding.Parameter {
	use := sharding.Parameter{Name: s.name, Value: slices.Clone(at)}
	if !s.frozen {
		use.Gradient = slices.Clone(s.owing)
	}
	return use
}
