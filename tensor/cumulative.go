// SPDX-License-Identifier: Apache-2.0

package tensor

import "github.com/cohort-ml/cohort/internal/device"

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
	fused(device.CumSum{Dim: dim, Reverse: reverse}, out, src)
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
	fused(device.CumProd{}, out, src)
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
		after := first.cumSum(dim, false).Sub(first)
		rest := src.Mul(after).Add(ones)
		atFirst := g.Mul(rest.CumProd(dim)).cumSum(dim, true)
		b.give(0, dx.Add(Where(first.To(Bool), atFirst, scalarOf(dx, 0))))
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
	fused(device.FirstZeros{}, first, before, t)
	return first, before
}
