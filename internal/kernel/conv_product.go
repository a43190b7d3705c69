// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"unsafe"

	"github.com/cohort-ml/cohort/internal/work"
)

// A convolution is a product of matrices (im2col; Chellapilla et al., High
// Performance Convolutional Neural Networks for Document Processing, 2006) whose
// right operand is never made: panels of it are gathered from the images when a
// task is about to use them. Rows of the product are channels of the result,
// its columns are (image, y, x), so that small images fill tiles together.
//
// As in a plain product one operand is packed once for all and each task packs
// its band of the other; see gemm_block.go.

// convProduct is the forward pass, or a phase of the input's gradient.
type convProduct struct {
	groups, m, n, k int // k counts the row of ones that brings the bias
	channels        int // summed over, of a group
	view            gatherer
	w               []float32
	wRow            int // elements of w of one output channel
	mirrored        bool
	tapIndex        []int // mirrored: the taps of w that take part
	allTaps         int
	byTap           []float32 // w with taps outermost, for more phases than one
	bias            []float32

	dst                []float32
	dstImage, dstPlane int
	sparse             bool // columns of the product are not neighbours in dst
	dstWidth           int
	gridCols           int
	dstY, dstX         int // where a sparse grid begins
	stepY, stepX       int

	// pairs makes the product one of pairs of bfloat16: see conv_pairs.go.
	pairs  bool
	dstLow []uint16 // dst of bfloat16; then that is nil

	mr, nr, aStep int
	lanes         int
	cBlock        int // channels of a block of k
	numBlocks     int
	shareA        bool
	band          int
	shared        []float32

	dys, dxs []int

	packTask, bandTask func(i int)
	orderTask          func(lo, hi int)
}

var convProductsIdle idleList[convProduct]

func getConvProduct() *convProduct {
	if g := convProductsIdle.get(); g != nil {
		return g
	}
	g := &convProduct{}
	g.packTask, g.bandTask, g.orderTask = g.packShared, g.computeBand, g.orderByTap
	return g
}

func (g *convProduct) release() {
	g.w, g.bias, g.dst, g.dstLow, g.shared, g.view.src, g.view.low = nil, nil, nil, nil, nil, nil, nil
	g.pairs = false
	convProductsIdle.put(g)
}

// convWorker is what a task needs beside scratch.
type convWorker struct {
	block gatherBlock
	tile  [12 * 32]float32
	strip [winogradStrip * winogradPlaces * convLanes]float32 // channels to be transformed
	patch [winogradStrip * winogradPlaces * convLanes]float32 // and when they have been

	// Of a sparse result: the sums of the task's part, which begins at row0 and
	// col0 of the product.
	sum        []float32
	sumStep    int
	row0, col0 int

	pairWorker
}

var convWorkersIdle idleList[convWorker]

func getConvWorker() *convWorker {
	if g := convWorkersIdle.get(); g != nil {
		return g
	}
	return &convWorker{}
}

func (w *convWorker) release() {
	convWorkersIdle.put(w)
}

func (g *convProduct) forward(s Conv2dShape, y, x Mixed, w, bias []float32) {
	g.groups, g.m, g.channels = s.Groups, s.Out/s.Groups, s.In/s.Groups
	g.w, g.wRow, g.mirrored, g.bias = w, g.channels*s.taps(), false, bias
	rows, cols := s.OutHeight(), s.OutWidth()
	g.dst, g.dstLow, g.dstPlane, g.dstImage = y.F32, y.BF16, rows*cols, s.Out*rows*cols
	g.sparse = false
	g.n = s.Batch * rows * cols
	g.viewInput(s, x)
}

// viewInput lays the kernel over x.
func (g *convProduct) viewInput(s Conv2dShape, x Mixed) {
	g.dys, g.dxs = g.dys[:0], g.dxs[:0]
	for i := range s.KernelH {
		g.dys = append(g.dys, i*s.DilationH-s.PadH)
	}
	for j := range s.KernelW {
		g.dxs = append(g.dxs, j*s.DilationW-s.PadW)
	}
	s.viewInput(&g.view, x, g.dys, g.dxs)
}

