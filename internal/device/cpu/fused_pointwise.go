// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/half"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/random"
)

// pointwise runs elementwise functions and dropout.
func (c *CPU) pointwise(op device.Op, a []device.Array) bool {
	switch op := op.(type) {
	case device.SwiGLU:
		if a[0].DType == device.BFloat16 {
			kernel.SwiGLUBF16(c.threads, device.Elems[uint16](a[0]), device.Elems[uint16](a[1]), device.Elems[uint16](a[2]))
			break
		}
		kernel.SwiGLU(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s())
	case device.SwiGLUGrad:
		if a[0].DType == device.BFloat16 {
			kernel.SwiGLUBackwardBF16(c.threads, device.Elems[uint16](a[0]), device.Elems[uint16](a[1]), device.Elems[uint16](a[2]),
				device.Elems[uint16](a[3]), device.Elems[uint16](a[4]))
			break
		}
		kernel.SwiGLUBackward(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), a[3].Float32s(), a[4].Float32s())
	case device.Pointwise:
		c.applyPointwise(op, a[0], a[1])
	case device.DropoutMask:
		kernel.DropoutMask(c.threads, device.Elems[uint8](a[0]), op.NumElems, random.Philox{Key: op.Key}, op.Stream, op.Keep)
	case device.DropoutMaskRows:
		kernel.DropoutMaskRows(c.threads, device.Elems[uint8](a[0]), a[1].Int64s(), op.Length, random.Philox{Key: op.Key}, op.Stream, op.Keep)
	case device.Dropout:
		kernel.MaskScale(c.threads, a[0].Float32s(), a[1].Float32s(), device.Elems[uint8](a[2]), float32(op.Scale))
	default:
		return false
	}
	return true
}

// applyPointwise computes a function that no training step feels the speed of.
func (c *CPU) applyPointwise(op device.Pointwise, dst, x device.Array) {
	f := pointwiseFunc(op)
	switch dst.DType {
	case device.Float32:
		mapElems(c, dst, x, func(x float32) float32 { return float32(f(float64(x))) })
	case device.Float64:
		mapElems(c, dst, x, f)
	case device.BFloat16:
		mapElems(c, dst, x, func(x uint16) uint16 { return half.BFloat16(float32(f(float64(half.FromBFloat16(x))))) })
	default:
		mapElems(c, dst, x, func(x uint16) uint16 { return half.Float16(float32(f(float64(half.FromFloat16(x))))) })
	}
}

// mapElems sets the elements of dst from those of x.
func mapElems[T device.Element](c *CPU, dst, x device.Array, f func(x T) T) {
	to, from := device.Elems[T](dst), device.Elems[T](x)
	const piece = 4 << 10 // some ten microseconds of the slower functions
	c.threads.Run((len(to)+piece-1)/piece, func(i int) {
		hi := min((i+1)*piece, len(to))
		d := to[i*piece : hi]
		for j, x := range from[i*piece : hi] {
			d[j] = f(x)
		}
	})
}

// pointwiseFunc returns a function, or its slope.
func pointwiseFunc(op device.Pointwise) func(x float64) float64 {
	value, slope := functionAndSlope(op.Func, op.A, op.B)
	if op.Slope {
		return slope
	}
	return value
}

func functionAndSlope(f device.PointwiseFunc, a, b float64) (value, slope func(x float64) float64) {
	switch f {
	case device.LogSigmoid:
		return func(x float64) float64 { return min(x, 0) - math.Log1p(math.Exp(-math.Abs(x))) },
			func(x float64) float64 { return logistic(-x) }
	case device.LeakyReLU:
		return func(x float64) float64 { return either(x > 0, x, a*x) },
			func(x float64) float64 { return either(x > 0, 1, a) }
	case device.ELU:
		return func(x float64) float64 {
				if x > 0 {
					return b * x
				}
				return b * a * math.Expm1(x)
			}, func(x float64) float64 {
				if x > 0 {
					return b
				}
				return b * a * math.Exp(x)
			}
	case device.Softplus:
		return func(x float64) float64 {
				if a*x > b {
					return x
				}
				return math.Log1p(math.Exp(a*x)) / a
			}, func(x float64) float64 {
				if a*x > b {
					return 1
				}
				return logistic(a * x)
			}
	case device.Hardtanh:
		return func(x float64) float64 { return min(max(x, a), b) },
			func(x float64) float64 { return either(x <= a || x >= b, 0, 1) }
	case device.Hardsigmoid:
		return func(x float64) float64 { return min(max(x/6+0.5, 0), 1) },
			func(x float64) float64 { return either(x > -3 && x < 3, 1.0/6, 0) }
	case device.Hardswish:
		return hardswish, hardswishSlope
	case device.Mish:
		return func(x float64) float64 { return x * math.Tanh(softplus(x)) },
			func(x float64) float64 {
				y := math.Tanh(softplus(x))
				return y + x*(1-y*y)*logistic(x)
			}
	}
	panic(fmt.Sprintf("cpu: no pointwise function %d", f))
}

func either(first bool, a, b float64) float64 {
	if first {
		return a
	}
	return b
}

func hardswish(x float64) float64 {
	switch {
	case x <= -3:
		return 0
	case x >= 3:
		return x
	}
	return x * (x + 3) / 6
}

func hardswishSlope(x float64) float64 {
	switch {
	case x <= -3:
		return 0
	case x >= 3:
		return 1
	}
	return x/3 + 0.5
}

// logistic is 1/(1+e⁻ˣ).
func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// softplus is log(1+eˣ), without overflow.
func softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }
