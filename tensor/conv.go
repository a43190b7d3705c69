// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// Conv2dOptions are the choices of a convolution, by row and column. The zero
// value is a stride and dilation of 1, no padding and one group.
type Conv2dOptions struct {
	Stride   [2]int // steps of the kernel; 0 is 1
	Padding  [2]int // zeros around the image, on each side
	Dilation [2]int // from tap to tap of the kernel; 0 is 1
	Groups   int    // of channels that do not see each other; 0 is 1
}

// withDefaults fills in what 0 stands for.
func (o Conv2dOptions) withDefaults() Conv2dOptions {
	for i := range 2 {
		o.Stride[i], o.Dilation[i] = orOne(o.Stride[i]), orOne(o.Dilation[i])
	}
	o.Groups = orOne(o.Groups)
	return o
}

func orOne(n int) int {
	if n == 0 {
		return 1
	}
	return n
}

// convShape is the shape of the convolution with o of images [batch, in, height,
// width] by a weight [out, in/groups, kernelH, kernelW].
func (o Conv2dOptions) convShape(op string, operands []*Tensor, image, weight []int) device.Conv2dShape {
	if len(image) != 4 || len(weight) != 4 {
		fail(op, operands, "wants images [batch, channels, height, width] and a weight of four dims")
	}
	if min(o.Stride[0], o.Stride[1], o.Dilation[0], o.Dilation[1], o.Groups) < 1 || min(o.Padding[0], o.Padding[1]) < 0 {
		fail(op, operands, "wants a positive stride, dilation and number of groups and no negative padding, got %+v", o)
	}
	const most = 1 << 30 // keeps the sizes below far from the end of an int
	if n := max(o.Stride[0], o.Stride[1], o.Dilation[0], o.Dilation[1], o.Groups, o.Padding[0], o.Padding[1]); n > most {
		fail(op, operands, "wants numbers up to %d, got %+v", most, o)
	}
	if takes := weight[1] * o.Groups; image[1] != takes {
		fail(op, operands, "the images have %s, the weight takes %d: it is [out, in/groups, height, width], with groups = %d",
			channels(image[1]), takes, o.Groups)
	}
	if weight[0]%o.Groups != 0 {
		fail(op, operands, "%d groups do not divide the %s that the weight gives", o.Groups, channels(weight[0]))
	}
	s := device.Conv2dShape{
		Batch: image[0], In: image[1], Height: image[2], Width: image[3], Out: weight[0], KernelH: weight[2], KernelW: weight[3],
		StrideH: o.Stride[0], StrideW: o.Stride[1], PadH: o.Padding[0], PadW: o.Padding[1],
		DilationH: o.Dilation[0], DilationW: o.Dilation[1], Groups: o.Groups,
	}
	if s.KernelH < 1 || s.KernelW < 1 || s.OutHeight() < 1 || s.OutWidth() < 1 {
		fail(op, operands, "a kernel of %d by %d, dilated by %v, does not fit images of %d by %d padded by %v",
			s.KernelH, s.KernelW, o.Dilation, s.Height, s.Width, o.Padding)
	}
	return s
}

func channels(n int) string {
	if n == 1 {
		return "1 channel"
	}
	return fmt.Sprintf("%d channels", n)
}

// Conv2d lays kernels over images (cross-correlation, as torch.nn.Conv2d): x
// [batch, in, height, width] and weight [out, in/groups, kernelH, kernelW] give
// [batch, out, outHeight, outWidth], with
//
//	outHeight = ⌊(height + 2·padding - dilation·(kernelH-1) - 1)/stride⌋ + 1
//
// and outWidth likewise. bias [out] may be nil. Dtypes are those of [Linear].
//
// In float32, kernels of 3 by 3 and stride 1 are computed by Winograd's
// transforms, of 4 by 4 elements, where that is quicker: a NaN or an infinity can
// show one element further than it reaches by the definition. Rounding is that of
// a sum in float32: with 64 to 512 channels of ReLUs, at most 3e-6 of the results'
// root mean square.
func Conv2d(x, weight, bias *Tensor, o Conv2dOptions) *Tensor {
	present("conv2d", x, weight)
	operands := []*Tensor{x, weight, bias}
	dtype := convDType("conv2d", operands)
	o = o.withDefaults()
	s := o.convShape("conv2d", operands, x.shape, weight.shape)
	if bias != nil && !slices.Equal(bias.shape, []int{s.Out}) {
		fail("conv2d", operands, "the bias must have shape [%d]", s.Out)
	}
	return conv2d(conv{s, dtype}, x, weight, bias)
}

