// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"github.com/cohort-ml/cohort/internal/work"
)

// The weight's gradient is the product of the gathered matrix, [(channel, tap),
// (image, y, x)], and the transpose of the output's gradient: a sum over all
// places of all images. The left operand's rows are gathered as they lie, so
// that only the right one, the smaller, is transposed; so is the result, when a
// task has finished its rows.
//
// Long sums are cut into parts, by shape alone, which have results of their own
// that are added up in the end: they are what threads share when the weight is
// small.

const (
	convRows       = 144     // rows of a task, at most
	convTasks      = 8       // tasks that there are at least, where the shape allows it
	convPart       = 512     // the shortest part of a sum
	convPartsElems = 1 << 20 // of all parts together
)

// convWeight is one call of Conv2dBackwardWeight.
type convWeight struct {
	s        Conv2dShape
	dw, g    []float32
	gLow     []uint16 // g of bfloat16; then that is nil
	pairs    bool     // of bfloat16: see conv_pairs_weight.go
	beta     float32
	view     gatherer
	dys, dxs []int
	group    int
	in, out  int // channels of a group
	rows     int // of the weight, transposed
	n        int // columns of the images
	size     int // columns of an image
	cBlock   int // channels of a band
	bands    int
	parts    int
	l0, l1   int // the part of the sum whose operand is shared now
	step     int // length of a block of the sum
	mr, nr   int
	lanes    int
	outPad   int
	shared   []float32
	partial  []float32
	first    bool
	short    bool // the sum is one block: see bandShort
	// stride is the distance of gathered rows: an odd number of cache lines
	// spreads them over the cache's sets.
	stride int

	packTask, bandTask, addTask func(i int)
	copyTask, shortTask         func(i int)
}

var convWeightsIdle idleList[convWeight]

func getConvWeight() *convWeight {
	if g := convWeightsIdle.get(); g != nil {
		return g
	}
	g := &convWeight{}
	g.packTask, g.bandTask, g.addTask = g.packShared, g.band, g.addParts
	g.copyTask, g.shortTask = g.copyOuts, g.bandShort
	return g
}

func (c *convWeight) release() {
	c.dw, c.g, c.gLow, c.view.src, c.view.low, c.shared, c.partial = nil, nil, nil, nil, nil, nil, nil
	c.pairs = false
	convWeightsIdle.put(c)
}

func (c *convWeight) compute(p *work.Pool, s Conv2dShape, dw []float32, g, x Mixed, beta float32) {
	c.s, c.dw, c.g, c.gLow, c.beta = s, dw, g.F32, g.BF16, beta
	c.in, c.out = s.In/s.Groups, s.Out/s.Groups
	c.rows = c.in * s.taps()
	c.size = s.OutHeight() * s.OutWidth()
	c.n = s.Batch * c.size
	c.dys, c.dxs = c.dys[:0], c.dxs[:0]
	for i := range s.KernelH {
		c.dys = append(c.dys, i*s.DilationH-s.PadH)
	}
	for j := range s.KernelW {
		c.dxs = append(c.dxs, j*s.DilationW-s.PadW)
	}
	s.viewInput(&c.view, x, c.dys, c.dxs)
	c.mr, c.nr, _ = tileShape()
	c.lanes = min(convLanes, c.nr)
	c.outPad = pieces(c.out, c.nr) * c.nr

	threads := 1
	if p != nil && s.Groups*c.out*c.rows*c.n >= serialLimit {
		threads = p.NumThreads()
	}
	c.short = c.n <= kBlock
	most := convRows
	for most > convRows/4 && !c.short && c.rows < convTasks*most {
		most /= 2
	}
	c.cBlock = max(1, most/s.taps())
	switch {
	case c.short && c.cBlock >= 4: // whole panels of rows, where they are no more than twice as many
		c.cBlock = max(32, c.cBlock&^31)
	case c.cBlock > 4:
		c.cBlock &^= 3
	case c.in <= 4:
		c.cBlock = min(c.in, max(1, 160/s.taps()))
	}
	c.bands = pieces(c.in, c.cBlock)
	group := min(c.n, max(kBlock, sharedLimit/c.outPad))
	if c.pairs && group < c.n {
		group &^= 1
	}
	c.parts = 1
	if c.bands < convTasks && !c.short {
		c.parts = max(1, min(pieces(convTasks, c.bands), group/convPart, convPartsElems/(c.rows*c.outPad)))
	}
	var sum *scratch
	if c.parts > 1 || group < c.n {
		sum = scratchList.get(c.parts * c.rows * c.outPad)
		c.partial = sum.floats
	}
	for c.group = range s.Groups {
		for c.l0 = 0; c.l0 < c.n; c.l0 += group {
			c.l1 = min(c.n, c.l0+group)
			c.first = c.l0 == 0
			length := pieces(c.l1-c.l0, c.parts)
			c.step = pieces(length, pieces(length, kBlock))
			if c.pairs {
				c.step += c.step % 2
			}
			c.stride = (pieces(c.step, lineElems) | 1) * lineElems
			if c.short {
				packed := scratchList.get(c.out * c.stride)
				c.shared = packed.floats
				runTasks(p, threads, pieces(c.out, convOuts), c.copyTask)
				runTasks(p, threads, c.bands, c.shortTask)
				scratchList.put(packed)
				continue
			}
			packed := scratchList.get(c.outPad * c.slots(c.l1-c.l0))
			c.shared = packed.floats
			runTasks(p, threads, pieces(c.l1-c.l0, c.step), c.packTask)
			runTasks(p, threads, c.parts*c.bands, c.bandTask)
			scratchList.put(packed)
		}
		if sum != nil {
			runTasks(p, threads, c.bands, c.addTask)
		}
	}
	if sum != nil {
		scratchList.put(sum)
	}
}

