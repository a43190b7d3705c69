// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"github.com/cohort-ml/cohort/internal/work"
)

// The weight's gradient runs the transforms of conv_winograd.go backwards:
//
//	Gᵀ·[Σ over patches of (A·dy·Aᵀ) ⊙ (Bᵀ·d·B)]·G
//
// again 16 products, [out, patches] by [patches, in]. A task has a panel of
// input channels, and where there are few of those a part of the patches, which
// the shape alone decides.

// winogradBlock is the most patches that are transformed at a time, and
// winogradTasks how many tasks parts of the patches make where channels do not.
const (
	winogradBlock = 256
	winogradTasks = 8
)

// winogradWeight is one call of Conv2dBackwardWeight.
type winogradWeight struct {
	in, out, tiles     int
	x, dy              gatherer
	dw                 []float32
	beta               float32
	mr, nr, lanes      int
	step, stride       int // patches of a block, and the distance of its rows
	blocks, parts      int
	shared             []float32 // A·dy·Aᵀ: [block, place, out, patch]
	partial            []float32 // [part, panel, place, out, in of the panel]
	dys, dxs           []int
	packTask, bandTask func(i int)
	addTask            func(i int)
}

var winogradWeightsIdle idleList[winogradWeight]

func getWinogradWeight() *winogradWeight {
	if g := winogradWeightsIdle.get(); g != nil {
		return g
	}
	g := &winogradWeight{}
	g.packTask, g.bandTask, g.addTask = g.packShared, g.band, g.addParts
	return g
}

func (g *winogradWeight) release() {
	g.dw, g.shared, g.partial, g.x.src, g.dy.src = nil, nil, nil, nil, nil
	winogradWeightsIdle.put(g)
}

func (g *winogradWeight) compute(p *work.Pool, s Conv2dShape, dw, dy, x []float32, beta float32) {
	g.in, g.out, g.dw, g.beta = s.In, s.Out, dw, beta
	g.mr, g.nr, _ = tileShape()
	g.lanes = min(convLanes, g.nr)
	g.dys, g.dxs = g.dys[:0], g.dxs[:0]
	for i := range 4 {
		g.dys, g.dxs = append(g.dys, i-s.PadH), append(g.dxs, i-s.PadW)
	}
	rows, cols := s.OutHeight(), s.OutWidth()
	tilesY, tilesX := (rows+1)/2, (cols+1)/2
	g.tiles = s.Batch * tilesY * tilesX
	g.x.src, g.x.height, g.x.width, g.x.plane, g.x.image = x, s.Height, s.Width, s.Height*s.Width, s.In*s.Height*s.Width
	g.dy.src, g.dy.height, g.dy.width, g.dy.plane, g.dy.image = dy, rows, cols, rows*cols, s.Out*rows*cols
	for _, v := range []*gatherer{&g.x, &g.dy} {
		v.rows, v.cols, v.strideY, v.strideX = tilesY, tilesX, 2, 2
	}
	g.x.begin(g.dys, g.dxs)
	g.dys, g.dxs = append(g.dys[:0], 0, 1), append(g.dxs[:0], 0, 1)
	g.dy.begin(g.dys, g.dxs)

	g.step = pieces(pieces(g.tiles, pieces(g.tiles, winogradBlock)), convLanes) * convLanes
	g.blocks = pieces(g.tiles, g.step)
	g.stride = (g.step/lineElems | 1) * lineElems
	g.parts = max(1, min(g.blocks, winogradTasks/g.panels()))

	threads := 1
	if p != nil {
		threads = p.NumThreads()
	}
	packed := scratchList.get(g.blocks * winogradPlaces * g.out * g.stride)
	g.shared = packed.floats
	var sum *scratch
	if g.parts > 1 {
		sum = scratchList.get(g.parts * g.panels() * g.sumSize())
		g.partial = sum.floats
	}
	runTasks(p, threads, g.blocks*pieces(g.out, winogradStrip), g.packTask)
	runTasks(p, threads, g.parts*g.panels(), g.bandTask)
	if sum != nil {
		runTasks(p, threads, g.panels(), g.addTask)
		scratchList.put(sum)
	}
	scratchList.put(packed)
}

func (g *winogradWeight) panels() int { return pieces(g.in, g.nr) }

// sumSize is the elements of a panel's sums.
func (g *winogradWeight) sumSize() int { return winogradPlaces * g.out * g.nr }

// packShared transforms the gradient of some output channels, for a block.
func (g *winogradWeight) packShared(i int) {
	strips := pieces(g.out, winogradStrip)
	block, o := i/strips, i%strips*winogradStrip
	count := min(winogradStrip, g.out-o)
	dst := g.shared[(block*winogradPlaces*g.out+o)*g.stride:]
	w := getConvWorker()
	lo := block * g.step
	for j := lo; j < min(g.tiles, lo+g.step); j += g.lanes {
		g.dy.block(&w.block, j, min(g.lanes, g.tiles-j))
		g.dy.gather(&w.block, w.strip[:], g.lanes, 4*g.lanes, o, count, g.lanes)
		winogradGrad(&dst[j-lo], g.out*g.stride, g.stride, &w.strip[0], count, g.lanes)
	}
	w.release()
}

