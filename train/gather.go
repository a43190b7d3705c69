// SPDX-License-Identifier: Apache-2.0

package train

import (
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// gatherRows returns the rows of all ranks of a mesh of one axis, in the order of the ranks:
// x is [rows, …], the same number on each rank. Its gradient is the sum of what the ranks
// have for this rank's rows. So a loss that each rank computes for its own rows against
// all rows has the gradient that one rank would have with all samples.
func gatherRows(c *nn.Ctx, m *mesh.Mesh, x *tensor.Tensor) *tensor.Tensor {
	n := m.Axes()[0].Size
	if n == 1 {
		return x
	}
	shape := x.Shape()
	shape[0] *= n
	pass := sharding.Of(c.Tape())
	var y *tensor.Tensor
	if x.Device() == tensor.Meta { // a prediction
		all := make([]*tensor.Tensor, n)
		for i := range all {
			all[i] = x
		}
		y = tensor.Cat(0, all...)
	} else {
		t := mesh.Tensor{Local: x.Contiguous(), Layout: mesh.Layout{Mesh: m, Shape: shape, Placements: []mesh.Placement{mesh.Shard(0)}}}
		whole, err := t.Redistribute(c, mesh.Replicate())
		if err != nil {
			c.Fail(err)
		}
		y = whole.Local
	}
	pass.Give(y, sharding.Boundary{
		Type:      sharding.Uniform(pass.Axes(), mesh.Replicate()),
		GradTakes: sharding.Uniform(pass.Axes(), mesh.Partial(dist.Sum)), GradGives: sharding.Uniform(pass.Axes(), mesh.Varying()),
	})
	return y
}
