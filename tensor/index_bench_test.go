// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math/rand/v2"
	"testing"
)

// BenchmarkIndexing reports the bytes written, but for the orders, where it is the
// bytes read.
func BenchmarkIndexing(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 0))
	x := randomTensor(rng, false, []int{4096, 1024})
	rows := make([]int64, 4096)
	for i := range rows {
		rows[i] = rng.Int64N(4096)
	}
	ids := FromInt64(rows)
	router := randomTensor(rng, false, []int{4096, 256})
	long := randomTensor(rng, false, []int{64, 65536})
	images := randomTensor(rng, false, []int{32, 64, 28, 28})
	for _, c := range []struct {
		name string
		fn   func() *Tensor
		size int
	}{
		{"clone", func() *Tensor { return x.Clone() }, 16 << 20},
		{"cat first", func() *Tensor { return Cat(0, x, x) }, 32 << 20},
		{"cat last", func() *Tensor { return Cat(1, x, x) }, 32 << 20},
		{"cat channels", func() *Tensor { return Cat(1, images, images) }, 8 * images.NumElems()},
		{"index select", func() *Tensor { return x.IndexSelect(0, ids) }, 16 << 20},
		{"index add", func() *Tensor { return x.IndexAdd(0, ids, x) }, 16 << 20},
		{"cumsum last", func() *Tensor { return x.CumSum(1) }, 16 << 20},
		{"cumsum first", func() *Tensor { return x.CumSum(0) }, 16 << 20},
		{"tril", func() *Tensor { return x.Tril(0) }, 16 << 20},
		{"top 2 of 8", func() *Tensor { _, i := router.Reshape(-1, 8).TopK(2, -1, true); return i }, 4 << 20},
		{"top 8 of 256", func() *Tensor { _, i := router.TopK(8, -1, true); return i }, 4 << 20},
		{"top 100 of 65536", func() *Tensor { _, i := long.TopK(100, -1, true); return i }, 16 << 20},
		{"sort 256", func() *Tensor { _, i := router.Sort(-1, false); return i }, 4 << 20},
		{"sort 65536", func() *Tensor { _, i := long.Sort(-1, false); return i }, 16 << 20},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(c.size))
			for range b.N {
				tp := NewTape(false)
				keepAlive = c.fn()
				tp.Close()
			}
		})
	}
}

var keepAlive *Tensor

// BenchmarkRowGrad is the gradient of an embedding of a million rows by 65,536
// ids: the rows of a table that a batch has used. BenchmarkBag is 26 tables
// with 2,048 bags of four ids each, forward and backward.
func BenchmarkRowGrad(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 0))
	const numIDs, width = 1 << 16, 64
	ids := make([]int64, numIDs)
	for i := range ids {
		ids[i] = rng.Int64N(1 << 20)
	}
	g, at := randomTensor(rng, false, []int{numIDs, width}), FromInt64(ids)
	for range b.N {
		rowGrad(g, at, 1<<20, -1)
	}
	b.ReportMetric(float64(numIDs*b.N)/b.Elapsed().Seconds(), "rows/s")
}

func BenchmarkBag(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 0))
	const numTables, numBags, perBag, width, numRows = 26, 2048, 4, 64, 100_000
	var tables, ids []*Tensor
	for range numTables {
		tables = append(tables, Zeros(numRows, width))
		list := make([]int64, numBags*perBag)
		for i := range list {
			list[i] = rng.Int64N(numRows)
		}
		ids = append(ids, FromInt64(list, numBags, perBag))
	}
	for range b.N {
		tp := NewTape(true)
		var loss *Tensor
		for i, table := range tables {
			x := EmbeddingBag(tp.Watch(table, &rowCollector{collector: collector{shape: table.shape}}), ids[i], nil, EmbeddingBagOptions{Mode: BagSum})
			if s := x.Sum(); loss == nil {
				loss = s
			} else {
				loss = loss.Add(s)
			}
		}
		if err := loss.Backward(b.Context()); err != nil {
			b.Fatal(err)
		}
		tp.Close()
	}
	b.ReportMetric(float64(numTables*numBags*perBag*b.N)/b.Elapsed().Seconds(), "rows/s")
}
