// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"github.com/cohort-ml/cohort/internal/work"
)

// Kernels of 3 by 3 and stride 1 are computed with fewer multiplications
// (Winograd's F(2×2, 3×3); Lavin and Gray, Fast Algorithms for Convolutional
// Neural Networks, 2016, §4.1): the 2 by 2 results of a patch d of 4 by 4 are
//
//	Aᵀ·[Σ over channels of (G·g·Gᵀ) ⊙ (Bᵀ·d·B)]·A
//
// with ⊙ element by element: 16 products where the definition has 36. For each
// of the 16 places the sum is a product of matrices, [out, in] by [in, patches].
// The transforms of patches and results are sums and differences, those of
// kernels halve: the error stays that of a sum of a few elements more. But a NaN
// or infinity is seen by all results of the patches that it is in.

// winograd is one call: a forward pass or the gradient of the input, which is
// the convolution of the result's gradient by the mirrored kernels.
type winograd struct {
	m, channels, tiles   int
	view                 gatherer // of patches: 4 by 4 taps, 2 apart
	w                    []float32
	wRow                 int
	mirrored             bool
	bias                 []float32
	dst                  []float32
	dstImage, dstPlane   int
	outHeight, outWidth  int
	mr, nr, aStep, lanes int
	shareA               bool
	band                 int
	shared               []float32
	dys, dxs             []int
	packTask, bandTask   func(i int)
}

const (
	winogradLeast = 32  // the fewest channels, on both sides, that are worth it
	winogradMost  = 512 // the most that are summed in one go
	// winogradStrip is how many channels are transformed at a time.
	winogradStrip  = 16
	winogradPlaces = 16
)

// winograd reports whether the three products of the shape are computed so. The
// transforms are not written for AVX2.
func (s Conv2dShape) winograd() bool {
	return useISA != avx2 && s.KernelH == 3 && s.KernelW == 3 && s.StrideH == 1 && s.StrideW == 1 && s.DilationH == 1 && s.DilationW == 1 &&
		s.Groups == 1 && min(s.In, s.Out) >= winogradLeast && max(s.In, s.Out) <= winogradMost &&
		s.Batch*s.OutHeight()*s.OutWidth() >= 128
}

var winogradsIdle idleList[winograd]

func getWinograd() *winograd {
	if g := winogradsIdle.get(); g != nil {
		return g
	}
	g := &winograd{}
	g.packTask, g.bandTask = g.packShared, g.computeBand
	return g
}

func (g *winograd) release() {
	g.w, g.bias, g.dst, g.shared, g.view.src = nil, nil, nil, nil, nil
	winogradsIdle.put(g)
}

func (g *winograd) forward(s Conv2dShape, y, x, w, bias []float32) {
	g.m, g.channels, g.w, g.wRow, g.mirrored, g.bias = s.Out, s.In, w, s.In*9, false, bias
	g.lay(x, s.Height, s.Width, y, s.Batch, s.OutHeight(), s.OutWidth(), s.PadH, s.PadW)
}

func (g *winograd) backwardInput(s Conv2dShape, dx, dy, w []float32) {
	g.m, g.channels, g.w, g.wRow, g.mirrored, g.bias = s.In, s.Out, w, s.In*9, true, nil
	g.lay(dy, s.OutHeight(), s.OutWidth(), dx, s.Batch, s.Height, s.Width, 2-s.PadH, 2-s.PadW)
}

// lay puts the patches on the images of src.
func (g *winograd) lay(src []float32, height, width int, dst []float32, batch, outHeight, outWidth, padH, padW int) {
	g.dst, g.outHeight, g.outWidth = dst, outHeight, outWidth
	g.dstPlane = outHeight * outWidth
	g.dstImage = g.m * g.dstPlane
	v := &g.view
	v.src, v.height, v.width, v.plane = src, height, width, height*width
	v.image = g.channels * v.plane
	v.rows, v.cols, v.strideY, v.strideX = (outHeight+1)/2, (outWidth+1)/2, 2, 2
	g.tiles = batch * v.rows * v.cols
	g.dys, g.dxs = g.dys[:0], g.dxs[:0]
	for i := range 4 {
		g.dys, g.dxs = append(g.dys, i-padH), append(g.dxs, i-padW)
	}
	v.begin(g.dys, g.dxs)
}

func (g *winograd) panelsA() int { return pieces(g.m, g.mr) }
func (g *winograd) panelsB() int { return pieces(g.tiles, g.nr) }

// sizeA and sizeB are the elements of a packed panel at all places.
func (g *winograd) sizeA() int { return winogradPlaces * g.channels * g.aStep }
func (g *winograd) sizeB() int { return winogradPlaces * g.channels * g.nr }