// packShared transposes a block of the output's gradient: panels of nr output
// channels, in each of which the channels of a place lie together.
func (c *convWeight) packShared(i int) {
	lo := c.l0 + i*c.step
	hi := min(c.l1, lo+c.step)
	dst := c.shared[c.slots(lo-c.l0)*c.outPad:]
	if c.pairs {
		c.packPairs(dst, lo, hi)
		return
	}
	for o := 0; o < c.out; o += c.nr {
		for l := lo; l < hi; {
			n := l / c.size
			at := l - n*c.size
			run := min(c.size-at, hi-l)
			from := (n*c.s.Out+c.group*c.out+o)*c.size + at
			packTransposed(&dst[(l-lo)*c.nr], c.nr, &c.g[from], c.size, min(c.nr, c.out-o), run, c.nr)
			l += run
		}
		dst = dst[c.nr*(hi-lo):]
	}
}

// bandOf returns the channels of a band.
func (c *convWeight) bandOf(i int) (c0, c1 int) {
	return i * c.cBlock, min(c.in, (i+1)*c.cBlock)
}

// band computes the rows of some channels, for a part of the sum.
func (c *convWeight) band(i int) {
	part, band := i/c.bands, i%c.bands
	c0, c1 := c.bandOf(band)
	taps := len(c.view.taps)
	rows := (c1 - c0) * taps
	blocks := pieces(c.l1-c.l0, c.step)
	b0, b1 := part*blocks/c.parts, (part+1)*blocks/c.parts

	stride := c.stride
	a := scratchList.get(rows * stride)
	var own *scratch
	sum := c.partial
	if sum == nil {
		own = scratchList.get(rows * c.outPad)
		sum = own.floats
	} else {
		sum = sum[(part*c.rows+c0*taps)*c.outPad:]
	}
	w := getConvWorker()
	for b := b0; b < b1; b++ {
		lo := c.l0 + b*c.step
		hi := min(c.l1, lo+c.step)
		if c.pairs {
			c.gatherPairs(w, a, lo, hi, c0, c1)
		} else {
			c.gather(w, a.floats, lo, hi, c0, c1)
		}
		beta := float32(1)
		if b == b0 && c.first {
			beta = 0
		}
		for o := 0; o < c.out; o += c.nr {
			right := &c.shared[c.slots(lo-c.l0)*c.outPad+o*c.slots(hi-lo)]
			for r := 0; r < rows; r += c.mr {
				if c.pairs {
					tilePairs(min(c.mr, rows-r), min(c.nr, c.out-o), c.slots(hi-lo), &a.floats[r*stride/2], stride/2, 1, right, c.nr,
						&sum[r*c.outPad+o], 4*c.outPad, 1, beta, nil, 0)
					continue
				}
				tile(min(c.mr, rows-r), min(c.nr, c.out-o), hi-lo, &a.floats[r*stride], stride, 1, right, c.nr,
					&sum[r*c.outPad+o], c.outPad, 1, beta, nil)
			}
		}
	}
	w.release()
	scratchList.put(a)
	if own != nil {
		c.store(sum, c0*taps, rows)
		scratchList.put(own)
	}
}

