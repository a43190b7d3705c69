// SPDX-License-Identifier: Apache-2.0

package kernel

import "unsafe"

// The weight's gradient in pairs of bfloat16 (see conv_weight.go) pairs
// neighbouring places. The left operand's rows are pairs as they are gathered.

// slots is how many elements of packed panels n places take.
func (c *convWeight) slots(n int) int {
	if c.pairs {
		return (n + 1) / 2
	}
	return n
}

// packPairs is packShared. Pairs begin at even places, and where an image has an
// odd number of those, rows are first copied together.
func (c *convWeight) packPairs(dst []float32, lo, hi int) {
	var rows *scratch
	if c.size%2 != 0 {
		rows = scratchList.get(c.nr * c.step)
		defer scratchList.put(rows)
	}
	for o := 0; o < c.out; o += c.nr {
		outs := min(c.nr, c.out-o)
		for l := lo; l < hi; {
			n := l / c.size
			at := l - n*c.size
			run := min(c.size-at, hi-l)
			from := (n*c.s.Out+c.group*c.out+o)*c.size + at
			switch {
			case rows != nil && c.gLow != nil:
				for r := range outs {
					copy(lowOf(rows)[r*c.step+l-lo:], c.gLow[from+r*c.size:][:run])
				}
			case rows != nil:
				for r := range outs {
					copy(rows.floats[r*c.step+l-lo:], c.g[from+r*c.size:][:run])
				}
			case c.gLow != nil:
				packTransposedHalves(&dst[(l-lo)/2*c.nr], c.nr, &c.gLow[from], c.size, outs, run, c.nr)
			default:
				packTransposedPairs(&dst[(l-lo)/2*c.nr], c.nr, &c.g[from], c.size, outs, run, c.nr)
			}
			l += run
		}
		switch {
		case rows != nil && c.gLow != nil:
			packTransposedHalves(&dst[0], c.nr, &lowOf(rows)[0], c.step, outs, hi-lo, c.nr)
		case rows != nil:
			packTransposedPairs(&dst[0], c.nr, &rows.floats[0], c.step, outs, hi-lo, c.nr)
		}
		dst = dst[c.nr*c.slots(hi-lo):]
	}
}

// lowOf returns scratch as bfloat16.
func lowOf(s *scratch) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(s.floats))), 2*len(s.floats))
}

// gatherPairs makes the left operand's rows, bfloat16 of c.stride elements each.
func (c *convWeight) gatherPairs(w *convWorker, to *scratch, lo, hi, c0, c1 int) {
	v, a := &c.view, lowOf(to)
	rows := (c1 - c0) * len(v.taps)
	switch {
	case v.low == nil:
		wide := scratchList.get(rows * c.stride)
		c.gather(w, wide.floats, lo, hi, c0, c1)
		for at := 0; at < rows*c.stride; at += callElems {
			end := min(at+callElems, rows*c.stride)
			toBF16(a[at:end], wide.floats[at:end])
		}
		scratchList.put(wide)
	case v.plain():
		for l := lo; l < hi; {
			run, at := v.run(l, hi)
			for i := c0; i < c1; i++ {
				copy(a[(i-c0)*c.stride+l-lo:], v.low[at+(c.group*c.in+i)*v.plane:][:run])
			}
			l += run
		}
	default:
		for l := lo; l < hi; l += convLanes {
			v.block(&w.block, l, min(convLanes, hi-l))
			v.gatherLow(&w.block, a[l-lo:], c.stride, len(v.taps)*c.stride, c.group*c.in+c0, c1-c0)
		}
	}
	if n := hi - lo; n%2 != 0 { // the last pair is half of nothing
		for r := range rows {
			a[r*c.stride+n] = 0
		}
	}
}

// copyPairs is copyOuts.
func (c *convWeight) copyPairs(i int) {
	low := unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(c.shared))), 2*len(c.shared))
	for o := i * convOuts; o < min(c.out, (i+1)*convOuts); o++ {
		row := low[o*c.stride:][:c.stride]
		for n := range c.s.Batch {
			at := (n*c.s.Out + c.group*c.out + o) * c.size
			if c.gLow != nil {
				copy(row[n*c.size:], c.gLow[at:][:c.size])
			} else {
				toBF16(row[n*c.size:][:c.size], c.g[at:][:c.size])
			}
		}
		if c.n%2 != 0 {
			row[c.n] = 0
		}
	}
}

// bandShortPairs is bandShort for channels [c0, c1).
func (c *convWeight) bandShortPairs(c0, c1 int) {
	taps, slots := len(c.view.taps), c.slots(c.n)
	rows := (c1 - c0) * taps
	a, b := scratchList.get(rows*c.stride), scratchList.get(pieces(rows, c.nr)*c.nr*slots)
	w := getConvWorker()
	c.gatherPairs(w, a, 0, c.n, c0, c1)
	for r := 0; r < rows; r += c.nr {
		packTransposedHalves(&b.floats[r*slots], c.nr, &lowOf(a)[r*c.stride], c.stride, min(c.nr, rows-r), c.n, c.nr)
	}
	dw := c.dw[c.group*c.out*c.rows+c0*taps:]
	for o := 0; o < c.out; o += c.mr {
		for r := 0; r < rows; r += c.nr {
			tilePairs(min(c.mr, c.out-o), min(c.nr, rows-r), slots, &c.shared[o*c.stride/2], c.stride/2, 1, &b.floats[r*slots], c.nr,
				&dw[o*c.rows+r], 4*c.rows, 1, c.beta, nil, 0)
		}
	}
	w.release()
	scratchList.put(a)
	scratchList.put(b)
}
