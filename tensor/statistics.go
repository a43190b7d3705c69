// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// Prod returns the product over the given dims, all of them if none is given;
// that of nothing is 1, that of integers int64. Its gradients are right where
// elements are 0.
func (t *Tensor) Prod(dims ...int) *Tensor {
	keep, without := t.keepDims("prod", dims)
	out := t.Detach().reduceTo("prod", device.Prod, keep)
	if out.storage == t.storage {
		out = out.Clone()
	}
	out = out.record("prod", []*Tensor{t}, []*Tensor{t, out}, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, func() *Tensor { return t.prodByHalves(reducedDims(t.shape, keep)).Reshape(keep...) })
			return
		}
		b.give(0, g.Mul(t.Detach().prodOfOthers(reducedDims(t.shape, keep))))
	})
	return out.Reshape(without...)
}

// prodByHalves is the product over dims, made of products of two: its gradients
// of any order divide by nothing.
func (t *Tensor) prodByHalves(dims []int) *Tensor {
	t = t.Reshape(append(t.Shape(), 1)...) // not t itself, which may have nothing to combine
	for _, d := range dims {
		for n := t.shape[d]; n != 1; n = t.shape[d] {
			if n == 0 {
				return t.Sum(dims...).AddScalar(1)
			}
			half := t.Narrow(d, 0, n/2).Mul(t.Narrow(d, n/2, n/2))
			if n%2 == 1 {
				half = Cat(d, half, t.Narrow(d, n-1, 1))
			}
			t = half
		}
	}
	return t
}

// prodOfOthers returns, for each element, the product of the others over dims.
func (t *Tensor) prodOfOthers(dims []int) *Tensor {
	order, back := dimsLast(t.shape, dims)
	turned := t.Permute(order...)
	src := turned.To(Float64).Contiguous()
	out := result("prod grad", Float64, src.shape, t)
	size := max(1, numElems(src.shape[len(src.shape)-len(dims):]))
	fused(device.ProdGrad{Size: size}, out, src)
	return out.Permute(back...).To(t.dtype)
}

// dimsLast returns the order that moves dims to the end, and the one that moves
// them back.
func dimsLast(shape, dims []int) (order, back []int) {
	back = make([]int, len(shape))
	for _, last := range []bool{false, true} {
		for d := range shape {
			if slices.Contains(dims, d) == last {
				back[d] = len(order)
				order = append(order, d)
			}
		}
	}
	return order, back
}

// Var returns the variance over the given dims, all of them if none is given:
// the squared deviations over their number less correction, which is 1 for the
// estimate of a population's variance (PyTorch's default) and 0 for the sample's own.
func (t *Tensor) Var(correction int, dims ...int) *Tensor {
	if !t.dtype.IsFloat() {
		fail("var", []*Tensor{t}, "wants a floating dtype; convert by To")
	}
	if isHalf(t.dtype) {
		return t.To(Float32).Var(correction, dims...).To(t.dtype)
	}
	squares := t.Sub(t.MeanKeep(dims...)).Square().Sum(dims...)
	count := t.NumElems() / max(1, squares.NumElems())
	return squares.DivScalar(float64(max(0, count-correction)))
}

// Std returns the standard deviation, the root of [Tensor.Var].
// Its slope where that is 0 is 0.
func (t *Tensor) Std(correction int, dims ...int) *Tensor {
	v := t.Var(correction, dims...)
	zero := v.EqScalar(0)
	return Where(zero, scalarOf(v, 0), Where(zero, scalarOf(v, 1), v).Sqrt())
}

// Norm returns the p-norm over the given dims, all of them if none is given:
// (Σ|t|ᵖ)^(1/p), the greatest magnitude for p = +Inf and the smallest for -Inf,
// the number of elements other than 0 for p = 0. The slope is 0 where an element is.
func (t *Tensor) Norm(p float64, dims ...int) *Tensor {
	switch {
	case !t.dtype.IsFloat():
		fail("norm", []*Tensor{t}, "wants a floating dtype; convert by To")
	case math.IsNaN(p):
		fail("norm", []*Tensor{t}, "p is NaN")
	case isHalf(t.dtype):
		return t.To(Float32).Norm(p, dims...).To(t.dtype)
	case p == 0:
		return t.NeScalar(0).To(t.dtype).Sum(dims...)
	case p == 1:
		return t.Abs().Sum(dims...)
	case math.IsInf(p, 1):
		return t.Abs().AMax(dims...)
	case math.IsInf(p, -1):
		return t.Abs().AMin(dims...)
	}
	keep, without := t.keepDims("norm", dims)
	powers := t.Detach()
	if p == 2 {
		powers = powers.Square()
	} else {
		magnitudes := powers.Abs()
		powers = magnitudes.PowScalar(p)
		t.discard(magnitudes)
	}
	out := powers.reduceTo("norm", device.Sum, keep)
	if p == 2 {
		out = out.Sqrt()
	} else {
		out = out.PowScalar(1 / p)
	}
	if powers.storage != out.storage {
		t.discard(powers)
	}
	return out.record("norm", []*Tensor{t}, []*Tensor{t, out}, func(b *backprop, g *Tensor) {
		zero := out.EqScalar(0)
		norm := Where(zero, scalarOf(out, 1), out)
		if p == 2 {
			b.give(0, t.Mul(Where(zero, scalarOf(g, 0), g.Div(norm))))
			return
		}
		// sign(t)·(|t|/norm)^(p-1); an element that is 0 has no part in it.
		magnitude := Where(t.EqScalar(0), scalarOf(t, 1), t.Abs())
		b.give(0, g.Mul(t.Sign()).Mul(magnitude.Div(norm).PowScalar(p-1)))
	}).Reshape(without...)
}

// LogSumExp returns log Σ eᵗ over the given dims, all of them if none is given,
// without overflow.
func (t *Tensor) LogSumExp(dims ...int) *Tensor {
	_, without := t.keepDims("log sum exp", dims)
	return t.logSumExpKeep(dims).Reshape(without...)
}

func (t *Tensor) logSumExpKeep(dims []int) *Tensor {
	t = t.floating()
	if isHalf(t.dtype) {
		return t.To(Float32).logSumExpKeep(dims).To(t.dtype)
	}
	keep, _ := t.keepDims("log sum exp", dims)
	if t.NumElems() == 0 {
		return t.Exp().SumKeep(dims...).Log()
	}
	out := t.logSumExpTo(keep, dims)
	return out.record("log sum exp", []*Tensor{t}, []*Tensor{t, out}, func(b *backprop, g *Tensor) {
		b.give(0, t.Sub(out).Exp().Mul(g))
	})
}

// logSumExpTo computes it, of float32 along the last dim by a kernel.
func (t *Tensor) logSumExpTo(keep, dims []int) *Tensor {
	last := len(t.shape) - 1
	if t.dtype == Float32 && len(dims) == 1 && dimIndex("log sum exp", t, dims[0]) == last {
		src := t.Detach().Contiguous()
		out := result("log sum exp", Float32, keep, t)
		fused(device.LogSumExp{}, out, src)
		t.discard(src)
		return out
	}
	t = t.Detach()
	top := t.reduceTo("max", device.Max, keep)
	// An infinite maximum is its own result; infinity less infinity is no number.
	shift := Where(top.IsFinite(), top, scalarOf(top, 0))
	return t.Sub(shift).Exp().SumKeep(dims...).Log().Add(shift)
}