func (s Conv2dShape) viewInput(v *gatherer, x Mixed, dys, dxs []int) {
	v.src, v.low = x.F32, x.BF16
	v.image, v.plane = s.In*s.Height*s.Width, s.Height*s.Width
	v.height, v.width = s.Height, s.Width
	v.rows, v.cols = s.OutHeight(), s.OutWidth()
	v.strideY, v.strideX = s.StrideH, s.StrideW
	v.begin(dys, dxs)
}

// backwardInput goes through the phases of the stride: the elements of dx whose
// places are equal modulo the stride are reached by the same taps, and are
// themselves a convolution of g with those, of stride 1.
func (c *convProduct) backwardInput(p *work.Pool, s Conv2dShape, dx, g Mixed, w []float32) {
	c.groups, c.m, c.channels = s.Groups, s.In/s.Groups, s.Out/s.Groups
	c.w, c.wRow, c.mirrored, c.bias = w, c.m*s.taps(), true, nil
	c.dst, c.dstLow = dx.F32, dx.BF16
	c.dstPlane, c.dstImage, c.dstWidth = s.Height*s.Width, s.In*s.Height*s.Width, s.Width
	c.allTaps = s.taps()
	c.sparse = s.StrideH > 1 || s.StrideW > 1
	c.stepY, c.stepX = s.StrideH, s.StrideW
	phasesY, phasesX := min(s.StrideH, s.Height), min(s.StrideW, s.Width)
	if !phasesFull(phasesY, s.KernelH, s.StrideH, s.PadH, s.DilationH) || !phasesFull(phasesX, s.KernelW, s.StrideW, s.PadW, s.DilationW) {
		// No tap reaches some elements.
		if c.dstLow != nil {
			clearSlice(p, c.dstLow[:s.inputElems()])
		} else {
			clearSlice(p, c.dst[:s.inputElems()])
		}
	}
	c.byTap = nil
	if (c.sparse || c.pairs) && c.allTaps > 1 {
		order := scratchList.get(s.weightElems())
		c.byTap = order.floats[:s.weightElems()]
		overItems(p, s.Out, s.weightElems(), c.orderTask)
		defer scratchList.put(order)
	}
	for py := range phasesY {
		for px := range phasesX {
			c.phase(p, s, py, px, g)
		}
	}
	c.byTap = nil
}

// orderByTap makes the weights of output channels [lo, hi) with taps outermost:
// [tap, out, in/groups], so that phases find theirs together.
func (c *convProduct) orderByTap(lo, hi int) {
	const wide = 16
	step := c.groups * c.channels * c.m
	if useISA == avx2 { // whose stores are whole registers
		for o := lo; o < hi; o++ {
			for i := range c.m * c.allTaps {
				c.byTap[i%c.allTaps*step+o*c.m+i/c.allTaps] = c.w[o*c.wRow+i]
			}
		}
		return
	}
	for o := lo; o < hi; o++ {
		for i := 0; i < c.m; i += wide {
			rows := min(wide, c.m-i)
			packTransposed(&c.byTap[o*c.m+i], step, &c.w[o*c.wRow+i*c.allTaps], c.allTaps, rows, c.allTaps, rows)
		}
	}
}

// phasesFull reports whether taps reach every phase of a dimension.
func phasesFull(phases, kernel, stride, pad, dilation int) bool {
	for at := range phases {
		reached := false
		for i := range kernel {
			reached = reached || (at+pad-i*dilation)%stride == 0
		}
		if !reached {
			return false
		}
	}
	return true
}

