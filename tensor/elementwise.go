// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// binary computes op with broadcasting and type promotion, not recorded.
func (t *Tensor) binary(name string, op device.Binary, u *Tensor) *Tensor {
	present(name, t, u)
	operands := []*Tensor{t, u}
	shape, ok := broadcastShapes(t.shape, u.shape)
	if !ok {
		fail(name, operands, "the shapes cannot be broadcast together")
	}
	dtype := resultType(t, u)
	switch {
	case op == device.Div && !dtype.IsFloat():
		dtype = Float32
	case dtype == Bool && (op == device.Sub || op == device.Pow):
		fail(name, operands, "is not defined on bool; convert by To")
	}
	x, y := t.meeting(dtype), u.meeting(dtype)
	if op.IsPredicate() {
		dtype = Bool
	}
	out := result(name, dtype, shape, operands...)
	a, b := x.array(), y.array()
	a.Shape, a.Strides = shape, x.expandedStrides(shape)
	b.Shape, b.Strides = shape, y.expandedStrides(shape)
	out.Device().Binary(op, out.array(), a, b)
	t.discard(x)
	u.discard(y)
	return out
}

// meeting returns t as an operand of a kernel that computes in dtype.
func (t *Tensor) meeting(dtype DType) *Tensor {
	if mixes(t.dtype) && mixes(dtype) {
		return t
	}
	return t.Detach().To(dtype)
}

// Add returns t + u, broadcast. Like all operations of two tensors it computes in
// the dtype that [PromoteTypes] names.
func (t *Tensor) Add(u *Tensor) *Tensor {
	present("add", t, u)
	tShape, uShape := t.shape, u.shape
	return t.binary("add", device.Add, u).record("add", []*Tensor{t, u}, nil, func(b *backprop, g *Tensor) {
		if b.needs(0) {
			b.give(0, g.sumTo(tShape))
		}
		if b.needs(1) {
			b.give(1, g.sumTo(uShape))
		}
	})
}

// Sub returns t - u, broadcast.
func (t *Tensor) Sub(u *Tensor) *Tensor {
	present("sub", t, u)
	tShape, uShape := t.shape, u.shape
	return t.binary("sub", device.Sub, u).record("sub", []*Tensor{t, u}, nil, func(b *backprop, g *Tensor) {
		if b.needs(0) {
			b.give(0, g.sumTo(tShape))
		}
		if b.needs(1) {
			b.give(1, g.Neg().sumTo(uShape))
		}
	})
}

// Mul returns t · u elementwise, broadcast.
func (t *Tensor) Mul(u *Tensor) *Tensor {
	both := []*Tensor{t, u}
	return t.binary("mul", device.Mul, u).record("mul", both, both, func(b *backprop, g *Tensor) {
		if b.needs(0) {
			b.give(0, g.Mul(u).sumTo(t.shape))
		}
		if b.needs(1) {
			b.give(1, g.Mul(t).sumTo(u.shape))
		}
	})
}

// Div returns t / u elementwise, broadcast; integers are divided in float32.
func (t *Tensor) Div(u *Tensor) *Tensor {
	both := []*Tensor{t, u}
	return t.binary("div", device.Div, u).record("div", both, both, func(b *backprop, g *Tensor) {
		gt := g.Div(u)
		if b.needs(0) {
			b.give(0, gt.sumTo(t.shape))
		}
		if b.needs(1) {
			b.give(1, gt.Mul(t).Div(u).Neg().sumTo(u.shape)) // -g·t/u²
		}
	})
}

// scalar computes op of t and a plain number, not recorded.
func (t *Tensor) scalar(name string, op device.Binary, s float64) *Tensor {
	dtype := scalarType(t, s)
	if op == device.Div && !dtype.IsFloat() {
		dtype = Float32
	}
	if !dtype.IsFloat() {
		// Sums and products wrap around, but comparisons and limits are those of numbers.
		low, high := intRange(dtype)
		switch {
		case op.IsPredicate() && (s < low || s > high):
			dtype = Int64
		case op == device.Maximum || op == device.Minimum:
			s = min(max(s, low), high)
		}
	} else if op.IsPredicate() {
		s = roundTo(dtype, s) // bfloat16(0.1) is equal to 0.1
	}
	x := t.Detach().To(dtype)
	if op.IsPredicate() {
		dtype = Bool
	}
	out := result(name, dtype, t.shape, t)
	out.Device().BinaryScalar(op, out.array(), x.array(), s)
	t.discard(x)
	return out
}

