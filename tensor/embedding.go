// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"

	"github.com/cohort-ml/cohort/internal/device"
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
			out = out.view("padding", out.offset, out.shape, out.strides, nil, func(b *backprop, g *Tensor) {
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
	rows := table.shape[0]
	verify("embedding", operands, func(f device.Fault) string {
		return fmt.Sprintf("id %d at position %d is not one of the table's %d rows", f.Value, f.Position, rows)
	}, func(c *device.Check) {
		out.Device().Gather(out.array(), table.array(), ids.array(), c)
	})
	return out.record("embedding", []*Tensor{table}, []*Tensor{ids}, func(b *backprop, g *Tensor) {
		b.later(0, []*Tensor{g, ids}, func(b *backprop, to int) {
			giveTable(b, to, g, ids, table.shape[0], padding)
		})
	})
}

// giveTable gives the table of an embedding its gradient.
func giveTable(b *backprop, to int, g, ids *Tensor, numRows int, padding int64) {
	if leaf, ok := b.rowsTo(to); ok {
		leaf.AddRows(rowGrad(g.Contiguous(), ids, numRows, padding))
		return
	}
	if padding >= 0 {
		g = g.Mul(notEqual(ids, padding))
	}
	if dst, beta, ok := b.directTo(to); ok {
		if beta == 0 {
			dst.Fill(0)
		}
		dst.Device().ScatterAdd(dst.array(), g.Contiguous().array(), ids.array())
		return
	}
	b.giveTo(to, scatter(g, ids, numRows))
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
	return groupRows(g, ids, numRows, padding, func(dst, unique, order, starts *Tensor) {
		fused(device.SumSegments{}, dst, g, unique, order, starts)
	})
}

// groupRows makes the gradient of a table by rows. sum writes row i of dst: the sum
// over the positions order[starts[i]:starts[i+1]], which have the id unique[i]. How
// many ids there are is read from the device: the gradient's shape depends on it.
func groupRows(g, ids *Tensor, numRows int, padding int64, sum func(dst, unique, order, starts *Tensor)) RowGrad {
	dev, n, width := g.Device(), ids.NumElems(), g.shape[len(g.shape)-1]
	if dev == Meta {
		n = min(numRows, n)
		return RowGrad{IDs: alloc(nil, Meta, Int64, []int{n}, false), Rows: alloc(nil, Meta, Float32, []int{n, width}, false), NumRows: numRows}
	}
	unique, order := alloc(nil, dev, Int64, []int{n}, false), alloc(nil, dev, Int32, []int{n}, false)
	starts, count := alloc(nil, dev, Int32, []int{n + 1}, false), alloc(nil, dev, Int64, []int{1}, false)
	fused(device.GroupIDs{Skip: padding}, unique, order, starts, count, ids)
	used := int(count.Int64s()[0])
	rows := alloc(nil, dev, Float32, []int{used, width}, false)
	unique = unique.Narrow(0, 0, used)
	sum(rows, unique, order, starts)
	return RowGrad{IDs: unique, Rows: rows, NumRows: numRows}
}
