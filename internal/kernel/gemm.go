// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"

	"github.com/cohort-ml/cohort/internal/work"
)

// Matrix is a row-major float32 matrix or the transpose of one: element (i, j)
// is Data[i*Stride+j], or Data[j*Stride+i] if Trans.
type Matrix struct {
	Data   []float32
	Stride int
	Trans  bool
}

// Gemm computes C = alpha·A·B + beta·C, and adds bias to every row of the
// result when bias is not nil. A is m×k, B is k×n, C is m×n, row-major with ldc
// elements from row to row; bias has n elements. When beta is 0, C is only
// written: what it held, NaN included, does not matter. C must not overlap an
// operand. A nil pool computes on this goroutine only.
//
// An element of C is the same bit for bit whatever the number of threads, and
// whatever m and n are around it: its sum over k is cut at places that depend
// on k alone.
//
// Gemm panics when a slice is shorter than its shape needs.
func Gemm(p *work.Pool, m, n, k int, alpha float32, a, b Matrix, beta float32, c []float32, ldc int, bias []float32) {
	checkGemm(1, m, n, k, a, 0, b, 0, c, ldc, 0, bias)
	if m == 0 || n == 0 {
		return
	}
	if k == 0 {
		scaleMatrix(m, n, beta, c, ldc, bias)
		return
	}
	g := getProduct()
	g.m, g.n, g.k, g.alpha, g.a, g.b = m, n, k, alpha, a, b
	g.beta, g.c, g.ldc, g.bias = beta, c, ldc, bias
	g.compute(p)
	g.release()
}

// GemmBatch computes C = alpha·A·B + beta·C for batch products whose operands
// lie batchA, batchB and batchC elements apart. A distance of 0 uses the same
// operand for all; the results must not overlap.
func GemmBatch(p *work.Pool, batch, m, n, k int, alpha float32, a Matrix, batchA int, b Matrix, batchB int, beta float32, c []float32, ldc, batchC int) {
	checkGemm(batch, m, n, k, a, batchA, b, batchB, c, ldc, batchC, nil)
	if m == 0 || n == 0 {
		return
	}
	one := func(p *work.Pool, i int) {
		ai, bi := a, b
		if k > 0 {
			ai.Data, bi.Data = a.Data[i*batchA:], b.Data[i*batchB:]
		}
		Gemm(p, m, n, k, alpha, ai, bi, beta, c[i*batchC:], ldc, nil)
	}
	if p != nil && batch >= 2*p.NumThreads() {
		p.Run(batch, func(i int) { one(nil, i) })
		return
	}
	for i := range batch {
		one(p, i)
	}
}

// scaleMatrix is the product of matrices without elements: C = beta·C + bias.
func scaleMatrix(m, n int, beta float32, c []float32, ldc int, bias []float32) {
	for i := range m {
		row := c[i*ldc : i*ldc+n]
		for j := range row {
			y := float32(0)
			if beta != 0 {
				y = beta * row[j]
			}
			if bias != nil {
				y += bias[j]
			}
			row[j] = y
		}
	}
}

// checkGemm panics unless every operand holds what its shape says: assembly
// does not check.
func checkGemm(batch, m, n, k int, a Matrix, batchA int, b Matrix, batchB int, c []float32, ldc, batchC int, bias []float32) {
	if batch < 0 || m < 0 || n < 0 || k < 0 {
		panic(fmt.Sprintf("kernel: gemm of batch %d, m %d, n %d, k %d: a size is negative", batch, m, n, k))
	}
	if batch == 0 || m == 0 || n == 0 {
		return
	}
	if k > 0 {
		a.check("A", batch, m, k, batchA)
		b.check("B", batch, k, n, batchB)
	}
	Matrix{Data: c, Stride: ldc}.check("C", batch, m, n, batchC)
	if bias != nil && len(bias) < n {
		panic(fmt.Sprintf("kernel: gemm with n %d: bias has %d elements", n, len(bias)))
	}
}

func (m Matrix) check(name string, batch, rows, cols, distance int) {
	if m.Trans {
		rows, cols = cols, rows
	}
	need := (batch-1)*distance + (rows-1)*m.Stride + cols
	if m.Stride < cols && rows > 1 || m.Stride < 0 || distance < 0 || len(m.Data) < need {
		panic(fmt.Sprintf("kernel: gemm: %s of %d rows of %d elements, %d from row to row, batch %d with %d between, needs %d elements, the slice has %d",
			name, rows, cols, m.Stride, batch, distance, need, len(m.Data)))
	}
}