func (c *convProduct) phase(p *work.Pool, s Conv2dShape, py, px int, g Mixed) {
	c.dys, c.dxs, c.tapIndex = c.dys[:0], c.dxs[:0], c.tapIndex[:0]
	for j := range s.KernelW {
		if at := px + s.PadW - j*s.DilationW; at%s.StrideW == 0 {
			c.dxs = append(c.dxs, at/s.StrideW)
		}
	}
	for i := range s.KernelH {
		at := py + s.PadH - i*s.DilationH
		if at%s.StrideH != 0 {
			continue
		}
		c.dys = append(c.dys, at/s.StrideH)
		for j := range s.KernelW {
			if (px+s.PadW-j*s.DilationW)%s.StrideW == 0 {
				c.tapIndex = append(c.tapIndex, i*s.KernelW+j)
			}
		}
	}
	if len(c.tapIndex) == 0 {
		return
	}
	v := &c.view
	v.src, v.low, v.height, v.width = g.F32, g.BF16, s.OutHeight(), s.OutWidth()
	v.plane = v.height * v.width
	v.image = s.Out * v.plane
	v.rows, v.cols = (s.Height-py+s.StrideH-1)/s.StrideH, (s.Width-px+s.StrideW-1)/s.StrideW
	v.strideY, v.strideX = 1, 1
	c.n = s.Batch * v.rows * v.cols
	c.dstY, c.dstX = py, px
	cols := v.cols
	v.begin(c.dys, c.dxs)
	c.gridCols = cols
	c.compute(p)
}

// compute runs the product.
func (g *convProduct) compute(p *work.Pool) {
	taps := len(g.view.taps)
	g.k = g.channels * taps
	if g.bias != nil {
		g.k++
	}
	g.mr, g.nr, g.aStep = tileShape()
	g.lanes = min(convLanes, g.nr)
	most := max(1, kBlock/taps)
	g.numBlocks = (g.channels + most - 1) / most
	g.cBlock = (g.channels + g.numBlocks - 1) / g.numBlocks
	kMost := g.cBlock*taps + 1
	if g.pairs {
		kMost = g.cutPairs()
	}
	g.numBlocks = (g.channels + g.cBlock - 1) / g.cBlock

	threads := 1
	if p != nil && g.groups*g.m*g.n*g.k >= serialLimit {
		threads = p.NumThreads()
	}
	g.shareA = g.groups > 1 || g.m < g.n
	unit, size := g.nr, g.n
	if !g.shareA {
		unit, size = g.mr, g.m
	}
	// A band of a task fits the second-level cache, and there are enough of
	// them for threads to finish together.
	g.band = max(1, min(convBand/kMost, (g.groups*size+8*threads-1)/(8*threads))/unit) * unit
	if g.shareA {
		g.band = max(g.band, min(3*unit, (size+unit-1)/unit*unit))
	}

	packed := g.panelsB() * g.nr * g.k
	if g.shareA {
		packed = g.groups * g.panelsA() * g.aStep * g.k
	}
	s := scratchList.get(packed)
	g.shared = s.floats
	runTasks(p, threads, g.numPackTasks(), g.packTask)
	runTasks(p, threads, g.groups*pieces(size, g.band), g.bandTask)
	scratchList.put(s)
}

// convBand bounds the packed band of a task, in elements.
const convBand = 64 << 10

func (g *convProduct) panelsA() int { return pieces(g.m, g.mr) }
func (g *convProduct) panelsB() int { return pieces(g.n, g.nr) }

// channelsOf returns the channels of a block of k, where it begins, and its
// length: the last one has the row of the bias.
func (g *convProduct) channelsOf(block int) (c0, c1, k0, length int) {
	c0 = block * g.cBlock
	c1 = min(g.channels, c0+g.cBlock)
	if g.pairs {
		k0, length = g.pairsOf(c0, c1)
		return c0, c1, k0, length
	}
	taps := len(g.view.taps)
	k0, length = c0*taps, (c1-c0)*taps
	if c1 == g.channels && g.bias != nil {
		length++
	}
	return c0, c1, k0, length
}

func (g *convProduct) numPackTasks() int {
	if g.shareA {
		return g.groups * g.numBlocks * pieces(g.panelsA(), packPanels)
	}
	return g.numBlocks * pieces(g.panelsB(), packPanels)
}

