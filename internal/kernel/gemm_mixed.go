// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"

	"github.com/cohort-ml/cohort/internal/work"
)

// Mixed is a row-major matrix of float32 or bfloat16, or the transpose of one:
// exactly one of F32 and BF16 is set, and element (i, j) is at i*Stride+j, or at
// j*Stride+i if Trans.
type Mixed struct {
	F32    []float32
	BF16   []uint16
	Stride int
	Trans  bool
}

// GemmBF16 computes C = alpha·A·B + beta·C, and adds bias to every row of the
// result when bias is not nil, with the elements of A and B rounded to bfloat16
// (to nearest even) and sums in float32. Shapes, and what holds for beta, bias,
// threads and short slices, are as in [Gemm]; C is not transposed. A C of
// bfloat16 is rounded once, at the end, however long k is.
//
// Where the processor multiplies pairs of bfloat16 (AVX512_BF16), operands, sums
// and results that are denormal may count as zero; elsewhere the products are of
// float32.
func GemmBF16(p *work.Pool, m, n, k int, alpha float32, a, b Mixed, beta float32, c Mixed, bias []float32) {
	gemm(p, bf16Arithmetic(), m, n, k, alpha, a, b, beta, c, bias)
}

// GemmBF16Batch is to GemmBF16 as [GemmBatch] is to Gemm: batch products whose
// operands lie batchA, batchB and batchC elements apart.
func GemmBF16Batch(p *work.Pool, batch, m, n, k int, alpha float32, a Mixed, batchA int, b Mixed, batchB int, beta float32, c Mixed, batchC int) {
	gemmBatch(p, bf16Arithmetic(), batch, m, n, k, alpha, a, batchA, b, batchB, beta, c, batchC)
}

func bf16Arithmetic() arithmetic {
	if usePairs && useISA == avx512 {
		return paired
	}
	return rounded
}

// from returns the matrix without its first n elements.
func (m Mixed) from(n int) Mixed {
	if m.BF16 != nil {
		m.BF16 = m.BF16[n:]
	} else {
		m.F32 = m.F32[n:]
	}
	return m
}

func (m Mixed) at(i int) float32 {
	if m.BF16 != nil {
		return math.Float32frombits(uint32(m.BF16[i]) << 16)
	}
	return m.F32[i]
}

func (m Mixed) set(i int, x float32) {
	if m.BF16 != nil {
		m.BF16[i] = bf16(x)
	} else {
		m.F32[i] = x
	}
}
