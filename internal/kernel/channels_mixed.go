// SPDX-License-Identifier: Apache-2.0

package kernel

// Norms over channels take bfloat16 as well as float32 in each operand, and
// compute in float32. Where all operands are bfloat16, AVX-512 widens and rounds
// in registers; elsewhere runs of bfloat16 are widened in the first-level cache.

// lowRun is how many elements are widened at a time.
const lowRun = 1024

// runBuffers is memory for the runs of up to five operands of bfloat16.
type runBuffers struct {
	mem  *scratch
	used int
}

// isSet reports whether there is an operand at all.
func (m Mixed) isSet() bool { return m.F32 != nil || m.BF16 != nil }

// mixedRuns is Images.runs with buffers if any operand is bfloat16.
func (m Images) mixedRuns(c int, fn func(b *runBuffers, lo, hi int), operands ...Mixed) {
	withBuffers(operands, func(b *runBuffers, most int) {
		for i := range m.Num {
			lo := (i*m.Channels + c) * m.Plane
			b.each(lo, lo+m.Plane, most, fn)
		}
	})
}

// mixedRuns is the same for elements [lo, hi).
func mixedRuns(lo, hi int, fn func(b *runBuffers, lo, hi int), operands ...Mixed) {
	withBuffers(operands, func(b *runBuffers, most int) { b.each(lo, hi, most, fn) })
}

// withBuffers calls fn with what operands need, and the longest run.
func withBuffers(operands []Mixed, fn func(b *runBuffers, most int)) {
	for _, x := range operands {
		if x.BF16 != nil {
			mem := scratchList.get(len(operands) * lowRun)
			fn(&runBuffers{mem: mem}, lowRun)
			scratchList.put(mem)
			return
		}
	}
	fn(&runBuffers{}, callElems)
}

func (b *runBuffers) each(lo, hi, most int, fn func(b *runBuffers, lo, hi int)) {
	inRuns(lo, hi, most, func(lo, hi int) {
		b.used = 0
		fn(b, lo, hi)
	})
}

// allLow returns the kernels for operands that are all bfloat16 or absent, nil
// where they are not or there are none.
func allLow(operands ...Mixed) *channelKernels[uint16] {
	for _, x := range operands {
		if x.F32 != nil {
			return nil
		}
	}
	return channelLow()
}

// noneLow reports whether no operand is bfloat16.
func noneLow(operands ...Mixed) bool {
	for _, x := range operands {
		if x.BF16 != nil {
			return false
		}
	}
	return true
}

// part returns elements [lo, hi), nil of an absent operand.
func part[T any](x []T, lo, hi int) []T {
	if x == nil {
		return nil
	}
	return x[lo:hi]
}

// momentsOf and the functions named …Runs go over a channel of operands of one
// dtype.

func momentsOf[T float32 | uint16](m Images, c int, v *channelKernels[T], x []T) (sum, squares float64) {
	m.runs(c, func(lo, hi int) {
		s, q := v.moments(x[lo:hi])
		sum, squares = sum+s, squares+q
	})
	return sum, squares
}

// The short runs of small images are many: what they call is chosen before.

func normRuns[T float32 | uint16](m Images, c int, v *channelKernels[T], dst, x, r []T, relu bool, s channelScalars) {
	if r != nil {
		f := v.normAdd
		if relu {
			f = v.normAddReLU
		}
		m.runs(c, func(lo, hi int) { f(dst[lo:hi], x[lo:hi], r[lo:hi], s) })
		return
	}
	f := v.norm
	if relu {
		f = v.normReLU
	}
	m.runs(c, func(lo, hi int) { f(dst[lo:hi], x[lo:hi], s) })
}

func sumsRuns[T float32 | uint16](m Images, c int, v *channelKernels[T], g, x, y []T, relu bool, s channelScalars) (sum, dot float64) {
	if y != nil {
		f := v.sumsMasked
		m.runs(c, func(lo, hi int) {
			s0, d0 := f(g[lo:hi], x[lo:hi], y[lo:hi], s)
			sum, dot = sum+s0, dot+d0
		})
		return sum, dot
	}
	f := v.sums
	if relu {
		f = v.sumsReLU
	}
	m.runs(c, func(lo, hi int) {
		s0, d0 := f(g[lo:hi], x[lo:hi], s)
		sum, dot = sum+s0, dot+d0
	})
	return sum, dot
}

func gradRuns[T float32 | uint16](m Images, c int, v *channelKernels[T], dx, dr, g, x, y []T, relu bool, s channelScalars) {
	if y != nil {
		m.runs(c, func(lo, hi int) { v.gradRun(dx[lo:hi], part(dr, lo, hi), g[lo:hi], x[lo:hi], y[lo:hi], relu, s) })
		return
	}
	f := v.grad
	if relu {
		f = v.gradReLU
	}
	m.runs(c, func(lo, hi int) { f(dx[lo:hi], g[lo:hi], x[lo:hi], s) })
}

// normRun computes a run of a norm; r is nil for no residual.
func (v *channelKernels[T]) normRun(dst, x, r []T, relu bool, s channelScalars) {
	switch {
	case r != nil && relu:
		v.normAddReLU(dst, x, r, s)
	case r != nil:
		v.normAdd(dst, x, r, s)
	case relu:
		v.normReLU(dst, x, s)
	default:
		v.norm(dst, x, s)
	}
}

// sumsRun returns the sums of a run: masked by y, if not nil, or by a ReLU.
func (v *channelKernels[T]) sumsRun(g, x, y []T, relu bool, s channelScalars) (sum, dot float64) {
	switch {
	case y != nil:
		return v.sumsMasked(g, x, y, s)
	case relu:
		return v.sumsReLU(g, x, s)
	}
	return v.sums(g, x, s)
}

// gradRun computes a run of the gradient, masked as sumsRun is; dr may be nil.
func (v *channelKernels[T]) gradRun(dx, dr, g, x, y []T, relu bool, s channelScalars) {
	switch {
	case y != nil:
		if dr == nil {
			dr = dx
		}
		v.gradMasked(dx, dr, g, x, y, s)
	case relu:
		v.gradReLU(dx, g, x, s)
	default:
		v.grad(dx, g, x, s)
	}
}

// read returns elements [lo, hi) of x as float32, nil of an absent operand.
func (b *runBuffers) read(x Mixed, lo, hi int) []float32 {
	if x.BF16 == nil {
		return part(x.F32, lo, hi)
	}
	run := b.next(hi - lo)
	fromBF16(run, x.BF16[lo:hi])
	return run
}

// write returns where to put elements [lo, hi) of x, which done then stores.
func (b *runBuffers) write(x Mixed, lo, hi int) []float32 {
	if x.BF16 == nil {
		return part(x.F32, lo, hi)
	}
	return b.next(hi - lo)
}

func (b *runBuffers) done(x Mixed, lo, hi int, run []float32) {
	if x.BF16 != nil {
		toBF16(x.BF16[lo:hi], run)
	}
}

func (b *runBuffers) next(n int) []float32 {
	run := b.mem.floats[b.used*lowRun:][:n]
	b.used++
	return run
}