func (g *convProduct) packShared(i int) {
	if g.shareA {
		parts := pieces(g.panelsA(), packPanels)
		first := i % parts * packPanels
		block := i / parts % g.numBlocks
		group := i / parts / g.numBlocks
		_, _, k0, length := g.channelsOf(block)
		at := (group*g.k+k0)*g.panelsA()*g.aStep + first*g.aStep*length
		g.packA(g.shared[at:], group, first*g.mr, min(g.m, (first+packPanels)*g.mr), block)
		return
	}
	parts := pieces(g.panelsB(), packPanels)
	first := i % parts * packPanels
	block := i / parts
	_, _, k0, length := g.channelsOf(block)
	at := k0*g.panelsB()*g.nr + first*g.nr*length
	w := getConvWorker()
	g.packB(w, g.shared[at:], 0, first*g.nr, min(g.n, (first+packPanels)*g.nr), block)
	w.release()
}

// packA packs rows [lo, hi) of a group's weights for a block of k.
func (g *convProduct) packA(dst []float32, group, lo, hi, block int) {
	c0, c1, _, length := g.channelsOf(block)
	if g.pairs {
		g.packPairsA(dst, group, lo, hi, c0, c1, length)
		return
	}
	taps := len(g.view.taps)
	out := group*g.channels + c0
	switch {
	case !g.mirrored:
		for i := lo; i < hi; i += g.mr {
			packTransposed(&dst[(i-lo)/g.mr*g.aStep*length], g.aStep, &g.w[(group*g.m+i)*g.wRow+c0*taps], g.wRow, min(g.mr, hi-i), (c1-c0)*taps, g.mr)
		}
	case g.allTaps == 1:
		g.packRowsA(dst, g.w[out*g.wRow:], g.wRow, 1, lo, hi, c1-c0, length)
	case g.byTap != nil:
		for t, at := range g.tapIndex {
			g.packRowsA(dst[t*g.aStep:], g.byTap[(at*g.groups*g.channels+out)*g.m:], g.m, taps, lo, hi, c1-c0, length)
		}
	default:
		for i := lo; i < hi; i += g.mr {
			for c := range c1 - c0 {
				packTransposed(&dst[((i-lo)/g.mr*length+c*taps)*g.aStep], g.aStep, &g.w[(out+c)*g.wRow+i*taps], taps, min(g.mr, hi-i), taps, g.mr)
			}
		}
	}
	if length > (c1-c0)*taps {
		for i := lo; i < hi; i += g.mr {
			column := dst[((i-lo)/g.mr*length+length-1)*g.aStep:][:g.aStep]
			clear(column[copy(column, g.bias[group*g.m+i:][:min(g.mr, hi-i)]):])
		}
	}
}

// packRowsA packs elements [lo, hi) of count rows of src into panels, gap steps
// apart: all panels for a few rows at a time, see packWide.
func (g *convProduct) packRowsA(dst, src []float32, srcStep, gap, lo, hi, count, length int) {
	const strip = 8
	for c := 0; c < count; c += strip {
		for i := lo; i < hi; i += g.mr {
			packRows(&dst[((i-lo)/g.mr*length+c*gap)*g.aStep], gap*g.aStep, &src[c*srcStep+i], srcStep, min(strip, count-c), min(g.mr, hi-i), g.mr)
		}
	}
}

// packB gathers columns [lo, hi) of the images for a block of k.
func (g *convProduct) packB(w *convWorker, dst []float32, group, lo, hi, block int) {
	c0, c1, _, length := g.channelsOf(block)
	taps := len(g.view.taps)
	if g.pairs {
		g.packPairsB(w, dst, group, lo, hi, c0, c1, length)
		return
	}
	if g.view.plain() {
		g.packPlain(w, dst, group*g.channels+c0, c1-c0, lo, hi, length)
		return
	}
	for j := lo; j < hi; j += g.nr {
		for l := 0; l < g.nr && j+l < hi; l += g.lanes {
			g.view.block(&w.block, j+l, min(g.lanes, hi-j-l))
			g.view.gather(&w.block, dst[l:], g.nr, taps*g.nr, group*g.channels+c0, c1-c0, g.lanes)
		}
		if length > (c1-c0)*taps {
			g.packOnes(dst, length)
		}
		dst = dst[g.nr*length:]
	}
}

