// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"sync"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/work"
)

// A product is cut as Goto and van de Geijn describe (Anatomy of
// High-Performance Matrix Multiplication, ACM TOMS 34, 2008): a tile of C stays
// in registers while panels of A and B, packed in the order in which the tile
// reads them, stream through the first-level cache.
//
// One operand is shared: it is packed once, by all threads, before the others
// start. The other is private: a task owns a band of C (rows when B is shared,
// columns when A is), packs its band of the private operand into memory of its
// own that stays in the second-level cache, and adds up all of k, so that no two
// tasks write the same element and the sums do not depend on who computes what.

//
// The same scheme serves three ways of multiplying. What differs is what an
// element of a packed panel is, a slot of 32 bits: a float, a float that
// bfloat16 has, or a pair of bfloat16 that follow each other along k.

const (
	// kBlock bounds the part of k that is packed and summed in registers at
	// once, in slots. It alone decides how sums round; see splitK.
	kBlock = 512
	// bigBand and smallBand are the rows or columns of a task: big ones first,
	// and small ones at the end so that threads finish together.
	bigBand   = 96
	smallBand = 24
	// serialLimit is the number of multiplications, about ten microseconds, below
	// which other threads do not come in time to help.
	serialLimit = 1 << 19
	// sharedLimit bounds the shared operand's packed part, in slots.
	sharedLimit = 2 << 20
)

// arithmetic is a way of multiplying.
type arithmetic uint8

const (
	exact   arithmetic = iota // float32
	rounded                   // floats rounded to bfloat16, by the tiles of float32
	paired                    // pairs of bfloat16, by AVX512_BF16
)

// product is one call of Gemm or GemmBF16.
type product struct {
	how         arithmetic
	m, n, k     int
	alpha, beta float32
	a, b, c     Mixed
	bias        []float32
	direct      bool      // compute the transpose, and read the matrix B where it lies
	swapped     bool      // C is the transpose of the product
	rowBias     []float32 // of a swapped one

	mr, nr, aStep int
	kStep         int // length of a block of k
	shareB        bool
	aDirect       bool // A is read where it lies
	bDirect       bool
	halfC         bool // tiles write bfloat16
	k0, k1        int  // the part of k that is shared now
	s0, s1        int  // the rows or columns of the shared operand, and of C
	shared        []float32
	numBig        int // bands of bigBand, before those of smallBand
	big, small    int

	packTask, bandTask, vectorTask func(i int)
}

// products are idle calls: keeping them saves the two closures.
var products struct {
	mu   sync.Mutex
	idle []*product
}

func getProduct() *product {
	products.mu.Lock()
	defer products.mu.Unlock()
	if last := len(products.idle) - 1; last >= 0 {
		g := products.idle[last]
		products.idle = products.idle[:last]
		return g
	}
	g := &product{}
	g.packTask, g.bandTask, g.vectorTask = g.packShared, g.band, g.vectorBand
	return g
}

func (g *product) release() {
	*g = product{packTask: g.packTask, bandTask: g.bandTask, vectorTask: g.vectorTask}
	products.mu.Lock()
	defer products.mu.Unlock()
	if len(products.idle) < 64 {
		products.idle = append(products.idle, g)
	}
}

// splitK returns the length of the blocks of k: equal ones, of at most kBlock
// slots.
func (g *product) splitK() int {
	slots := g.slots(g.k)
	blocks := (slots + kBlock - 1) / kBlock
	return (slots + blocks - 1) / blocks * g.perSlot()
}

// perSlot is how many elements along k a slot holds, slots how many n elements
// need.
func (g *product) perSlot() int {
	if g.how == paired {
		return 2
	}
	return 1
}

func (g *product) slots(n int) int {
	if g.how == paired {
		return (n + 1) / 2
	}
	return n
}

