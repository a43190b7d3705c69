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
// on k alone. Only where m or n is 1, and memory has the elements of the matrix
// that are added up side by side, are they added in another order.
//
// Gemm panics when a slice is shorter than its shape needs.
func Gemm(p *work.Pool, m, n, k int, alpha float32, a, b Matrix, beta float32, c []float32, ldc int, bias []float32) {
	gemm(p, exact, m, n, k, alpha, mixed(a), mixed(b), beta, Mixed{F32: c, Stride: ldc}, bias)
}

// GemmBatch computes C = alpha·A·B + beta·C for batch products whose operands
// lie batchA, batchB and batchC elements apart. A distance of 0 uses the same
// operand for all; the results must not overlap.
func GemmBatch(p *work.Pool, batch, m, n, k int, alpha float32, a Matrix, batchA int, b Matrix, batchB int, beta float32, c []float32, ldc, batchC int) {
	gemmBatch(p, exact, batch, m, n, k, alpha, mixed(a), batchA, mixed(b), batchB, beta, Mixed{F32: c, Stride: ldc}, batchC)
}

func mixed(m Matrix) Mixed { return Mixed{F32: m.Data, Stride: m.Stride, Trans: m.Trans} }

func gemm(p *work.Pool, how arithmetic, m, n, k int, alpha float32, a, b Mixed, beta float32, c Mixed, bias []float32) {
	checkGemm(1, m, n, k, a, 0, b, 0, c, 0, bias)
	if m == 0 || n == 0 {
		return
	}
	if k == 0 {
		scaleMatrix(m, n, beta, c, bias)
		return
	}
	g := getProduct()
	g.how, g.m, g.n, g.k, g.alpha, g.a, g.b = how, m, n, k, alpha, a, b
	g.beta, g.c, g.bias = beta, c, bias
	g.swapNarrow()
	g.compute(p)
	g.release()
}

func gemmBatch(p *work.Pool, how arithmetic, batch, m, n, k int, alpha float32, a Mixed, batchA int, b Mixed, batchB int, beta float32, c Mixed, batchC int) {
	checkGemm(batch, m, n, k, a, batchA, b, batchB, c, batchC, nil)
	if m == 0 || n == 0 {
		return
	}
	one := func(p *work.Pool, i int) {
		ai, bi := a, b
		if k > 0 {
			ai, bi = a.from(i*batchA), b.from(i*batchB)
		}
		gemm(p, how, m, n, k, alpha, ai, bi, beta, c.from(i*batchC), nil)
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
func scaleMatrix(m, n int, beta float32, c Mixed, bias []float32) {
	for i := range m {
		for j := range n {
			y := float32(0)
			if beta != 0 {
				y = beta * c.at(i*c.Stride+j)
			}
			if bias != nil {
				y += bias[j]
			}
			c.set(i*c.Stride+j, y)
		}
	}
}

// checkGemm panics unless every operand holds what its shape says: assembly
// does not check.
func checkGemm(batch, m, n, k int, a Mixed, batchA int, b Mixed, batchB int, c Mixed, batchC int, bias []float32) {
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
	if c.Trans {
		panic("kernel: gemm: C is transposed")
	}
	c.check("C", batch, m, n, batchC)
	if bias != nil && len(bias) < n {
		panic(fmt.Sprintf("kernel: gemm with n %d: bias has %d elements", n, len(bias)))
	}
}

func (m Mixed) check(name string, batch, rows, cols, distance int) {
	if m.Trans {
		rows, cols = cols, rows
	}
	if m.F32 != nil && m.BF16 != nil {
		panic(fmt.Sprintf("kernel: gemm: %s is both float32 and bfloat16", name))
	}
	have := max(len(m.F32), len(m.BF16))
	need := (batch-1)*distance + (rows-1)*m.Stride + cols
	if m.Stride < cols && rows > 1 || m.Stride < 0 || distance < 0 || have < need {
		panic(fmt.Sprintf("kernel: gemm: %s of %d rows of %d elements, %d from row to row, batch %d with %d between, needs %d elements, the slice has %d",
			name, rows, cols, m.Stride, batch, distance, need, have))
	}
}
