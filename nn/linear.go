// SPDX-License-Identifier: Apache-2.0

package nn

import "github.com/cohort-ml/cohort/tensor"

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