// compute runs the product. m, n and k are not 0.
func (g *product) compute(p *work.Pool) {
	threads := 1
	if p != nil && g.m*g.n*g.k >= serialLimit {
		threads = p.NumThreads()
	}
	g.mr, g.nr, g.aStep = tileShape()
	g.kStep = g.splitK()
	if g.isVector() {
		g.computeVector(p, threads)
		return
	}
	g.halfC = g.how == paired && g.c.BF16 != nil && g.beta == 0 && g.kStep >= g.k && !g.swapped
	g.shareB = g.m >= g.n
	// An operand that is read a few times is read where it lies, and so is one that
	// fits the first-level cache. Only AVX-512 reads a part of a panel of B, and
	// takes lines at a time, whole ones where rows begin with one.
	reads := 4
	if g.b.Stride%lineElems == 0 {
		reads = 5
	}
	g.aDirect = g.canReadA() && (g.n <= 2*g.nr || g.direct || g.a.isSmall(g.m, g.k))
	g.bDirect = g.how == exact && !g.b.Trans && (useISA == avx512 && (g.m <= reads*g.mr || g.b.isSmall(g.k, g.n)) || g.m <= g.mr && g.n%g.nr == 0)

	sharedSize, unit, private := g.n, g.nr, g.m
	direct := g.bDirect
	if !g.shareB {
		sharedSize, unit, private, direct = g.m, g.mr, g.n, g.aDirect
	}
	kGroup := min(g.k, max(1, sharedLimit/(4*unit)/g.slots(g.kStep))*g.kStep)
	if direct || g.needsSums() { // they move to C when all of k is in them
		kGroup = g.k
	}
	sharedGroup := max(1, sharedLimit/g.slots(kGroup)/unit) * unit
	if direct {
		sharedGroup = sharedSize
	}
	g.big, g.small = bigBand, smallBand
	if !g.shareB {
		g.big, g.small = max(bigBand, g.nr), max(smallBand, g.nr)
	}
	g.numBig = private / g.big
	if threads > 1 {
		g.numBig = max(0, (private-threads*g.big)/g.big)
	} else {
		g.small = g.big
	}
	bands := g.numBig + (private-g.numBig*g.big+g.small-1)/g.small

	for g.k0 = 0; g.k0 < g.k; g.k0 += kGroup {
		g.k1 = min(g.k, g.k0+kGroup)
		for g.s0 = 0; g.s0 < sharedSize; g.s0 += sharedGroup {
			g.s1 = min(sharedSize, g.s0+sharedGroup)
			var s *scratch
			if !direct {
				s = scratchList.get(g.sharedLength())
				g.shared = s.floats
				runTasks(p, threads, g.numPackTasks(), g.packTask)
			}
			runTasks(p, threads, bands, g.bandTask)
			if s != nil {
				scratchList.put(s)
			}
		}
	}
}

// isSmall tells whether a matrix of rows by cols takes at most 32 KiB, and no
// panel of it has all its rows in a few sets of the first-level cache.
func (m *Mixed) isSmall(rows, cols int) bool {
	if m.Trans {
		rows = cols
	}
	return rows*m.Stride <= 8<<10 && m.Stride%512 != 0
}

func runTasks(p *work.Pool, threads, n int, task func(i int)) {
	if threads == 1 || n == 1 {
		for i := range n {
			task(i)
		}
		return
	}
	p.Run(n, task)
}

// sharedPanels returns how many panels the shared part has, and the elements
// that a panel has for each step of k.
func (g *product) sharedPanels() (panels, step int) {
	if g.shareB {
		return (g.s1 - g.s0 + g.nr - 1) / g.nr, g.nr
	}
	return (g.s1 - g.s0 + g.mr - 1) / g.mr, g.aStep
}

func (g *product) sharedLength() int {
	panels, step := g.sharedPanels()
	return panels * step * g.slots(g.k1-g.k0)
}

// A task of packing is one block of k of packPanels panels.
const packPanels = 4

func (g *product) numPackTasks() int {
	panels, _ := g.sharedPanels()
	return (g.k1 - g.k0 + g.kStep - 1) / g.kStep * ((panels + packPanels - 1) / packPanels)
}

