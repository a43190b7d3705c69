// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"github.com/cohort-ml/cohort/internal/device"
)

// Pool2dOptions say how a window slides over the last two dims, height first.
type Pool2dOptions struct {
	Kernel   [2]int // size of the window
	Stride   [2]int // 0 stands for the kernel's size
	Padding  [2]int // on both sides; at most half of the window
	Dilation [2]int // between a window's elements, 0 stands for 1; MaxPool2d alone
	// CeilMode rounds the number of windows up: the last may hang over.
	CeilMode bool
	// ExcludePadding makes a mean count a window's own elements alone, not the
	// zeros around them: PyTorch's count_include_pad=False.
	ExcludePadding bool
	// Divisor, if it is not 0, takes the place of a window's size in a mean.
	Divisor int
}

// windows returns how the windows lie in dim i (0 is the height) of x.
func (o Pool2dOptions) windows(op string, x *Tensor, i int) device.Windows {
	in := x.shape[len(x.shape)-2+i]
	size, stride, pad, dilation := o.Kernel[i], o.Stride[i], o.Padding[i], o.Dilation[i]
	if stride == 0 {
		stride = size
	}
	if dilation == 0 {
		dilation = 1
	}
	const most = 1 << 30
	for _, v := range []int{size, stride, dilation} {
		if v < 1 || v > most {
			fail(op, []*Tensor{x}, "kernel %v, stride %v and dilation %v must be positive", o.Kernel, o.Stride, o.Dilation)
		}
	}
	reach := (size-1)*dilation + 1
	if pad < 0 || pad > reach/2 {
		fail(op, []*Tensor{x}, "the padding %v must be at most half of the window %v", o.Padding, o.Kernel)
	}
	free := in + 2*pad - reach
	if o.CeilMode {
		free += stride - 1
	}
	if free < 0 {
		fail(op, []*Tensor{x}, "dim %d has %d elements and %d of padding on each side, fewer than the window's %d", i-2, in, pad, reach)
	}
	out := free/stride + 1
	if o.CeilMode && (out-1)*stride >= in+pad {
		out-- // it would begin beyond the padding
	}
	return device.Windows{In: in, Out: out, Size: size, Stride: stride, Padding: pad, Dilation: dilation, CountPadding: !o.ExcludePadding}
}

func wantPlanes(op string, x *Tensor) {
	wantHalfOrFloat32s(op, []*Tensor{x})
	if len(x.shape) < 2 {
		fail(op, []*Tensor{x}, "wants x […, height, width]")
	}
}

// MaxPool2d takes the largest element of each window of x […, height, width]. The
// gradient goes to that element, the first of equal ones.
func MaxPool2d(x *Tensor, o Pool2dOptions) *Tensor {
	const op = "max pool"
	wantPlanes(op, x)
	out, _ := maxPool(op, x, o.windows(op, x, 0), o.windows(op, x, 1))
	return out
}

// MaxPool2dWithIndices also returns where the largest elements are, int64 in the
// shape of the result: row·width + column. A window in the padding alone has -1.
func MaxPool2dWithIndices(x *Tensor, o Pool2dOptions) (out, indices *Tensor) {
	const op = "max pool"
	wantPlanes(op, x)
	out, at := maxPool(op, x, o.windows(op, x, 0), o.windows(op, x, 1))
	return out, at.Detach().To(Int64).Reshape(out.shape...)
}

// AdaptiveMaxPool2d takes the largest elements of height·width windows that cover
// x […, h, w]: rows ⌊i·h/height⌋ to ⌈(i+1)·h/height⌉, columns likewise.
func AdaptiveMaxPool2d(x *Tensor, height, width int) *Tensor {
	const op = "adaptive max pool"
	h, w := adaptive(op, x, height, width)
	out, _ := maxPool(op, x, h, w)
	return out
}

// AvgPool2d takes the mean of each window of x […, height, width].
func AvgPool2d(x *Tensor, o Pool2dOptions) *Tensor {
	const op = "avg pool"
	wantPlanes(op, x)
	if o.Divisor < 0 || max(o.Dilation[0], o.Dilation[1]) > 1 {
		fail(op, []*Tensor{x}, "takes a divisor that is not negative and no dilation, got %d and %v", o.Divisor, o.Dilation)
	}
	return avgPool(op, x, o.windows(op, x, 0), o.windows(op, x, 1), o.Divisor)
}

