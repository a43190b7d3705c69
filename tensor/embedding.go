// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/work"
)

// Embedding looks up rows: table [numRows, width] and int64 ids [batch…] give
// [batch…, width].
func Embedding(table, ids *Tensor) *Tensor { return embedding(table, ids, -1) }

// EmbeddingPadded is Embedding with a row that gets no gradient: the one that
// fills up sequences.
func EmbeddingPadded(table, ids *Tensor, paddingIdx int) *Tensor {
	present("embedding", table, ids)
	if len(table.shape) == 2 && (paddingIdx < 0 || paddingIdx >= table.shape[0]) {
		fail("embedding", []*Tensor{table, ids}, "PaddingIdx %d is not one of the table's %d rows", paddingIdx, table.shape[0])
	}
	return embedding(table, ids, int64(paddingIdx))
}

// embedding has the id whose row gets no gradient, -1 for none.
func embedding(table, ids *Tensor, padding int64) *Tensor {
	present("embedding", table, ids)
	operands := []*Tensor{table, ids}
	if !table.dtype.IsFloat() {
		wantDTypeOf("embedding", "table", operands, table, Float32)
	}
	wantDTypeOf("embedding", "ids", operands, ids, Int64)
	if len(table.shape) != 2 {
		fail("embedding", operands, "the table must have two dims")
	}
	shape := append(ids.Shape(), table.shape[1])
	if table.dtype != Float32 {
		flat := ids.Contiguous().Reshape(ids.NumElems())
		out := table.IndexSelect(0, flat)
		if padding >= 0 {
			out = out.view("padding", out.offset, out.shape, out.strides, func(b *backprop, g *Tensor) {
				b.give(0, g.To(Float32).Mul(notEqual(flat, padding)))
			})
		}
		return out.Reshape(shape...)
	}
	return gather(table.Contiguous(), ids.Contiguous(), padding).Reshape(shape...)
}

// gather returns [ids, width].
func gather(table, ids *Tensor, padding int64) *Tensor {
	operands := []*Tensor{table, ids}
	out := result("embedding", Float32, []int{ids.NumElems(), table.shape[1]}, operands...)
	if bad := out.Device().Gather(out.array(), table.array(), ids.array()); bad >= 0 {
		fail("embedding", operands, "id %d at position %d is not one of the table's %d rows", ids.Int64s()[bad], bad, table.shape[0])
	}
	return out.record("embedding", []*Tensor{table}, []*Tensor{ids}, func(b *backprop, g *Tensor) {
		if leaf, ok := b.rows(0); ok {
			leaf.AddRows(rowGrad(g.Contiguous(), ids, table.shape[0], padding))
			return
		}
		if padding >= 0 {
			g = g.Mul(notEqual(ids, padding))
		}
		if dst, beta, ok := b.direct(0); ok {
			if beta == 0 {
				dst.Fill(0)
			}
			dst.Device().ScatterAdd(dst.array(), g.Contiguous().array(), ids.array())
			return
		}
		b.give(0, scatter(g, ids, table.shape[0]))
	})
}

// notEqual returns 0 for each id that is equal to one, 1 for others: float32
// [ids, 1].
func notEqual(ids *Tensor, one int64) *Tensor {
	return ids.Reshape(ids.NumElems(), 1).NeScalar(float64(one)).To(Float32)
}

// scatter is the reverse of gather: rows of g added into numRows rows of zeros.
func scatter(g, ids *Tensor, numRows int) *Tensor {
	src := g.Contiguous()
	out := result("scatter", Float32, []int{numRows, g.shape[len(g.shape)-1]}, g, ids)
	out.Device().Fill(out.array(), 0)
	out.Device().ScatterAdd(out.array(), src.array(), ids.array())
	return out.record("scatter", []*Tensor{g}, []*Tensor{ids}, func(b *backprop, gg *Tensor) {
		b.give(0, gather(gg.Contiguous(), ids, -1))
	})
}

// rowGrad sums the rows of g that belong to one id, in the order of ids. Rows of
// the padding id are left out.
func rowGrad(g, ids *Tensor, numRows int, padding int64) RowGrad {
	return groupRows(g, ids, numRows, padding, func(dst, g *Tensor, fn func(p *work.Pool, dst []float32, from kernel.RowsOf)) {
		fused("row gradient", nil, []*Tensor{dst, g, ids}, func(p *work.Pool, a []device.Array) {
			fn(p, a[0].Float32s(), kernel.RowsOf{Data: a[1].Float32s()})
		})
	})
}

// groupRows makes the gradient of a table by rows: for each id that is used,
// the sum of the rows that rowsOf says its positions have.
func groupRows(g, ids *Tensor, numRows int, padding int64,
	rowsOf func(dst, g *Tensor, fn func(p *work.Pool, dst []float32, from kernel.RowsOf)),
) RowGrad {
	if g.Device() == Meta {
		n := min(numRows, ids.NumElems())
		return RowGrad{IDs: New(Meta, Int64, n), Rows: New(Meta, Float32, n, g.shape[len(g.shape)-1]), NumRows: numRows}
	}
	var segments kernel.Segments
	fused("group ids", []float64{float64(padding)}, []*Tensor{ids}, func(_ *work.Pool, a []device.Array) {
		segments = kernel.GroupIDs(a[0].Int64s(), padding)
	})
	width := g.shape[len(g.shape)-1]
	rows := alloc(nil, g.Device(), Float32, []int{len(segments.IDs), width}, false)
	rowsOf(rows, g, func(p *work.Pool, dst []float32, from kernel.RowsOf) {
		kernel.SumSegments(p, dst, from, segments, width, false)
	})
	return RowGrad{IDs: FromInt64(segments.IDs, len(segments.IDs)), Rows: rows, NumRows: numRows}
}

// Arange returns the int64s 0, 1, … n-1.
func Arange(dev Device, n int) *Tensor {
	t := alloc(nil, dev, Int64, []int{n}, false)
	if n > 0 && dev != Meta {
		ids := unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(t.host("arange")))), n)
		for i := range ids {
			ids[i] = int64(i)
		}
	}
	return t
}
