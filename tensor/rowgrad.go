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
func (g RowGrad) Add(h RowGrad) RowGrad { return SumRowGrads(g, h) }

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
