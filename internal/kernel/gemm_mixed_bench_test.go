// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/work"
)

// BenchmarkGemmBF16 reports how many times as fast as Gemm the product of
// bfloat16 is, measured in turns: with float32 operands and result (f32), with
// bfloat16 operands (in), and with bfloat16 operands and result (all).
//
//	go test -bench GemmBF16 -run '^$' ./internal/kernel
func BenchmarkGemmBF16(b *testing.B) {
	for _, threads := range []int{1, 2} {
		p := work.New(threads)
		defer p.Close()
		for _, s := range gemmShapes {
			m, n, k := s[0], s[1], s[2]
			for _, form := range []string{"NN", "NT", "TN"} {
				b.Run(fmt.Sprintf("threads=%d/%dx%dx%d/%s", threads, m, n, k, form), func(b *testing.B) {
					r := rand.New(rand.NewPCG(1, 1))
					dense := func(rows, cols int, trans bool) (f32, half Mixed) {
						f32 = Mixed{F32: make([]float32, rows*cols), Stride: cols, Trans: trans}
						if trans {
							f32.Stride = rows
						}
						for i := range f32.F32 {
							f32.F32[i] = r.Float32() - 0.5
						}
						half = f32
						half.F32, half.BF16 = nil, make([]uint16, rows*cols)
						ToBF16(nil, half.BF16, f32.F32)
						return f32, half
					}
					x, xh := dense(m, k, form[0] == 'T')
					y, yh := dense(k, n, form[1] == 'T')
					c, ch := dense(m, n, false)
					xm, ym := Matrix{x.F32, x.Stride, x.Trans}, Matrix{y.F32, y.Stride, y.Trans}
					calls := []func(){
						func() { Gemm(p, m, n, k, 1, xm, ym, 0, c.F32, n, nil) },
						func() { GemmBF16(p, m, n, k, 1, x, y, 0, c, nil) },
						func() { GemmBF16(p, m, n, k, 1, xh, yh, 0, c, nil) },
						func() { GemmBF16(p, m, n, k, 1, xh, yh, 0, ch, nil) },
					}
					times := make([][]time.Duration, len(calls))
					for b.Loop() {
						for i, call := range calls {
							start := time.Now()
							call()
							times[i] = append(times[i], time.Since(start))
						}
					}
					median := func(i int) float64 {
						slices.Sort(times[i])
						return times[i][len(times[i])/2].Seconds()
					}
					b.ReportMetric(0, "ns/op")
					b.ReportMetric(2*float64(m*n*k)/median(0)/1e9, "GFLOP/s")
					b.ReportMetric(median(0)/median(1), "f32")
					b.ReportMetric(median(0)/median(2), "in")
					b.ReportMetric(median(0)/median(3), "all")
				})
			}
		}
	}
}
