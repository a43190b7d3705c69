// SPDX-License-Identifier: Apache-2.0

package kernel

import "github.com/cohort-ml/cohort/internal/work"

// Embedding copies rows of table [entries, width] into dst [len(ids), width]:
// dst[i] = table[ids[i]]. An id out of range panics.
func Embedding(p *work.Pool, dst, table []float32, ids []int64, width int) {
	dst = dst[:len(ids)*width]
	overRows(p, len(ids), width, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			at := int(ids[i]) * width
			copy(dst[i*width:(i+1)*width], table[at:at+width])
		}
	})
}

// EmbeddingBackward adds each row of g [len(ids), width] to the row of dtable
// [entries, width] that its id names. Rows with the same id are added in the
// order of ids.
func EmbeddingBackward(p *work.Pool, dtable, g []float32, ids []int64, width int) {
	g = g[:len(ids)*width]
	add := vec().add
	// Threads share the columns, not the ids, so that no two of them write the
	// same element and every element has one order of additions.
	columns := func(lo, hi int) {
		for i, id := range ids {
			row := dtable[int(id)*width+lo : int(id)*width+hi]
			add(row, row, g[i*width+lo:i*width+hi])
		}
	}
	const narrowest = 4 * lineElems
	if threads(p) == 1 || len(g) < 2*soloElems {
		columns(0, width)
		return
	}
	if width < 2*narrowest {
		// Too few columns to share. Threads share the rows of dtable instead.
		SumSegments(p, dtable, RowsOf{Data: g}, GroupIDs(ids, -1), width, true)
		return
	}
	parts := min(threads(p), width/narrowest)
	span := (pieces(width, parts) + lineElems - 1) &^ (lineElems - 1)
	p.Run(pieces(width, span), func(i int) { columns(i*span, min((i+1)*span, width)) })
}
