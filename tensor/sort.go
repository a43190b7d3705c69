// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/work"
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
	indices = t.ordered("top k", dim, k, largest, func(p *work.Pool, order []int64, a device.Array, rows, cols int) {
		switch a.DType {
		case Float32:
			kernel.TopK(p, order, a.Float32s(), rows, cols, k, largest, false)
		case Float64:
			kernel.TopK(p, order, device.Elems[float64](a), rows, cols, k, largest, false)
		case BFloat16, Float16:
			kernel.TopK(p, order, device.Elems[uint16](a), rows, cols, k, largest, a.DType == Float16)
		case Int64:
			kernel.TopK(p, order, a.Int64s(), rows, cols, k, largest, false)
		case Int32:
			kernel.TopK(p, order, device.Elems[int32](a), rows, cols, k, largest, false)
		case Int8:
			kernel.TopK(p, order, device.Elems[int8](a), rows, cols, k, largest, false)
		default:
			kernel.TopK(p, order, device.Elems[uint8](a), rows, cols, k, largest, false)
		}
	})
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
	return t.ordered("sort", dim, t.shape[dim], descending, func(p *work.Pool, order []int64, a device.Array, rows, cols int) {
		switch a.DType {
		case Float32:
			kernel.ArgSort(p, order, a.Float32s(), rows, cols, descending, false)
		case Float64:
			kernel.ArgSort(p, order, device.Elems[float64](a), rows, cols, descending, false)
		case BFloat16, Float16:
			kernel.ArgSort(p, order, device.Elems[uint16](a), rows, cols, descending, a.DType == Float16)
		case Int64:
			kernel.ArgSort(p, order, a.Int64s(), rows, cols, descending, false)
		case Int32:
			kernel.ArgSort(p, order, device.Elems[int32](a), rows, cols, descending, false)
		case Int8:
			kernel.ArgSort(p, order, device.Elems[int8](a), rows, cols, descending, false)
		default:
			kernel.ArgSort(p, order, device.Elems[uint8](a), rows, cols, descending, false)
		}
	})
}

// ordered runs a kernel that writes k indices for each row of the last dim, and
// returns them with that dim where it was.
func (t *Tensor) ordered(op string, dim, k int, flag bool, run func(p *work.Pool, order []int64, a device.Array, rows, cols int)) *Tensor {
	last := len(t.shape) - 1
	src := t.Detach().Transpose(dim, last).Contiguous()
	shape := src.Shape()
	shape[last] = k
	order := result(op, Int64, shape, t)
	fused(op, []float64{float64(k), param01(flag)}, []*Tensor{order, src}, func(p *work.Pool, a []device.Array) {
		rows, cols := a[1].RowsCols()
		run(p, a[0].Int64s(), a[1], rows, cols)
	})
	return order.Transpose(dim, last).Contiguous()
}

// CumSum returns the running sums along a dim: element i is the sum of elements
// 0 … i. Integers are added as int64, floating numbers in float64.
func (t *Tensor) CumSum(dim int) *Tensor {
	dim = dimIndex("cumsum", t, dim)
	switch t.dtype {
	case Int32, Int8, Uint8, Bool:
		return t.To(Int64).CumSum(dim)
	}
	return t.cumSum(dim, false)
}

func (t *Tensor) cumSum(dim int, reverse bool) *Tensor {
	if t.dtype == BFloat16 || t.dtype == Float16 {
		return t.To(Float32).cumSum(dim, reverse).To(t.dtype)
	}
	src := t.Contiguous()
	out := result("cumsum", t.dtype, t.shape, t)
	outer, n, inner := around(t.shape, dim)
	fused("cumsum", []float64{float64(dim), param01(reverse)}, []*Tensor{out, src}, func(p *work.Pool, a []device.Array) {
		switch a[0].DType {
		case Float32:
			kernel.CumSum[float32, float64](p, a[0].Float32s(), a[1].Float32s(), outer, n, inner, reverse)
		case Float64:
			kernel.CumSum[float64, float64](p, device.Elems[float64](a[0]), device.Elems[float64](a[1]), outer, n, inner, reverse)
		default:
			kernel.CumSum[int64, int64](p, a[0].Int64s(), a[1].Int64s(), outer, n, inner, reverse)
		}
	})
	if !t.dtype.IsFloat() {
		return out
	}
	return out.record("cumsum", []*Tensor{t}, nil, func(b *backprop, g *Tensor) { b.give(0, g.cumSum(dim, !reverse)) })
}

