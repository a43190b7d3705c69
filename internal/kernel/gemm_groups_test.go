// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/internal/work"
)

// TestGemmGroups compares the products of groups with one product for each, bit for bit,
// and one thread with three.
func TestGemmGroups(t *testing.T) {
	p := work.New(3)
	defer p.Close()
	r := rand.New(rand.NewPCG(5, 6))
	for _, counts := range [][]int64{{3, 0, 70, 1}, {0, 0}, {40, 600, 33, 64, 0, 5}, {100}} {
		for i := range 8 {
			transB, low, biased := i&1 != 0, i&2 != 0, i&4 != 0
			n, k := 1+r.IntN(300), 1+r.IntN(200)
			g := Groups{Counts: counts, Rows: 3, Low: low}
			for _, c := range counts {
				g.Rows += int(c)
			}
			a := mixed(randomMatrix(r, g.Rows, k, false))
			b := mixed(randomMatrix(r, len(counts)*k, n, false))
			b.Stride = n
			if b.Trans = transB; transB {
				b.Stride = k
			}
			for i, x := range b.F32 {
				if x != x {
					b.F32[i] = 1
				}
			}
			b.F32 = append(b.F32, make([]float32, len(counts)*k*n)...)[:len(counts)*k*n]
			var bias []float32
			if biased {
				bias = randomMatrix(r, 1, len(counts)*n, false).Data
			}
			got, same, want := make([]float32, g.Rows*n), make([]float32, g.Rows*n), make([]float32, g.Rows*n)
			for i := range got {
				got[i] = float32(math.NaN())
			}
			f32 := func(x []float32, stride int) Mixed { return Mixed{F32: x, Stride: stride} }
			GemmGroups(nil, g, n, k, a, b, k*n, bias, f32(got, n))
			GemmGroups(p, g, n, k, a, b, k*n, bias, f32(same, n))
			dw, dwSame, dwWant := make([]float32, len(counts)*k*n), make([]float32, len(counts)*k*n), make([]float32, len(counts)*k*n)
			beta := float32(r.IntN(2))
			for i := range dw {
				dw[i], dwSame[i], dwWant[i] = 1, 1, 1
			}
			GemmGroupsWeight(nil, g, k, n, a, f32(got, n), beta, f32(dw, n), k*n)
			GemmGroupsWeight(p, g, k, n, a, f32(got, n), beta, f32(dwSame, n), k*n)
			first := 0
			for e, c := range counts {
				var own []float32
				if biased {
					own = bias[e*n:][:n]
				}
				left := a.from(first * a.Stride)
				gemm(nil, g.arithmetic(), int(c), n, k, 1, left, b.from(e*k*n), 0, f32(want[first*n:], n), own)
				left.Trans = true
				gemm(nil, g.arithmetic(), k, n, int(c), 1, left, f32(got[first*n:], n), beta, f32(dwWant[e*k*n:], n), nil)
				first += int(c)
			}
			for name, pair := range map[string][2][]float32{"product": {got, want}, "threads": {got, same}, "weight": {dw, dwWant}, "weight threads": {dw, dwSame}} {
				if !slices.Equal(pair[0], pair[1]) {
					t.Errorf("counts %v, n %d, k %d, case %d: %s differs", counts, n, k, i, name)
				}
			}
		}
	}
}

// BenchmarkGemmGroups compares the products of 8 experts with one product that has
// the rows of all of them: y = x·wᵀ, dx = g·w and dw = gᵀ·x.
//
//	go test -bench GemmGroups -run '^$' ./internal/kernel
func BenchmarkGemmGroups(b *testing.B) {
	const experts = 8
	for _, threads := range []int{1, 2} {
		p := work.New(threads)
		defer p.Close()
		for _, rows := range []int{64, 128, 512} {
			for _, s := range [][2]int{{256, 512}, {512, 1024}} {
				in, out := s[0], s[1]
				r := rand.New(rand.NewPCG(1, 1))
				x, w := randomMatrix(r, experts*rows, in, false), randomMatrix(r, experts*out, in, false)
				x.Stride, w.Stride = in, in
				y := make([]float32, experts*rows*out)
				for i := range y {
					y[i] = r.Float32() - 0.5
				}
				dx, dw := make([]float32, experts*rows*in), make([]float32, experts*out*in)
				g := Groups{Counts: make([]int64, experts), Rows: experts * rows}
				for i := range g.Counts {
					g.Counts[i] = int64(rows)
				}
				f32 := func(data []float32, stride int, trans bool) Mixed {
					return Mixed{F32: data, Stride: stride, Trans: trans}
				}
				flops := 2 * experts * rows * in * out
				name := func(pass, kind string) string {
					return fmt.Sprintf("threads=%d/rows=%d/%dx%d/%s/%s", threads, rows, in, out, pass, kind)
				}
				run := func(name string, fn func()) {
					b.Run(name, func(b *testing.B) {
						for b.Loop() {
							fn()
						}
						reportFlops(b, flops)
					})
				}
				X, Y, W := f32(x.Data, in, false), f32(y, out, false), f32(w.Data, in, false)
				WT := f32(w.Data, in, true)
				run(name("y", "groups"), func() { GemmGroups(p, g, out, in, X, WT, out*in, nil, f32(y, out, false)) })
				run(name("y", "dense"), func() {
					gemm(p, exact, experts*rows, out, in, 1, X, WT, 0, f32(y, out, false), nil)
				})
				run(name("dx", "groups"), func() { GemmGroups(p, g, in, out, Y, W, out*in, nil, f32(dx, in, false)) })
				run(name("dx", "dense"), func() { gemm(p, exact, experts*rows, in, out, 1, Y, W, 0, f32(dx, in, false), nil) })
				run(name("dw", "groups"), func() { GemmGroupsWeight(p, g, out, in, Y, X, 0, f32(dw, in, false), out*in) })
				run(name("dw", "dense"), func() {
					gemm(p, exact, out, in, experts*rows, 1, f32(y, out, true), X, 0, f32(dw, in, false), nil)
				})
			}
		}
	}
}
