// SPDX-License-Identifier: Apache-2.0

package kernel

import "math"

// block is a part of C, of rows ld apart from (i0, j0) on, or sums that become
// one: a band adds up there what the tiles cannot write to C itself.
type block struct {
	data       []float32
	ld, i0, j0 int
}

const (
	// narrowCols and fewestRows are when a product is computed as its
	// transpose, Bᵀ·Aᵀ: a tile is wide and low, and a narrow C leaves most of
	// its registers empty.
	narrowCols = 16
	fewestRows = 32
)

// swapNarrow turns a product with a narrow C into that of the transposes. The
// sums are the same bit for bit: factors are swapped, terms keep their order. A
// bias that comes with alpha or beta is left alone, for it would be rounded at
// another place.
func (g *product) swapNarrow() {
	if !g.direct && (g.n > narrowCols || g.m < fewestRows) || g.bias != nil && (g.alpha != 1 || g.beta != 0) {
		return
	}
	g.m, g.n, g.a, g.b = g.n, g.m, g.b, g.a
	g.a.Trans, g.b.Trans = !g.a.Trans, !g.b.Trans
	if g.m == 1 && g.c.Stride == 1 && g.bias == nil {
		g.c.Stride = g.n // a column of single elements is a row
		return
	}
	g.swapped = true
	if g.bias != nil { // the sums begin with it
		g.rowBias, g.bias, g.beta = g.bias, nil, 1
	}
}

// needsSums tells whether bands have memory for sums: of a C of bfloat16, unless
// tiles have all of an element at once, and of a transposed one.
func (g *product) needsSums() bool { return g.swapped || g.c.BF16 != nil && !g.halfC }

// openBlock returns where a band writes rows [i0, i1) and columns [j0, j1): C,
// or memory for sums, which closeBlock takes back.
func (g *product) openBlock(i0, i1, j0, j1 int) (block, *scratch) {
	if !g.needsSums() {
		return block{g.c.F32, g.c.Stride, 0, 0}, nil
	}
	ld := (j1 - j0 + lineElems - 1) &^ (lineElems - 1)
	sums := scratchList.get((i1 - i0) * ld)
	c := block{sums.floats, ld, i0, j0}
	g.loadSums(&c, i1, j1)
	return c, sums
}

func (g *product) closeBlock(c *block, sums *scratch, i1, j1 int) {
	if sums != nil {
		g.storeSums(c, i1, j1)
		scratchList.put(sums)
	}
}

// loadSums fills the sums with what beta multiplies.
func (g *product) loadSums(c *block, i1, j1 int) {
	if g.beta == 0 {
		return
	}
	for i := c.i0; i < i1; i++ {
		row := c.data[(i-c.i0)*c.ld:][:j1-c.j0]
		switch {
		case !g.swapped:
			fromBF16(row, g.c.BF16[i*g.c.Stride+c.j0:])
		case g.rowBias != nil:
			for j := range row {
				row[j] = g.rowBias[i]
			}
		default:
			for j := range row {
				row[j] = g.c.at((c.j0+j)*g.c.Stride + i)
			}
		}
	}
}

// storeSums moves the sums to C.
func (g *product) storeSums(c *block, i1, j1 int) {
	rows, cols := i1-c.i0, j1-c.j0
	if !g.swapped {
		for i := range rows {
			toBF16(g.c.BF16[(c.i0+i)*g.c.Stride+c.j0:][:cols], c.data[i*c.ld:])
		}
		return
	}
	to := c.j0*g.c.Stride + c.i0
	if g.c.BF16 == nil {
		transposeRows(&g.c.F32[to], g.c.Stride, &c.data[0], c.ld, rows, cols)
		return
	}
	for i := range rows {
		row := c.data[i*c.ld:][:cols]
		roundBF16(row, row)
		for j, x := range row {
			g.c.BF16[to+j*g.c.Stride+i] = uint16(math.Float32bits(x) >> 16)
		}
	}
}
