// SPDX-License-Identifier: Apache-2.0

package kernel

// Norms over channels take bfloat16 as well as float32 in each operand, and
// compute in float32. Runs of bfloat16 are widened in the first-level cache.

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

// read returns elements [lo, hi) of x as float32.
func (b *runBuffers) read(x Mixed, lo, hi int) []float32 {
	if x.BF16 == nil {
		return x.F32[lo:hi]
	}
	run := b.next(hi - lo)
	fromBF16(run, x.BF16[lo:hi])
	return run
}

// write returns where to put elements [lo, hi) of x, which done then stores.
func (b *runBuffers) write(x Mixed, lo, hi int) []float32 {
	if x.BF16 == nil {
		return x.F32[lo:hi]
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