func (g *winograd) compute(p *work.Pool) {
	g.mr, g.nr, g.aStep = tileShape()
	g.lanes = min(convLanes, g.nr)
	threads := 1
	if p != nil {
		threads = p.NumThreads()
	}
	g.shareA = g.m <= g.tiles
	if g.shareA {
		s := scratchList.get(g.panelsA() * g.sizeA())
		g.shared = s.floats
		runTasks(p, threads, g.panelsA(), g.packTask)
		// A band's patches fit the second-level cache, and there are enough bands
		// for threads to finish together.
		g.band = pieces(min(96, 16<<10/g.channels, g.tiles/(8*threads)), g.nr) * g.nr
		runTasks(p, threads, pieces(g.tiles, g.band), g.bandTask)
		scratchList.put(s)
		return
	}
	s := scratchList.get(g.panelsB() * g.sizeB())
	g.shared = s.floats
	runTasks(p, threads, g.panelsB()*pieces(g.channels, winogradStrip), g.packTask)
	runTasks(p, threads, g.panelsA(), g.bandTask)
	scratchList.put(s)
}

func (g *winograd) packShared(i int) {
	w := getConvWorker()
	if g.shareA {
		g.packA(w, g.shared[i*g.sizeA():], i*g.mr)
	} else {
		strips := pieces(g.channels, winogradStrip)
		panel, c0 := i/strips, i%strips*winogradStrip
		g.packB(w, g.shared[panel*g.sizeB():], panel*g.nr, c0, min(g.channels, c0+winogradStrip))
	}
	w.release()
}

// packA transforms the kernels of rows [i, i+mr): [place, channel, row].
func (g *winograd) packA(w *convWorker, dst []float32, i int) {
	rows := min(g.mr, g.m-i)
	for c0 := 0; c0 < g.channels; c0 += winogradStrip {
		count := min(winogradStrip, g.channels-c0)
		src, tapStep := &w.strip[0], g.aStep
		if g.mirrored {
			for c := range count {
				packTransposed(&w.strip[c*9*g.aStep], g.aStep, &g.w[(c0+c)*g.wRow+i*9], 9, rows, 9, g.mr)
			}
			src, tapStep = &w.strip[8*g.aStep], -g.aStep
		} else {
			packTransposed(&w.strip[0], g.aStep, &g.w[i*g.wRow+c0*9], g.wRow, rows, count*9, g.mr)
		}
		winogradKernels(&dst[c0*g.aStep], g.channels*g.aStep, g.aStep, src, tapStep, 9*g.aStep, count, g.aStep)
	}
}

// packB transforms a panel of patches of channels [c0, c1): [place, channel, patch].
func (g *winograd) packB(w *convWorker, dst []float32, j, c0, c1 int) {
	for l := 0; l < g.nr && j+l < g.tiles; l += g.lanes {
		g.view.block(&w.block, j+l, min(g.lanes, g.tiles-j-l))
		for c := c0; c < c1; c += winogradStrip {
			count := min(winogradStrip, c1-c)
			g.view.gather(&w.block, w.strip[:], g.lanes, winogradPlaces*g.lanes, c, count, g.lanes)
			winogradInput(&dst[c*g.nr+l], g.channels*g.nr, g.nr, &w.strip[0], count, g.lanes)
		}
	}
}

// computeBand computes one task's part of the result.
func (g *winograd) computeBand(i int) {
	w := getConvWorker()
	if g.shareA {
		lo := i * g.band
		hi := min(g.tiles, lo+g.band)
		panels := pieces(hi-lo, g.nr)
		s := scratchList.get(panels * g.sizeB())
		for j := range panels {
			g.packB(w, s.floats[j*g.sizeB():], lo+j*g.nr, 0, g.channels)
		}
		sum := scratchList.get(g.sumSize(panels))
		for panel := range g.panelsA() {
			g.rows(sum.floats, panel*g.mr, lo, hi, g.shared[panel*g.sizeA():], s.floats)
		}
		scratchList.put(sum)
		scratchList.put(s)
	} else {
		s := scratchList.get(g.sizeA())
		g.packA(w, s.floats, i*g.mr)
		sum := scratchList.get(g.sumSize(g.panelsB()))
		g.rows(sum.floats, i*g.mr, 0, g.tiles, s.floats, g.shared)
		scratchList.put(sum)
		scratchList.put(s)
	}
	w.release()
}

// sumSize is the memory of rows: products, and results in two lines.
func (g *winograd) sumSize(panels int) int { return (winogradPlaces + 4) * g.mr * panels * g.nr }

