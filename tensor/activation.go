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

// SiLU returns t·sigmoid(t) (Elfwing, Uchibe and Doya 2018), also called swish.
func (t *Tensor) SiLU() *Tensor {
	return t.activation("silu", device.SiLU, device.SiLUGrad, func() *Tensor { return t.Mul(t.Sigmoid()) })
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

// Sigmoid returns the logistic function 1/(1 + e⁻ᵗ).
func (t *Tensor) Sigmoid() *Tensor {
	out := t.unary("sigmoid", device.Sigmoid)
	return out.record("sigmoid", []*Tensor{t}, []*Tensor{out}, func(b *backprop, g *Tensor) {
		if b.create {
			b.give(0, g.Mul(out).Mul(out.RSubScalar(1)))
			return
		}
		b.give(0, out.binary("sigmoid grad", device.SigmoidGrad, g))
	})
}

// LogSigmoid returns log(sigmoid(t)) without loss of digits at either end.
func (t *Tensor) LogSigmoid() *Tensor {
	return t.pointwise("log sigmoid", device.Pointwise{Func: device.LogSigmoid}, func() *Tensor { return t.Neg().Softplus(1, 20).Neg() })
}

// LeakyReLU returns t where it is positive and slope·t elsewhere (PyTorch's
// slope is 0.01).
func (t *Tensor) LeakyReLU(slope float64) *Tensor {
	return t.pointwise("leaky relu", device.Pointwise{Func: device.LeakyReLU, A: slope}, nil)
}

// PReLU is LeakyReLU with a learnt slope for each channel: dim 1 of t, which
// weight [channels] is for; a weight of one element is for all (He et al. 2015).
func (t *Tensor) PReLU(weight *Tensor) *Tensor {
	present("prelu", t, weight)
	channels := weight.NumElems()
	if len(weight.shape) != 1 || channels != 1 && (len(t.shape) < 2 || t.shape[1] != channels) {
		fail("prelu", []*Tensor{t, weight}, "the weight must have one element, or one for each channel (dim 1)")
	}
	if channels != 1 {
		shape := []int{channels}
		for range len(t.shape) - 2 {
			shape = append(shape, 1)
		}
		weight = weight.Reshape(shape...)
	}
	return Where(t.GtScalar(0), t, t.Mul(weight))
}

// ELU returns t where it is positive and alpha·(eᵗ - 1) elsewhere (Clevert,
// Unterthiner and Hochreiter 2016; PyTorch's alpha is 1).
func (t *Tensor) ELU(alpha float64) *Tensor { return t.scaledELU("elu", alpha, 1) }

// SELU is 1.0507·ELU with alpha 1.6733, which keeps mean 0 and variance 1
// (Klambauer et al. 2017).
func (t *Tensor) SELU() *Tensor {
	return t.scaledELU("selu", 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)
}

func (t *Tensor) scaledELU(op string, alpha, scale float64) *Tensor {
	return t.pointwise(op, device.Pointwise{Func: device.ELU, A: alpha, B: scale}, func() *Tensor {
		positive := t.GtScalar(0)
		low := Where(positive, scalarOf(t, 0), t).Expm1().MulScalar(alpha)
		return Where(positive, t, low).MulScalar(scale)
	})
}

// Softplus returns log(1 + e^(beta·t))/beta, and t itself where beta·t is above
// the threshold (PyTorch's are 1 and 20).
func (t *Tensor) Softplus(beta, threshold float64) *Tensor {
	return t.pointwise("softplus", device.Pointwise{Func: device.Softplus, A: beta, B: threshold}, func() *Tensor {
		linear := t.MulScalar(beta).GtScalar(threshold)
		curved := Where(linear, scalarOf(t, 0), t).MulScalar(beta).Exp().Log1p().DivScalar(beta)
		return Where(linear, t, curved)
	})
}

// Hardtanh returns t limited to [low, high] (PyTorch's are -1 and 1). As
// [Tensor.Clamp]'s, its slope at the limits is 0.
func (t *Tensor) Hardtanh(low, high float64) *Tensor {
	return t.pointwise("hardtanh", device.Pointwise{Func: device.Hardtanh, A: low, B: high}, nil)
}

// ReLU6 returns t limited to [0, 6].
func (t *Tensor) ReLU6() *Tensor { return t.Hardtanh(0, 6) }

// Hardsigmoid returns t/6 + ½ limited to [0, 1].
func (t *Tensor) Hardsigmoid() *Tensor {
	return t.pointwise("hardsigmoid", device.Pointwise{Func: device.Hardsigmoid}, nil)
}

// Hardswish returns t·hardsigmoid(t) (Howard et al. 2019).
func (t *Tensor) Hardswish() *Tensor {
	return t.pointwise("hardswish", device.Pointwise{Func: device.Hardswish}, func() *Tensor { return t.Mul(t.Hardsigmoid()) })
}

// Mish returns t·tanh(softplus(t)) (Misra 2020).
func (t *Tensor) Mish() *Tensor {
	return t.pointwise("mish", device.Pointwise{Func: device.Mish}, func() *Tensor { return t.Mul(t.Softplus(1, 20).Tanh()) })
}

// pointwise is an elementwise function that no training step feels the speed of.
// It takes floating dtypes. definition is as in activation.
func (t *Tensor) pointwise(name string, f device.Pointwise, definition func() *Tensor) *Tensor {
	if !t.dtype.IsFloat() {
		return t.To(Float32).pointwise(name, f, definition)
	}
	out := result(name, t.dtype, t.shape, t)
	src := t.Detach().Contiguous()
	fused(f, out, src)
	t.discard(src)
	return out.record(name, []*Tensor{t}, []*Tensor{t}, func(b *backprop, g *Tensor) {
		if b.create && definition != nil {
			b.composite(g, definition)
			return
		}
		// The slope is a constant to the tape: its own is 0 where there is no definition.
		slope := f
		slope.Slope = true
		b.give(0, g.Mul(t.Detach().pointwise(name+" slope", slope, nil)))
	})
}
