// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"
	"unsafe"
)

// Where the processor multiplies pairs of bfloat16, a convolution's product (see
// conv_product.go) is one of pairs along k. In the forward pass the rows of the
// right operand are (channel, tap), as the weight lies; in the input's gradient
// they are (tap, channel), so that there too a pair of the weight's elements lies
// in neighbouring rows. Panels are gathered a strip of rows at a time, as
// bfloat16 or as float32, and the strip is packed by twos from the first-level
// cache. Results of bfloat16 are rounded once, however many blocks k has.

const (
	pairRows    = 128          // of a strip
	pairMaxTaps = pairRows / 2 // of two channels at least
	// Three bfloat16 hold a float32, so that a bias fits in two pairs that are
	// multiplied by ones.
	biasPairs = 2
	onePair   = 0x3f803f80
)

// pairWorker is what a task needs for pairs.
type pairWorker struct {
	next  gatherBlock
	rows  [pairRows * 32]uint16
	round [12 * 32]uint16
}

// takesPairs reports whether the three products of the shape are of pairs.
func (s Conv2dShape) takesPairs() bool {
	return usePairs && useISA == avx512 && !s.depthwise() && s.taps() <= pairMaxTaps &&
		s.In > 0 && s.inputElems() > 0 && s.outputElems() > 0
}

// slots is how many pairs n channels make.
func (g *convProduct) slots(n int) int {
	if g.mirrored {
		return len(g.view.taps) * ((n + 1) / 2)
	}
	return (len(g.view.taps)*n + 1) / 2
}

// cutPairs cuts k into blocks of which all but the last have a whole number of
// pairs, and returns the most pairs that one has.
func (g *convProduct) cutPairs() int {
	most := max(2, 2*kBlock/len(g.view.taps))
	g.cBlock = g.channels
	if g.channels > most {
		g.cBlock = roundUp(pieces(g.channels, pieces(g.channels, most)), 2)
	}
	g.k = g.slots(g.channels)
	if g.bias != nil {
		g.k += biasPairs
	}
	return g.slots(g.cBlock) + biasPairs
}

func (g *convProduct) pairsOf(c0, c1 int) (k0, length int) {
	k0, length = g.slots(c0), g.slots(c1-c0)
	if c1 == g.channels && g.bias != nil {
		length += biasPairs
	}
	return k0, length
}

// packPairsA is packA.
func (g *convProduct) packPairsA(dst []float32, group, lo, hi, c0, c1, length int) {
	taps := len(g.view.taps)
	if g.mirrored {
		byTap, tapIndex := g.byTap, g.tapIndex
		if byTap == nil { // of one tap
			byTap = g.w
		}
		const strip = 8
		out, half := group*g.channels+c0, (c1-c0+1)/2
		for t, at := range tapIndex {
			for c := 0; c < c1-c0; c += strip {
				from := byTap[(at*g.groups*g.channels+out+c)*g.m:]
				for i := lo; i < hi; i += g.mr {
					packPairs(&dst[((i-lo)/g.mr*length+t*half+c/2)*g.aStep], g.aStep, &from[i], g.m, min(strip, c1-c0-c), min(g.mr, hi-i), g.mr)
				}
			}
		}
		return
	}
	for i := lo; i < hi; i += g.mr {
		panel := dst[(i-lo)/g.mr*g.aStep*length:][:g.aStep*length]
		rows := min(g.mr, hi-i)
		packTransposedPairs(&panel[0], g.aStep, &g.w[(group*g.m+i)*g.wRow+c0*taps], g.wRow, rows, (c1-c0)*taps, g.mr)
		if c1 == g.channels && g.bias != nil {
			packBias(panel[(length-biasPairs)*g.aStep:], g.bias[group*g.m+i:][:rows], g.aStep)
		}
	}
}

// packBias writes a column of biases as pairs, step apart, that add up to them.
func packBias(dst, bias []float32, step int) {
	clear(dst[:biasPairs*step])
	for r, x := range bias {
		high := bf16(x)
		var middle, low uint16
		if rest := x - bf16Float(high); rest == rest && !math.IsInf(float64(rest), 0) {
			middle = bf16(rest)
			low = bf16(rest - bf16Float(middle))
		}
		dst[r] = math.Float32frombits(uint32(high) | uint32(middle)<<16)
		dst[step+r] = math.Float32frombits(uint32(low))
	}
}

func bf16Float(x uint16) float32 { return math.Float32frombits(uint32(x) << 16) }

