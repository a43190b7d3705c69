// SPDX-License-Identifier: Apache-2.0

package tensor

import "unsafe"

// Embedding looks up rows: table [numRows, width] and int64 ids [batch…] give
// [batch…, width].
func Embedding(table, ids *Tensor) *Tensor {
	operands := []*Tensor{table, ids}
	table.wantDType("embedding", Float32)
	ids.wantDType("embedding", Int64)
	if len(table.shape) != 2 {
		fail("embedding", operands, "the table must have two dims")
	}
	return gather(table.Contiguous(), ids.Contiguous()).Reshape(append(ids.Shape(), table.shape[1])...)
}

// gather returns [ids, width].
func gather(table, ids *Tensor) *Tensor {
	operands := []*Tensor{table, ids}
	out := result("embedding", Float32, []int{ids.NumElems(), table.shape[1]}, operands...)
	if bad := out.Device().Gather(out.array(), table.array(), ids.array()); bad >= 0 {
		fail("embedding", operands, "id %d at position %d is not one of the table's %d rows", ids.Int64s()[bad], bad, table.shape[0])
	}
	return out.record("embedding", []*Tensor{table}, []*Tensor{ids}, func(b *backprop, g *Tensor) {
		if leaf, ok := b.rows(0); ok {
			leaf.AddRows(rowGrad(g, ids, table.shape[0]))
			return
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

// scatter is the reverse of gather: rows of g added into numRows rows of zeros.
func scatter(g, ids *Tensor, numRows int) *Tensor {
	src := g.Contiguous()
	out := result("scatter", Float32, []int{numRows, g.shape[len(g.shape)-1]}, g, ids)
	out.Device().Fill(out.array(), 0)
	out.Device().ScatterAdd(out.array(), src.array(), ids.array())
	return out.record("scatter", []*Tensor{g}, []*Tensor{ids}, func(b *backprop, gg *Tensor) {
		b.give(0, gather(gg.Contiguous(), ids))
	})
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
