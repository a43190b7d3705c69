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

// denseStrides returns the strides of a row-major tensor.
func denseStrides(shape []int) []int {
	strides := make([]int, len(shape))
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = n
		n *= shape[i]
	}
	return strides
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
