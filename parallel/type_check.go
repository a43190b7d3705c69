// SPDX-License-Identifier: Apache-2.0

package parallel

import (
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
