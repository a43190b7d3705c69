// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// reduceTo combines the dims that have size 1 in keep, in float32 for elements of
// sixteen bits; sums and products of integers are int64. Sums are recorded; what
// other reductions record is up to the caller.
func (t *Tensor) reduceTo(name string, op device.Reduction, keep []int) *Tensor {
	dtype, compute := t.dtype, t.dtype
	switch {
	case isHalf(dtype):
		compute = Float32
	case !dtype.IsFloat() && (op == device.Sum || op == device.Prod):
		dtype, compute = Int64, Int64
	}
	if slices.Equal(keep, t.shape) && dtype == t.dtype {
		return t
	}
	src := t.Detach().To(compute)
	dense := src.Contiguous()
	out := result(name, compute, keep, t)
	out.Device().Reduce(op, out.array(), dense.array())
	src.discard(dense)
	t.discard(src)
	out = out.To(dtype)
	if op != device.Sum {
		return out
	}
	full := t.shape
	return out.record(name, []*Tensor{t}, nil, func(b *backprop, g *Tensor) {
		b.give(0, g.Expand(full...))
	})
}

// keepDims returns t's shape with size 1 in the given dims, in all if none is
// given, and that shape without them.
func (t *Tensor) keepDims(op string, dims []int) (keep, without []int) {
	gone := make([]bool, len(t.shape))
	for _, d := range dims {
		at := dimIndex(op, t, d)
		if gone[at] {
			fail(op, []*Tensor{t}, "dim %d is twice in %v", d, dims)
		}
		gone[at] = true
	}
	keep, without = t.Shape(), []int{}
	for i, s := range t.shape {
		if gone[i] || len(dims) == 0 {
			keep[i] = 1
		} else {
			without = append(without, s)
		}
	}
	return keep, without
}

// Sum returns the sum over the given dims, all of them if none is given. The
// dims disappear; see [Tensor.SumKeep]. Integers and bool are summed in int64,
// elements of sixteen bits in float32.
func (t *Tensor) Sum(dims ...int) *Tensor {
	keep, without := t.keepDims("sum", dims)
	return t.reduceTo("sum", device.Sum, keep).Reshape(without...)
}

// SumKeep is Sum with the summed dims left in place with size 1.
func (t *Tensor) SumKeep(dims ...int) *Tensor {
	keep, _ := t.keepDims("sum", dims)
	return t.reduceTo("sum", device.Sum, keep)
}

// Mean returns the mean over the given dims, all of them if none is given. The
// mean of nothing is NaN. It takes floating dtypes.
func (t *Tensor) Mean(dims ...int) *Tensor {
	return t.meanOf(func(t *Tensor) *Tensor { return t.Sum(dims...) })
}

// MeanKeep is Mean with the dims left in place with size 1.
func (t *Tensor) MeanKeep(dims ...int) *Tensor {
	return t.meanOf(func(t *Tensor) *Tensor { return t.SumKeep(dims...) })
}

// meanOf turns sums of t's elements into means, rounded once.
func (t *Tensor) meanOf(sum func(t *Tensor) *Tensor) *Tensor {
	if !t.dtype.IsFloat() {
		fail("mean", []*Tensor{t}, "wants a floating dtype; convert by To")
	}
	wide := t
	if isHalf(t.dtype) {
		wide = t.To(Float32)
	}
	s := sum(wide)
	out := s.MulScalar(float64(s.NumElems()) / float64(t.NumElems())).To(t.dtype)
	if t.tape != nil && t.tape.observer != nil {
		t.tape.observe("mean", out, nil, t) // of a part of t it would be no part of the mean
	}
	return out
}

// SumSquares returns the sum of the squares of all elements, in float64 and
// in a fixed order. No gradient flows through it. It reads a value: where the
// device runs behind the program, it waits. [SumSquaresAll] does not.
func (t *Tensor) SumSquares() float64 {
	t.wantData("sum squares")
	if t.NumElems() == 0 {
		return 0
	}
	return sumSquares("sum squares", []*Tensor{t}).Item()
}

// SumSquaresAll returns the sum of the squares of all elements of a list of
// tensors of one device: a float64 tensor of one element there. It is the sum of
// what [Tensor.SumSquares] gives for each, in the order of the list. No gradient
// flows through it. The list has at least one tensor.
func SumSquaresAll(ts ...*Tensor) *Tensor {
	each := sumSquares("sum squares", ts)
	if len(ts) == 1 {
		return each.Reshape()
	}
	return each.Sum()
}

// NormAll returns the Euclidean norm of all elements of a list of tensors
// together, the root of [SumSquaresAll].
func NormAll(ts ...*Tensor) *Tensor { return SumSquaresAll(ts...).Sqrt() }

// sumSquares returns the sum of squares of each tensor of a list, float64 and
// under no tape.
func sumSquares(op string, ts []*Tensor) *Tensor {
	if len(ts) == 0 {
		fail(op, nil, "wants at least one tensor")
	}
	present(op, ts...)
	dev := ts[0].Device()
	kept := argLists.Get().(*[]device.Array)
	xs := (*kept)[:0]
	for _, t := range ts {
		if !t.dtype.IsFloat() {
			fail(op, []*Tensor{t}, "wants a floating dtype")
		}
		if t.Device() != dev {
			fail(op, []*Tensor{ts[0], t}, "the operands are on two devices, %s and %s", dev.Name(), t.Device().Name())
		}
		src := t
		if t.dtype != Float32 || !t.IsContiguous() {
			src = t.detach().To(Float32).Contiguous()
		}
		xs = append(xs, src.array())
	}
	out := alloc(nil, dev, Float64, []int{len(ts)}, false)
	dev.SumSquares(out.array(), xs...)
	clear(xs)
	*kept = xs
	argLists.Put(kept)
	return out
}