// ConvTranspose2d is the gradient of Conv2d with respect to its images, as an
// operation (torch.nn.ConvTranspose2d): x [batch, in, height, width] and weight
// [in, out/groups, kernelH, kernelW] give [batch, out, outHeight, outWidth], with
//
//	outHeight = (height - 1)·stride - 2·padding + dilation·(kernelH-1) + outputPadding + 1
//
// bias [out] may be nil. outputPadding, below the stride or the dilation, adds
// rows and columns at the end. Dtypes are those of [Linear].
func ConvTranspose2d(x, weight, bias *Tensor, o Conv2dOptions, outputPadding [2]int) *Tensor {
	const op = "conv transpose 2d"
	present(op, x, weight)
	operands := []*Tensor{x, weight, bias}
	dtype := convDType(op, operands)
	o = o.withDefaults()
	if len(x.shape) != 4 || len(weight.shape) != 4 {
		fail(op, operands, "wants images [batch, channels, height, width] and a weight of four dims")
	}
	image := []int{x.shape[0], weight.shape[1] * o.Groups, 0, 0}
	for i := range 2 {
		if outputPadding[i] < 0 || outputPadding[i] >= max(o.Stride[i], o.Dilation[i]) {
			fail(op, operands, "the output padding must be below the stride or the dilation, got %v", outputPadding)
		}
		image[2+i] = (x.shape[2+i]-1)*o.Stride[i] - 2*o.Padding[i] + o.Dilation[i]*(weight.shape[2+i]-1) + outputPadding[i] + 1
	}
	if image[2] < 1 || image[3] < 1 {
		fail(op, operands, "the result would have a size of %d by %d", image[2], image[3])
	}
	if x.shape[1] != weight.shape[0] {
		fail(op, operands, "the images have %s, the weight takes %d: it is [in, out/groups, height, width]", channels(x.shape[1]), weight.shape[0])
	}
	s := o.convShape(op, operands, image, weight.shape)
	if bias != nil && !slices.Equal(bias.shape, []int{s.In}) {
		fail(op, operands, "the bias must have shape [%d]", s.In)
	}
	if s.OutHeight() != x.shape[2] || s.OutWidth() != x.shape[3] {
		fail(op, operands, "the output padding %v is too large for stride %v", outputPadding, o.Stride)
	}
	y := convInputGrad(conv{s, dtype}, dtype, x, weight)
	if bias != nil {
		y = y.Add(bias.To(dtype).Reshape(s.In, 1, 1))
	}
	return y
}

// Conv1d is [Conv2d] of one dim less: x [batch, in, width] and weight [out,
// in/groups, kernel] give [batch, out, outWidth]. The options' second entries
// count.
func Conv1d(x, weight, bias *Tensor, o Conv2dOptions) *Tensor {
	present("conv1d", x, weight)
	if len(x.shape) != 3 || len(weight.shape) != 3 {
		fail("conv1d", []*Tensor{x, weight, bias}, "wants [batch, channels, width] and a weight of three dims")
	}
	o.Stride[0], o.Padding[0], o.Dilation[0] = 1, 0, 1
	wide := func(t *Tensor) *Tensor { return t.Reshape(t.shape[0], t.shape[1], 1, t.shape[2]) }
	y := Conv2d(wide(x), wide(weight), bias, o)
	return y.Reshape(y.shape[0], y.shape[1], y.shape[3])
}

// convDType returns the dtype that a convolution computes in and has.
func convDType(op string, operands []*Tensor) DType {
	dtype := lowDType(op, operands[:2])
	if bias := operands[2]; bias != nil && bias.dtype != Float32 && bias.dtype != dtype {
		fail(op, operands, "wants float32 for the bias, or the dtype of the result, %v", dtype)
	}
	tapeOf(op, operands)
	return dtype
}

// conv is a convolution computed in dtype.
type conv struct {
	s     device.Conv2dShape
	dtype DType
}