// CumProd returns the running products along a dim of float32: element i is
// the product of elements 0 … i. Its derivatives are right for rows with zeros too.
func (t *Tensor) CumProd(dim int) *Tensor {
	dim = dimIndex("cumprod", t, dim)
	if isHalf(t.dtype) {
		return inFloat32(func(in []*Tensor) *Tensor { return in[0].CumProd(dim) }, t)
	}
	t.wantDType("cumprod", Float32)
	if last := len(t.shape) - 1; dim != last {
		return t.Transpose(dim, last).CumProd(last).Transpose(dim, last)
	}
	src := t.Contiguous()
	out := result("cumprod", Float32, t.shape, t)
	fused("cumprod", nil, []*Tensor{out, src}, func(p *work.Pool, a []device.Array) {
		rows, cols := a[1].RowsCols()
		kernel.CumProd[float32, float64](p, a[0].Float32s(), a[1].Float32s(), rows, cols)
	})
	return out.record("cumprod", []*Tensor{src}, []*Tensor{src, out}, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, src.cumProdDefinition)
			return
		}
		// Element i is in the products i and later, each of which is divided by it.
		// At the first 0 of a row that quotient is the product with a 1 there,
		// and nothing flows to what comes later.
		first, before := firstZeros(src)
		ones := src.Mul(before).Add(first) // 1 there and 0 later
		nonzero := src.Mul(before).Sub(before).AddScalar(1)
		dx := g.Mul(out).cumSum(dim, true).Div(nonzero).Mul(before)
		if first.NumElems() > 0 && first.Device() != Meta && first.SumSquares() > 0 {
			after := first.cumSum(dim, false).Sub(first)
			rest := src.Mul(after).Add(ones)
			dx = dx.Add(g.Mul(rest.CumProd(dim)).cumSum(dim, true).Mul(first))
		}
		b.give(0, dx)
	})
}

// cumProdDefinition is CumProd of the last dim in products alone, which have
// derivatives of every order at zeros too: after the round of step s element i is
// the product of the 2s elements up to it.
func (t *Tensor) cumProdDefinition() *Tensor {
	last := len(t.shape) - 1
	n := t.shape[last]
	out := t.MulScalar(1) // a value of its own: a row of one is its product
	for step := 1; step < n; step *= 2 {
		tail := out.Narrow(last, step, n-step).Mul(out.Narrow(last, 0, n-step))
		out = Cat(last, out.Narrow(last, 0, step), tail)
	}
	return out
}

// firstZeros returns two masks of numbers: 1 at the first 0 of each row, and 1 at
// what comes before it.
func firstZeros(t *Tensor) (first, before *Tensor) {
	first, before = result("first zeros", Float32, t.shape, t), result("first zeros", Float32, t.shape, t)
	fused("first zeros", nil, []*Tensor{first, before, t}, func(_ *work.Pool, a []device.Array) {
		rows, cols := a[2].RowsCols()
		at, until, x := a[0].Float32s(), a[1].Float32s(), a[2].Float32s()
		clear(at)
		clear(until)
		for r := range rows {
			for i := r * cols; i < (r+1)*cols; i++ {
				if x[i] == 0 {
					at[i] = 1
					break
				}
				until[i] = 1
			}
		}
	})
	return first, before
}