// AdaptiveAvgPool2d takes the means of height·width windows that cover x […, h,
// w], as [AdaptiveMaxPool2d] does; 1·1 is the mean of each plane.
func AdaptiveAvgPool2d(x *Tensor, height, width int) *Tensor {
	const op = "adaptive avg pool"
	h, w := adaptive(op, x, height, width)
	return avgPool(op, x, h, w, 0)
}

func adaptive(op string, x *Tensor, height, width int) (h, w device.Windows) {
	wantPlanes(op, x)
	n := len(x.shape)
	const most = 1 << 24
	if min(height, width) < 1 || max(height, width) > most || x.shape[n-2] < 1 || x.shape[n-1] < 1 {
		fail(op, []*Tensor{x}, "cannot make planes of %d·%d", height, width)
	}
	return device.Windows{In: x.shape[n-2], Out: height, Adaptive: true}, device.Windows{In: x.shape[n-1], Out: width, Adaptive: true}
}

// pooled returns the shape of the result, and x as planes.
func pooled(x *Tensor, h, w device.Windows) (shape []int, planes *Tensor) {
	n := len(x.shape)
	shape = append(append([]int{}, x.shape[:n-2]...), h.Out, w.Out)
	return shape, x.mixed().Contiguous().Reshape(numElems(x.shape[:n-2]), h.In*w.In)
}

// maxPool also returns where the elements are, int32 [planes, windows].
func maxPool(op string, x *Tensor, h, w device.Windows) (out, at *Tensor) {
	shape, src := pooled(x, h, w)
	planes, in, size := src.shape[0], src.shape[1], h.Out*w.Out
	out = result(op, src.dtype, []int{planes, size}, src)
	at = result(op, Int32, out.shape, src)
	fused(device.MaxPool{H: h, W: w}, out, at, src)
	out = out.record(op, []*Tensor{src}, []*Tensor{at}, func(b *backprop, g *Tensor) { b.give(0, spreadTo(at, in, g)) })
	return out.Reshape(shape...).To(x.dtype), at
}

// spreadTo adds each element of g to where it came from: at [planes, n] says from
// which of in elements of a plane.
func spreadTo(at *Tensor, in int, g *Tensor) *Tensor {
	const op = "max pool grad"
	g = g.Contiguous()
	planes := at.shape[0]
	dx := result(op, g.dtype, []int{planes, in}, g)
	fused(device.MaxPoolGrad{}, dx, g, at)
	return dx.record(op, []*Tensor{g}, []*Tensor{at}, func(b *backprop, gg *Tensor) { b.give(0, pickFrom(at, gg)) })
}

// pickFrom reads the elements of x that at names.
func pickFrom(at, x *Tensor) *Tensor {
	const op = "max pool grad grad"
	x = x.Contiguous()
	planes, size, in := at.shape[0], at.shape[1], x.shape[1]
	out := result(op, x.dtype, []int{planes, size}, x)
	fused(device.MaxPoolPick{}, out, x, at)
	return out.record(op, []*Tensor{x}, []*Tensor{at}, func(b *backprop, g *Tensor) { b.give(0, spreadTo(at, in, g)) })
}

func avgPool(op string, x *Tensor, h, w device.Windows, divisor int) *Tensor {
	shape, src := pooled(x, h, w)
	return averages(op, src, h, w, divisor).Reshape(shape...).To(x.dtype)
}

// averages and spread are linear, and each is the other's gradient.
func averages(op string, src *Tensor, h, w device.Windows, divisor int) *Tensor {
	planes := src.shape[0]
	out := result(op, src.dtype, []int{planes, h.Out * w.Out}, src)
	fused(device.AvgPool{H: h, W: w, Divisor: divisor}, out, src)
	return out.record(op, []*Tensor{src}, nil, func(b *backprop, g *Tensor) { b.give(0, spread(op, g, h, w, divisor)) })
}

func spread(op string, g *Tensor, h, w device.Windows, divisor int) *Tensor {
	g = g.Contiguous()
	planes := g.shape[0]
	dx := result(op, g.dtype, []int{planes, h.In * w.In}, g)
	fused(device.AvgPoolGrad{H: h, W: w, Divisor: divisor}, dx, g)
	return dx.record(op+" grad", []*Tensor{g}, nil, func(b *backprop, gg *Tensor) {
		b.give(0, averages(op, gg.Contiguous(), h, w, divisor))
	})
}