// rows computes rows [i, i+mr) of patches [lo, hi).
func (g *winograd) rows(sum []float32, i, lo, hi int, a, b []float32) {
	rows, width := min(g.mr, g.m-i), pieces(hi-lo, g.nr)*g.nr
	for xi := range winogradPlaces {
		for j := lo; j < hi; j += g.nr {
			tile(rows, min(g.nr, hi-j), g.channels, &a[xi*g.channels*g.aStep], 1, g.aStep,
				&b[(j-lo)/g.nr*g.sizeB()+xi*g.channels*g.nr], g.nr, &sum[xi*g.mr*width+j-lo], width, 1, 0, nil)
		}
	}
	lines := sum[winogradPlaces*g.mr*width:]
	var bias *float32
	if g.bias != nil {
		bias = &g.bias[i]
	}
	for l := 0; l < hi-lo; l += g.lanes {
		winogradOutput(&lines[2*l], 2*g.mr*width, 2*width, &sum[l], g.mr*width, width, rows, bias, g.lanes)
	}
	g.store(lines, width, i, rows, lo, hi)
}

// store copies lines of results to the images.
func (g *winograd) store(lines []float32, width, i, rows, lo, hi int) {
	v := &g.view
	size := v.rows * v.cols
	n := lo / size
	y, x := lo%size/v.cols, lo%size%v.cols
	for j := lo; j < hi; {
		run := min(v.cols-x, hi-j)
		for line := range min(2, g.outHeight-2*y) {
			to := n*g.dstImage + i*g.dstPlane + (2*y+line)*g.outWidth + 2*x
			from := 2*line*g.mr*width + 2*(j-lo)
			for l, most := 0, min(2*run, g.outWidth-2*x); l < most; l += 32 {
				copyRows(&g.dst[to+l], g.dstPlane, &lines[from+l], 2*width, rows, min(32, most-l))
			}
		}
		j, x = j+run, 0
		if y++; y == v.rows {
			y, n = 0, n+1
		}
	}
}

// The Go twins of the transforms, with the same arguments, of any number of lanes.

func portableWinogradInput(dst *float32, xiStep, step int, src *float32, count, lanes int) {
	row := func(d0, d1, d2, d3 float32) (_, _, _, _ float32) { return d0 - d2, d1 + d2, d2 - d1, d1 - d3 }
	for c := range count {
		for l := range lanes {
			var t [16]float32
			d := func(i int) float32 { return at(src, (c*16+i)*lanes+l) }
			for j := range 4 {
				t[j], t[4+j], t[8+j], t[12+j] = row(d(j), d(4+j), d(8+j), d(12+j))
			}
			for i := 0; i < 16; i += 4 {
				t[i], t[i+1], t[i+2], t[i+3] = row(t[i], t[i+1], t[i+2], t[i+3])
			}
			for i, v := range t {
				*shift(dst, i*xiStep+c*step+l) = v
			}
		}
	}
}

func portableWinogradWeights(dst *float32, xiStep, step int, src *float32, tapStep, kernelStep, count, lanes int) {
	row := func(g0, g1, g2 float32) (_, _, _, _ float32) {
		return g0, 0.5 * (g0 + g2 + g1), 0.5 * (g0 + g2 - g1), g2
	}
	for c := range count {
		for l := range lanes {
			var t [12]float32
			g := func(i int) float32 { return at(src, c*kernelStep+i*tapStep+l) }
			for j := range 3 {
				t[j], t[3+j], t[6+j], t[9+j] = row(g(j), g(3+j), g(6+j))
			}
			for i := range 4 {
				u0, u1, u2, u3 := row(t[3*i], t[3*i+1], t[3*i+2])
				for j, v := range [4]float32{u0, u1, u2, u3} {
					*shift(dst, (4*i+j)*xiStep+c*step+l) = v
				}
			}
		}
	}
}

func portableWinogradOutput(dst *float32, lineStep, dstStep int, src *float32, xiStep, srcStep, rows int, bias *float32, lanes int) {
	row := func(m0, m1, m2, m3 float32) (_, _ float32) { return m1 + m2 + m0, m1 - m2 - m3 }
	for r := range rows {
		start := float32(0)
		if bias != nil {
			start = at(bias, r)
		}
		for l := range lanes {
			var t [8]float32
			m := func(i int) float32 { return at(src, i*xiStep+r*srcStep+l) }
			for j := range 4 {
				t[j], t[4+j] = row(m(j), m(4+j), m(8+j), m(12+j))
			}
			for line := range 2 {
				y0, y1 := row(t[4*line], t[4*line+1], t[4*line+2], t[4*line+3])
				to := line*lineStep + r*dstStep + 2*l
				*shift(dst, to), *shift(dst, to+1) = y0+start, y1+start
			}
		}
	}
}
