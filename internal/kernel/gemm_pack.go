// SPDX-License-Identifier: Apache-2.0

package kernel

// packA packs rows [lo, hi) of A: panels of mr rows, in each of which the
// elements of a column lie together.
func (g *product) packA(dst []float32, lo, hi, k0, k1 int) {
	if g.a.Trans {
		g.packWide(dst, g.aStep, g.mr, &g.a, lo, hi, k0, k1)
	} else {
		g.packTall(dst, g.aStep, g.mr, &g.a, lo, hi, k0, k1)
	}
}

// packB packs columns [lo, hi) of B: panels of nr columns, row after row.
func (g *product) packB(dst []float32, lo, hi, k0, k1 int) {
	if g.b.Trans {
		g.packTall(dst, g.nr, g.nr, &g.b, lo, hi, k0, k1)
	} else {
		g.packWide(dst, g.nr, g.nr, &g.b, lo, hi, k0, k1)
	}
}

// packWide packs the part [lo, hi) of rows [k0, k1) of memory into panels of
// unit elements, step apart. It goes through all panels for a few rows at a
// time: where rows lie a multiple of 4 KiB apart, more of them than the cache
// has ways would push each other out before the next panel has used the rest of
// their lines.
func (g *product) packWide(dst []float32, step, unit int, x *Mixed, lo, hi, k0, k1 int) {
	const strip = 8
	var tmp *scratch
	if g.how == rounded {
		tmp = scratchList.get(strip * (hi - lo))
	}
	panel := step * g.slots(k1-k0)
	for l := k0; l < k1; l += strip {
		rows := min(strip, k1-l)
		from, stride, base := x.F32, x.Stride, l*x.Stride+lo
		if g.how == rounded {
			roundRows(tmp.floats, x, rows, base, hi-lo)
			from, stride, base = tmp.floats, hi-lo, 0
		}
		for i, at := lo, g.slots(l-k0)*step; i < hi; i, at = i+unit, at+panel {
			width := min(unit, hi-i)
			switch {
			case g.how != paired:
				packRows(&dst[at], step, &from[base+i-lo], stride, rows, width, unit)
			case x.BF16 != nil:
				packPairsHalves(&dst[at], step, &x.BF16[base+i-lo], stride, rows, width, unit)
			default:
				packPairs(&dst[at], step, &from[base+i-lo], stride, rows, width, unit)
			}
		}
	}
	if tmp != nil {
		scratchList.put(tmp)
	}
}

// packTall packs the part [k0, k1) of rows [lo, hi) of memory, transposed, into
// panels of unit rows whose columns are step apart.
func (g *product) packTall(dst []float32, step, unit int, x *Mixed, lo, hi, k0, k1 int) {
	var tmp *scratch
	if g.how == rounded {
		tmp = scratchList.get(unit * (k1 - k0))
	}
	panel := step * g.slots(k1-k0)
	for i, at := lo, 0; i < hi; i, at = i+unit, at+panel {
		rows, from := min(unit, hi-i), i*x.Stride+k0
		switch {
		case g.how == exact:
			packTransposed(&dst[at], step, &x.F32[from], x.Stride, rows, k1-k0, unit)
		case g.how == rounded:
			roundRows(tmp.floats, x, rows, from, k1-k0)
			packTransposed(&dst[at], step, &tmp.floats[0], k1-k0, rows, k1-k0, unit)
		case x.BF16 != nil:
			packTransposedHalves(&dst[at], step, &x.BF16[from], x.Stride, rows, k1-k0, unit)
		default:
			packTransposedPairs(&dst[at], step, &x.F32[from], x.Stride, rows, k1-k0, unit)
		}
	}
	if tmp != nil {
		scratchList.put(tmp)
	}
}

// roundRows writes rows of n elements of x, from an index on, to dst as floats
// that bfloat16 has.
func roundRows(dst []float32, x *Mixed, rows, from, n int) {
	for r := range rows {
		if at := from + r*x.Stride; x.BF16 != nil {
			fromBF16(dst[r*n:][:n], x.BF16[at:])
		} else {
			roundBF16(dst[r*n:][:n], x.F32[at:])
		}
	}
}
