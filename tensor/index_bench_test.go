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