// packOnes writes the row of a panel that the bias is multiplied by.
func (g *convProduct) packOnes(dst []float32, length int) {
	row := dst[(length-1)*g.nr:][:g.nr]
	for l := range row {
		row[l] = 1
	}
}

// packPlain is packB for a kernel of one tap. It goes through all panels for a
// few channels at a time: see packWide.
func (g *convProduct) packPlain(w *convWorker, dst []float32, c0, count, lo, hi, length int) {
	const strip = 8
	v := &g.view
	for c := 0; c < count; c += strip {
		rows := min(strip, count-c)
		for j := lo; j < hi; j += g.nr {
			to := dst[(j-lo)*length+c*g.nr:]
			cols := min(g.nr, hi-j)
			run, at := v.run(j, j+cols)
			if run == cols {
				packRows(&to[0], g.nr, &v.src[at+(c0+c)*v.plane], v.plane, rows, cols, g.nr)
				continue
			}
			for l := 0; l < cols; l += g.lanes {
				v.block(&w.block, j+l, min(g.lanes, cols-l))
				v.gather(&w.block, to[l:], g.nr, g.nr, c0+c, rows, g.lanes)
			}
		}
	}
	if length > count {
		for j := lo; j < hi; j += g.nr {
			g.packOnes(dst[(j-lo)*length:], length)
		}
	}
}

// computeBand computes one task's part of the result.
func (g *convProduct) computeBand(i int) {
	w := getConvWorker()
	defer w.release()
	_, _, _, most := g.channelsOf(0)
	most += 2 // for the bias
	if g.shareA {
		bands := pieces(g.n, g.band)
		group, lo := i/bands, i%bands*g.band
		s := scratchList.get(pieces(g.band, g.nr) * g.nr * most)
		sum := g.getSum(w, g.m, g.band)
		w.row0, w.col0 = group*g.m, lo
		for block := range g.numBlocks {
			g.bandCols(w, s.floats, group, lo, min(g.n, lo+g.band), block)
		}
		if sum != nil {
			scratchList.put(sum)
		}
		scratchList.put(s)
		return
	}
	lo := i * g.band
	s := scratchList.get(pieces(g.band, g.mr) * g.aStep * most)
	sum := g.getSum(w, g.band, g.n)
	w.row0, w.col0 = lo, 0
	for block := range g.numBlocks {
		g.bandRows(w, s.floats, lo, min(g.m, lo+g.band), block)
	}
	if sum != nil {
		scratchList.put(sum)
	}
	scratchList.put(s)
}

// getSum lends a task the memory in which it sums up a sparse result.
func (g *convProduct) getSum(w *convWorker, rows, cols int) *scratch {
	if g.pairs && !g.sumsPairs() || !g.pairs && !g.sparse {
		return nil
	}
	w.sumStep = roundUp(cols, g.nr)
	s := scratchList.get(rows * w.sumStep)
	w.sum = s.floats
	return s
}

func (g *convProduct) bandCols(w *convWorker, b []float32, group, lo, hi, block int) {
	_, _, k0, length := g.channelsOf(block)
	g.packB(w, b, group, lo, hi, block)
	a := g.shared[(group*g.k+k0)*g.panelsA()*g.aStep:]
	for i := 0; i < g.m; i += g.mr {
		for j := lo; j < hi; j += g.nr {
			g.tile(w, group*g.m+i, min(g.mr, g.m-i), j, min(g.nr, hi-j), length, block,
				&a[i/g.mr*g.aStep*length], &b[(j-lo)/g.nr*g.nr*length])
		}
	}
}

func (g *convProduct) bandRows(w *convWorker, a []float32, lo, hi, block int) {
	_, _, k0, length := g.channelsOf(block)
	g.packA(a, 0, lo, hi, block)
	b := g.shared[k0*g.panelsB()*g.nr:]
	for j := 0; j < g.n; j += g.nr {
		for i := lo; i < hi; i += g.mr {
			g.tile(w, i, min(g.mr, hi-i), j, min(g.nr, g.n-j), length, block,
				&a[(i-lo)/g.mr*g.aStep*length], &b[j/g.nr*g.nr*length])
		}
	}
}