func (g *product) packShared(i int) {
	panels, step := g.sharedPanels()
	groups := (panels + packPanels - 1) / packPanels
	k0 := g.k0 + i/groups*g.kStep
	k1 := min(g.k1, k0+g.kStep)
	first := i % groups * packPanels
	base := g.slots(k0-g.k0)*panels*step + first*step*g.slots(k1-k0)
	if g.shareB {
		lo := g.s0 + first*g.nr
		g.packB(g.shared[base:], lo, min(g.s1, lo+packPanels*g.nr), k0, k1)
	} else {
		lo := g.s0 + first*g.mr
		g.packA(g.shared[base:], lo, min(g.s1, lo+packPanels*g.mr), k0, k1)
	}
}

// panels is how tiles find their part of an operand: panel i starts at
// base[i·panel]; in it, row and col are the distances of rows and columns.
type panels struct {
	base            []float32
	panel, row, col int
}

// canReadA tells whether tiles can read A where it lies: floats, or the pairs
// that neighbours in a row of bfloat16 are.
func (g *product) canReadA() bool {
	return g.how == exact || g.how == paired && g.a.BF16 != nil && !g.a.Trans && g.k%2 == 0 && g.a.Stride%2 == 0
}

func (g *product) directA(i, k0 int) panels {
	if g.how == paired {
		row := g.a.BF16[i*g.a.Stride+k0:]
		slots := unsafe.Slice((*float32)(unsafe.Pointer(&row[0])), len(row)/2)
		return panels{slots, g.mr * g.a.Stride / 2, g.a.Stride / 2, 1}
	}
	if g.a.Trans {
		return panels{g.a.F32[k0*g.a.Stride+i:], g.mr, 1, g.a.Stride}
	}
	return panels{g.a.F32[i*g.a.Stride+k0:], g.mr * g.a.Stride, g.a.Stride, 1}
}

func (g *product) directB(j, k0 int) panels {
	return panels{g.b.F32[k0*g.b.Stride+j:], g.nr, g.b.Stride, 1}
}

// band computes one task's rows or columns of C.
func (g *product) band(i int) {
	size, at := g.big, i*g.big
	if i >= g.numBig {
		size, at = g.small, g.numBig*g.big+(i-g.numBig)*g.small
	}
	i0, i1, j0, j1 := at, min(g.m, at+size), g.s0, g.s1
	if !g.shareB {
		i0, i1, j0, j1 = g.s0, g.s1, at, min(g.n, at+size)
	}
	c, sums := g.openBlock(i0, i1, j0, j1)
	var s *scratch
	if g.shareB && !g.aDirect {
		s = scratchList.get((size/g.mr + 1) * g.aStep * g.slots(g.kStep))
	} else if !g.shareB && !g.bDirect {
		s = scratchList.get((size/g.nr + 1) * g.nr * g.slots(g.kStep))
	}
	for k0 := g.k0; k0 < g.k1; k0 += g.kStep {
		k1 := min(g.k1, k0+g.kStep)
		if g.shareB {
			g.bandRows(s, &c, i0, i1, k0, k1)
		} else {
			g.bandCols(s, &c, j0, j1, k0, k1)
		}
	}
	if s != nil {
		scratchList.put(s)
	}
	g.closeBlock(&c, sums, i1, j1)
}

func (g *product) bandRows(s *scratch, c *block, i0, i1, k0, k1 int) {
	slots := g.slots(k1 - k0)
	a, b := panels{}, panels{}
	if g.aDirect {
		a = g.directA(i0, k0)
	} else {
		g.packA(s.floats, i0, i1, k0, k1)
		a = panels{s.floats, g.aStep * slots, 1, g.aStep}
	}
	if g.bDirect {
		b = g.directB(g.s0, k0)
	} else {
		count, step := g.sharedPanels()
		b = panels{g.shared[g.slots(k0-g.k0)*count*step:], step * slots, g.nr, 1}
	}
	for j := g.s0; j < g.s1; j += g.nr {
		i := i0
		if n := (i1 - i0) / g.mr; n > 0 && g.how != paired && g.s1-j >= g.nr {
			beta, bias := g.atStart(k0, j)
			tiles(n, k1-k0, &a.base[0], a.panel, a.row, a.col, &b.base[(j-g.s0)/g.nr*b.panel], 0, b.row,
				&c.data[(i-c.i0)*c.ld+j-c.j0], g.mr*c.ld, c.ld, g.alpha, beta, bias)
			i += n * g.mr
		}
		for ; i < i1; i += g.mr {
			g.tile(c, i, min(g.mr, i1-i), j, min(g.nr, g.s1-j), k0, k1, &a, (i-i0)/g.mr, &b, (j-g.s0)/g.nr)
		}
	}
}

