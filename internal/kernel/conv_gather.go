// SPDX-License-Identifier: Apache-2.0

package kernel

import "math/bits"

// A gatherer shows images [batch, channels, height, width] as the matrix that a
// convolution multiplies by, without making it: row (channel, tap) holds, for
// every place of a grid over the images, the element that the tap of a kernel
// laid there reads, or 0 outside of the image. Columns are (image, y, x).
//
// The same view serves all three products: the forward pass lays the kernel
// over x, the input's gradient lays the mirrored kernel over the output's
// gradient, and the weight's gradient is summed over the columns.
type gatherer struct {
	src           []float32
	low           []uint16 // src of bfloat16; then that is nil
	image, plane  int      // distances from image to image and from channel to channel
	height, width int
	rows, cols    int // of the grid
	strideY       int // rows of the image from one row of the grid to the next
	strideX       int
	taps          []convTap
	dys           []int     // distances of taps in rows: convTap.row is an index here
	dxs           []convCol // and in columns
}

// convTap is where a tap reads; the assembly knows its layout.
type convTap struct {
	offset   int // bytes from the place on the grid
	row, col int // which of the distances
}

// convCol is a distance in columns, and the columns of the grid from which it
// stays within the image.
type convCol struct{ dx, lo, hi int }

// convLanes is how many columns are gathered at once at most.
const convLanes = 16

// convRun is a run of lanes that lie in one row of an image; the assembly knows
// the layout of its first two fields, and its size.
type convRun struct {
	base int    // bytes from the source to where lane 0 would lie
	mask uint64 // lanes
}

// gatherBlock is up to 16 neighbouring columns of the matrix.
type gatherBlock struct {
	numRuns  int
	runs     [convLanes]convRun
	place    [convLanes]convPlace
	rowMasks []uint16 // for each of gatherer.dys, the lanes within the image
	colMasks []uint16
}

type convPlace struct{ from, to int }

// begin lays the grid for kernels of len(dys) by len(dxs) taps, of which (i, j)
// reads dys[i] rows and dxs[j] columns further; the other fields are set.
func (g *gatherer) begin(dys, dxs []int) {
	if len(dys) == 1 && len(dxs) == 1 && dys[0] == 0 && dxs[0] == 0 && g.strideY == 1 && g.strideX == 1 &&
		g.height == g.rows && g.width == g.cols {
		// A kernel of one tap does not see where rows end.
		g.width, g.cols = g.height*g.width, g.height*g.width
		g.height, g.rows = 1, 1
	}
	g.dys = append(g.dys[:0], dys...)
	g.dxs, g.taps = g.dxs[:0], g.taps[:0]
	for _, dx := range dxs {
		c := convCol{dx: dx}
		if dx < 0 {
			c.lo = (-dx + g.strideX - 1) / g.strideX
		}
		if dx < g.width {
			c.hi = (g.width-1-dx)/g.strideX + 1
		}
		g.dxs = append(g.dxs, c)
	}
	for i, dy := range dys {
		for j, dx := range dxs {
			g.taps = append(g.taps, convTap{g.elemSize() * (dy*g.width + dx), i, j})
		}
	}
}

// elemSize is how many bytes an element of the images has.
func (g *gatherer) elemSize() int {
	if g.low != nil {
		return 2
	}
	return 4
}

// block finds columns [j, j+lanes) of the matrix.
func (g *gatherer) block(b *gatherBlock, j, lanes int) {
	size := g.rows * g.cols
	n := j / size
	p := j - n*size
	y := p / g.cols
	x := p - y*g.cols
	b.numRuns = 0
	b.rowMasks = append(b.rowMasks[:0], make([]uint16, len(g.dys))...)
	b.colMasks = append(b.colMasks[:0], make([]uint16, len(g.dxs))...)
	for from := 0; from < lanes; {
		to := min(lanes, from+g.cols-x)
		mask := uint64(1)<<to - uint64(1)<<from
		b.runs[b.numRuns] = convRun{g.elemSize() * (n*g.image + y*g.strideY*g.width + (x-from)*g.strideX), mask}
		b.place[b.numRuns] = convPlace{from, to}
		b.numRuns++
		for i, dy := range g.dys {
			if uint(y*g.strideY+dy) < uint(g.height) {
				b.rowMasks[i] |= uint16(mask)
			}
		}
		for i, c := range g.dxs {
			lo, hi := max(from, from+c.lo-x), min(to, from+c.hi-x)
			if lo < hi {
				b.colMasks[i] |= uint16(uint32(1)<<hi - uint32(1)<<lo)
			}
		}
		from, x = to, 0
		if y++; y == g.rows {
			y, n = 0, n+1
		}
	}
}

// plain reports whether the matrix is the images themselves: its rows are
// channels as they lie.
func (g *gatherer) plain() bool {
	return len(g.taps) == 1 && g.rows == 1 && g.height == 1 && g.cols == g.width && g.strideX == 1 && g.dys[0] == 0 && g.dxs[0].dx == 0
}

// run returns how many of the columns [j, hi) lie in j's image, and where they
// begin in a channel 0.
func (g *gatherer) run(j, hi int) (n, at int) {
	image := j / g.cols
	x := j - image*g.cols
	return min(hi-j, g.cols-x), image*g.image + x
}

// gather writes the rows of channels [c0, c0+count) of a block's columns:
// channel c's tap t to dst[(c-c0)*channelStep+t*tapStep:], convLanes elements,
// of which those beyond the block are 0, or where fewer fit a panel, pad.
func (g *gatherer) gather(b *gatherBlock, dst []float32, tapStep, channelStep, c0, count, pad int) {
	_ = dst[(count-1)*channelStep+(len(g.taps)-1)*tapStep+pad-1]
	src := &g.src[c0*g.plane]
	if pad == convLanes && g.gatherFast(b, &dst[0], tapStep, channelStep, src, count) {
		return
	}
	gatherSlowly(g, b, dst, g.src, tapStep, channelStep, c0, count, pad)
}

// gatherLow is gather for bfloat16, which stays that.
func (g *gatherer) gatherLow(b *gatherBlock, dst []uint16, tapStep, channelStep, c0, count int) {
	_ = dst[(count-1)*channelStep+(len(g.taps)-1)*tapStep+convLanes-1]
	if !g.gatherLowFast(b, &dst[0], tapStep, channelStep, &g.low[c0*g.plane], count) {
		gatherSlowly(g, b, dst, g.low, tapStep, channelStep, c0, count, convLanes)
	}
}

func gatherSlowly[T float32 | uint16](g *gatherer, b *gatherBlock, dst, src []T, tapStep, channelStep, c0, count, pad int) {
	for t, tap := range g.taps {
		lanes := uint64(b.rowMasks[tap.row] & b.colMasks[tap.col])
		for c := range count {
			to := dst[c*channelStep+t*tapStep:][:pad]
			clear(to)
			for _, r := range b.runs[:b.numRuns] {
				m := r.mask & lanes
				if m == 0 {
					continue
				}
				lo, hi := bits.TrailingZeros64(m), bits.Len64(m)
				from := c0*g.plane + c*g.plane + (r.base+tap.offset)/g.elemSize()
				if g.strideX == 1 {
					copy(to[lo:hi], src[from+lo:from+hi])
					continue
				}
				for l := lo; l < hi; l++ {
					to[l] = src[from+l*g.strideX]
				}
			}
		}
	}
}