func (c conv) params() device.ConvParams {
	return device.ConvParams{Shape: c.s, Low: c.dtype != Float32}
}

// conv2d is Conv2d.
func conv2d(c conv, x, weight, bias *Tensor) *Tensor {
	s := c.s
	x, weight = x.Contiguous(), weight.Contiguous()
	y := result("conv2d", c.dtype, []int{s.Batch, s.Out, s.OutHeight(), s.OutWidth()}, x, weight, bias)
	var wide *Tensor
	if bias != nil {
		wide = bias.To(Float32).Contiguous()
	}
	fused(device.Conv2d{ConvParams: c.params()}, y, x, weight, wide)
	return y.record("conv2d", []*Tensor{x, weight, bias}, []*Tensor{x, weight}, func(b *backprop, g *Tensor) {
		g = g.Contiguous()
		if b.needs(1) {
			giveWeightGrad(b, 1, c, g, x, weight.dtype)
		}
		if b.needs(2) {
			giveChannelSums(b, 2, g, bias.dtype)
		}
		if b.needs(0) {
			b.give(0, convInputGrad(c, x.dtype, g, weight))
		}
	})
}

// convInputGrad is the gradient of conv2d with respect to x, into dtype.
// Convolution is linear in each operand, so that the gradients of this one are
// convolutions again.
func convInputGrad(c conv, dtype DType, g, weight *Tensor) *Tensor {
	s := c.s
	g, weight = g.Contiguous(), weight.Contiguous()
	dx := result("conv2d input grad", dtype, []int{s.Batch, s.In, s.Height, s.Width}, g, weight)
	fused(device.Conv2dInputGrad{ConvParams: c.params()}, dx, g, weight)
	return dx.record("conv2d input grad", []*Tensor{g, weight}, []*Tensor{g, weight}, func(b *backprop, up *Tensor) {
		up = up.Contiguous()
		if b.needs(0) {
			b.give(0, conv2d(c, up, weight, nil).To(g.dtype))
		}
		if b.needs(1) {
			giveWeightGrad(b, 1, c, g, up, weight.dtype)
		}
	})
}

// convWeightGrad is the gradient of conv2d with respect to its weight, into dtype.
func convWeightGrad(c conv, dtype DType, g, x *Tensor) *Tensor {
	s := c.s
	g, x = g.Contiguous(), x.Contiguous()
	dw := result("conv2d weight grad", dtype, []int{s.Out, s.In / s.Groups, s.KernelH, s.KernelW}, g, x)
	c.weightGradInto(dw, g, x, 0)
	return dw.record("conv2d weight grad", []*Tensor{g, x}, []*Tensor{g, x}, func(b *backprop, up *Tensor) {
		if b.needs(0) {
			b.give(0, conv2d(c, x, up, nil).To(g.dtype))
		}
		if b.needs(1) {
			b.give(1, convInputGrad(c, x.dtype, g, up))
		}
	})
}

func (c conv) weightGradInto(dst, g, x *Tensor, beta float32) {
	fused(device.Conv2dWeightGrad{ConvParams: c.params(), Beta: beta}, dst, g, x)
}

func giveWeightGrad(b *backprop, i int, c conv, g, x *Tensor, dtype DType) {
	b.later(i, []*Tensor{g, x}, func(b *backprop, to int) {
		if dtype == Float32 {
			if dst, beta, ok := b.directTo(to); ok {
				c.weightGradInto(dst, g, x, beta)
				return
			}
		}
		b.giveTo(to, convWeightGrad(c, dtype, g, x))
	})
}

// giveChannelSums gives input i, of dtype, the sums of g over all but its second
// dim.
func giveChannelSums(b *backprop, i int, g *Tensor, dtype DType) {
	if b.create {
		b.give(i, g.To(Float32).Sum(0, 2, 3).To(dtype))
		return
	}
	channels := g.shape[1]
	sums := func(dst *Tensor, beta float32) {
		fused(device.Conv2dBiasGrad{Accumulate: beta != 0}, dst, g)
	}
	if dtype == Float32 {
		if dst, beta, ok := b.direct(i); ok {
			sums(dst, beta)
			return
		}
	}
	dst := result("conv2d bias grad", Float32, []int{channels}, g)
	sums(dst, 0)
	b.give(i, dst.To(dtype))
}