// packPairsB is packB.
func (g *convProduct) packPairsB(w *convWorker, dst []float32, group, lo, hi, c0, c1, length int) {
	taps, v := len(g.view.taps), &g.view
	most := pairRows / taps &^ 1
	half := (c1 - c0 + 1) / 2
	for j := lo; j < hi; j += g.nr {
		cols := min(g.nr, hi-j)
		v.block(&w.block, j, min(convLanes, cols))
		if cols > convLanes {
			v.block(&w.next, j+convLanes, cols-convLanes)
		}
		for c := 0; c < c1-c0; c += most {
			count := min(most, c1-c0-c)
			tapStep, channelStep := g.nr, taps*g.nr
			if g.mirrored {
				tapStep, channelStep = count*g.nr, g.nr
			}
			for l, b := range []*gatherBlock{&w.block, &w.next}[:pieces(cols, convLanes)] {
				if v.low != nil {
					v.gatherLow(b, w.rows[l*convLanes:], tapStep, channelStep, group*g.channels+c0+c, count)
				} else {
					v.gather(b, w.strip[l*convLanes:], tapStep, channelStep, group*g.channels+c0+c, count, convLanes)
				}
			}
			if !g.mirrored {
				g.packStrip(w, &dst[c*taps/2*g.nr], 0, count*taps, cols)
				continue
			}
			for t := range taps {
				g.packStrip(w, &dst[(t*half+c/2)*g.nr], t*count, count, cols)
			}
		}
		if c1 == g.channels && g.bias != nil {
			ones := dst[(length-biasPairs)*g.nr:][:biasPairs*g.nr]
			for l := range ones {
				ones[l] = math.Float32frombits(onePair)
			}
		}
		dst = dst[g.nr*length:]
	}
}

// packStrip packs rows of the strip, from one on, by twos.
func (g *convProduct) packStrip(w *convWorker, dst *float32, row, rows, cols int) {
	width := roundUp(cols, convLanes)
	if g.view.low != nil {
		packPairsHalves(dst, g.nr, &w.rows[row*g.nr], g.nr, rows, width, g.nr)
		return
	}
	packPairs(dst, g.nr, &w.strip[row*g.nr], g.nr, rows, width, g.nr)
}

// sumsPairs reports whether tasks sum up their parts in memory of their own.
func (g *convProduct) sumsPairs() bool {
	if g.dstLow != nil {
		return g.numBlocks > 1
	}
	return g.sparse
}

// tileOfPairs is tile.
func (g *convProduct) tileOfPairs(w *convWorker, i, rows, j, cols, k, block int, beta float32, a, b *float32) {
	product := func(c *float32, ldcBytes, half int) {
		tilePairs(rows, cols, k, a, 1, g.aStep, b, g.nr, c, ldcBytes, 1, beta, nil, half)
	}
	last := block == g.numBlocks-1
	size := g.view.rows * g.view.cols
	n := j / size
	at := j - n*size
	inImage := !g.sparse && at+cols <= size
	to := n*g.dstImage + i*g.dstPlane + at
	switch {
	case g.sumsPairs():
		c := (i-w.row0)*w.sumStep + j - w.col0
		product(&w.sum[c], 4*w.sumStep, 0)
		switch {
		case last && g.dstLow != nil:
			for r := range rows {
				toBF16(w.round[r*g.nr:][:g.nr], w.sum[c+r*w.sumStep:][:g.nr])
			}
			g.storeRounded(w, i, rows, j, cols)
		case last:
			g.spread(&w.sum[c], w.sumStep, i, rows, j, cols)
		}
	case g.dstLow != nil && inImage:
		product((*float32)(unsafe.Pointer(&g.dstLow[to])), 2*g.dstPlane, 1)
	case g.dstLow != nil:
		product(asPairs(w.round[:]), 2*g.nr, 1)
		g.storeRounded(w, i, rows, j, cols)
	case inImage:
		product(&g.dst[to], 4*g.dstPlane, 0)
	default:
		if block > 0 {
			g.moveTile(w, i, rows, n, at, cols, false)
		}
		product(&w.tile[0], 4*g.nr, 0)
		g.moveTile(w, i, rows, n, at, cols, true)
	}
}

// storeRounded stores a tile of bfloat16.
func (g *convProduct) storeRounded(w *convWorker, i, rows, j, cols int) {
	v := &g.view
	size := v.rows * v.cols
	n := j / size
	at := j - n*size
	for l := 0; l < cols; {
		run := min(size-at, cols-l)
		to := n*g.dstImage + i*g.dstPlane + at
		if g.sparse {
			y, x := at/g.gridCols, at%g.gridCols
			run = min(run, g.gridCols-x)
			to += (g.dstY+y*g.stepY)*g.dstWidth + g.dstX + x*g.stepX - at
			spreadHalves(&g.dstLow[to], g.dstPlane, &w.round[l], g.nr, rows, run, g.stepX)
		} else {
			for r := range rows {
				copy(g.dstLow[to+r*g.dstPlane:][:run], w.round[r*g.nr+l:])
			}
		}
		l, at = l+run, at+run
		if at == size {
			at, n = 0, n+1
		}
	}
}

// portableSpreadHalves is portableSpreadRows for bfloat16.
func portableSpreadHalves(dst *uint16, dstStep int, src *uint16, srcStep, rows, n, gap int) {
	for r := range rows {
		to := unsafe.Slice(shiftHalves(dst, r*dstStep), (n-1)*gap+1)
		for q, v := range unsafe.Slice(shiftHalves(src, r*srcStep), n) {
			to[q*gap] = v
		}
	}
}

// shiftHalves returns the address n elements behind p.
func shiftHalves(p *uint16, n int) *uint16 { return (*uint16)(unsafe.Add(unsafe.Pointer(p), 2*n)) }
