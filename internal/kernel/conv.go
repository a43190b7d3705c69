// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"

	"github.com/cohort-ml/cohort/internal/work"
)

// Conv2dShape is a convolution of images x [Batch, In, Height, Width] with
// kernels w [Out, In/Groups, KernelH, KernelW] to y [Batch, Out, OutHeight,
// OutWidth]:
//
//	y[n,o,i,j] = Σ over c, p, q of w[o,c,p,q]·x[n, g·In/Groups+c, i·StrideH+p·DilationH-PadH, j·StrideW+q·DilationW-PadW]
//
// with g the group of o, and x 0 outside of the image. Like all of deep
// learning it does not mirror the kernel.
type Conv2dShape struct {
	Batch, In, Height, Width int
	Out, KernelH, KernelW    int
	StrideH, StrideW         int
	PadH, PadW               int
	DilationH, DilationW     int
	Groups                   int
}

// OutHeight returns the rows of the result.
func (s Conv2dShape) OutHeight() int {
	return convOutSize(s.Height, s.KernelH, s.StrideH, s.PadH, s.DilationH)
}

// OutWidth returns the columns of the result.
func (s Conv2dShape) OutWidth() int {
	return convOutSize(s.Width, s.KernelW, s.StrideW, s.PadW, s.DilationW)
}

func convOutSize(size, kernel, stride, pad, dilation int) int {
	room := size + 2*pad - dilation*(kernel-1) - 1
	if room < 0 {
		return 0
	}
	return room/stride + 1
}

// taps is how many elements of an image a kernel reads.
func (s Conv2dShape) taps() int { return s.KernelH * s.KernelW }

func (s Conv2dShape) inputElems() int  { return s.Batch * s.In * s.Height * s.Width }
func (s Conv2dShape) outputElems() int { return s.Batch * s.Out * s.OutHeight() * s.OutWidth() }
func (s Conv2dShape) weightElems() int { return s.Out * (s.In / s.Groups) * s.taps() }

// check panics unless the slices hold what the shape says: assembly does not
// check.
func (s Conv2dShape) check(x, w, y []float32) {
	if min(s.Batch, s.In, s.Height, s.Width, s.Out, s.PadH, s.PadW) < 0 ||
		min(s.KernelH, s.KernelW, s.StrideH, s.StrideW, s.DilationH, s.DilationW, s.Groups) < 1 ||
		s.In%s.Groups != 0 || s.Out%s.Groups != 0 {
		panic(fmt.Sprintf("kernel: a convolution cannot have the shape %+v", s))
	}
	if len(x) < s.inputElems() || len(w) < s.weightElems() || len(y) < s.outputElems() {
		panic(fmt.Sprintf("kernel: convolution %+v of slices of %d, %d and %d elements, wants %d, %d and %d",
			s, len(x), len(w), len(y), s.inputElems(), s.weightElems(), s.outputElems()))
	}
}

// Conv2d computes y = conv(x, w) + bias; bias [Out] may be nil. A sum is cut at
// places that depend on the shape alone.
func Conv2d(p *work.Pool, s Conv2dShape, y, x, w, bias []float32) {
	s.check(x, w, y)
	if bias != nil {
		bias = bias[:s.Out]
	}
	if s.outputElems() == 0 {
		return
	}
	if s.In == 0 {
		fillPlanes(y[:s.outputElems()], bias, s.OutHeight()*s.OutWidth())
		return
	}
	if s.depthwise() {
		depthwise(p, s, y, x, w, bias)
		return
	}
	if s.winograd() {
		g := getWinograd()
		g.forward(s, y, x, w, bias)
		g.compute(p)
		g.release()
		return
	}
	g := getConvProduct()
	g.forward(s, Mixed{F32: y}, Mixed{F32: x}, w, bias)
	g.compute(p)
	g.release()
}

// Conv2dBackwardInput computes dx, the gradient of x, from the gradient g of y.
func Conv2dBackwardInput(p *work.Pool, s Conv2dShape, dx, g, w []float32) {
	s.check(dx, w, g)
	if s.inputElems() == 0 {
		return
	}
	if s.Out == 0 || s.outputElems() == 0 {
		clear(dx[:s.inputElems()])
		return
	}
	if s.depthwise() {
		depthwiseBackwardInput(p, s, dx, g, w)
		return
	}
	if s.winograd() {
		c := getWinograd()
		c.backwardInput(s, dx, g, w)
		c.compute(p)
		c.release()
		return
	}
	c := getConvProduct()
	c.backwardInput(p, s, Mixed{F32: dx}, Mixed{F32: g}, w)
	c.release()
}

// Conv2dBackwardWeight computes dw = beta·dw + the gradient of w, from the
// gradient g of y; with beta 0, dw is only written.
func Conv2dBackwardWeight(p *work.Pool, s Conv2dShape, dw, g, x []float32, beta float32) {
	s.check(x, dw, g)
	if s.weightElems() == 0 {
		return
	}
	if s.outputElems() == 0 {
		dw = dw[:s.weightElems()]
		for i := range dw {
			if beta == 0 {
				dw[i] = 0
			} else {
				dw[i] *= beta
			}
		}
		return
	}
	if s.depthwise() {
		depthwiseBackwardWeight(p, s, dw, g, x, beta)
		return
	}
	if s.winograd() {
		c := getWinogradWeight()
		c.compute(p, s, dw, g, x, beta)
		c.release()
		return
	}
	c := getConvWeight()
	c.compute(p, s, dw, Mixed{F32: g}, Mixed{F32: x}, beta)
	c.release()
}

// Conv2dBackwardBias computes dbias [channels], the sums of each channel of g
// [batch, channels, plane], or adds them.
func Conv2dBackwardBias(p *work.Pool, dbias []float32, g Mixed, batch, channels, plane int, accumulate bool) {
	dbias = dbias[:channels]
	m := Images{batch, channels, plane}
	overItems(p, channels, m.elems(), func(lo, hi int) {
		for c := lo; c < hi; c++ {
			var sum float64
			m.mixedRuns(c, func(b *runBuffers, lo, hi int) {
				row := b.read(g, lo, hi)
				for at := 0; at < len(row); at += sumBlock {
					sum += vec().sum(row[at:min(at+sumBlock, len(row))])
				}
			}, g)
			if accumulate {
				sum += float64(dbias[c])
			}
			dbias[c] = float32(sum)
		}
	})
}

// fillPlanes sets every plane of y to its channel's bias.
func fillPlanes(y, bias []float32, plane int) {
	for i := range y {
		y[i] = 0
		if bias != nil {
			y[i] = bias[i/plane%len(bias)]
		}
	}
}
