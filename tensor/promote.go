// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"

	"github.com/cohort-ml/cohort/internal/half"
)

// PromoteTypes returns the dtype in which values of two dtypes meet, PyTorch's
// rule: a floating one beats an integer one, which beats bool; within a kind the
// wider one wins. Neither of bfloat16 and float16 holds the other, so they meet
// in float32; int8 and uint8 meet in int32, for there is no int16 here.
func PromoteTypes(a, b DType) DType {
	switch {
	case a == b:
		return a
	case kind(a) != kind(b):
		if kind(a) > kind(b) {
			return a
		}
		return b
	case a.Size() == b.Size():
		if a.IsFloat() {
			return Float32
		}
		return Int32
	case a.Size() > b.Size():
		return a
	}
	return b
}

// kind orders dtypes by what they can say: bool, integers, floating numbers.
func kind(d DType) int {
	switch {
	case d.IsFloat():
		return 2
	case d != Bool:
		return 1
	}
	return 0
}

// resultType is PromoteTypes of two operands. A tensor without dims gives way to
// one that has some, unless it is of a higher kind.
func resultType(t, u *Tensor) DType {
	switch {
	case len(t.shape) > 0 && len(u.shape) == 0 && kind(u.dtype) <= kind(t.dtype):
		return t.dtype
	case len(u.shape) > 0 && len(t.shape) == 0 && kind(t.dtype) <= kind(u.dtype):
		return u.dtype
	}
	return PromoteTypes(t.dtype, u.dtype)
}

// scalarType is the dtype in which t meets a plain number: t's own, but an
// integer tensor meets a fraction in float32, and a bool one whole numbers in int64.
func scalarType(t *Tensor, s float64) DType {
	switch {
	case t.dtype.IsFloat():
		return t.dtype
	case s != math.Trunc(s) || math.IsInf(s, 0):
		return Float32
	case t.dtype == Bool:
		return Int64
	}
	return t.dtype
}

// intRange returns the least and greatest number of an integer dtype or bool;
// those of int64 as float64 holds them.
func intRange(d DType) (low, high float64) {
	if d == Bool {
		return 0, 1
	}
	span := math.Ldexp(1, 8*d.Size())
	if d == Uint8 {
		return 0, span - 1
	}
	return -span / 2, span/2 - 1
}

// roundTo returns the number of dtype that is nearest to s.
func roundTo(dtype DType, s float64) float64 {
	switch dtype {
	case BFloat16:
		return float64(half.FromBFloat16(half.BFloat16(float32(s))))
	case Float16:
		return float64(half.FromFloat16(half.Float16(float32(s))))
	}
	return s
}

// isHalf reports whether elements have sixteen bits; they are computed in float32.
func isHalf(d DType) bool { return d == BFloat16 || d == Float16 }

// mixes reports whether kernels take operands of the dtype together with others
// for which it does: all of them are computed in float32.
func mixes(d DType) bool { return d == Float32 || isHalf(d) }

// floating returns t as the dtype that functions of real numbers give: integers
// and bool become float32. It is not recorded, for those have no gradient.
func (t *Tensor) floating() *Tensor {
	if t.dtype.IsFloat() {
		return t
	}
	return t.To(Float32)
}

// discard frees a converted or dense copy of t once a kernel has read it, so that
// it does not live until the tape is closed. Without a tape the collector does it.
func (t *Tensor) discard(dup *Tensor) {
	if s := dup.storage; s != t.storage && s.scope != nil && s.owners == 0 {
		s.free()
	}
}
