// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/internal/device"
)

// The functions that have no vectorised kernel, as plain loops: float32 ones
// compute in float64 and round once.

type floating interface{ float32 | float64 }

type integer interface{ int64 | int32 | int8 | uint8 }

type number interface{ floating | integer }

// each makes a loop of a function of one element.
func each[D, T any](f func(x T) D) func(dst []D, x []T) {
	return func(dst []D, x []T) {
		x = x[:len(dst)]
		for i, v := range x {
			dst[i] = f(v)
		}
	}
}

// zip makes a loop of a function of two elements.
func zip[D, T any](f func(x, y T) D) func(dst []D, x, y []T) {
	return func(dst []D, x, y []T) {
		x, y = x[:len(dst)], y[:len(dst)]
		for i, v := range x {
			dst[i] = f(v, y[i])
		}
	}
}

// wide makes a loop of a function in float64.
func wide[T floating](f func(x float64) float64) func(dst, x []T) {
	return each(func(x T) T { return T(f(float64(x))) })
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func unaryFloat[T floating](op device.Unary) func(dst, x []T) {
	switch op {
	case device.Neg:
		return each(func(x T) T { return -x })
	case device.Exp:
		return wide[T](math.Exp)
	case device.Log:
		return wide[T](math.Log)
	case device.Sqrt:
		return wide[T](math.Sqrt)
	case device.Reciprocal:
		return each(func(x T) T { return 1 / x })
	case device.Tanh:
		return wide[T](math.Tanh)
	case device.Erf:
		return wide[T](math.Erf)
	case device.ReLU:
		return each(func(x T) T { return max(x, 0) })
	case device.GELU:
		return wide[T](gelu)
	case device.GELUTanh:
		return wide[T](geluTanh)
	case device.Abs:
		return wide[T](math.Abs)
	case device.Square:
		return each(func(x T) T { return x * x })
	case device.Rsqrt:
		return wide[T](func(x float64) float64 { return 1 / math.Sqrt(x) })
	case device.Sin:
		return wide[T](math.Sin)
	case device.Cos:
		return wide[T](math.Cos)
	case device.Log1p:
		return wide[T](math.Log1p)
	case device.Expm1:
		return wide[T](math.Expm1)
	case device.Sign:
		return each(sign[T])
	case device.Floor:
		return wide[T](math.Floor)
	case device.Ceil:
		return wide[T](math.Ceil)
	case device.Round:
		return wide[T](math.RoundToEven)
	case device.Sigmoid:
		return wide[T](sigmoid)
	case device.SiLU:
		return wide[T](silu)
	}
	panic(fmt.Sprintf("cpu: no unary operation %d on floating numbers", op))
}

func sign[T number](x T) T {
	switch {
	case x > 0:
		return 1
	case x < 0:
		x = 0
		return x - 1
	}
	return 0
}

// At minus infinity the products below are 0, not NaN.

func gelu(x float64) float64 {
	if x < -40 {
		return 0
	}
	return x * 0.5 * math.Erfc(-x/math.Sqrt2)
}

func silu(x float64) float64 {
	if x < -800 {
		return 0
	}
	return x * sigmoid(x)
}

func geluTanh(x float64) float64 {
	if x < -40 {
		return 0
	}
	return x * sigmoid(geluTanhInner(x))
}

// geluTanhInner is twice the argument of the hyperbolic tangent: ½(1 + tanh u)
// is the logistic function of 2u.
func geluTanhInner(x float64) float64 { return 2 * math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x) }

func geluGrad(x float64) float64 {
	if math.Abs(x) > 40 {
		return math.Max(0, math.Copysign(1, x))
	}
	return 0.5*math.Erfc(-x/math.Sqrt2) + x*math.Exp(-0.5*x*x)/math.Sqrt(2*math.Pi)
}

func geluTanhGrad(x float64) float64 {
	x = max(min(x, 40), -40) // the slope is 1 or 0 long before
	s := sigmoid(geluTanhInner(x))
	return s + x*s*(1-s)*2*math.Sqrt(2/math.Pi)*(1+3*0.044715*x*x)
}

func siluGrad(x float64) float64 {
	x = max(min(x, 700), -700) // the slope is 1 or 0 there
	s := sigmoid(x)
	return s * (1 + x*(1-s))
}

func unaryInteger[T integer](op device.Unary) func(dst, x []T) {
	switch op {
	case device.Neg:
		return each(func(x T) T { return -x })
	case device.Abs:
		return each(func(x T) T { return x * sign(x) })
	case device.Square:
		return each(func(x T) T { return x * x })
	case device.Sign:
		return each(sign[T])
	case device.ReLU:
		return each(func(x T) T { return max(x, 0) })
	}
	panic(fmt.Sprintf("cpu: no unary operation %d on integers", op))
}

