// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// multipliesLow reports whether a product is computed in bfloat16: the factors
// are rounded to it where they are not of it, and sums are kept in float32.
func multipliesLow(dst, a, b device.Array) bool {
	return dst.DType == device.BFloat16 || a.DType == device.BFloat16 || b.DType == device.BFloat16
}

// matMulBF16 is MatMul in bfloat16. Each of dst, a and b is float32 or bfloat16;
// a and b are dense by rows or by columns. The kernel converts while it packs.
func (c *CPU) matMulBF16(numBatch, rows, cols, inner int, dst, a, b, bias device.Array, beta float32) {
	if numBatch == 1 {
		kernel.GemmBF16(c.threads, rows, cols, inner, 1, mixed(a), mixed(b), beta, mixed(dst), bias.Float32s())
		return
	}
	stepA, okA := batchStride(a)
	stepB, okB := batchStride(b)
	if okA && okB && bias.Ptr == nil {
		kernel.GemmBF16Batch(c.threads, numBatch, rows, cols, inner, 1, mixed(a), stepA, mixed(b), stepB, beta, mixed(dst), rows*cols)
		return
	}
	for i := range numBatch {
		kernel.GemmBF16(c.threads, rows, cols, inner, 1, mixed(matrixAt(a, i)), mixed(matrixAt(b, i)), beta, mixed(matrixAt(dst, i)), bias.Float32s())
	}
}

// mixed describes the last two dims for a kernel that takes both dtypes.
func mixed(a device.Array) kernel.Mixed {
	n := len(a.Shape)
	s0, s1 := a.Strides[n-2], a.Strides[n-1]
	m := kernel.Mixed{Stride: max(s0, a.Shape[n-1])}
	if !isDense(a.Shape[n-2], a.Shape[n-1], s0, s1) {
		m.Stride, m.Trans = max(s1, a.Shape[n-2]), true
	}
	if a.DType == device.BFloat16 {
		m.BF16 = device.Span[uint16](a)
	} else {
		m.F32 = a.Span()
	}
	return m
}