// AddScalar returns t + s. The number takes t's dtype; but beside a fraction
// integers become float32, and bool becomes int64 beside a whole number.
func (t *Tensor) AddScalar(s float64) *Tensor {
	return t.scalar("add scalar", device.Add, s).record("add scalar", []*Tensor{t}, nil,
		func(b *backprop, g *Tensor) { b.give(0, g) })
}

// SubScalar returns t - s.
func (t *Tensor) SubScalar(s float64) *Tensor { return t.AddScalar(-s) }

// RSubScalar returns s - t.
func (t *Tensor) RSubScalar(s float64) *Tensor { return t.Neg().AddScalar(s) }

// DivScalar returns t / s, of integers in float32.
func (t *Tensor) DivScalar(s float64) *Tensor {
	return t.scalar("div scalar", device.Div, s).record("div scalar", []*Tensor{t}, nil,
		func(b *backprop, g *Tensor) { b.give(0, g.DivScalar(s)) })
}

// MulScalar returns t · s; see [Tensor.AddScalar] for dtypes.
func (t *Tensor) MulScalar(s float64) *Tensor {
	return t.scalar("mul scalar", device.Mul, s).record("mul scalar", []*Tensor{t}, nil,
		func(b *backprop, g *Tensor) { b.give(0, g.MulScalar(s)) })
}

// unary computes op, not recorded. Integers stay integers where the function
// has them for results, and become float32 elsewhere.
func (t *Tensor) unary(name string, op device.Unary) *Tensor {
	src, dtype := t.Detach(), t.dtype
	switch op {
	case device.Neg, device.Abs, device.Square, device.Sign, device.ReLU:
		if dtype == Bool {
			fail(name, []*Tensor{t}, "is not defined on bool; convert by To")
		}
	default:
		if op.IsPredicate() {
			dtype = Bool
			break
		}
		src = src.floating()
		dtype = src.dtype
	}
	out := result(name, dtype, t.shape, t)
	out.Device().Unary(op, out.array(), src.array())
	t.discard(src)
	return out
}

// Neg returns -t.
func (t *Tensor) Neg() *Tensor {
	return t.unary("neg", device.Neg).record("neg", []*Tensor{t}, nil,
		func(b *backprop, g *Tensor) { b.give(0, g.Neg()) })
}

// Exp returns e to the t.
func (t *Tensor) Exp() *Tensor {
	out := t.unary("exp", device.Exp)
	return out.record("exp", []*Tensor{t}, []*Tensor{out},
		func(b *backprop, g *Tensor) { b.give(0, g.Mul(out)) })
}

// Log returns the natural logarithm.
func (t *Tensor) Log() *Tensor {
	return t.unary("log", device.Log).record("log", []*Tensor{t}, []*Tensor{t},
		func(b *backprop, g *Tensor) { b.give(0, g.Div(t)) })
}

// Sqrt returns the square root.
func (t *Tensor) Sqrt() *Tensor {
	out := t.unary("sqrt", device.Sqrt)
	return out.record("sqrt", []*Tensor{t}, []*Tensor{out},
		func(b *backprop, g *Tensor) { b.give(0, g.MulScalar(0.5).Div(out)) })
}

// Reciprocal returns 1 / t.
func (t *Tensor) Reciprocal() *Tensor {
	out := t.unary("reciprocal", device.Reciprocal)
	return out.record("reciprocal", []*Tensor{t}, []*Tensor{out},
		func(b *backprop, g *Tensor) { b.give(0, g.Mul(out).Mul(out).Neg()) })
}

// Tanh returns the hyperbolic tangent.
func (t *Tensor) Tanh() *Tensor {
	out := t.unary("tanh", device.Tanh)
	return out.record("tanh", []*Tensor{t}, []*Tensor{out},
		func(b *backprop, g *Tensor) { b.give(0, g.Mul(out.Mul(out).Neg().AddScalar(1))) })
}

// Erf returns the error function.
func (t *Tensor) Erf() *Tensor {
	return t.unary("erf", device.Erf).record("erf", []*Tensor{t}, []*Tensor{t},
		func(b *backprop, g *Tensor) {
			b.give(0, g.Mul(t.Mul(t).Neg().Exp().MulScalar(2/math.Sqrt(math.Pi))))
		})
}

// sumTo undoes a broadcast: it sums t over what was repeated from shape.
func (t *Tensor) sumTo(shape []int) *Tensor {
	if slices.Equal(t.shape, shape) {
		return t
	}
	lead := len(t.shape) - len(shape)
	keep := t.Shape()
	for i := range keep {
		if i < lead || shape[i-lead] == 1 {
			keep[i] = 1
		}
	}
	return t.reduceTo("sum", device.Sum, keep).Reshape(shape...)
}