// band computes a panel of input channels, for a part of the patches.
func (g *winogradWeight) band(i int) {
	part, panel := i/g.panels(), i%g.panels()
	var own *scratch
	var sum []float32
	if g.parts > 1 {
		sum = g.partial[i*g.sumSize():]
	} else {
		own = scratchList.get(g.sumSize())
		sum = own.floats
	}
	c0 := panel * g.nr
	cols := min(g.nr, g.in-c0)
	b := scratchList.get(winogradPlaces * g.step * g.nr)
	w := getConvWorker()
	first := part * g.blocks / g.parts
	for block := first; block < (part+1)*g.blocks/g.parts; block++ {
		lo := block * g.step
		hi := min(g.tiles, lo+g.step)
		g.packB(w, b.floats, c0, cols, lo, hi)
		beta := float32(1)
		if block == first {
			beta = 0
		}
		for xi := range winogradPlaces {
			a := g.shared[(block*winogradPlaces+xi)*g.out*g.stride:]
			for o := 0; o < g.out; o += g.mr {
				tile(min(g.mr, g.out-o), cols, hi-lo, &a[o*g.stride], g.stride, 1, &b.floats[xi*g.step*g.nr], g.nr,
					&sum[(xi*g.out+o)*g.nr], g.nr, 1, beta, nil)
			}
		}
	}
	if own != nil {
		g.store(w, sum, c0, cols)
		scratchList.put(own)
	}
	w.release()
	scratchList.put(b)
}

// packB transforms patches [lo, hi) of a panel of channels: [place, patch, channel].
func (g *winogradWeight) packB(w *convWorker, dst []float32, c0, cols, lo, hi int) {
	for j := lo; j < hi; j += g.lanes {
		lanes := min(g.lanes, hi-j)
		g.x.block(&w.block, j, lanes)
		for c := 0; c < cols; c += winogradStrip {
			count := min(winogradStrip, cols-c)
			g.x.gather(&w.block, w.strip[:], g.lanes, winogradPlaces*g.lanes, c0+c, count, g.lanes)
			winogradInput(&w.patch[0], winogradStrip*g.lanes, g.lanes, &w.strip[0], count, g.lanes)
			for xi := range winogradPlaces {
				packTransposed(&dst[(xi*g.step+j-lo)*g.nr+c], g.nr, &w.patch[xi*winogradStrip*g.lanes], g.lanes, count, lanes, min(winogradStrip, g.nr-c))
			}
		}
	}
}

// addParts adds up the parts of a panel.
func (g *winogradWeight) addParts(panel int) {
	size := g.sumSize()
	sum := g.partial[panel*size : (panel+1)*size]
	for part := 1; part < g.parts; part++ {
		at := (part*g.panels() + panel) * size
		vec().add(sum, sum, g.partial[at:at+size])
	}
	w := getConvWorker()
	g.store(w, sum, panel*g.nr, min(g.nr, g.in-panel*g.nr))
	w.release()
}

// store transforms the sums of channels [c0, c0+cols) to the gradient.
func (g *winogradWeight) store(w *convWorker, sum []float32, c0, cols int) {
	for o := range g.out {
		for c := 0; c < cols; c += g.lanes {
			count := min(g.lanes, cols-c)
			winogradKernel(&w.strip[0], g.lanes, &sum[o*g.nr+c], g.out*g.nr, g.lanes)
			kernels := w.patch[:9*count]
			if useISA == avx512 {
				packTransposed(&kernels[0], 9, &w.strip[0], g.lanes, 9, count, 9)
			} else { // whose stores may be wider than 9
				portablePackTransposed(&kernels[0], 9, &w.strip[0], g.lanes, 9, count, 9)
			}
			to := g.dw[(o*g.in+c0+c)*9:][:9*count]
			if g.beta == 0 {
				copy(to, kernels)
				continue
			}
			for e, v := range kernels {
				to[e] = g.beta*to[e] + v
			}
		}
	}
}

func portableWinogradGrad(dst *float32, xiStep, step int, src *float32, count, lanes int) {
	row := func(y0, y1 float32) [4]float32 { return [4]float32{y0, y0 + y1, y0 - y1, -y1} }
	for c := range count {
		for l := range lanes {
			y := func(i int) float32 { return at(src, (c*4+i)*lanes+l) }
			left, right := row(y(0), y(2)), row(y(1), y(3))
			for i := range 4 {
				for j, v := range row(left[i], right[i]) {
					*shift(dst, (4*i+j)*xiStep+c*step+l) = v
				}
			}
		}
	}
}

func portableWinogradKernel(dst *float32, tapStep int, src *float32, xiStep, lanes int) {
	row := func(u0, u1, u2, u3 float32) [3]float32 {
		s, d := 0.5*(u1+u2), 0.5*(u1-u2)
		return [3]float32{u0 + s, d, s + u3}
	}
	for l := range lanes {
		var t [4][3]float32
		u := func(i int) float32 { return at(src, i*xiStep+l) }
		for j := range t {
			t[j] = row(u(j), u(4+j), u(8+j), u(12+j))
		}
		for i := range 3 {
			for j, v := range row(t[0][i], t[1][i], t[2][i], t[3][i]) {
				*shift(dst, (3*i+j)*tapStep+l) = v
			}
		}
	}
}
