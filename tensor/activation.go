// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"

	"github.com/cohort-ml/cohort/internal/device"
)

// ReLU returns max(t, 0).
func (t *Tensor) ReLU() *Tensor {
	return t.activation("relu", device.ReLU, device.ReLUGrad, nil)
}

// GELU returns t·Φ(t) with the exact normal distribution function.
func (t *Tensor) GELU() *Tensor {
	return t.activation("gelu", device.GELU, device.GELUGrad, func() *Tensor {
		return t.Mul(t.MulScalar(1 / math.Sqrt2).Erf().AddScalar(1)).MulScalar(0.5)
	})
}

// GELUTanh returns GELU's approximation by a hyperbolic tangent, as GPT-2
// uses it (Hendrycks and Gimpel 2016, §2).
func (t *Tensor) GELUTanh() *Tensor {
	return t.activation("gelu tanh", device.GELUTanh, device.GELUTanhGrad, func() *Tensor {
		inner := t.Add(t.Mul(t).Mul(t).MulScalar(0.044715)).MulScalar(math.Sqrt(2 / math.Pi))
		return t.Mul(inner.Tanh().AddScalar(1)).MulScalar(0.5)
	})
}

// activation is an elementwise function with a fused gradient. definition
// computes it from recorded operations; nil when the slope is constant.
func (t *Tensor) activation(op string, forward device.Unary, gradient device.Binary, definition func() *Tensor) *Tensor {
	return t.unary(op, forward).record(op, []*Tensor{t}, []*Tensor{t}, func(b *backprop, g *Tensor) {
		if b.create && definition != nil {
			b.composite(g, definition)
			return
		}
		b.give(0, t.activationGrad(op+" grad", gradient, g))
	})
}

// activationGrad is g·f'(t), linear in g.
func (t *Tensor) activationGrad(op string, gradient device.Binary, g *Tensor) *Tensor {
	return t.binary(op, gradient, g).record(op, []*Tensor{nil, g}, []*Tensor{t}, func(b *backprop, gg *Tensor) {
		b.give(1, t.activationGrad(op, gradient, gg))
	})
}
