// SPDX-License-Identifier: Apache-2.0

package nn

import "github.com/cohort-ml/cohort/tensor"

// Sequential runs modules one after the other; their names are 0, 1, ….
type Sequential struct {
	Layers []Module `name:""`
}

// NewSequential returns the modules in order.
func NewSequential(layers ...Module) *Sequential { return &Sequential{Layers: layers} }

// Forward passes x through all modules.
func (s *Sequential) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	mark := c.Tape().Mark()
	for _, m := range s.Layers {
		x = c.Call(m, x)
		c.Tape().FreeSince(mark, x) // without a record, the result of the layer before
	}
	return x
}
