// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"github.com/cohort-ml/cohort/internal/device"
)

// giveRegion adds g to the elements from start on of one dim of the gradient
// of input i, which has the given shape; the others get nothing. The parts of
// a tensor that was cut give their gradients so, each without a pass over the
// whole.
func (b *backprop) giveRegion(i int, g *Tensor, shape []int, dim, start int) {
	old := b.grads[b.tape.nodes[b.node].inputs[i]]
	if b.create || old == nil || old.dtype != Float32 || g.dtype != Float32 || !b.ownsAlone(old) {
		b.give(i, g.embed(shape, dim, start))
		return
	}
	g = g.Contiguous()
	fused(device.AddRegion{Dim: dim, Start: start}, old, g)
}

// ownsAlone reports whether nobody else sees a gradient, so that it can be
// added to in place.
func (b *backprop) ownsAlone(g *Tensor) bool {
	return g.storage.owners == 1 && g.storage.scope == b.tape.scope && g.IsContiguous() &&
		g.NumElems()*g.dtype.Size() == g.storage.mem.Size
}
