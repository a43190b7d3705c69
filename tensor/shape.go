// SPDX-License-Identifier: Apache-2.0

package tensor

import "slices"

func numElems(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// maxElems keeps offsets and sizes in bytes far from the end of an int.
const maxElems = 1 << 56

// wantSizes fails unless a tensor can have the shape: no size is negative, and
// their product is a number that does not wrap around.
func wantSizes(op string, operands []*Tensor, shape []int) {
	n := 1
	for _, s := range shape {
		if s < 0 {
			fail(op, operands, "a size of shape %v is negative", shape)
		}
		if s > 0 && n > maxElems/s && !slices.Contains(shape, 0) {
			fail(op, operands, "shape %v has more than %d elements", shape, maxElems)
		}
		n *= max(1, s)
	}
}

// denseStrides returns the strides of a row-major tensor.
func denseStrides(shape []int) []int {
	strides := make([]int, len(shape))
	writeDenseStrides(strides, shape)
	return strides
}

func writeDenseStrides(strides, shape []int) {
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = n
		n *= shape[i]
	}
}

// broadcastShapes returns the shape that a and b are both repeated to, aligned
// at the last dim as in NumPy, and whether there is one.
func broadcastShapes(a, b []int) ([]int, bool) {
	if slices.Equal(a, b) {
		return a, true
	}
	out := make([]int, max(len(a), len(b)))
	for i := range out {
		x, y := 1, 1
		if j := i - (len(out) - len(a)); j >= 0 {
			x = a[j]
		}
		if j := i - (len(out) - len(b)); j >= 0 {
			y = b[j]
		}
		switch {
		case x == y || y == 1:
			out[i] = x
		case x == 1:
			out[i] = y
		default:
			return nil, false
		}
	}
	return out, true
}

// dimIndex turns a dim that may be counted from the end into an index.
func dimIndex(op string, t *Tensor, dim int) int {
	d := dim
	if d < 0 {
		d += len(t.shape)
	}
	if d < 0 || d >= len(t.shape) {
		fail(op, []*Tensor{t}, "dim %d is not one of its %d dims", dim, len(t.shape))
	}
	return d
}
