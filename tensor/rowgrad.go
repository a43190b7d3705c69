// SPDX-License-Identifier: Apache-2.0

package tensor

// RowGrad is the gradient of a table of which few rows were used: the rows
// that have one. What a full gradient would cost in memory and time grows with
// the table, this with the batch. PyTorch calls it a sparse gradient.
type RowGrad struct {
	IDs     *Tensor // int64 [n], increasing: every row once
	Rows    *Tensor // float32 [n, width]: the gradient of row IDs[i]
	NumRows int     // of the table
}

// RowLeaf is a [Leaf] that also takes gradients by rows. An operation that
// computes such a gradient gives it to AddRows when the leaf wants it, else
// adds the rows into GradBuffer.
type RowLeaf interface {
	Leaf
	// WantsRows reports whether AddRows is to be called.
	WantsRows() bool
	// AddRows adds to the gradient of the present backward pass. The leaf may
	// keep g's tensors, which are under no tape.
	AddRows(g RowGrad)
}

// Dense returns the gradient as a tensor [NumRows, width] with zeros elsewhere.
func (g RowGrad) Dense() *Tensor {
	out := New(g.Rows.Device(), Float32, g.NumRows, g.Rows.shape[1])
	out.Device().ScatterAdd(out.array(), g.Rows.Contiguous().array(), g.IDs.Contiguous().array())
	return out
}

// Add returns the sum of two gradients of one table.
func (g RowGrad) Add(h RowGrad) RowGrad {
	if g.NumRows != h.NumRows || g.Rows.shape[1] != h.Rows.shape[1] {
		fail("add row gradients", []*Tensor{g.Rows, h.Rows}, "they belong to tables of %d and %d rows", g.NumRows, h.NumRows)
	}
	a, b := g.IDs.Int64s(), h.IDs.Int64s()
	ids := make([]int64, 0, len(a)+len(b))
	toA, toB := make([]int64, len(a)), make([]int64, len(b)) // where each row goes
	for i, j := 0, 0; i < len(a) || j < len(b); {
		next := int64(len(ids))
		switch {
		case j == len(b) || i < len(a) && a[i] < b[j]:
			ids = append(ids, a[i])
			toA[i] = next
			i++
		case i == len(a) || b[j] < a[i]:
			ids = append(ids, b[j])
			toB[j] = next
			j++
		default:
			ids = append(ids, a[i])
			toA[i], toB[j] = next, next
			i, j = i+1, j+1
		}
	}
	rows := New(g.Rows.Device(), Float32, len(ids), g.Rows.shape[1])
	rows.Device().ScatterAdd(rows.array(), g.Rows.Contiguous().array(), On(g.Rows.Device()).FromInt64(toA, len(toA)).array())
	rows.Device().ScatterAdd(rows.array(), h.Rows.Contiguous().array(), On(g.Rows.Device()).FromInt64(toB, len(toB)).array())
	return RowGrad{IDs: On(g.Rows.Device()).FromInt64(ids, len(ids)), Rows: rows, NumRows: g.NumRows}
}

// SumRowGrads returns the sum of gradients of one table; rows of one id are
// added in the order of gs. There must be at least one.
func SumRowGrads(gs ...RowGrad) RowGrad {
	var ids, rows []*Tensor
	for _, g := range gs {
		if g.NumRows != gs[0].NumRows || g.Rows.shape[1] != gs[0].Rows.shape[1] {
			fail("add row gradients", []*Tensor{gs[0].Rows, g.Rows}, "they belong to tables of %d and %d rows", gs[0].NumRows, g.NumRows)
		}
		ids, rows = append(ids, g.IDs), append(rows, g.Rows)
	}
	allIDs, allRows := Cat(0, ids...).Contiguous(), Cat(0, rows...).Contiguous()
	checkIndices("add row gradients", []*Tensor{allIDs}, allIDs, 0, gs[0].NumRows)
	return rowGrad(allRows, allIDs, gs[0].NumRows, -1)
}
