// SPDX-License-Identifier: Apache-2.0

package nn

import "github.com/cohort-ml/cohort/tensor"

// RMSNorm divides the last dim by its root mean square; see tensor.RMSNorm.
type RMSNorm struct {
	Weight *Parameter // [width], nil for ones
	Eps    float64
}

// NewRMSNorm returns a norm with weight 1 and PyTorch's epsilon, the distance
// from 1 to the next float32. Llama's checkpoints have one of their own.
func NewRMSNorm(b *Build, width int) *RMSNorm {
	return &RMSNorm{Weight: b.Full(1, width), Eps: 0x1p-23}
}

// Forward normalises x.
func (l *RMSNorm) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.RMSNorm(x, paramOrNil(c, l.Weight), l.Eps)
}
