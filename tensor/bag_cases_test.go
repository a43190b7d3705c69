// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// bagCases are embeddings that make one row of several.
func bagCases(dev Device) []opCase {
	on := On(dev)
	ids := on.FromInt64([]int64{3, 1, 3, 0, 2, 3, 1})
	offsets := on.FromInt64([]int64{0, 2, 2, 6})
	square := on.FromInt64([]int64{4, 1, 4, 0, 2, 2}, 2, 3)
	bag := func(ids, offsets *Tensor, o EmbeddingBagOptions) func(in []*Tensor) *Tensor {
		return func(in []*Tensor) *Tensor {
			o := o
			if len(in) > 1 {
				o.PerSampleWeights = in[1]
			}
			return EmbeddingBag(in[0], ids, offsets, o)
		}
	}
	naive := func(ids []int64, ends []int, mode BagMode, padding int64) func(in []array) array {
		return func(in []array) array {
			width := in[0].shape[1]
			out := newArray(len(ends), width)
			at := 0
			for b, end := range ends {
				for c := range width {
					sum, n, best := 0.0, 0, math.Inf(-1)
					for pos := at; pos < end; pos++ {
						if ids[pos] == padding {
							continue
						}
						x := in[0].at(int(ids[pos]), c)
						if len(in) > 1 {
							x *= in[1].data[pos]
						}
						sum, n, best = sum+x, n+1, max(best, x)
					}
					switch {
					case n == 0:
						sum = 0
					case mode == BagMean:
						sum /= float64(n)
					case mode == BagMax:
						sum = best
					}
					out.set(sum, b, c)
				}
				at = end
			}
			return out
		}
	}
	ends := []int{2, 2, 6, 7}
	one := new(1)
	return []opCase{
		{
			name: "bag mean", shapes: [][]int{{4, 3}}, apply: bag(ids, offsets, EmbeddingBagOptions{}),
			naive: naive(ids.Int64s(), ends, BagMean, -1),
		},
		{
			name: "bag sum", shapes: [][]int{{4, 3}}, apply: bag(ids, offsets, EmbeddingBagOptions{Mode: BagSum}),
			naive: naive(ids.Int64s(), ends, BagSum, -1),
		},
		{
			name: "bag max", shapes: [][]int{{4, 3}}, apply: bag(ids, offsets, EmbeddingBagOptions{Mode: BagMax}),
			naive: naive(ids.Int64s(), ends, BagMax, -1),
		},
		{
			name: "bag weighted", shapes: [][]int{{4, 3}, {7}}, apply: bag(ids, offsets, EmbeddingBagOptions{Mode: BagSum}),
			naive: naive(ids.Int64s(), ends, BagSum, -1),
		},
		{
			name: "bag weighted padded", shapes: [][]int{{4, 3}, {7}}, apply: bag(ids, offsets, EmbeddingBagOptions{Mode: BagSum, PaddingIdx: one}),
			naive: naive(ids.Int64s(), ends, BagSum, 1),
		},
		{
			name: "bag mean padded", shapes: [][]int{{4, 3}}, apply: bag(ids, offsets, EmbeddingBagOptions{PaddingIdx: one}),
			naive: naive(ids.Int64s(), ends, BagMean, 1),
		},
		{
			name: "bag max padded", shapes: [][]int{{4, 3}}, apply: bag(ids, offsets, EmbeddingBagOptions{Mode: BagMax, PaddingIdx: one}),
			naive: naive(ids.Int64s(), ends, BagMax, 1),
		},
		{
			name: "bag last offset", shapes: [][]int{{4, 3}},
			apply: bag(ids, on.FromInt64([]int64{0, 2, 2, 6, 7}), EmbeddingBagOptions{Mode: BagSum, IncludeLastOffset: true}),
			naive: naive(ids.Int64s(), ends, BagSum, -1),
		},
		{
			name: "bag of rows", shapes: [][]int{{5, 2}}, apply: bag(square, nil, EmbeddingBagOptions{}),
			naive: naive(square.Int64s(), []int{3, 6}, BagMean, -1),
		},
		{
			name: "bag of rows weighted", shapes: [][]int{{5, 2}, {2, 3}}, apply: bag(square, nil, EmbeddingBagOptions{Mode: BagSum}),
			naive: naive(square.Int64s(), []int{3, 6}, BagSum, -1),
		},
		{
			name: "embedding padded", shapes: [][]int{{5, 2}}, apply: func(in []*Tensor) *Tensor { return EmbeddingPadded(in[0], square, 2) },
			naive: func(in []array) array {
				return fromIndex([]int{2, 3, 2}, func(i []int) float64 { return in[0].at(int(at(square, i[:2])), i[2]) })
			},
			// The row that gets no gradient has a derivative, so there is
			// nothing for finite differences to agree with.
			noGradient: "the padding row is left out",
		},
	}
}

// rowCollector is a leaf that takes rows.
type rowCollector struct {
	collector
	rows *RowGrad
}

func (*rowCollector) WantsRows() bool { return true }

func (c *rowCollector) AddRows(g RowGrad) { c.rows = &g }

