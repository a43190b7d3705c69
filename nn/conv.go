// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"github.com/cohort-ml/cohort/tensor"
)

// Conv2dOptions are the options of [NewConv2d] and [NewConvTranspose2d] under
// torch.nn's names. The zero value is a stride and dilation of 1, no padding,
// one group and a bias.
type Conv2dOptions struct {
	Stride        [2]int // by row and column; 0 is 1
	Padding       [2]int
	OutputPadding [2]int // of transposed convolutions only
	Dilation      [2]int // 0 is 1
	Groups        int    // 0 is 1
	NoBias        bool
}

// Square returns the pair that options want for a size which is the same by row
// and column.
func Square(n int) [2]int { return [2]int{n, n} }

func (o Conv2dOptions) tensor() tensor.Conv2dOptions {
	return tensor.Conv2dOptions{Stride: o.Stride, Padding: o.Padding, Dilation: o.Dilation, Groups: o.Groups}
}

// check panics for sizes and options that no image fits.
func (o Conv2dOptions) check(op string, in, out int, kernel [2]int, transposed bool) {
	c := checks{op: op}
	c.positive("in", in)
	c.positive("out", out)
	groups := max(1, o.Groups)
	c.want(o.Groups >= 0, "Groups is %d: it must be at least 1, or 0 for 1", o.Groups)
	c.want(in%groups == 0 && out%groups == 0, "Groups is %d: it must divide in, %d, and out, %d", o.Groups, in, out)
	for i, of := range []string{"rows", "columns"} {
		c.positive("the kernel's number of "+of, kernel[i])
	}
	c.want(min(o.Stride[0], o.Stride[1]) >= 0, "Stride is %v: it must be at least 1, or 0 for 1", o.Stride)
	c.want(min(o.Dilation[0], o.Dilation[1]) >= 0, "Dilation is %v: it must be at least 1, or 0 for 1", o.Dilation)
	c.want(min(o.Padding[0], o.Padding[1]) >= 0, "Padding is %v: it must not be negative", o.Padding)
	below := func(i int) bool {
		return o.OutputPadding[i] >= 0 && o.OutputPadding[i] < max(1, o.Stride[i], o.Dilation[i])
	}
	c.want(!transposed || below(0) && below(1), "OutputPadding is %v: it must be below the stride or the dilation", o.OutputPadding)
	c.end()
}

// Conv2d lays kernels over images: [batch, in, height, width] to [batch, out,
// outHeight, outWidth]; see tensor.Conv2d.
type Conv2d struct {
	Weight  *Parameter // [out, in/groups, kernelH, kernelW]
	Bias    *Parameter // [out], nil for none
	Options Conv2dOptions
}

// NewConv2d returns a layer with PyTorch's first values: weight and bias uniform
// within 1/√(in/groups·kernelH·kernelW), drawn in that order.
func NewConv2d(b *Build, in, out int, kernel [2]int, o Conv2dOptions) *Conv2d {
	o.check("new conv2d", in, out, kernel, false)
	perGroup := in / max(1, o.Groups)
	bound := fanInBound(perGroup * kernel[0] * kernel[1])
	l := &Conv2d{Weight: b.Uniform(bound, out, perGroup, kernel[0], kernel[1]), Options: o}
	if !o.NoBias {
		l.Bias = b.Uniform(bound, out)
	}
	return l
}

// Forward applies the layer.
func (l *Conv2d) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.Conv2d(x, c.Param(l.Weight), paramOrNil(c, l.Bias), l.Options.tensor())
}

// ConvTranspose2d spreads elements over images: [batch, in, height, width] to
// [batch, out, outHeight, outWidth]; see tensor.ConvTranspose2d.
type ConvTranspose2d struct {
	Weight  *Parameter // [in, out/groups, kernelH, kernelW]
	Bias    *Parameter // [out], nil for none
	Options Conv2dOptions
}

// NewConvTranspose2d returns a layer with PyTorch's first values: weight and
// bias uniform within 1/√(out/groups·kernelH·kernelW), drawn in that order.
func NewConvTranspose2d(b *Build, in, out int, kernel [2]int, o Conv2dOptions) *ConvTranspose2d {
	o.check("new conv transpose 2d", in, out, kernel, true)
	perGroup := out / max(1, o.Groups)
	bound := fanInBound(perGroup * kernel[0] * kernel[1])
	l := &ConvTranspose2d{Weight: b.Uniform(bound, in, perGroup, kernel[0], kernel[1]), Options: o}
	if !o.NoBias {
		l.Bias = b.Uniform(bound, out)
	}
	return l
}

// Forward applies the layer.
func (l *ConvTranspose2d) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.ConvTranspose2d(x, c.Param(l.Weight), paramOrNil(c, l.Bias), l.Options.tensor(), l.Options.OutputPadding)
}
