// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"
)

// truePositions returns the positions of a contiguous bool tensor that are
// true, in row-major order. The number depends on the data, so there are none on
// a device without data.
func truePositions(op string, mask *Tensor) []int64 {
	mask.wantBytes(op)
	bits := make([]byte, mask.NumElems())
	mask.readInto(bits)
	var ids []int64
	for i, b := range bits {
		if b != 0 {
			ids = append(ids, int64(i))
		}
	}
	return ids
}

// MaskedSelect returns the elements whose mask is true as one dim, in row-major
// order. mask is bool; both are broadcast.
func (t *Tensor) MaskedSelect(mask *Tensor) *Tensor {
	present("masked select", t, mask)
	operands := []*Tensor{t, mask}
	if mask.dtype != Bool {
		fail("masked select", operands, "the mask must be bool")
	}
	shape, ok := broadcastShapes(t.shape, mask.shape)
	if !ok {
		fail("masked select", operands, "the shapes cannot be broadcast together")
	}
	ids := truePositions("masked select", mask.Detach().Expand(shape...).Contiguous())
	return t.Expand(shape...).Reshape(numElems(shape)).selectSlices(0, idsOn(t.Device(), ids))
}

// MaskedScatter returns t with the elements whose mask is true replaced by
// those of src, in row-major order. mask is bool and broadcast to t's shape;
// src has at least as many elements as the mask has true ones.
func (t *Tensor) MaskedScatter(mask, src *Tensor) *Tensor {
	present("masked scatter", t, mask, src)
	operands := []*Tensor{t, mask, src}
	if mask.dtype != Bool || src.dtype != t.dtype {
		fail("masked scatter", operands, "the mask must be bool, the source of the tensor's dtype")
	}
	if shape, ok := broadcastShapes(t.shape, mask.shape); !ok || !slices.Equal(shape, t.shape) {
		fail("masked scatter", operands, "the mask cannot be broadcast to the tensor")
	}
	ids := truePositions("masked scatter", mask.Detach().Expand(t.shape...).Contiguous())
	if len(ids) > src.NumElems() {
		fail("masked scatter", operands, "the mask has %d true elements, the source only %d", len(ids), src.NumElems())
	}
	flat := src.Reshape(src.NumElems()).Narrow(0, 0, len(ids))
	return t.Reshape(t.NumElems()).Scatter(0, idsOn(t.Device(), ids), flat).Reshape(t.shape...)
}

// NonZero returns the indices of the elements that are not 0 (or true), in
// row-major order: int64 [n, numDims].
func (t *Tensor) NonZero() *Tensor {
	ids := truePositions("nonzero", t.Detach().To(Bool).Contiguous())
	dims := len(t.shape)
	out := make([]int64, len(ids)*dims)
	for i, id := range ids {
		at := int(id)
		for d := dims - 1; d >= 0; d-- {
			out[i*dims+d], at = int64(at%t.shape[d]), at/t.shape[d]
		}
	}
	return On(t.Device()).FromInt64(out, len(ids), dims)
}