func (g *product) bandCols(s *scratch, c *block, j0, j1, k0, k1 int) {
	slots := g.slots(k1 - k0)
	var a, b panels
	if g.bDirect {
		b = g.directB(j0, k0)
	} else {
		g.packB(s.floats, j0, j1, k0, k1)
		b = panels{s.floats, g.nr * slots, g.nr, 1}
	}
	if g.aDirect {
		a = g.directA(g.s0, k0)
	} else {
		count, step := g.sharedPanels()
		a = panels{g.shared[g.slots(k0-g.k0)*count*step:], step * slots, 1, g.aStep}
	}
	for i := g.s0; i < g.s1; i += g.mr {
		j := j0
		if n := (j1 - j0) / g.nr; n > 0 && g.how != paired && g.bias == nil && g.s1-i >= g.mr {
			beta, _ := g.atStart(k0, j) // the tiles of a row have biases of their own
			tiles(n, k1-k0, &a.base[(i-g.s0)/g.mr*a.panel], 0, a.row, a.col, &b.base[0], b.panel, b.row,
				&c.data[(i-c.i0)*c.ld+j-c.j0], g.nr, c.ld, g.alpha, beta, nil)
			j += n * g.nr
		}
		for ; j < j1; j += g.nr {
			g.tile(c, i, min(g.mr, g.s1-i), j, min(g.nr, j1-j), k0, k1, &a, (i-g.s0)/g.mr, &b, (j-j0)/g.nr)
		}
	}
}

// eachTile is tiles where there is no assembly for it.
func eachTile(n, k int, a *float32, aNext, aRow, aCol int, b *float32, bNext, bRow int, c *float32, cNext, ldc int, alpha, beta float32, bias *float32) {
	mr, nr, _ := tileShape()
	for i := range n {
		tile(mr, nr, k, shift(a, i*aNext), aRow, aCol, shift(b, i*bNext), bRow, shift(c, i*cNext), ldc, alpha, beta, bias)
	}
}

// atStart returns beta and bias for a tile at column j: the first block of k
// brings them, the others add to what is there.
func (g *product) atStart(k0, j int) (beta float32, bias *float32) {
	if k0 > 0 {
		return 1, nil
	}
	if g.bias != nil {
		bias = &g.bias[j]
	}
	return g.beta, bias
}

// tile adds the block [k0, k1) to a tile of C.
func (g *product) tile(c *block, i, rows, j, cols, k0, k1 int, a *panels, ai int, b *panels, bi int) {
	beta, bias := g.atStart(k0, j)
	if g.halfC {
		at := (*float32)(unsafe.Pointer(&g.c.BF16[i*g.c.Stride+j]))
		tilePairs(rows, cols, g.slots(k1-k0), &a.base[ai*a.panel], a.row, a.col, &b.base[bi*b.panel], b.row, at, 2*g.c.Stride, g.alpha, beta, bias, 1)
		return
	}
	to := &c.data[(i-c.i0)*c.ld+j-c.j0]
	if g.how == paired {
		tilePairs(rows, cols, g.slots(k1-k0), &a.base[ai*a.panel], a.row, a.col, &b.base[bi*b.panel], b.row, to, 4*c.ld, g.alpha, beta, bias, 0)
		return
	}
	tile(rows, cols, k1-k0, &a.base[ai*a.panel], a.row, a.col, &b.base[bi*b.panel], b.row, to, c.ld, g.alpha, beta, bias)
}
