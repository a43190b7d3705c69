// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// reduceTo combines the dims that have size 1 in keep. Sums are recorded; the
// maximum serves only to shift exponents and is a constant to the tape.
func (t *Tensor) reduceTo(name string, op device.Reduction, keep []int) *Tensor {
	t.wantDType(name, Float32)
	if slices.Equal(keep, t.shape) {
		return t
	}
	out := result(name, Float32, keep, t)
	src := t.Contiguous()
	out.Device().Reduce(op, out.array(), src.array())
	if op != device.Sum {
		return out
	}
	full := t.shape
	return out.record(name, []*Tensor{t}, nil, func(b *backprop, g *Tensor) {
		b.give(0, g.Expand(full...))
	})
}

// Sum returns the sum over the given dims, all of them if none is given. The
// dims disappear; see [Tensor.SumKeep].
func (t *Tensor) Sum(dims ...int) *Tensor {
	kept := t.SumKeep(dims...)
	if len(dims) == 0 {
		return kept.Reshape()
	}
	gone := make([]bool, len(t.shape))
	for _, d := range dims {
		gone[dimIndex("sum", t, d)] = true
	}
	shape := []int{}
	for i, s := range t.shape {
		if !gone[i] {
			shape = append(shape, s)
		}
	}
	return kept.Reshape(shape...)
}

// SumKeep is Sum with the summed dims left in place with size 1.
func (t *Tensor) SumKeep(dims ...int) *Tensor {
	keep := t.Shape()
	if len(dims) == 0 {
		for i := range keep {
			keep[i] = 1
		}
	}
	for _, d := range dims {
		keep[dimIndex("sum", t, d)] = 1
	}
	return t.reduceTo("sum", device.Sum, keep)
}

// Mean returns the mean over the given dims, all of them if none is given. The
// mean of nothing is NaN.
func (t *Tensor) Mean(dims ...int) *Tensor {
	return t.meanOf(t.Sum(dims...))
}

// MeanKeep is Mean with the dims left in place with size 1.
func (t *Tensor) MeanKeep(dims ...int) *Tensor {
	return t.meanOf(t.SumKeep(dims...))
}

// meanOf turns sums of t's elements into means.
func (t *Tensor) meanOf(sum *Tensor) *Tensor {
	return sum.MulScalar(float64(sum.NumElems()) / float64(t.NumElems()))
}

// maxKeep returns the maximum of the last dim, without a gradient.
func (t *Tensor) maxKeep() *Tensor {
	keep := t.Shape()
	keep[len(keep)-1] = 1
	return t.Detach().reduceTo("max", device.Max, keep)
}

// SumSquares returns the sum of the squares of all elements, in float64 and
// in a fixed order. No gradient flows through it.
func (t *Tensor) SumSquares() float64 {
	t.wantDType("sum squares", Float32)
	src := t.detach().Contiguous()
	return src.Device().SumSquares(src.array())
}
