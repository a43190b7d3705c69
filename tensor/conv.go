// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/work"
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
func (o Conv2dOptions) convShape(op string, operands []*Tensor, image, weight []int) kernel.Conv2dShape {
	if len(image) != 4 || len(weight) != 4 {
		fail(op, operands, "wants images [batch, channels, height, width] and a weight of four dims")
	}
	if min(o.Stride[0], o.Stride[1], o.Dilation[0], o.Dilation[1], o.Groups) < 1 || min(o.Padding[0], o.Padding[1]) < 0 {
		fail(op, operands, "wants a positive stride, dilation and number of groups and no negative padding, got %+v", o)
	}
	if image[1] != weight[1]*o.Groups || weight[0]%o.Groups != 0 {
		fail(op, operands, "%d channels with %d groups do not fit a weight %v: it wants [out, in/groups, height, width] with an out that the groups divide",
			image[1], o.Groups, weight)
	}
	s := kernel.Conv2dShape{
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

// Conv2d lays kernels over images (cross-correlation, as torch.nn.Conv2d): x
// [batch, in, height, width] and weight [out, in/groups, kernelH, kernelW] give
// [batch, out, outHeight, outWidth], with
//
//	outHeight = ⌊(height + 2·padding - dilation·(kernelH-1) - 1)/stride⌋ + 1
//
// and outWidth likewise. bias [out] may be nil. Under autocast, or where an
// operand is bfloat16, operands and result are bfloat16 and sums are float32.
func Conv2d(x, weight, bias *Tensor, o Conv2dOptions) *Tensor {
	operands := []*Tensor{x, weight, bias}
	dtype := convDType("conv2d", operands)
	o = o.withDefaults()
	s := o.convShape("conv2d", operands, x.shape, weight.shape)
	if bias != nil && !slices.Equal(bias.shape, []int{s.Out}) {
		fail("conv2d", operands, "the bias must have shape [%d]", s.Out)
	}
	return conv2d(s, rounded(x, dtype), rounded(weight, dtype), rounded(bias, dtype)).To(dtype)
}

// ConvTranspose2d is the gradient of Conv2d with respect to its images, as an
// operation (torch.nn.ConvTranspose2d): x [batch, in, height, width] and weight
// [in, out/groups, kernelH, kernelW] give [batch, out, outHeight, outWidth], with
//
//	outHeight = (height - 1)·stride - 2·padding + dilation·(kernelH-1) + outputPadding + 1
//
// bias [out] may be nil. outputPadding, below the stride or the dilation, adds
// rows and columns at the end. Dtypes are as for [Conv2d].
func ConvTranspose2d(x, weight, bias *Tensor, o Conv2dOptions, outputPadding [2]int) *Tensor {
	const op = "conv transpose 2d"
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
		fail(op, operands, "%d channels do not fit a weight %v: it wants [in, out/groups, height, width]", x.shape[1], weight.shape)
	}
	s := o.convShape(op, operands, image, weight.shape)
	if bias != nil && !slices.Equal(bias.shape, []int{s.In}) {
		fail(op, operands, "the bias must have shape [%d]", s.In)
	}
	if s.OutHeight() != x.shape[2] || s.OutWidth() != x.shape[3] {
		fail(op, operands, "the output padding %v is too large for stride %v", outputPadding, o.Stride)
	}
	y := convInputGrad(s, rounded(x, dtype), rounded(weight, dtype))
	if bias != nil {
		y = y.Add(rounded(bias, dtype).Reshape(s.In, 1, 1))
	}
	return y.To(dtype)
}

// Conv1d is [Conv2d] of one dim less: x [batch, in, width] and weight [out,
// in/groups, kernel] give [batch, out, outWidth]. The options' second entries
// count.
func Conv1d(x, weight, bias *Tensor, o Conv2dOptions) *Tensor {
	if len(x.shape) != 3 || len(weight.shape) != 3 {
		fail("conv1d", []*Tensor{x, weight, bias}, "wants [batch, channels, width] and a weight of three dims")
	}
	o.Stride[0], o.Padding[0], o.Dilation[0] = 1, 0, 1
	wide := func(t *Tensor) *Tensor { return t.Reshape(t.shape[0], t.shape[1], 1, t.shape[2]) }
	y := Conv2d(wide(x), wide(weight), bias, o)
	return y.Reshape(y.shape[0], y.shape[1], y.shape[3])
}

// convDType returns the dtype that a convolution computes in: that of autocast,
// or else the one that all operands have.
func convDType(op string, operands []*Tensor) DType {
	dtype := operands[0].dtype
	tp := tapeOf(op, operands)
	auto := tp != nil && tp.Autocast() != 0
	for _, t := range operands {
		if t != nil && (!t.dtype.IsFloat() || t.dtype == Float64 || t.dtype != dtype && !auto) {
			fail(op, operands, "wants operands of one dtype, float32, bfloat16 or float16")
		}
	}
	if auto {
		return tp.Autocast()
	}
	return dtype
}

// rounded returns the values of t, which may be nil, as float32 that dtype can
// hold.
func rounded(t *Tensor, dtype DType) *Tensor {
	if t == nil {
		return nil
	}
	return t.To(dtype).To(Float32)
}

// conv2d is Conv2d with the shape worked out.
func conv2d(s kernel.Conv2dShape, x, weight, bias *Tensor) *Tensor {
	x, weight = x.Contiguous(), weight.Contiguous()
	if bias != nil {
		bias = bias.Contiguous()
	}
	y := result("conv2d", Float32, []int{s.Batch, s.Out, s.OutHeight(), s.OutWidth()}, x, weight, bias)
	fused("conv2d", convParams(s), []*Tensor{y, x, weight, bias}, func(p *work.Pool, a []device.Array) {
		var b []float32
		if bias != nil {
			b = a[3].Float32s()
		}
		kernel.Conv2d(p, s, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), b)
	})
	return y.record("conv2d", []*Tensor{x, weight, bias}, []*Tensor{x, weight}, func(b *backprop, g *Tensor) {
		g = g.Contiguous()
		if b.needs(1) {
			giveWeightGrad(b, 1, s, g, x)
		}
		if b.needs(2) {
			giveChannelSums(b, 2, g)
		}
		if b.needs(0) {
			b.give(0, convInputGrad(s, g, weight))
		}
	})
}

