// SPDX-License-Identifier: Apache-2.0

package kernel

import "github.com/cohort-ml/cohort/internal/work"

// Convolutions of operands rounded to bfloat16, with sums in float32: where the
// processor multiplies those, products of pairs of it, see conv_pairs.go. What
// Winograd's transforms save in float32 does not reach that (measured on the
// layers of ResNet-50), and transforming bfloat16 would cost its precision.
// Elsewhere, and for convolutions of single channels, the operands are rounded
// and computed as those of float32. Kernels of one tap are plain products.

// The Stride and Trans of the operands below mean nothing: they are dense.

// Conv2dBF16 is [Conv2d] of x and w rounded to bfloat16.
func Conv2dBF16(p *work.Pool, s Conv2dShape, y, x, w Mixed, bias []float32) {
	if s.pointwise() && bias == nil {
		plane := s.Height * s.Width
		x.Stride, y.Stride, w.Stride = plane, plane, s.In
		GemmBF16Batch(p, s.Batch, s.Out, plane, s.In, 1, w, 0, x, s.In*plane, 0, y, s.Out*plane)
		return
	}
	if s.takesPairs() {
		withPairs(p, s, x, s.inputElems(), s.StrideW, s.OutWidth(), w, func(x Mixed, w []float32) {
			g := getConvProduct()
			g.pairs = true
			g.forward(s, y, x, w, bias)
			g.compute(p)
			g.release()
		})
		return
	}
	withFloats(p, y, s.outputElems(), func(y []float32) {
		withRounded(p, x, s.inputElems(), func(x []float32) {
			withRounded(p, w, s.weightElems(), func(w []float32) { Conv2d(p, s, y, x, w, bias) })
		})
	})
}

// Conv2dBackwardInputBF16 is [Conv2dBackwardInput] of g and w rounded to bfloat16.
func Conv2dBackwardInputBF16(p *work.Pool, s Conv2dShape, dx, g, w Mixed) {
	if s.pointwise() {
		plane := s.Height * s.Width
		g.Stride, dx.Stride, w.Stride, w.Trans = plane, plane, s.In, true
		GemmBF16Batch(p, s.Batch, s.In, plane, s.Out, 1, w, 0, g, s.Out*plane, 0, dx, s.In*plane)
		return
	}
	if s.takesPairs() {
		withPairs(p, s, g, s.outputElems(), 1, s.Width/s.StrideW, w, func(g Mixed, w []float32) {
			c := getConvProduct()
			c.pairs = true
			c.backwardInput(p, s, dx, g, w)
			c.release()
		})
		return
	}
	withFloats(p, dx, s.inputElems(), func(dx []float32) {
		withRounded(p, g, s.outputElems(), func(g []float32) {
			withRounded(p, w, s.weightElems(), func(w []float32) { Conv2dBackwardInput(p, s, dx, g, w) })
		})
	})
}

// Conv2dBackwardWeightBF16 is [Conv2dBackwardWeight] of g and x rounded to
// bfloat16. A dw of bfloat16 wants a beta of 0.
func Conv2dBackwardWeightBF16(p *work.Pool, s Conv2dShape, dw, g, x Mixed, beta float32) {
	withFloats(p, dw, s.weightElems(), func(dw []float32) {
		if s.pointwise() && s.Batch*s.Height*s.Width > kBlock {
			plane := s.Height * s.Width
			to := Mixed{F32: dw, Stride: s.In}
			g.Stride, x.Stride, x.Trans = plane, plane, true
			for n := range s.Batch {
				GemmBF16(p, s.Out, s.In, plane, 1, g.from(n*s.Out*plane), x.from(n*s.In*plane), beta, to, nil)
				beta = 1
			}
			return
		}
		if s.takesPairs() {
			withPairs(p, s, x, s.inputElems(), s.StrideW, s.OutWidth(), Mixed{}, func(x Mixed, _ []float32) {
				c := getConvWeight()
				c.pairs = true
				c.compute(p, s, dw, g, x, beta)
				c.release()
			})
			return
		}
		withRounded(p, g, s.outputElems(), func(g []float32) {
			withRounded(p, x, s.inputElems(), func(x []float32) { Conv2dBackwardWeight(p, s, dw, g, x, beta) })
		})
	})
}

// withPairs calls fn with the n elements of images that a product of pairs
// gathers from, stride apart in rows of cols, and with the weight as float32.
// Where gathering bfloat16 has no assembly the images are widened.
func withPairs(p *work.Pool, s Conv2dShape, x Mixed, n, stride, cols int, w Mixed, fn func(x Mixed, w []float32)) {
	if x.BF16 != nil && (stride > 2 || cols < 4) {
		wide := scratchList.get(n)
		defer scratchList.put(wide)
		FromBF16(p, wide.floats[:n], x.BF16)
		x = Mixed{F32: wide.floats[:n]}
	}
	if w.BF16 != nil {
		n := s.weightElems()
		wide := scratchList.get(n)
		defer scratchList.put(wide)
		FromBF16(p, wide.floats[:n], w.BF16)
		w.F32 = wide.floats[:n]
	}
	fn(x, w.F32)
}

// pointwise reports whether a convolution is a product of each image by the
// weight.
func (s Conv2dShape) pointwise() bool {
	return s.taps() == 1 && s.StrideH == 1 && s.StrideW == 1 && s.PadH == 0 && s.PadW == 0 && s.Groups == 1 &&
		min(s.Batch, s.In, s.Out, s.Height, s.Width) > 0
}

// withFloats calls fn with the memory of a result of n elements, or with
// scratch that is rounded into it.
func withFloats(p *work.Pool, to Mixed, n int, fn func(to []float32)) {
	if to.BF16 == nil {
		fn(to.F32)
		return
	}
	s := scratchList.get(n)
	defer scratchList.put(s)
	fn(s.floats[:n])
	ToBF16(p, to.BF16[:n], s.floats)
}

// withRounded calls fn with the n elements of x rounded to bfloat16.
func withRounded(p *work.Pool, x Mixed, n int, fn func(x []float32)) {
	s := scratchList.get(n)
	defer scratchList.put(s)
	if x.BF16 != nil {
		FromBF16(p, s.floats[:n], x.BF16)
	} else {
		convert(p, roundBF16, s.floats[:n], x.F32)
	}
	fn(s.floats[:n])
}