func unaryPredicate[T number](op device.Unary) func(dst []uint8, x []T) {
	switch op {
	case device.LogicalNot:
		return each(func(x T) uint8 { return truth(x == 0) })
	case device.IsNaN:
		return each(func(x T) uint8 { return truth(x != x) })
	case device.IsInf:
		return each(func(x T) uint8 { return truth(x == x && x-x != x-x) })
	case device.IsFinite:
		return each(func(x T) uint8 { return truth(x-x == x-x) })
	}
	panic(fmt.Sprintf("cpu: no unary predicate %d", op))
}

func binaryFloat[T floating](op device.Binary) func(dst, x, y []T) {
	slope := func(f func(x float64) float64) func(dst, x, y []T) {
		return zip(func(x, g T) T { return T(f(float64(x))) * g })
	}
	switch op {
	case device.Div:
		return zip(func(x, y T) T { return x / y })
	case device.Pow:
		return zip(func(x, y T) T { return T(math.Pow(float64(x), float64(y))) })
	case device.ReLUGrad:
		return zip(func(x, g T) T {
			if x > 0 {
				return g
			}
			return 0
		})
	case device.GELUGrad:
		return slope(geluGrad)
	case device.GELUTanhGrad:
		return slope(geluTanhGrad)
	case device.SiLUGrad:
		return slope(siluGrad)
	case device.SigmoidGrad:
		return zip(func(y, g T) T { return y * (1 - y) * g })
	}
	return arithmetic[T](op)
}

func binaryInteger[T integer](op device.Binary) func(dst, x, y []T) {
	if op == device.Pow {
		return zip(powInteger[T])
	}
	return arithmetic[T](op)
}

// powInteger wraps around on overflow. Of a negative power only 1 and -1 leave
// an integer, as in PyTorch.
func powInteger[T integer](x, y T) T {
	if y < 0 {
		switch {
		case x == 1:
			return 1
		case x+1 == 0: // not x·x, which wraps around to 1 for 127 in int8
			if y%2 == 0 {
				return 1
			}
			return x
		}
		return 0
	}
	out := T(1)
	for ; y > 0; y /= 2 {
		if y%2 == 1 {
			out *= x
		}
		x *= x
	}
	return out
}

func arithmetic[T number](op device.Binary) func(dst, x, y []T) {
	switch op {
	case device.Add:
		return func(dst, x, y []T) {
			x, y = x[:len(dst)], y[:len(dst)]
			for i, v := range x {
				dst[i] = v + y[i]
			}
		}
	case device.Sub:
		return func(dst, x, y []T) {
			x, y = x[:len(dst)], y[:len(dst)]
			for i, v := range x {
				dst[i] = v - y[i]
			}
		}
	case device.Mul:
		return func(dst, x, y []T) {
			x, y = x[:len(dst)], y[:len(dst)]
			for i, v := range x {
				dst[i] = v * y[i]
			}
		}
	case device.Maximum:
		return zip(func(x, y T) T { return max(x, y) })
	case device.Minimum:
		return zip(func(x, y T) T { return min(x, y) })
	}
	panic(fmt.Sprintf("cpu: no binary operation %d", op))
}

func binaryBool(op device.Binary) func(dst, x, y []uint8) {
	switch op {
	case device.Add, device.Maximum:
		return zip(func(x, y uint8) uint8 { return x | y })
	case device.Mul, device.Minimum:
		return zip(func(x, y uint8) uint8 { return x & y })
	}
	if op.IsPredicate() {
		return binaryPredicate[uint8](op)
	}
	panic(fmt.Sprintf("cpu: no binary operation %d on bool", op))
}

func binaryPredicate[T number](op device.Binary) func(dst []uint8, x, y []T) {
	switch op {
	case device.Eq:
		return zip(func(x, y T) uint8 { return truth(x == y) })
	case device.Ne:
		return zip(func(x, y T) uint8 { return truth(x != y) })
	case device.Lt:
		return zip(func(x, y T) uint8 { return truth(x < y) })
	case device.Le:
		return zip(func(x, y T) uint8 { return truth(x <= y) })
	case device.Gt:
		return zip(func(x, y T) uint8 { return truth(x > y) })
	case device.Ge:
		return zip(func(x, y T) uint8 { return truth(x >= y) })
	case device.LogicalAnd:
		return zip(func(x, y T) uint8 { return truth(x != 0 && y != 0) })
	case device.LogicalOr:
		return zip(func(x, y T) uint8 { return truth(x != 0 || y != 0) })
	case device.LogicalXor:
		return zip(func(x, y T) uint8 { return truth((x != 0) != (y != 0)) })
	}
	panic(fmt.Sprintf("cpu: no predicate %d", op))
}