// Large batches, shared by threads, against the dense gradient and the recorded
// definition.
func TestLargeBags(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 0))
	const numRows, width, numBags = 5000, 24, 3000
	table := randomTensor(rng, false, []int{numRows, width})
	var ids, offsets []int64
	for range numBags {
		offsets = append(offsets, int64(len(ids)))
		for range rng.IntN(8) {
			ids = append(ids, rng.Int64N(numRows)*rng.Int64N(2)) // half of them 0
		}
	}
	padding := int(ids[len(ids)/2])
	in, at := FromInt64(ids), FromInt64(offsets)
	for _, c := range []struct {
		name string
		o    EmbeddingBagOptions
	}{
		{"mean", EmbeddingBagOptions{}},
		{"sum", EmbeddingBagOptions{Mode: BagSum}},
		{"weighted", EmbeddingBagOptions{Mode: BagSum, PerSampleWeights: randomTensor(rng, false, []int{len(ids)})}},
		{"max", EmbeddingBagOptions{Mode: BagMax}},
		{"padded", EmbeddingBagOptions{PaddingIdx: &padding}},
	} {
		weights := randomTensor(rng, false, []int{numBags, width})
		grads := make([]*Tensor, 3)
		var ready [2]int
		for i := range grads {
			tp := NewTape(true)
			dense, rows := &collector{shape: table.shape}, &rowCollector{collector: collector{shape: table.shape}}
			leaf := Leaf(dense)
			if i == 1 {
				leaf = rows
			}
			x := tp.Watch(table, leaf)
			loss := EmbeddingBag(x, in, at, c.o).Mul(weights).Sum()
			if i == 2 {
				g, err := loss.Grad(t.Context(), nil, []*Tensor{x}, CreateGraph())
				if err != nil {
					t.Fatal(err)
				}
				grads[i] = g[0].Keep()
			} else if err := loss.Backward(t.Context()); err != nil {
				t.Fatal(err)
			} else if i == 0 {
				grads[i] = dense.grad
				ready[0] = dense.ready
			} else {
				grads[i] = rows.rows.Dense()
				ready[1] = rows.ready
				if got := rows.rows.IDs.Int64s(); !slices.IsSorted(got) || len(slices.Compact(got)) != len(got) {
					t.Errorf("%s: the ids of the rows are not increasing", c.name)
				}
			}
			tp.Close()
		}
		if ready != [2]int{1, 1} {
			t.Errorf("%s: leaves were ready %v times", c.name, ready)
		}
		if !slices.Equal(grads[0].Float32s(), grads[1].Float32s()) {
			t.Errorf("%s: the gradient by rows differs from the dense one", c.name)
		}
		compareValues(t, c.name, grads[2].Float32s(), widen(grads[0].Float32s()), 1e-5)
	}
}

// An embedding's gradient by rows is that of plain loops.
func TestRowGradOfManyIDs(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 0))
	const numRows, width = 70000, 12
	for _, n := range []int{0, 1, 50, 63, 64, 5000} {
		ids := make([]int64, n)
		for i := range ids {
			ids[i] = rng.Int64N(numRows) >> rng.IntN(17)
		}
		g := randomTensor(rng, false, []int{n, width})
		got := rowGrad(g, FromInt64(ids, n), numRows, 3)
		want, gs := map[int64][]float32{}, g.Float32s()
		for i, id := range ids {
			if id == 3 {
				continue
			}
			if want[id] == nil {
				want[id] = make([]float32, width)
			}
			for c := range width {
				want[id][c] += gs[i*width+c]
			}
		}
		if len(want) != got.IDs.NumElems() || !slices.IsSorted(got.IDs.Int64s()) {
			t.Fatalf("%d ids: %d rows, want %d in order", n, got.IDs.NumElems(), len(want))
		}
		rows := got.Rows.Float32s()
		for i, id := range got.IDs.Int64s() {
			if !slices.Equal(rows[i*width:(i+1)*width], want[id]) {
				t.Fatalf("%d ids: row %d is %v, want %v", n, id, rows[i*width:(i+1)*width], want[id])
			}
		}
	}
}

func TestBagMisuse(t *testing.T) {
	table, ids := Zeros(4, 2), FromInt64([]int64{0, 1, 5})
	good := FromInt64([]int64{0, 1, 3})
	at := func(offsets ...int64) *Tensor { return FromInt64(offsets) }
	mustFail(t, "index 5 at position [2]", func() { EmbeddingBag(table, ids, at(0), EmbeddingBagOptions{}) })
	mustFail(t, "offset 4 at position 1", func() { EmbeddingBag(table, good, at(0, 4), EmbeddingBagOptions{}) })
	mustFail(t, "offset 1 at position 2", func() { EmbeddingBag(table, good, at(0, 2, 1), EmbeddingBagOptions{}) })
	mustFail(t, "offset 1 at position 0", func() { EmbeddingBag(table, good, at(1, 2), EmbeddingBagOptions{}) })
	mustFail(t, "the last offset is 2", func() { EmbeddingBag(table, good, at(0, 2), EmbeddingBagOptions{IncludeLastOffset: true}) })
	mustFail(t, "weights go with mode sum", func() { EmbeddingBag(table, good, at(0), EmbeddingBagOptions{PerSampleWeights: Zeros(3)}) })
	mustFail(t, "PaddingIdx 4", func() { EmbeddingBag(table, good, at(0), EmbeddingBagOptions{PaddingIdx: new(4)}) })
	mustFail(t, "PaddingIdx -1", func() { EmbeddingPadded(table, good, -1) })
	mustFail(t, "ids of two dims", func() { EmbeddingBag(table, good, nil, EmbeddingBagOptions{}) })
	meta := EmbeddingBag(New(Meta, Float32, 4, 2), New(Meta, Int64, 3), New(Meta, Int64, 2), EmbeddingBagOptions{})
	if got := meta.Shape(); !slices.Equal(got, []int{2, 2}) {
		t.Errorf("on meta: %v", got)
	}
}
