// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"github.com/cohort-ml/cohort/internal/device"
)

// TopK returns the k largest elements along a dim (the smallest ones if not
// largest), the best first, and their int64 indices: both have t's shape but
// for k in dim. Where elements are equal the first ones are taken; NaN is
// larger than any number.
func (t *Tensor) TopK(k, dim int, largest bool) (values, indices *Tensor) {
	dim = dimIndex("top k", t, dim)
	if k < 0 || k > t.shape[dim] {
		fail("top k", []*Tensor{t}, "dim %d has no %d elements", dim, k)
	}
	indices = t.ordered(device.TopK{K: k, Largest: largest}, dim, k)
	return t.gatherElems(dim, indices), indices
}

// Sort returns t sorted along a dim and the int64 indices that sort it. Equal
// elements stay in order; NaN is larger than any number.
func (t *Tensor) Sort(dim int, descending bool) (values, indices *Tensor) {
	dim = dimIndex("sort", t, dim)
	indices = t.ArgSort(dim, descending)
	return t.gatherElems(dim, indices), indices
}

// ArgSort returns the indices that sort t along a dim; see [Tensor.Sort].
func (t *Tensor) ArgSort(dim int, descending bool) *Tensor {
	dim = dimIndex("sort", t, dim)
	return t.ordered(device.Sort{Descending: descending}, dim, t.shape[dim])
}

// ordered runs a kernel that writes k indices for each row of the last dim, and
// returns them with that dim where it was.
func (t *Tensor) ordered(op device.Op, dim, k int) *Tensor {
	last := len(t.shape) - 1
	src := t.Detach().Transpose(dim, last).Contiguous()
	shape := src.Shape()
	shape[last] = k
	order := result(device.OpName(op), Int64, shape, t)
	fused(op, order, src)
	return order.Transpose(dim, last).Contiguous()
}
