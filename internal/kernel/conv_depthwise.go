// SPDX-License-Identifier: Apache-2.0

package kernel

import "github.com/cohort-ml/cohort/internal/work"

// A depthwise convolution has a group for every channel: no product to speak
// of. It is done plane by plane, tap by tap: a tap adds a multiple of a row of
// one image to a row of the other.

func (s Conv2dShape) depthwise() bool { return s.Groups == s.In && s.Groups == s.Out }

// tapRows calls fn for every row of a plane that the tap (p, q) connects: the
// row of y that begins at yAt and has n elements, and the one of x that begins
// at xAt and has StrideW elements for each of them.
func (s Conv2dShape) tapRows(p, q int, fn func(yAt, xAt, n int)) {
	dy, dx := p*s.DilationH-s.PadH, q*s.DilationW-s.PadW
	rows, cols := s.OutHeight(), s.OutWidth()
	lo, hi := 0, 0
	if dx < 0 {
		lo = (-dx + s.StrideW - 1) / s.StrideW
	}
	if dx < s.Width {
		hi = min(cols, (s.Width-1-dx)/s.StrideW+1)
	}
	if lo >= hi {
		return
	}
	for i := range rows {
		if y := i*s.StrideH + dy; y >= 0 && y < s.Height {
			fn(i*cols+lo, y*s.Width+lo*s.StrideW+dx, hi-lo)
		}
	}
}

// overPlanes calls fn for each image's channel with its planes of x and y.
func (s Conv2dShape) overPlanes(p *work.Pool, x, y []float32, fn func(c int, x, y []float32)) {
	in, out := s.Height*s.Width, s.OutHeight()*s.OutWidth()
	overItems(p, s.Batch*s.In, s.Batch*s.In*out*s.taps(), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			fn(i%s.In, x[i*in:(i+1)*in], y[i*out:(i+1)*out])
		}
	})
}

func depthwise(p *work.Pool, s Conv2dShape, y, x, w, bias []float32) {
	s.overPlanes(p, x, y, func(c int, x, y []float32) {
		start := float32(0)
		if bias != nil {
			start = bias[c]
		}
		for i := range y {
			y[i] = start
		}
		for t := range s.taps() {
			k := w[c*s.taps()+t]
			s.tapRows(t/s.KernelW, t%s.KernelW, func(yAt, xAt, n int) {
				to := y[yAt : yAt+n]
				if s.StrideW == 1 {
					vec().addScaled(to, to, x[xAt:xAt+n], k)
					return
				}
				for i := range to {
					to[i] += k * x[xAt+i*s.StrideW]
				}
			})
		}
	})
}

func depthwiseBackwardInput(p *work.Pool, s Conv2dShape, dx, g, w []float32) {
	s.overPlanes(p, dx, g, func(c int, dx, g []float32) {
		clear(dx)
		for t := range s.taps() {
			k := w[c*s.taps()+t]
			s.tapRows(t/s.KernelW, t%s.KernelW, func(yAt, xAt, n int) {
				from := g[yAt : yAt+n]
				if s.StrideW == 1 {
					to := dx[xAt : xAt+n]
					vec().addScaled(to, to, from, k)
					return
				}
				for i, v := range from {
					dx[xAt+i*s.StrideW] += k * v
				}
			})
		}
	})
}

func depthwiseBackwardWeight(p *work.Pool, s Conv2dShape, dw, g, x []float32, beta float32) {
	in, out := s.Height*s.Width, s.OutHeight()*s.OutWidth()
	overItems(p, s.In, s.Batch*s.In*out*s.taps(), func(lo, hi int) {
		for c := lo; c < hi; c++ {
			for t := range s.taps() {
				var sum float64
				for n := range s.Batch {
					xs, gs := x[(n*s.In+c)*in:][:in], g[(n*s.In+c)*out:][:out]
					s.tapRows(t/s.KernelW, t%s.KernelW, func(yAt, xAt, n int) {
						var row float32
						if s.StrideW == 1 {
							dotRows(&row, &gs[yAt], n, &xs[xAt], n, 1, n)
						} else {
							for i, v := range gs[yAt : yAt+n] {
								row += v * xs[xAt+i*s.StrideW]
							}
						}
						sum += float64(row)
					})
				}
				to := &dw[c*s.taps()+t]
				if beta != 0 {
					sum += float64(beta * *to)
				}
				*to = float32(sum)
			}
		}
	})
}
