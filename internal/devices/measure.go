// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/random"
	"github.com/cohort-ml/cohort/internal/work"
)

// Measure measures the rates of the processors with a number of threads, for about the
// given time. Each rate is that of the fastest repetition.
func Measure(ctx context.Context, threads int, d time.Duration) (Rates, error) {
	p := work.New(threads)
	defer p.Close()
	const n = 1024
	a, b, c := make([]float32, n*n), make([]float32, n*n), make([]float32, n*n)
	kernel.Fill(p, a, 1)
	kernel.Fill(p, b, 0.5)
	product, err := fastest(ctx, d/2, func() {
		kernel.Gemm(p, n, n, n, 1, kernel.Matrix{Data: a, Stride: n}, kernel.Matrix{Data: b, Stride: n}, 0, c, n, nil)
	})
	if err != nil {
		return Rates{}, err
	}
	src, dst := make([]float32, 16<<20), make([]float32, 16<<20)
	kernel.Fill(p, src, 1)
	kernel.Fill(p, dst, 2)
	copying, err := fastest(ctx, d/2, func() { kernel.Copy(p, dst, src) })
	if err != nil {
		return Rates{}, err
	}
	return Rates{
		Threads:         threads,
		GFlopPerSec:     2 * n * n * n / product.Seconds() / 1e9,
		CopyBytesPerSec: float64(8*len(src)) / copying.Seconds(),
	}, nil
}

// fastest repeats f, at least three times, and returns the shortest time of one.
func fastest(ctx context.Context, d time.Duration, f func()) (time.Duration, error) {
	least := time.Duration(math.MaxInt64)
	for begin, i := time.Now(), 0; i < 3 || time.Since(begin) < d; i++ {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		start := time.Now()
		f()
		least = min(least, max(1, time.Since(start)))
	}
	return least, nil
}

// CheckProduct multiplies matrices of random numbers by the kernels that ranks use, and
// compares with plain loops in float64. The error says which element is wrong.
func CheckProduct(threads int) error {
	const m, n, k = 67, 131, 259
	p := work.New(threads)
	defer p.Close()
	a, b, c := make([]float32, m*k), make([]float32, k*n), make([]float32, m*n)
	r := random.Philox{Key: 7}
	r.Normal(a, 0, 0, 0, 1)
	r.Normal(b, 1, 0, 0, 1)
	kernel.Gemm(p, m, n, k, 1, kernel.Matrix{Data: a, Stride: k}, kernel.Matrix{Data: b, Stride: n}, 0, c, n, nil)
	return compareProduct(c, a, b, m, n, k)
}

// compareProduct compares c with the product of a and b. A sum of k products may be off
// by k roundings of the sum of their sizes.
func compareProduct(c, a, b []float32, m, n, k int) error {
	for i := range m {
		for j := range n {
			want, size := 0.0, 0.0
			for l := range k {
				x := float64(a[i*k+l]) * float64(b[l*n+j])
				want += x
				size += math.Abs(x)
			}
			if got := float64(c[i*n+j]); !(math.Abs(got-want) <= size*float64(k)*0x1p-24) {
				return fmt.Errorf("devices: element (%d, %d) of a product of float32 matrices is %g, and plain loops give %g: this processor or its memory is not to be trusted; run a memory test", i, j, got, want)
			}
		}
	}
	return nil
}
