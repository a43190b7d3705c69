// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/trace"
)

// MatMul computes dst = a·b + beta·dst + bias; see device.Kernels. dst is
// contiguous; a and b may be transposed, and are copied when they are neither
// dense by rows nor by columns. See matMulBF16 for bfloat16.
func (c *CPU) MatMul(dst, a, b, bias device.Array, beta float32) {
	if trace.On() {
		defer traced("matmul", device.MatMulFLOPs(dst, a), dst, a, b, bias).End()
	}
	defer hold(dst, a, b, bias)
	n := len(dst.Shape)
	rows, cols, inner := dst.Shape[n-2], dst.Shape[n-1], a.Shape[len(a.Shape)-1]
	batch := dst.Shape[:n-2]
	numBatch := 1
	for _, s := range batch {
		numBatch *= s
	}
	if rows == 0 || cols == 0 || numBatch == 0 {
		return
	}
	c.flops.Add(device.MatMulFLOPs(dst, a))
	a, freeA := c.denseMatrices(a)
	defer freeA()
	b, freeB := c.denseMatrices(b)
	defer freeB()
	if multipliesLow(dst, a, b) {
		c.matMulBF16(numBatch, rows, cols, inner, dst, a, b, bias, beta)
		return
	}
	out := dst.Float32s()
	ma, mb := matrix(a), matrix(b)
	if numBatch == 1 {
		kernel.Gemm(c.threads, rows, cols, inner, 1, ma, mb, beta, out, cols, bias.Float32s())
		return
	}
	stepA, okA := batchStride(a)
	stepB, okB := batchStride(b)
	if okA && okB && bias.Ptr == nil {
		kernel.GemmBatch(c.threads, numBatch, rows, cols, inner, 1, ma, stepA, mb, stepB, beta, out, cols, rows*cols)
		return
	}
	for i := range numBatch {
		ma.Data, mb.Data = matrixAt(a, i).Span(), matrixAt(b, i).Span()
		kernel.Gemm(c.threads, rows, cols, inner, 1, ma, mb, beta, out[i*rows*cols:], cols, bias.Float32s())
	}
}

// matrix describes the last two dims for a kernel; the data spans all batches.
func matrix(a device.Array) kernel.Matrix {
	n := len(a.Shape)
	s0, s1 := a.Strides[n-2], a.Strides[n-1]
	if isDense(a.Shape[n-2], a.Shape[n-1], s0, s1) {
		return kernel.Matrix{Data: a.Span(), Stride: max(s0, a.Shape[n-1])}
	}
	return kernel.Matrix{Data: a.Span(), Stride: max(s1, a.Shape[n-2]), Trans: true}
}

// isDense reports whether a matrix of rows × cols lies by rows: dense along
// them, the rows not overlapping.
func isDense(rows, cols, rowStride, colStride int) bool {
	return (colStride == 1 || cols == 1) && (rowStride >= cols || rows == 1)
}

// denseMatrices returns a with its last two dims in a layout that kernels
// take, in a temporary copy where need be.
func (c *CPU) denseMatrices(a device.Array) (device.Array, func()) {
	n := len(a.Shape)
	rows, cols, s0, s1 := a.Shape[n-2], a.Shape[n-1], a.Strides[n-2], a.Strides[n-1]
	if isDense(rows, cols, s0, s1) || isDense(cols, rows, s1, s0) {
		return a, func() {}
	}
	m := c.Alloc(a.NumElems()*a.DType.Size(), false)
	dense := device.Array{Ptr: m.Ptr, DType: a.DType, Shape: a.Shape, Strides: make([]int, n)}
	step := 1
	for i := n - 1; i >= 0; i-- {
		dense.Strides[i] = step
		step *= a.Shape[i]
	}
	c.Copy(dense, a)
	return dense, func() { c.Free(m) }
}

// batchStride returns the distance between consecutive matrices, if it is one.
func batchStride(a device.Array) (int, bool) {
	stride, span := 0, 1
	first := true
	for i := len(a.Shape) - 3; i >= 0; i-- {
		if a.Shape[i] == 1 {
			continue
		}
		switch {
		case first:
			stride, first = a.Strides[i], false
		case a.Strides[i] != stride*span:
			return 0, false
		}
		span *= a.Shape[i]
	}
	return stride, true
}

// matrixAt returns matrix i of a batch, in row-major order of the batch dims.
func matrixAt(a device.Array, i int) device.Array {
	n := len(a.Shape)
	offset := 0
	for d := n - 3; d >= 0; d-- {
		offset += i % a.Shape[d] * a.Strides[d]
		i /= a.Shape[d]
	}
	a.Ptr = unsafe.Add(a.Ptr, offset*a.DType.Size())
	a.Shape, a.Strides = a.Shape[n-2:], a.Strides[n-2:]
	return a
}
