// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// A sparse table's gradient comes by rows, holds each used row once, sums over
// passes, and equals the dense one; a table that is also used whole gets a dense
// gradient.
func TestSparseParametersTakeRows(t *testing.T) {
	table := func(sparse bool) *Embedding {
		data := make([]float32, 12)
		for i := range data {
			data[i] = float32(i) / 10
		}
		e := &Embedding{Weight: NewParameter(tensor.FromFloat32(data, 6, 2))}
		e.Weight.Sparse = sparse
		return e
	}
	pass := func(e *Embedding, ids []int64, tied bool) {
		c := Training(t.Context())
		defer c.Close()
		h := c.Call(e, tensor.FromInt64(ids))
		loss := h.Mul(h).Sum()
		if tied {
			loss = loss.Add(h.MatMul(c.Param(e.Weight).T()).Sum())
		}
		if err := loss.Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	sparse, dense := table(true), table(false)
	for _, e := range []*Embedding{sparse, dense} {
		pass(e, []int64{4, 1, 4}, false)
		pass(e, []int64{0, 4}, false)
	}
	g := sparse.Weight.RowGrad()
	if g == nil || sparse.Weight.Grad() != nil {
		t.Fatalf("row gradient %v, dense gradient %v", g, sparse.Weight.Grad())
	}
	if ids := g.IDs.Int64s(); !slices.Equal(ids, []int64{0, 1, 4}) || g.NumRows != 6 {
		t.Errorf("rows %v of %d, want 0, 1, 4 of 6", ids, g.NumRows)
	}
	if got, want := g.Dense().Float32s(), dense.Weight.Grad().Float32s(); !slices.Equal(got, want) {
		t.Errorf("gradient %v, the dense one is %v", got, want)
	}
	sparse.Weight.ZeroGrad()
	dense.Weight.ZeroGrad()
	if sparse.Weight.RowGrad() != nil {
		t.Error("ZeroGrad keeps the rows")
	}
	for _, e := range []*Embedding{sparse, dense} {
		pass(e, []int64{3, 5, 3}, true)
		pass(e, []int64{2}, false)
	}
	got, want := sparse.Weight.Grad(), dense.Weight.Grad()
	if sparse.Weight.RowGrad() != nil || got == nil {
		t.Fatal("a table that is used whole has no dense gradient")
	}
	for i, w := range want.Float32s() {
		if d := got.Float32s()[i] - w; !(-1e-5 <= d && d <= 1e-5) {
			t.Errorf("element %d: %v, the dense table has %v", i, got.Float32s()[i], w)
		}
	}
}
