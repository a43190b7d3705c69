// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// What Lookup reads, Insert puts into another table, which then goes on as the first does.
func TestLookupAndInsert(t *testing.T) {
	for _, s := range []Schema{
		{Name: "t", Width: 3, Init: Init{Kind: Uniform, Scale: 1, Seed: 4}, Optimizer: Optimizer{Kind: Adagrad, LR: 0.1, Initial: 0.5}},
		{Name: "t", Width: 2, DType: tensor.BFloat16, Init: Init{Kind: Normal, Scale: 1}, Optimizer: Optimizer{Kind: LazyAdam, LR: 0.1}},
		{Name: "t", Width: 2, DType: tensor.Int8, Init: Init{Kind: Normal, Scale: 1}},
		{Name: "t", Width: 4, Memory: 1, Init: Init{Kind: Uniform, Scale: 1}, Optimizer: Optimizer{Kind: Adagrad, LR: 0.1}},
	} {
		a, b := newTransferTable(t, s), newTransferTable(t, s)
		var keys []int64
		for k := range int64(3000) { // more than stay in memory
			keys = append(keys, 7*k-40)
		}
		grads := make([]float32, 2000*s.Width)
		for i := range grads {
			grads[i] = float32(i%13) - 6
		}
		update := func(table *Table, lsn uint64) {
			t.Helper()
			if _, err := table.Update(Mark{LSN: lsn, Step: lsn}, keys[:2000], grads); err != nil {
				t.Fatal(err)
			}
		}
		look := func(table *Table) (values, states []float32) {
			t.Helper()
			values, states = make([]float32, len(keys)*s.Width), make([]float32, len(keys)*table.StateLen())
			if err := table.Lookup(values, states, keys); err != nil {
				t.Fatal(err)
			}
			return values, states
		}
		update(a, 1)
		values, states := look(a)
		gathered := make([]byte, 4*len(values))
		if err := a.Gather(gathered, tensor.Float32, keys); err != nil {
			t.Fatal(err)
		}
		want := make([]float32, len(values))
		decode(want, gathered, tensor.Float32, s.Width)
		if !slices.Equal(values, want) {
			t.Errorf("%v: Lookup and Gather differ", s)
		}
		update(b, 1)
		update(b, 2)
		b.Clear(Mark{LSN: 3})
		if n := b.Len(); n != 0 {
			t.Fatalf("%v: %d rows are left of those that Clear has removed", s, n)
		}
		if err := b.Insert(Mark{LSN: 4, Step: 1}, keys, values, states); err != nil {
			t.Fatal(err)
		}
		update(a, 5)
		update(b, 5)
		values, states = look(a)
		if v, s := look(b); !slices.Equal(v, values) || !slices.Equal(s, states) {
			t.Errorf("%v: the table goes on in another way", b.schema)
		}
	}
	table := newTransferTable(t, Schema{Name: "t", Width: 2})
	if err := table.Insert(Mark{LSN: 1}, []int64{1}, make([]float32, 3), nil); err == nil {
		t.Error("a row of three values went into a table of width 2")
	}
}

func newTransferTable(t *testing.T, s Schema) *Table {
	t.Helper()
	table, err := New(s, Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	return table
}
