// SPDX-License-Identifier: Apache-2.0

package kernel

import "github.com/cohort-ml/cohort/internal/work"

// A vector times a matrix reads every element of the matrix once. It is done at
// the speed of memory when the matrix is read as it lies, in runs that the
// processor foresees, and nothing is packed but the vector. Where rows of memory
// are added up, sums have the terms of a tile in its order; where rows are
// multiplied by the vector, they are made of partial sums, one for each lane.

const (
	// vectorCols are the columns of a task where rows of B are added up: long
	// runs matter more than sums in the first-level cache, and these 64 KiB are
	// in the second.
	vectorCols = 16 << 10
	// vectorRows are the columns of a task where B is transposed, vectorK the
	// elements along k of one call of dotVector.
	vectorRows = 128
	vectorK    = 64 << 10
	// rowGroup is how many rows of B are read side by side.
	rowGroup = 8
)

// isVector tells whether the product is that of a vector and a matrix for which
// there are kernels.
func (g *product) isVector() bool {
	if g.m != 1 || g.n < lineElems {
		return false
	}
	return g.how == exact || g.how == paired && g.b.BF16 != nil
}

// vectorSlots is the number of slots of the vector's first n elements: pairs are
// multiplied by rows of B alone.
func (g *product) vectorSlots(n int) int {
	if g.b.Trans {
		return g.slots(n)
	}
	return n
}

func (g *product) computeVector(p *work.Pool, threads int) {
	var x *scratch
	if g.how == exact && (!g.a.Trans || g.a.Stride == 1) {
		g.shared = g.a.F32
	} else {
		x = scratchList.get(g.vectorSlots(g.k))
		g.shared = x.floats
		g.packVector()
	}
	g.big = vectorCols
	if g.b.Trans {
		g.big, g.kStep = vectorRows, min(vectorK, g.slots(g.k)*g.perSlot())
	}
	if share := pieces(g.n, threads); share < g.big {
		g.big = (share + 2*g.nr - 1) / (2 * g.nr) * (2 * g.nr)
	}
	runTasks(p, threads, (g.n+g.big-1)/g.big, g.vectorTask)
	if x != nil {
		scratchList.put(x)
	}
}

// packVector copies the only row of A.
func (g *product) packVector() {
	if g.how == exact || !g.b.Trans {
		step := 1
		if g.a.Trans {
			step = g.a.Stride
		}
		for l := range g.k {
			g.shared[l] = g.a.at(l * step)
		}
		if g.how != exact {
			roundBF16(g.shared[:g.k], g.shared)
		}
		return
	}
	for k0 := 0; k0 < g.k; k0 += g.kStep {
		dst, k1 := g.shared[g.slots(k0):], min(g.k, k0+g.kStep)
		if g.a.Trans {
			g.packWide(dst, 1, 1, &g.a, 0, 1, k0, k1)
		} else {
			g.packTall(dst, 1, 1, &g.a, 0, 1, k0, k1)
		}
	}
}

// vectorBand computes one task's columns of C.
func (g *product) vectorBand(i int) {
	j0, j1 := i*g.big, min(g.n, (i+1)*g.big)
	if g.alpha == 1 && g.beta == 0 && g.bias == nil && !g.needsSums() && g.kStep >= g.k {
		g.sumBlock(g.c.F32[j0:j1], j0, 0, g.k) // what C becomes as it is
		return
	}
	c, result := g.openBlock(0, 1, j0, j1)
	s := scratchList.get((j1 - j0 + lineElems - 1) &^ (lineElems - 1))
	for k0 := 0; k0 < g.k; k0 += g.kStep {
		k1 := min(g.k, k0+g.kStep)
		g.sumBlock(s.floats[:j1-j0], j0, k0, k1)
		g.addSums(&c, s.floats, j0, j1, k0)
	}
	scratchList.put(s)
	g.closeBlock(&c, result, 1, j1)
}

// sumBlock sets sums to the part [k0, k1) of the products in the columns from j0
// on.
func (g *product) sumBlock(sums []float32, j0, k0, k1 int) {
	x := g.shared[g.vectorSlots(k0):g.vectorSlots(k1)]
	if g.b.Trans {
		g.dotBlock(sums, x, j0, k0, k1)
	} else {
		g.addBlock(sums, x, j0, k0)
	}
}

// addBlock does so by adding up rows of B, dotBlock by multiplying them.
func (g *product) addBlock(sums, x []float32, j0, k0 int) {
	clear(sums)
	for l := 0; l < len(x); l += rowGroup {
		rows, from := min(rowGroup, len(x)-l), (k0+l)*g.b.Stride+j0
		if g.how == exact {
			addRows(&sums[0], &g.b.F32[from], g.b.Stride, &x[l], rows, len(sums))
		} else {
			addRowsHalves(&sums[0], &g.b.BF16[from], g.b.Stride, &x[l], rows, len(sums))
		}
	}
}

func (g *product) dotBlock(sums, x []float32, j0, k0, k1 int) {
	var four [4]float32
	for j := 0; j < len(sums); j += len(four) {
		rows, from := min(len(four), len(sums)-j), (j0+j)*g.b.Stride+k0
		if g.how == exact {
			dotVector(&four[0], &g.b.F32[from], g.b.Stride, &x[0], rows, k1-k0)
		} else {
			dotVectorHalves(&four[0], &g.b.BF16[from], g.b.Stride, &x[0], rows, k1-k0)
		}
		copy(sums[j:], four[:rows])
	}
}

// addSums brings the sums of the block of k from k0 on to C, by tiles of one
// step, so that alpha, beta and bias count as everywhere.
func (g *product) addSums(c *block, sums []float32, j0, j1, k0 int) {
	for j := j0; j < j1; j += g.nr {
		beta, bias := g.atStart(k0, j)
		tile(1, min(g.nr, j1-j), 1, &unit, 1, 1, &sums[j-j0], g.nr, &c.data[j-c.j0], c.ld, g.alpha, beta, bias)
	}
}

// unit is the factor of addSums.
var unit float32 = 1