// tile computes rows [i, i+rows) and columns [j, j+cols) of a block of k: in
// place where the columns are neighbours in dst.
func (g *convProduct) tile(w *convWorker, i, rows, j, cols, k, block int, a, b *float32) {
	beta := float32(1)
	if block == 0 {
		beta = 0
	}
	if g.pairs {
		g.tileOfPairs(w, i, rows, j, cols, k, block, beta, a, b)
		return
	}
	if g.sparse {
		c := &w.sum[(i-w.row0)*w.sumStep+j-w.col0]
		tile(rows, cols, k, a, 1, g.aStep, b, g.nr, c, w.sumStep, 1, beta, nil)
		if block == g.numBlocks-1 {
			g.spread(c, w.sumStep, i, rows, j, cols)
		}
		return
	}
	size := g.view.rows * g.view.cols
	n := j / size
	at := j - n*size
	c := &g.dst[n*g.dstImage+i*g.dstPlane+at]
	if at+cols <= size {
		tile(rows, cols, k, a, 1, g.aStep, b, g.nr, c, g.dstPlane, 1, beta, nil)
		return
	}
	if block > 0 {
		g.moveTile(w, i, rows, n, at, cols, false)
	}
	tile(rows, cols, k, a, 1, g.aStep, b, g.nr, &w.tile[0], g.nr, 1, beta, nil)
	g.moveTile(w, i, rows, n, at, cols, true)
}

// moveTile stores a tile that lies in several images, or loads it.
func (g *convProduct) moveTile(w *convWorker, i, rows, n, at, cols int, store bool) {
	size := g.view.rows * g.view.cols
	for l := 0; l < cols; {
		run := min(size-at, cols-l)
		own, d := &w.tile[l], &g.dst[n*g.dstImage+i*g.dstPlane+at]
		if store {
			copyRows(d, g.dstPlane, own, g.nr, rows, run)
		} else {
			copyRows(own, g.nr, d, g.dstPlane, rows, run)
		}
		l, at, n = l+run, 0, n+1
	}
}

// copyRows copies rows of at most a tile's width.
func copyRows(dst *float32, dstStep int, src *float32, srcStep, rows, width int) {
	if useISA == avx512 {
		packRows(dst, dstStep, src, srcStep, rows, width, width)
		return
	}
	portablePackRows(dst, dstStep, src, srcStep, rows, width, width)
}

// spread stores columns [j, j+cols) of a sparse result.
func (g *convProduct) spread(c *float32, step, i, rows, j, cols int) {
	v := &g.view
	size := v.rows * v.cols
	n := j / size
	at := j - n*size
	y, x := at/g.gridCols, at%g.gridCols
	for l := 0; l < cols; {
		run := min(g.gridCols-x, cols-l)
		to := n*g.dstImage + i*g.dstPlane + (g.dstY+y*g.stepY)*g.dstWidth + g.dstX + x*g.stepX
		spreadRows(&g.dst[to], g.dstPlane, shift(c, l), step, rows, run, g.stepX)
		l, x = l+run, 0
		if y++; y*g.gridCols == size {
			y, n = 0, n+1
		}
	}
}

// portableSpreadRows copies rows of n elements to places gap apart.
func portableSpreadRows(dst *float32, dstStep int, src *float32, srcStep, rows, n, gap int) {
	for r := range rows {
		to := unsafe.Slice(shift(dst, r*dstStep), (n-1)*gap+1)
		for q, v := range unsafe.Slice(shift(src, r*srcStep), n) {
			to[q*gap] = v
		}
	}
}

// clearSlice sets x to 0.
func clearSlice[T float32 | uint16](p *work.Pool, x []T) {
	overItems(p, len(x), len(x), func(lo, hi int) { clear(x[lo:hi]) })
}
