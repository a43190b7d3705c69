// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/tensor"
)

// overlap prints the time of a step of matrix products on one thread, alone
// and with asynchronous all-reduces that begin during it, as DDP's do.
func overlap(ctx context.Context, g *Group) error {
	const size, products, bytes = 512, 24, 4 << 20
	a, b, c := make([]float32, size*size), make([]float32, size*size), make([]float32, size*size)
	buckets := make([]*tensor.Tensor, 4)
	for i := range buckets {
		buckets[i] = tensor.NewShared(tensor.CPU(), tensor.Float32, bytes/4)
	}
	step := func(reduce bool) error {
		var works []*Work
		for i := range products {
			kernel.Gemm(nil, size, size, size, 1, kernel.Matrix{Data: a, Stride: size}, kernel.Matrix{Data: b, Stride: size}, 0, c, size, nil)
			if every := products / len(buckets); reduce && i%every == every-1 {
				works = append(works, g.AllReduceAsync(ctx, buckets[i/every], Max))
			}
		}
		for _, w := range works {
			if err := w.Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	var took [2][]time.Duration
	for i := range 42 {
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		start := time.Now()
		if err := step(i%2 == 1); err != nil {
			return err
		}
		if i >= 2 {
			took[i%2] = append(took[i%2], time.Since(start))
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	alone, with := took[0][len(took[0])/2], took[1][len(took[1])/2]
	fmt.Printf("rank %d: step alone %v, with %d all-reduces of %d bytes %v: %.3f\n", g.Rank(), alone, len(buckets), bytes, with, float64(with)/float64(alone))
	return nil
}

// TestMeasure prints figures when asked: DIST_MEASURE=2 go test -run Measure -v
// ./dist.
func TestMeasure(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("DIST_MEASURE"))
	if err != nil {
		t.Skip("DIST_MEASURE is not set to a number of ranks")
	}
	for _, p := range startRanks(t, n, "overlap") {
		if err := p.await(t, 5*time.Minute); err != nil {
			t.Error(err)
		}
		fmt.Print(p.output())
	}
}
