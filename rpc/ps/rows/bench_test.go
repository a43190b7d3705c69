// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// zipf draws numbers below n: k+1 with a probability in proportion to (k+1)^-exponent. An
// exponent of 0 is the uniform distribution. Numbers are spread over the range, so that
// frequent ones are no neighbours.
type zipf struct {
	n, exponent float64
	r           *rand.Rand
}

func (z *zipf) draw() int64 {
	u := z.r.Float64()
	if z.exponent == 0 {
		return int64(u * z.n)
	}
	// The inverse of the integral of x^-exponent from 1 to n+1.
	e := 1 - z.exponent
	x := math.Pow(1+u*(math.Pow(z.n+1, e)-1), 1/e)
	return int64(x) * 0x9e3779b1 % int64(z.n)
}

func fill(t testing.TB, table *Table, n int) {
	t.Helper()
	const batch = 1 << 14
	keys, grad := make([]int64, batch), make([]float32, batch*table.schema.Width)
	for lo := 0; lo < n; lo += batch {
		m := min(batch, n-lo)
		for i := range m {
			keys[i] = int64(lo + i)
		}
		if _, err := table.Update(Mark{LSN: uint64(lo/batch) + 1, Step: 1}, keys[:m], grad[:m*table.schema.Width]); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkGather(b *testing.B) {
	for _, c := range []struct {
		width, rows int
		dtype, as   tensor.DType
		zipf        float64
	}{
		{64, 4 << 20, tensor.Float32, tensor.Float32, 0},
		{64, 4 << 20, tensor.Float32, tensor.Float32, 1.05},
		{8, 4 << 20, tensor.BFloat16, tensor.BFloat16, 1.05},
		{16, 4 << 20, tensor.Float32, tensor.Float32, 1.05},
		{64, 4 << 20, tensor.BFloat16, tensor.Float32, 1.05},
		{64, 4 << 20, tensor.Int8, tensor.Float32, 1.05},
	} {
		b.Run(fmt.Sprintf("dim=%d/%v-%v/zipf=%v", c.width, c.dtype, c.as, c.zipf), func(b *testing.B) {
			table := newTable(b, Schema{Width: c.width, DType: c.dtype})
			fill(b, table, c.rows)
			const batch = 8192
			z := zipf{float64(c.rows), c.zipf, rand.New(rand.NewPCG(1, 2))}
			keys := make([]int64, 128*batch)
			for i := range keys {
				keys[i] = z.draw()
			}
			dst := make([]byte, batch*rowBytes(c.as, c.width))
			b.ResetTimer()
			for i := range b.N {
				at := i % 128 * batch
				if err := table.Gather(dst, c.as, keys[at:at+batch]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*batch/b.Elapsed().Seconds()/1e6, "Mrows/s")
		})
	}
}

func BenchmarkUpdate(b *testing.B) {
	for _, o := range []string{SGD, Adagrad, RowwiseAdagrad, LazyAdam, FTRL} {
		b.Run(o, func(b *testing.B) {
			const rows, width, batch = 1 << 20, 64, 4096
			table := newTable(b, Schema{Width: width, Optimizer: Optimizer{Kind: o}})
			fill(b, table, rows)
			z := zipf{rows, 1.05, rand.New(rand.NewPCG(1, 2))}
			var batches [32][]int64
			for i := range batches {
				var s keySet
				s.reset(batch)
				for len(s.keys) < batch {
					s.add(z.draw())
				}
				batches[i] = s.keys
			}
			grad := make([]float32, batch*width)
			for i := range grad {
				grad[i] = float32(i%7) - 3
			}
			b.ResetTimer()
			for i := range b.N {
				if _, err := table.Update(Mark{LSN: uint64(1<<20 + i), Step: uint64(i)}, batches[i%32], grad); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*batch/b.Elapsed().Seconds()/1e6, "Mrows/s")
		})
	}
}
