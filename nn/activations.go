// SPDX-License-Identifier: Apache-2.0

package nn

import "github.com/cohort-ml/cohort/tensor"

// The activations of torch.nn; what each computes is said at the method of
// tensor.Tensor that has its name. Those with settings have a constructor that
// gives PyTorch's; the others are ready as they are.

// ReLU is max(x, 0).
type ReLU struct{}

// Forward applies the function.
func (*ReLU) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor { return x.ReLU() }

// GELU is x·Φ(x), or GPT-2's approximation of it.
type GELU struct {
	Tanh bool // the approximation
}

// Forward applies the function.
func (g *GELU) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	if g.Tanh {
		return x.GELUTanh()
	}
	return x.GELU()
}

// Sigmoid is 1/(1 + e⁻ˣ).
type Sigmoid struct{}

// Forward applies the function.
func (*Sigmoid) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.Sigmoid()
}

// Tanh is the hyperbolic tangent.
type Tanh struct{}

// Forward applies the function.
func (*Tanh) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.Tanh()
}

// SiLU is x·sigmoid(x), also called swish.
type SiLU struct{}

// Forward applies the function.
func (*SiLU) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.SiLU()
}

// LogSigmoid is log(sigmoid(x)).
type LogSigmoid struct{}

// Forward applies the function.
func (*LogSigmoid) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.LogSigmoid()
}

// LeakyReLU is x where it is positive and NegativeSlope·x elsewhere.
type LeakyReLU struct {
	NegativeSlope float64
}

// NewLeakyReLU returns the module with PyTorch's settings.
func NewLeakyReLU() *LeakyReLU { return &LeakyReLU{NegativeSlope: 0.01} }

// Forward applies the function.
func (m *LeakyReLU) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.LeakyReLU(m.NegativeSlope)
}

// ELU is x where it is positive and Alpha·(eˣ - 1) elsewhere.
type ELU struct {
	Alpha float64
}

// NewELU returns the module with PyTorch's settings.
func NewELU() *ELU { return &ELU{Alpha: 1} }

// Forward applies the function.
func (m *ELU) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.ELU(m.Alpha)
}

// SELU is the scaled ELU that keeps mean 0 and variance 1.
type SELU struct{}

// Forward applies the function.
func (*SELU) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.SELU()
}

// Softplus is log(1 + e^(Beta·x))/Beta, and x where Beta·x is above Threshold.
type Softplus struct {
	Beta, Threshold float64
}

// NewSoftplus returns the module with PyTorch's settings.
func NewSoftplus() *Softplus { return &Softplus{Beta: 1, Threshold: 20} }

// Forward applies the function.
func (m *Softplus) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.Softplus(m.Beta, m.Threshold)
}

// Hardtanh is x limited to [MinVal, MaxVal].
type Hardtanh struct {
	MinVal, MaxVal float64
}

// NewHardtanh returns the module with PyTorch's settings.
func NewHardtanh() *Hardtanh { return &Hardtanh{MinVal: -1, MaxVal: 1} }

// Forward applies the function.
func (m *Hardtanh) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.Hardtanh(m.MinVal, m.MaxVal)
}

// ReLU6 is x limited to [0, 6].
type ReLU6 struct{}

// Forward applies the function.
func (*ReLU6) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.ReLU6()
}

// Hardsigmoid is x/6 + ½ limited to [0, 1].
type Hardsigmoid struct{}

// Forward applies the function.
func (*Hardsigmoid) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.Hardsigmoid()
}

// Hardswish is x·hardsigmoid(x).
type Hardswish struct{}

// Forward applies the function.
func (*Hardswish) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.Hardswish()
}

// Mish is x·tanh(softplus(x)).
type Mish struct{}

// Forward applies the function.
func (*Mish) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.Mish()
}

// PReLU is x where it is positive and a learnt slope times x elsewhere.
type PReLU struct {
	Weight *Parameter // [channels] for dim 1 of x, or [1] for all
}

// NewPReLU returns the module with slopes of 0.25; PyTorch's default is one
// channel.
func NewPReLU(b *Build, channels int) *PReLU { return &PReLU{Weight: b.Full(0.25, channels)} }

// Forward applies the function.
func (m *PReLU) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor { return x.PReLU(c.Param(m.Weight)) }

// Softmax is exp(x) over its sum along Dim.
type Softmax struct{ Dim int }

// Forward applies the function.
func (m *Softmax) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor { return x.Softmax(m.Dim) }

// LogSoftmax is the logarithm of [Softmax].
type LogSoftmax struct{ Dim int }

// Forward applies the function.
func (m *LogSoftmax) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor { return x.LogSoftmax(m.Dim) }

// Identity gives back its input.
type Identity struct{}

// Forward returns x.
func (*Identity) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor { return x }
