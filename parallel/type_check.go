// SPDX-License-Identifier: Apache-2.0

package parallel

import (
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

// checkTypes has the types of the first training pass checked: the parameters lie as their lays
// say, and their gradients are each rank's part of a sum over the axes that they owe.
func (r *nativeReducer) checkTypes(tape *tensor.Tape) {
	pass := r.types.begin(tape, r.split.axes()...)
	if pass == nil {
		return
	}
	for _, p := range r.params {
		pass.Param(p.Data(), r.split.use(p, p.Name(), p.Frozen, mesh.Replicate()))
	}
}

// checkTypes has the types of the first training pass checked. What the model reads
// of a parameter is told where it is read; what is told here is the shard, which is
// no operand of a model.
func (f *FSDP) checkTypes(tape *tensor.Tape) {
	if f.types.done {
		return
	}
	pass := f.types.begin(tape, f.split.axes()...)
	if pass == nil {
		return
	}
	for _, s := range f.params {
		pass.Param(s.data, s.use(s.sharded))
	}
	for _, p := range f.sparse {
		pass.Param(p.Data(), f.split.use(p, p.Name(), p.Frozen, mesh.Replicate()))
	}
}

// use says how the parameter lies where something reads it, of which fsdp has left what at says.
func (s *shardParam) use(at []mesh.Placement) sharding.Parameter {
	i, _ := s.mesh.Index(shardAxis) // which all of these meshes have
	return s.unit.f.split.use(s.param, s.name, s.frozen, at[i])
}
