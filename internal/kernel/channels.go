// SPDX-License-Identifier: Apache-2.0

package kernel

// channelKernels is one variant of the kernels that norms over channels are made
// of; a call is for a run of elements of one channel, of float32 or bfloat16.
type channelKernels[T float32 | uint16] struct {
	// moments returns Σ x and Σ x².
	moments func(x []T) (sum, squares float64)
	// norm computes dst = (x - mean)·scale + shift, norm…Add adds r to that, and
	// …ReLU makes it 0 where it is negative.
	norm, normReLU       func(dst, x []T, s channelScalars)
	normAdd, normAddReLU func(dst, x, r []T, s channelScalars)
	// sums returns Σ g and Σ g·(x - mean); sumsReLU over where the result of
	// normReLU is positive, sumsMasked over where y is.
	sums, sumsReLU func(g, x []T, s channelScalars) (sum, dot float64)
	sumsMasked     func(g, x, y []T, s channelScalars) (sum, dot float64)
	// grad computes dx = g·scale + (x - mean)·slope + offset, with g masked as in
	// the sums. gradMasked writes the masked g to dr; dr may be dx, which wins.
	grad, gradReLU func(dx, g, x []T, s channelScalars)
	gradMasked     func(dx, dr, g, x, y []T, s channelScalars)
	// largest, of float32 only, puts the elements of x that are greater than those of best, or no
	// number, into best, and row into at.
	largest func(best []T, at []int32, x []T, row int32)
}

// channelScalars are the numbers of a channel, in the order that the assembly
// knows.
type channelScalars struct {
	mean, scale, shift float32
	slope, offset      float32
}

func channelVec() *channelKernels[float32] { return channelTables[useISA] }

// The portable twins.

var portableChannel = channelKernels[float32]{
	moments: func(x []float32) (sum, squares float64) {
		for _, v := range x {
			sum += float64(v)
			squares += float64(v) * float64(v)
		}
		return sum, squares
	},
	norm: func(dst, x []float32, s channelScalars) {
		x = x[:len(dst)]
		for i, v := range x {
			dst[i] = s.apply(v)
		}
	},
	normReLU: func(dst, x []float32, s channelScalars) {
		x = x[:len(dst)]
		for i, v := range x {
			dst[i] = max(0, s.apply(v))
		}
	},
	normAdd: func(dst, x, r []float32, s channelScalars) {
		x, r = x[:len(dst)], r[:len(dst)]
		for i, v := range x {
			dst[i] = s.apply(v) + r[i]
		}
	},
	normAddReLU: func(dst, x, r []float32, s channelScalars) {
		x, r = x[:len(dst)], r[:len(dst)]
		for i, v := range x {
			dst[i] = max(0, s.apply(v)+r[i])
		}
	},
	sums: func(g, x []float32, s channelScalars) (sum, dot float64) {
		x = x[:len(g)]
		for i, v := range g {
			sum += float64(v)
			dot += float64(v) * float64(x[i]-s.mean)
		}
		return sum, dot
	},
	sumsReLU: func(g, x []float32, s channelScalars) (sum, dot float64) {
		x = x[:len(g)]
		for i, v := range g {
			if s.apply(x[i]) > 0 {
				sum += float64(v)
				dot += float64(v) * float64(x[i]-s.mean)
			}
		}
		return sum, dot
	},
	sumsMasked: func(g, x, y []float32, s channelScalars) (sum, dot float64) {
		x, y = x[:len(g)], y[:len(g)]
		for i, v := range g {
			if y[i] > 0 {
				sum += float64(v)
				dot += float64(v) * float64(x[i]-s.mean)
			}
		}
		return sum, dot
	},
	grad: func(dx, g, x []float32, s channelScalars) {
		g, x = g[:len(dx)], x[:len(dx)]
		for i, v := range g {
			dx[i] = s.grad(v, x[i])
		}
	},
	gradReLU: func(dx, g, x []float32, s channelScalars) {
		g, x = g[:len(dx)], x[:len(dx)]
		for i, v := range g {
			if !(s.apply(x[i]) > 0) {
				v = 0
			}
			dx[i] = s.grad(v, x[i])
		}
	},
	gradMasked: func(dx, dr, g, x, y []float32, s channelScalars) {
		dr, g, x, y = dr[:len(dx)], g[:len(dx)], x[:len(dx)], y[:len(dx)]
		for i, v := range g {
			if !(y[i] > 0) {
				v = 0
			}
			d := s.grad(v, x[i])
			dr[i] = v
			dx[i] = d
		}
	},
	largest: func(best []float32, at []int32, x []float32, row int32) {
		at, x = at[:len(best)], x[:len(best)]
		for i, v := range x {
			if v > best[i] || v != v {
				best[i], at[i] = v, row
			}
		}
	},
}

func (s *channelScalars) apply(x float32) float32 { return fma32(x-s.mean, s.scale, s.shift) }

func (s *channelScalars) grad(g, x float32) float32 {
	return fma32(g, s.scale, fma32(x-s.mean, s.slope, s.offset))
}
