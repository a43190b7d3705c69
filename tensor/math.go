// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"

	"github.com/cohort-ml/cohort/internal/device"
)

// Abs returns the absolute value; its slope at 0 is 0.
func (t *Tensor) Abs() *Tensor {
	return t.unary("abs", device.Abs).record("abs", []*Tensor{t}, []*Tensor{t},
		func(b *backprop, g *Tensor) { b.give(0, g.Mul(t.Sign())) })
}

// Square returns t².
func (t *Tensor) Square() *Tensor {
	return t.unary("square", device.Square).record("square", []*Tensor{t}, []*Tensor{t},
		func(b *backprop, g *Tensor) { b.give(0, g.Mul(t).MulScalar(2)) })
}

// Rsqrt returns 1/√t.
func (t *Tensor) Rsqrt() *Tensor {
	out := t.unary("rsqrt", device.Rsqrt)
	return out.record("rsqrt", []*Tensor{t}, []*Tensor{out},
		func(b *backprop, g *Tensor) { b.give(0, g.Mul(out).Mul(out.Square()).MulScalar(-0.5)) })
}

// Sin returns the sine of t in radians.
func (t *Tensor) Sin() *Tensor {
	return t.unary("sin", device.Sin).record("sin", []*Tensor{t}, []*Tensor{t},
		func(b *backprop, g *Tensor) { b.give(0, g.Mul(t.Cos())) })
}

// Cos returns the cosine of t in radians.
func (t *Tensor) Cos() *Tensor {
	return t.unary("cos", device.Cos).record("cos", []*Tensor{t}, []*Tensor{t},
		func(b *backprop, g *Tensor) { b.give(0, g.Mul(t.Sin()).Neg()) })
}

// Log1p returns the natural logarithm of 1 + t, exact near 0.
func (t *Tensor) Log1p() *Tensor {
	return t.unary("log1p", device.Log1p).record("log1p", []*Tensor{t}, []*Tensor{t},
		func(b *backprop, g *Tensor) { b.give(0, g.Div(t.AddScalar(1))) })
}

// Expm1 returns eᵗ - 1, exact near 0.
func (t *Tensor) Expm1() *Tensor {
	out := t.unary("expm1", device.Expm1)
	return out.record("expm1", []*Tensor{t}, []*Tensor{out},
		func(b *backprop, g *Tensor) { b.give(0, g.Mul(out.AddScalar(1))) })
}

// Sign returns -1, 0 or 1; 0 for NaN, as in PyTorch. Its gradient is 0.
func (t *Tensor) Sign() *Tensor {
	if t.dtype == Bool {
		return t.Clone()
	}
	return t.step("sign", device.Sign)
}

// Floor returns the greatest whole number not above t. Its gradient is 0.
func (t *Tensor) Floor() *Tensor { return t.rounding("floor", device.Floor) }

// Ceil returns the smallest whole number not below t. Its gradient is 0.
func (t *Tensor) Ceil() *Tensor { return t.rounding("ceil", device.Ceil) }

// Round returns the nearest whole number, of two the even one. Its gradient is 0.
func (t *Tensor) Round() *Tensor { return t.rounding("round", device.Round) }

func (t *Tensor) rounding(name string, op device.Unary) *Tensor {
	if !t.dtype.IsFloat() {
		return t.Clone()
	}
	return t.step(name, op)
}

// step is a function that is flat wherever it has a slope.
func (t *Tensor) step(name string, op device.Unary) *Tensor {
	return t.unary(name, op).record(name, []*Tensor{t}, nil, func(b *backprop, g *Tensor) {
		b.give(0, zerosLike(g))
	})
}

// zerosLike returns zeros of g's shape and dtype under its tape.
func zerosLike(g *Tensor) *Tensor {
	out := result("zeros", g.dtype, g.shape, g)
	out.Device().Fill(out.array(), 0)
	return out
}

// PowScalar returns t to the power of s. A whole power of integers is one; of a
// fraction they become float32.
func (t *Tensor) PowScalar(s float64) *Tensor {
	if s < 0 && !t.dtype.IsFloat() && s == math.Trunc(s) {
		fail("pow", []*Tensor{t}, "integers have no negative powers (%v); convert by To", s)
	}
	out := t.scalar("pow", device.Pow, s)
	return out.record("pow", []*Tensor{t}, []*Tensor{t}, func(b *backprop, g *Tensor) {
		if s == 0 {
			b.give(0, zerosLike(g))
			return
		}
		b.give(0, g.Mul(t.PowScalar(s-1)).MulScalar(s))
	})
}

