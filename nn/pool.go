// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"slices"

	"github.com/cohort-ml/cohort/tensor"
)

// MaxPool2d takes the largest element of each window; see tensor.MaxPool2d.
//
//	&nn.MaxPool2d{Kernel: nn.Square(3), Stride: nn.Square(2), Padding: nn.Square(1)}
type MaxPool2d tensor.Pool2dOptions

// Forward pools [batch, channels, height, width].
func (p *MaxPool2d) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.MaxPool2d(x, tensor.Pool2dOptions(*p))
}

// AvgPool2d takes the mean of each window; see tensor.AvgPool2d.
type AvgPool2d tensor.Pool2dOptions

// Forward pools [batch, channels, height, width].
func (p *AvgPool2d) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.AvgPool2d(x, tensor.Pool2dOptions(*p))
}

// AdaptiveAvgPool2d takes means of windows that cover the plane, as many as the
// result has; see tensor.AdaptiveAvgPool2d.
type AdaptiveAvgPool2d struct{ Size [2]int }

// Forward pools [batch, channels, height, width] to [batch, channels, Size…].
func (p *AdaptiveAvgPool2d) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.AdaptiveAvgPool2d(x, p.Size[0], p.Size[1])
}

// AdaptiveMaxPool2d is AdaptiveAvgPool2d with the largest elements.
type AdaptiveMaxPool2d struct{ Size [2]int }

// Forward pools [batch, channels, height, width] to [batch, channels, Size…].
func (p *AdaptiveMaxPool2d) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.AdaptiveMaxPool2d(x, p.Size[0], p.Size[1])
}

// Flatten makes one dim of all but the first: [batch, …] to [batch, rest].
type Flatten struct{}

// Forward reshapes x.
func (*Flatten) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	rest := 1
	for _, n := range slices.Concat(x.Shape(), []int{1})[1:] {
		rest *= n
	}
	return x.Reshape(-1, rest)
}
