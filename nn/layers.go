// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"github.com/cohort-ml/cohort/tensor"
)

// Linear is x·Wᵀ + b: [batch…, in] to [batch…, out].
type Linear struct {
	Weight *Parameter // [out, in]
	Bias   *Parameter // [out], nil for none
}

// NewLinear returns a layer with PyTorch's first values: weight and bias
// uniform within 1/√in, drawn in that order.
func NewLinear(b *Build, in, out int) *Linear {
	c := checks{op: "new linear"}
	c.positive("in", in)
	c.positive("out", out)
	c.end()
	return &Linear{Weight: b.Uniform(fanInBound(in), out, in), Bias: b.Uniform(fanInBound(in), out)}
}

// Forward applies the layer.
func (l *Linear) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.Linear(x, c.Param(l.Weight), paramOrNil(c, l.Bias))
}

// LayerNorm normalises the last dim; see tensor.LayerNorm.
type LayerNorm struct {
	Weight *Parameter // gamma [width], nil for ones
	Bias   *Parameter // beta [width], nil for zeros
	Eps    float64
}

// NewLayerNorm returns a norm with gamma 1, beta 0 and PyTorch's epsilon 1e-5.
func NewLayerNorm(b *Build, width int) *LayerNorm {
	return &LayerNorm{Weight: b.Full(1, width), Bias: b.Empty(width), Eps: 1e-5}
}

// Forward normalises x.
func (l *LayerNorm) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.LayerNorm(x, paramOrNil(c, l.Weight), paramOrNil(c, l.Bias), l.Eps)
}

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

// Sequential runs modules one after the other; their names are 0, 1, ….
type Sequential struct {
	Layers []Module `name:""`
}

// NewSequential returns the modules in order.
func NewSequential(layers ...Module) *Sequential { return &Sequential{Layers: layers} }

// Forward passes x through all modules.
func (s *Sequential) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	mark := c.Tape().Mark()
	for _, m := range s.Layers {
		x = c.Call(m, x)
		c.Tape().FreeSince(mark, x) // without a record, the result of the layer before
	}
	return x
}