// Pow returns t to the power of u elementwise, broadcast.
func (t *Tensor) Pow(u *Tensor) *Tensor {
	both := []*Tensor{t, u}
	out := t.binary("pow", device.Pow, u)
	return out.record("pow", both, []*Tensor{t, u, out}, func(b *backprop, g *Tensor) {
		if b.needs(0) {
			// Where the power is 0 the slope is 0, whatever the base.
			slope := g.Mul(u).Mul(t.Pow(u.SubScalar(1)))
			b.give(0, Where(u.EqScalar(0), scalarOf(slope, 0), slope).sumTo(t.shape))
		}
		if b.needs(1) {
			// 0 to the power of what is not negative stays 0 on the way.
			flat := t.EqScalar(0).LogicalAnd(u.GeScalar(0))
			slope := g.Mul(out).Mul(Where(flat, scalarOf(t, 1), t).Log())
			b.give(1, slope.sumTo(u.shape))
		}
	})
}

// scalarOf returns a tensor without dims, of t's dtype and under its tape.
func scalarOf(t *Tensor, value float64) *Tensor {
	out := result("scalar", t.dtype, nil, t)
	out.Device().Fill(out.array(), value)
	return out
}

// Clamp returns t limited to [low, high]; an infinite limit is none. The slope
// is 1 inside and 0 outside and at the limits.
func (t *Tensor) Clamp(low, high float64) *Tensor {
	if math.IsNaN(low) || math.IsNaN(high) {
		fail("clamp", []*Tensor{t}, "a limit is NaN: %v, %v", low, high)
	}
	out := t.Detach()
	if !math.IsInf(low, -1) {
		out = out.scalar("clamp", device.Maximum, low)
	}
	if !math.IsInf(high, 1) {
		below := out
		out = below.scalar("clamp", device.Minimum, high)
		t.discard(below)
	}
	if out.storage == t.storage {
		return t
	}
	return out.record("clamp", []*Tensor{t}, []*Tensor{t}, func(b *backprop, g *Tensor) {
		inside := t.GtScalar(low).LogicalAnd(t.LtScalar(high))
		b.give(0, Where(inside, g, scalarOf(g, 0)))
	})
}

// Maximum returns the greater of t and u elementwise, broadcast; NaN where either
// is. Where both are equal each gets half of the gradient.
func (t *Tensor) Maximum(u *Tensor) *Tensor { return t.extreme("maximum", device.Maximum, u) }

// Minimum returns the smaller of t and u; see [Tensor.Maximum].
func (t *Tensor) Minimum(u *Tensor) *Tensor { return t.extreme("minimum", device.Minimum, u) }

func (t *Tensor) extreme(name string, op device.Binary, u *Tensor) *Tensor {
	both := []*Tensor{t, u}
	return t.binary(name, op, u).record(name, both, both, func(b *backprop, g *Tensor) {
		half, zero := Where(t.Eq(u), g.MulScalar(0.5), g), scalarOf(g, 0)
		first, second := t.Lt(u), t.Gt(u) // where t, where u gets nothing
		if op == device.Minimum {
			first, second = second, first
		}
		if b.needs(0) {
			b.give(0, Where(first, zero, half).sumTo(t.shape))
		}
		if b.needs(1) {
			b.give(1, Where(second, zero, half).sumTo(u.shape))
		}
	})
}

// Lerp returns t + weight·(end - t).
func (t *Tensor) Lerp(end *Tensor, weight float64) *Tensor {
	present("lerp", t, end)
	return t.Add(end.Sub(t).MulScalar(weight))
}

// AddCMul returns t + value·u·v.
func (t *Tensor) AddCMul(u, v *Tensor, value float64) *Tensor {
	present("add c mul", t, u, v)
	return t.Add(u.Mul(v).MulScalar(value))
}

// AddCDiv returns t + value·u/v.
func (t *Tensor) AddCDiv(u, v *Tensor, value float64) *Tensor {
	present("add c div", t, u, v)
	return t.Add(u.Div(v).MulScalar(value))
}
