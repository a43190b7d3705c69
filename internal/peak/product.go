// SPDX-License-Identifier: Apache-2.0

package peak

import (
	"context"
	"fmt"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/mem"
	"github.com/cohort-ml/cohort/internal/work"
)

// Product is a matrix product C[m, n] = A[m, k]·B[k, n], or Batch of them if
// Batch is more than 0. Layout names the operands that are stored transposed:
// "nn" none, "nt" B, "tn" A.
type Product struct {
	Batch, M, N, K int
	Layout         string
}

// String returns the sizes as [ParseProducts] reads them.
func (p Product) String() string {
	if p.Batch > 0 {
		return fmt.Sprintf("%dx%dx%dx%d", p.Batch, p.M, p.N, p.K)
	}
	return fmt.Sprintf("%dx%dx%d", p.M, p.N, p.K)
}

// FLOPs is how many additions and multiplications the product is.
func (p Product) FLOPs() float64 {
	return 2 * float64(max(1, p.Batch)) * float64(p.M) * float64(p.N) * float64(p.K)
}

// operand returns a batch of matrices of one dtype, one behind the other, how
// far apart they are, and what frees them.
func operand(memory *mem.Pool, dtype string, batch, rows, cols int, trans bool, value float32) (kernel.Mixed, int, func()) {
	n := max(1, batch) * rows * cols
	block := memory.Get(4 * n)
	floats := unsafe.Slice((*float32)(block.Pointer()), n)
	for i := range floats {
		floats[i] = value + float32(i%7)
	}
	m := kernel.Mixed{F32: floats, Stride: cols, Trans: trans}
	if trans {
		m.Stride = rows
	}
	if dtype == "bfloat16" {
		half := memory.Get(2 * n)
		m.F32, m.BF16 = nil, unsafe.Slice((*uint16)(half.Pointer()), n)
		kernel.ToBF16(nil, m.BF16, floats)
		memory.Put(block)
		block = half
	}
	return m, rows * cols, func() { memory.Put(block) }
}

// Measure repeats the product of operands of a dtype, "float32" or "bfloat16", for a time, and returns
// how long each repetition took.
func (p Product) Measure(ctx context.Context, threads *work.Pool, memory *mem.Pool, dtype string, minTime time.Duration) ([]time.Duration, error) {
	a, nextA, freeA := operand(memory, dtype, p.Batch, p.M, p.K, p.Layout == "tn", 1)
	defer freeA()
	b, nextB, freeB := operand(memory, dtype, p.Batch, p.K, p.N, p.Layout == "nt", -1)
	defer freeB()
	c, nextC, freeC := operand(memory, dtype, p.Batch, p.M, p.N, false, 0)
	defer freeC()
	plain := func(m kernel.Mixed) kernel.Matrix {
		return kernel.Matrix{Data: m.F32, Stride: m.Stride, Trans: m.Trans}
	}
	call := func() { kernel.GemmBF16(threads, p.M, p.N, p.K, 1, a, b, 0, c, nil) }
	switch {
	case dtype == "float32" && p.Batch > 0:
		call = func() {
			kernel.GemmBatch(threads, p.Batch, p.M, p.N, p.K, 1, plain(a), nextA, plain(b), nextB, 0, c.F32, c.Stride, nextC)
		}
	case dtype == "float32":
		call = func() { kernel.Gemm(threads, p.M, p.N, p.K, 1, plain(a), plain(b), 0, c.F32, c.Stride, nil) }
	case p.Batch > 0:
		call = func() {
			kernel.GemmBF16Batch(threads, p.Batch, p.M, p.N, p.K, 1, a, nextA, b, nextB, 0, c, nextC)
		}
	}

	const warmUp, fewest, most = 2, 5, 100_000
	var took []time.Duration
	begin := time.Now()
	for i := 0; i < warmUp+fewest || time.Since(begin) < minTime && i < most; i++ {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		start := time.Now()
		call()
		if i >= warmUp {
			took = append(took, time.Since(start))
		}
	}
	return took, nil
}