// convInputGrad is the gradient of conv2d with respect to x. Convolution is
// linear in each operand, so that the gradients of this one are convolutions
// again.
func convInputGrad(s kernel.Conv2dShape, g, weight *Tensor) *Tensor {
	g, weight = g.Contiguous(), weight.Contiguous()
	dx := result("conv2d input grad", Float32, []int{s.Batch, s.In, s.Height, s.Width}, g, weight)
	fused("conv2d input grad", convParams(s), []*Tensor{dx, g, weight}, func(p *work.Pool, a []device.Array) {
		kernel.Conv2dBackwardInput(p, s, a[0].Float32s(), a[1].Float32s(), a[2].Float32s())
	})
	return dx.record("conv2d input grad", []*Tensor{g, weight}, []*Tensor{g, weight}, func(b *backprop, up *Tensor) {
		up = up.Contiguous()
		if b.needs(0) {
			b.give(0, conv2d(s, up, weight, nil))
		}
		if b.needs(1) {
			giveWeightGrad(b, 1, s, g, up)
		}
	})
}

// convWeightGrad is the gradient of conv2d with respect to its weight.
func convWeightGrad(s kernel.Conv2dShape, g, x *Tensor) *Tensor {
	g, x = g.Contiguous(), x.Contiguous()
	dw := result("conv2d weight grad", Float32, []int{s.Out, s.In / s.Groups, s.KernelH, s.KernelW}, g, x)
	weightGradInto(dw, s, g, x, 0)
	return dw.record("conv2d weight grad", []*Tensor{g, x}, []*Tensor{g, x}, func(b *backprop, up *Tensor) {
		if b.needs(0) {
			b.give(0, conv2d(s, x, up, nil))
		}
		if b.needs(1) {
			b.give(1, convInputGrad(s, g, up))
		}
	})
}

func weightGradInto(dst *Tensor, s kernel.Conv2dShape, g, x *Tensor, beta float32) {
	fused("conv2d weight grad", append(convParams(s), float64(beta)), []*Tensor{dst, g, x}, func(p *work.Pool, a []device.Array) {
		kernel.Conv2dBackwardWeight(p, s, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), beta)
	})
}

func giveWeightGrad(b *backprop, i int, s kernel.Conv2dShape, g, x *Tensor) {
	if dst, beta, ok := b.direct(i); ok {
		weightGradInto(dst, s, g, x, beta)
		return
	}
	b.give(i, convWeightGrad(s, g, x))
}

// giveChannelSums gives input i the sums of g over all but its second dim.
func giveChannelSums(b *backprop, i int, g *Tensor) {
	batch, channels, plane := g.shape[0], g.shape[1], g.shape[2]*g.shape[3]
	dst, beta, ok := (*Tensor)(nil), float32(0), false
	if b.create {
		b.give(i, g.Sum(0, 2, 3))
		return
	}
	if dst, beta, ok = b.direct(i); !ok {
		dst = result("conv2d bias grad", Float32, []int{channels}, g)
	}
	fused("conv2d bias grad", []float64{float64(beta)}, []*Tensor{dst, g}, func(p *work.Pool, a []device.Array) {
		kernel.Conv2dBackwardBias(p, a[0].Float32s(), a[1].Float32s(), batch, channels, plane, beta != 0)
	})
	if !ok {
		b.give(i, dst)
	}
}

func convParams(s kernel.Conv2dShape) []float64 {
	var list []float64
	for _, n := range []int{s.StrideH, s.StrideW, s.PadH, s.PadW, s.DilationH, s.DilationW, s.Groups} {
		list = append(list, float64(n))
	}
	return list
}
