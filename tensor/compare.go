// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// The results of this file's comparisons are bool tensors, through which no
// gradient flows. A comparison with NaN is false, but for Ne.

// Eq returns t == u elementwise, broadcast.
func (t *Tensor) Eq(u *Tensor) *Tensor { return t.binary("eq", device.Eq, u) }

// Ne returns t != u elementwise, broadcast.
func (t *Tensor) Ne(u *Tensor) *Tensor { return t.binary("ne", device.Ne, u) }

// Lt returns t < u elementwise, broadcast.
func (t *Tensor) Lt(u *Tensor) *Tensor { return t.binary("lt", device.Lt, u) }

// Le returns t <= u elementwise, broadcast.
func (t *Tensor) Le(u *Tensor) *Tensor { return t.binary("le", device.Le, u) }

// Gt returns t > u elementwise, broadcast.
func (t *Tensor) Gt(u *Tensor) *Tensor { return t.binary("gt", device.Gt, u) }

// Ge returns t >= u elementwise, broadcast.
func (t *Tensor) Ge(u *Tensor) *Tensor { return t.binary("ge", device.Ge, u) }

// EqScalar returns t == s elementwise.
func (t *Tensor) EqScalar(s float64) *Tensor { return t.scalar("eq", device.Eq, s) }

// NeScalar returns t != s elementwise.
func (t *Tensor) NeScalar(s float64) *Tensor { return t.scalar("ne", device.Ne, s) }

// LtScalar returns t < s elementwise.
func (t *Tensor) LtScalar(s float64) *Tensor { return t.scalar("lt", device.Lt, s) }

// LeScalar returns t <= s elementwise.
func (t *Tensor) LeScalar(s float64) *Tensor { return t.scalar("le", device.Le, s) }

// GtScalar returns t > s elementwise.
func (t *Tensor) GtScalar(s float64) *Tensor { return t.scalar("gt", device.Gt, s) }

// GeScalar returns t >= s elementwise.
func (t *Tensor) GeScalar(s float64) *Tensor { return t.scalar("ge", device.Ge, s) }

// LogicalAnd returns whether both elements are other than 0, broadcast.
func (t *Tensor) LogicalAnd(u *Tensor) *Tensor {
	return t.binary("logical and", device.LogicalAnd, u)
}

// LogicalOr returns whether one of the elements is other than 0, broadcast.
func (t *Tensor) LogicalOr(u *Tensor) *Tensor { return t.binary("logical or", device.LogicalOr, u) }

// LogicalXor returns whether exactly one of the elements is other than 0, broadcast.
func (t *Tensor) LogicalXor(u *Tensor) *Tensor {
	return t.binary("logical xor", device.LogicalXor, u)
}

// LogicalNot returns whether the element is 0.
func (t *Tensor) LogicalNot() *Tensor { return t.unary("logical not", device.LogicalNot) }

// IsNaN returns whether the element is not a number.
func (t *Tensor) IsNaN() *Tensor { return t.unary("is nan", device.IsNaN) }

// IsInf returns whether the element is infinite.
func (t *Tensor) IsInf() *Tensor { return t.unary("is inf", device.IsInf) }

// IsFinite returns whether the element is a finite number.
func (t *Tensor) IsFinite() *Tensor { return t.unary("is finite", device.IsFinite) }

// Where returns the elements of x where cond (bool) is true and those of y
// elsewhere; all three are broadcast, x and y meet as [PromoteTypes] says. The
// gradient goes to whichever was chosen.
func Where(cond, x, y *Tensor) *Tensor {
	present("where", cond, x, y)
	operands := []*Tensor{cond, x, y}
	cond.wantDType("where", Bool)
	shape, ok := broadcastShapes(x.shape, y.shape)
	if ok {
		shape, ok = broadcastShapes(cond.shape, shape)
	}
	if !ok {
		fail("where", operands, "the shapes cannot be broadcast together")
	}
	dtype := resultType(x, y)
	out := result("where", dtype, shape, operands...)
	view := func(t *Tensor) device.Array {
		a := t.array()
		a.Shape, a.Strides = shape, t.expandedStrides(shape)
		return a
	}
	yes, no := x.Detach().To(dtype), y.Detach().To(dtype)
	out.Device().Where(out.array(), view(cond), view(yes), view(no))
	x.discard(yes)
	y.discard(no)
	return out.record("where", operands, []*Tensor{cond}, func(b *backprop, g *Tensor) {
		zero := scalarOf(g, 0)
		if b.needs(1) {
			b.give(1, Where(cond, g, zero).sumTo(x.shape))
		}
		if b.needs(2) {
			b.give(2, Where(cond, zero, g).sumTo(y.shape))
		}
	})
}

// MaskedFill returns t with value where mask (bool, broadcast to t's shape) is
// true. No gradient flows there.
func (t *Tensor) MaskedFill(mask *Tensor, value float64) *Tensor {
	present("masked fill", t, mask)
	mask.wantDType("masked fill", Bool)
	if shape, ok := broadcastShapes(t.shape, mask.shape); !ok || !slices.Equal(shape, t.shape) {
		fail("masked fill", []*Tensor{t, mask}, "the mask cannot be broadcast to the tensor")
	}
	t.wantValue("masked fill", value)
	return Where(mask, scalarOf(t, value), t)
}
