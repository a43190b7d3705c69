// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/internal/work"
)

// TestAllocations holds the promise that elementwise kernels on one thread
// allocate nothing, and the others no more than their closures.
func TestAllocations(t *testing.T) {
	const rows, cols = 16, 64
	rng := rand.New(rand.NewPCG(testSeed, 13))
	x, y, z := uniform(rng, rows*cols, -1, 1), uniform(rng, rows*cols, -1, 1), uniform(rng, rows*cols, 0, 1)
	row, per := uniform(rng, cols, -1, 1), make([]float32, rows)
	per2, targets := make([]float32, rows), make([]int64, rows)
	dst, sums := make([]float32, rows*cols), make([]float32, cols)
	for _, op := range []struct {
		name string
		most float64
		call func()
	}{
		{"Add", 0, func() { Add(nil, dst, x, y) }},
		{"AddScaled", 0, func() { AddScaled(nil, dst, x, 2, y) }},
		{"MulScalar", 0, func() { MulScalar(nil, dst, x, 2) }},
		{"GELU", 0, func() { GELU(nil, dst, x) }},
		{"GELUBackward", 0, func() { GELUBackward(nil, dst, x, y) }},
		{"SumSquares", 0, func() { SumSquares(nil, x) }},
		{"AddRow", 1, func() { AddRow(nil, dst, x, row, rows, cols) }},
		{"SumRows", 1, func() { SumRows(nil, sums, x, rows, cols, true) }},
		{"LayerNorm", 1, func() { LayerNorm(nil, dst, per, per2, x, row, row, rows, cols, 1e-5) }},
		{"LayerNormBackward", 1, func() { LayerNormBackward(nil, dst, sums, nil, y, x, per, per2, row, rows, cols) }},
		{"Softmax", 1, func() { Softmax(nil, dst, x, rows, cols) }},
		{"CrossEntropy", 1, func() { CrossEntropy(nil, per, per2, x, targets, rows, cols) }},
		{"CrossEntropyBackward", 1, func() { CrossEntropyBackward(nil, dst, x, per2, targets, per, rows, cols) }},
		{"Adam", 3, func() {
			Adam(nil, []AdamItem{{Param: dst, Grad: x, ExpAvg: y, ExpAvgSq: z, AdamStep: AdamStep{Bias1: 1, Bias2: 1, GradScale: 1}}})
		}},
		{"SGD", 3, func() { SGD(nil, []SGDItem{{dst, x, y, SGDStep{GradScale: 1}}}) }},
	} {
		if got := testing.AllocsPerRun(100, op.call); got > op.most {
			t.Errorf("%s allocates %v times a call, %v allowed", op.name, got, op.most)
		}
	}
}

// TestScratchIsReused runs kernels that need scratch from several goroutines
// over one pool: the results are those of one goroutine.
func TestConcurrentCalls(t *testing.T) {
	const rows, cols, goroutines, rounds = 300, 65, 4, 20
	rng := rand.New(rand.NewPCG(testSeed, 14))
	x, g := uniform(rng, rows*cols, -1, 1), uniform(rng, rows*cols, -1, 1)
	gamma := uniform(rng, cols, 0.5, 1.5)
	p := work.New(3)
	defer p.Close()
	run := func() []float32 {
		out := make([]float32, 3*cols+2*rows*cols+2*rows)
		dgamma, dbeta, sums, rest := out[:cols], out[cols:2*cols], out[2*cols:3*cols], out[3*cols:]
		y, dx, mean, rstd := rest[:rows*cols], rest[rows*cols:2*rows*cols], rest[2*rows*cols:2*rows*cols+rows], rest[2*rows*cols+rows:]
		LayerNorm(p, y, mean, rstd, x, gamma, nil, rows, cols, 1e-5)
		LayerNormBackward(p, dx, dgamma, dbeta, g, x, mean, rstd, gamma, rows, cols)
		SumRows(p, sums, y, rows, cols, false)
		return out
	}
	want := run()
	var group sync.WaitGroup
	for range goroutines {
		group.Go(func() {
			for range rounds {
				got := run()
				for i := range want {
					if got[i] != want[i] {
						t.Errorf("element %d is %v among goroutines, %v alone", i, got[i], want[i])
						return
					}
				}
			}
		})
	}
	group.Wait()
}
