// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/cohort-ml/cohort/internal/work"
)

// BenchmarkVector measures each kernel in bytes read and written a second,
// beside memmove of the same size in the same run:
//
//	go test -run '^$' -bench Vector ./internal/kernel
//
// Sizes: 64 Ki elements stay in a second-level cache, 1 Mi in a third, 4 Mi in
// none.
func BenchmarkVector(b *testing.B) {
	for _, n := range []int{64 << 10, 1 << 20, 4 << 20} {
		rng := rand.New(rand.NewPCG(1, 0))
		x, y, g, h := uniform(rng, n, -3, 3), uniform(rng, n, -3, 3), uniform(rng, n, 0, 1), make([]float32, n)
		cols := 256
		rows := n / cols
		row, row2 := x[:cols], y[:cols]
		mean, rstd := make([]float32, rows), make([]float32, rows)
		sums, sums2 := make([]float32, cols), make([]float32, cols)
		wide := 1024
		few := n / wide
		loss, lse, scale := make([]float32, few), make([]float32, few), []float32{0.001}
		targets := make([]int64, few)
		for i := range targets {
			targets[i] = rng.Int64N(int64(wide))
		}
		LayerNorm(nil, h, mean, rstd, x, row, row2, rows, cols, 1e-5)
		CrossEntropy(nil, loss, lse, x, targets, few, wide)
		adam := AdamStep{LR: 1e-9, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01, Bias1: 0.1, Bias2: 0.001, Decoupled: true, GradScale: 1}
		for _, op := range []struct {
			name    string
			streams int // arrays read and written
			f       func(p *work.Pool)
		}{
			{"memmove", 2, func(p *work.Pool) { copy(h, x) }},
			{"Copy", 2, func(p *work.Pool) { Copy(p, h, x) }},
			{"Add", 3, func(p *work.Pool) { Add(p, h, x, y) }},
			{"Mul", 3, func(p *work.Pool) { Mul(p, h, x, y) }},
			{"AddScaled", 3, func(p *work.Pool) { AddScaled(p, h, x, 0.5, y) }},
			{"MulScalar", 2, func(p *work.Pool) { MulScalar(p, h, x, 0.5) }},
			{"AddRow", 2, func(p *work.Pool) { AddRow(p, h, x, row, rows, cols) }},
			{"SumRows", 1, func(p *work.Pool) { SumRows(p, sums, x, rows, cols, false) }},
			{"SumSquares", 1, func(p *work.Pool) { SumSquares(p, x) }},
			{"Sum", 1, func(p *work.Pool) { Sum(p, x) }},
			{"Exp", 2, func(p *work.Pool) { Exp(p, h, x) }},
			{"Log", 2, func(p *work.Pool) { Log(p, h, g) }},
			{"Tanh", 2, func(p *work.Pool) { Tanh(p, h, x) }},
			{"Erf", 2, func(p *work.Pool) { Erf(p, h, x) }},
			{"ReLU", 2, func(p *work.Pool) { ReLU(p, h, x) }},
			{"ReLUBackward", 3, func(p *work.Pool) { ReLUBackward(p, h, x, y) }},
			{"GELU", 2, func(p *work.Pool) { GELU(p, h, x) }},
			{"GELUBackward", 3, func(p *work.Pool) { GELUBackward(p, h, x, y) }},
			{"GELUTanh", 2, func(p *work.Pool) { GELUTanh(p, h, x) }},
			{"GELUTanhBackward", 3, func(p *work.Pool) { GELUTanhBackward(p, h, x, y) }},
			{"LayerNorm", 2, func(p *work.Pool) { LayerNorm(p, h, mean, rstd, x, row, row2, rows, cols, 1e-5) }},
			{"LayerNormBackward", 3, func(p *work.Pool) {
				LayerNormBackward(p, h, sums, sums2, y, x, mean, rstd, row, rows, cols)
			}},
			{"Softmax", 2, func(p *work.Pool) { Softmax(p, h, x, rows, cols) }},
			{"SoftmaxBackward", 3, func(p *work.Pool) { SoftmaxBackward(p, h, x, y, rows, cols) }},
			{"CrossEntropy", 1, func(p *work.Pool) { CrossEntropy(p, loss, lse, x, targets, few, wide) }},
			{"CrossEntropyBackward", 2, func(p *work.Pool) {
				CrossEntropyBackward(p, h, x, lse, targets, scale, few, wide)
			}},
			{"AdamW", 7, func(p *work.Pool) { Adam(p, []AdamItem{{Param: h, Grad: x, ExpAvg: y, ExpAvgSq: g, AdamStep: adam}}) }},
			{"SGD", 3, func(p *work.Pool) { SGD(p, []SGDItem{{h, x, nil, SGDStep{LR: 1e-9, GradScale: 1}}}) }},
			{"SGDMomentum", 5, func(p *work.Pool) { SGD(p, []SGDItem{{h, x, y, SGDStep{LR: 1e-9, Momentum: 0.9, GradScale: 1}}}) }},
		} {
			for _, t := range []int{1, 2} {
				if t > runtime.NumCPU() || (t > 1 && op.name == "memmove") {
					continue
				}
				b.Run(fmt.Sprintf("%dKi/%s/threads=%d", n>>10, op.name, t), func(b *testing.B) {
					p := work.New(t)
					defer p.Close()
					b.SetBytes(int64(4 * n * op.streams))
					for b.Loop() {
						op.f(p)
					}
				})
			}
		}
	}
}
