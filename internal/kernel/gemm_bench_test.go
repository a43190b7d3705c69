// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/work"
)

// gemmShapes are squares and the products of a training step.
var gemmShapes = [][3]int{{512, 512, 512}, {1024, 1024, 1024}, {2048, 2048, 2048},
	{1024, 768, 256}, {1024, 256, 1024}, {1024, 1024, 256}, {1024, 256, 256},
	{256, 1024, 784}, {256, 1024, 1024}, {256, 10, 1024}}

// BenchmarkGemm runs gemmShapes; NT has B transposed, TN A.
//
//	go test -bench Gemm -run '^$' ./internal/kernel
func BenchmarkGemm(b *testing.B) {
	for _, threads := range []int{1, 2} {
		p := work.New(threads)
		defer p.Close()
		for _, s := range gemmShapes {
			m, n, k := s[0], s[1], s[2]
			for _, form := range []string{"NN", "NT", "TN"} {
				b.Run(fmt.Sprintf("threads=%d/%dx%dx%d/%s", threads, m, n, k, form), func(b *testing.B) {
					r := rand.New(rand.NewPCG(1, 1))
					dense := func(rows, cols int, trans bool) Matrix {
						x := Matrix{make([]float32, rows*cols), cols, trans}
						if trans {
							x.Stride = rows
						}
						for i := range x.Data {
							x.Data[i] = r.Float32() - 0.5
						}
						return x
					}
					x, y := dense(m, k, form[0] == 'T'), dense(k, n, form[1] == 'T')
					c := make([]float32, m*n)
					for b.Loop() {
						Gemm(p, m, n, k, 1, x, y, 0, c, n, nil)
					}
					reportFlops(b, 2*m*n*k)
				})
			}
		}
	}
}

func reportFlops(b *testing.B, flops int) {
	b.ReportMetric(float64(flops)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}

// BenchmarkAttention counts the products that a causal mask leaves: two
// forward and five backward, half of each.
func BenchmarkAttention(b *testing.B) {
	for _, threads := range []int{1, 2} {
		p := work.New(threads)
		defer p.Close()
		for _, s := range []AttentionShape{
			{Batch: 8, Heads: 8, Time: 128, KeyTime: 128, Dim: 32},
			{Batch: 4, Heads: 8, Time: 256, KeyTime: 256, Dim: 64},
			{Batch: 1, Heads: 8, Time: 1024, KeyTime: 1024, Dim: 64},
			{Batch: 1, Heads: 4, Time: 512, KeyTime: 512, Dim: 128},
		} {
			s.Causal, s.Scale = true, float32(1/math.Sqrt(float64(s.Dim)))
			r := rand.New(rand.NewPCG(1, 1))
			// As a projection to queries, keys and values leaves them: side by side.
			qkv := newHeads(r, &AttentionShape{Batch: s.Batch, Heads: 3 * s.Heads, Dim: s.Dim}, s.Time, 0)
			part := func(i int) Heads {
				x := qkv
				x.Data = x.Data[i*s.Heads*s.Dim:]
				return x
			}
			q, k, v := part(0), part(1), part(2)
			dout, out := newHeads(r, &s, s.Time, 0), newHeads(r, &s, s.Time, 0)
			dq, dk, dv := newHeads(r, &s, s.Time, 0), newHeads(r, &s, s.Time, 0), newHeads(r, &s, s.Time, 0)
			lse := make([]float32, s.Batch*s.Heads*s.Time)
			flops := s.Batch * s.Heads * s.Time * s.KeyTime * s.Dim
			name := fmt.Sprintf("threads=%d/B%dH%dT%dD%d", threads, s.Batch, s.Heads, s.Time, s.Dim)
			b.Run(name+"/forward", func(b *testing.B) {
				for b.Loop() {
					Attention(p, s, out, q, k, v, lse)
				}
				reportFlops(b, 2*flops)
			})
			b.Run(name+"/backward", func(b *testing.B) {
				for b.Loop() {
					AttentionBackward(p, s, dq, dk, dv, dout, out, q, k, v, lse)
				}
				reportFlops(b, 5*flops)
			})
		}
	}
}