// gather makes the left operand's rows of channels [c0, c1), columns [lo, hi).
func (c *convWeight) gather(w *convWorker, a []float32, lo, hi, c0, c1 int) {
	v := &c.view
	if v.plain() {
		for l := lo; l < hi; {
			run, at := v.run(l, hi)
			for i := c0; i < c1; i++ {
				copy(a[(i-c0)*c.stride+l-lo:], v.src[at+(c.group*c.in+i)*v.plane:][:run])
			}
			l += run
		}
		return
	}
	for l := lo; l < hi; l += c.lanes {
		v.block(&w.block, l, min(c.lanes, hi-l))
		v.gather(&w.block, a[l-lo:], c.stride, len(v.taps)*c.stride, c.group*c.in+c0, c1-c0, c.lanes)
	}
}

// A short sum, of small images, is little work for each element of the weight:
// too little to transpose the result. There the output's gradient is the left
// operand, as it lies but for the seams of images, and the gathered matrix is
// transposed.

// convOuts is how many output channels one task copies.
const convOuts = 64

func (c *convWeight) copyOuts(i int) {
	if c.pairs {
		c.copyPairs(i)
		return
	}
	for o := i * convOuts; o < min(c.out, (i+1)*convOuts); o++ {
		for n := range c.s.Batch {
			copy(c.shared[o*c.stride+n*c.size:], c.g[(n*c.s.Out+c.group*c.out+o)*c.size:][:c.size])
		}
	}
}

// bandShort computes the columns of some input channels of the weight's gradient.
func (c *convWeight) bandShort(i int) {
	c0, c1 := c.bandOf(i)
	if c.pairs {
		c.bandShortPairs(c0, c1)
		return
	}
	taps := len(c.view.taps)
	rows := (c1 - c0) * taps
	a, b := scratchList.get(rows*c.stride), scratchList.get(pieces(rows, c.nr)*c.nr*c.n)
	w := getConvWorker()
	c.gather(w, a.floats, 0, c.n, c0, c1)
	for r := 0; r < rows; r += c.nr {
		packTransposed(&b.floats[r*c.n], c.nr, &a.floats[r*c.stride], c.stride, min(c.nr, rows-r), c.n, c.nr)
	}
	dw := c.dw[c.group*c.out*c.rows+c0*taps:]
	for o := 0; o < c.out; o += c.mr {
		for r := 0; r < rows; r += c.nr {
			tile(min(c.mr, c.out-o), min(c.nr, rows-r), c.n, &c.shared[o*c.stride], c.stride, 1, &b.floats[r*c.n], c.nr,
				&dw[o*c.rows+r], c.rows, 1, c.beta, nil)
		}
	}
	w.release()
	scratchList.put(a)
	scratchList.put(b)
}

// addParts adds up the parts of a band.
func (c *convWeight) addParts(i int) {
	c0, c1 := c.bandOf(i)
	lo, hi := c0*len(c.view.taps), c1*len(c.view.taps)
	sum := c.partial[lo*c.outPad : hi*c.outPad]
	for part := 1; part < c.parts; part++ {
		at := part * c.rows * c.outPad
		vec().add(sum, sum, c.partial[at+lo*c.outPad:at+hi*c.outPad])
	}
	c.store(sum, lo, hi-lo)
}

// store transposes rows of the sum, from row at on, into the gradient.
func (c *convWeight) store(sum []float32, at, rows int) {
	dw := c.dw[c.group*c.out*c.rows+at:]
	const wide = 16
	var column [8 * wide]float32
	for r := 0; r < rows; r += wide {
		count := min(wide, rows-r)
		for o := 0; o < c.out; o += 8 {
			outs := min(8, c.out-o)
			packTransposed(&column[0], wide, &sum[r*c.outPad+o], c.outPad, count, outs, wide)
			for q := range outs {
				to := dw[(o+q)*c.rows+r:][:count]
				from := column[q*wide:][:count]
				if c.beta == 0 {
					copy(to, from)
					continue
				}
				for e := range to {
					to[e] = c.beta*to[e] + from[e]
				}
			}
		}
	}
}
