// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"fmt"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/work"
)

// Unary applies an elementwise function to contiguous arrays.
func (c *CPU) Unary(op device.Unary, dst, x device.Array) {
	defer hold(dst, x)
	unaryKernel(op)(c.threads, dst.Float32s(), x.Float32s())
}

func unaryKernel(op device.Unary) func(p *work.Pool, dst, a []float32) {
	switch op {
	case device.Neg:
		return kernel.Neg
	case device.Exp:
		return kernel.Exp
	case device.Log:
		return kernel.Log
	case device.Sqrt:
		return kernel.Sqrt
	case device.Reciprocal:
		return kernel.Reciprocal
	case device.Tanh:
		return kernel.Tanh
	case device.Erf:
		return kernel.Erf
	case device.ReLU:
		return kernel.ReLU
	case device.GELU:
		return kernel.GELU
	case device.GELUTanh:
		return kernel.GELUTanh
	}
	panic(fmt.Sprintf("cpu: no unary operation %d", op))
}

// binaryKernel returns the kernel for operands of one dense layout.
func binaryKernel(op device.Binary) func(p *work.Pool, dst, a, b []float32) {
	switch op {
	case device.Add:
		return kernel.Add
	case device.Sub:
		return kernel.Sub
	case device.Mul:
		return kernel.Mul
	case device.Div:
		return kernel.Div
	case device.ReLUGrad:
		return kernel.ReLUBackward
	case device.GELUGrad:
		return kernel.GELUBackward
	case device.GELUTanhGrad:
		return kernel.GELUTanhBackward
	}
	panic(fmt.Sprintf("cpu: no binary operation %d", op))
}

// Binary applies a function of two operands, which may be broadcast, to a
// contiguous dst.
func (c *CPU) Binary(op device.Binary, dst, a, b device.Array) {
	defer hold(dst, a, b)
	fn := binaryKernel(op)
	if a.IsContiguous() && b.IsContiguous() {
		fn(c.threads, dst.Float32s(), a.Float32s(), b.Float32s())
		return
	}
	if op == device.Add || op == device.Mul {
		if b.IsContiguous() {
			a, b = b, a
		}
		if rows, cols, ok := rowBroadcast(b); ok && a.IsContiguous() {
			row := unsafe.Slice((*float32)(b.Ptr), cols)
			if op == device.Add {
				kernel.AddRow(c.threads, dst.Float32s(), a.Float32s(), row, rows, cols)
			} else {
				kernel.MulRow(c.threads, dst.Float32s(), a.Float32s(), row, rows, cols)
			}
			return
		}
	}
	// Runs along the last dim; an operand that is not dense there is spread
	// into a buffer first.
	var buf [2][]float32
	forRuns([]device.Array{dst, a, b}, func(ptrs []unsafe.Pointer, n int, strides []int) {
		var in [2][]float32
		for i := range in {
			if strides[i+1] == 1 {
				in[i] = unsafe.Slice((*float32)(ptrs[i+1]), n)
				continue
			}
			if buf[i] == nil {
				buf[i] = make([]float32, n)
			}
			for j := range n {
				buf[i][j] = *elem[float32](ptrs[i+1], j*strides[i+1])
			}
			in[i] = buf[i]
		}
		fn(nil, unsafe.Slice((*float32)(ptrs[0]), n), in[0], in[1])
	})
}

// rowBroadcast reports whether a repeats one dense run of cols elements.
func rowBroadcast(a device.Array) (rows, cols int, ok bool) {
	rows, cols = 1, 1
	i := len(a.Shape) - 1
	for ; i >= 0 && (a.Shape[i] == 1 || a.Strides[i] == cols); i-- {
		cols *= a.Shape[i]
	}
	for ; i >= 0; i-- {
		if a.Shape[i] != 1 && a.Strides[i] != 0 {
			return 0, 0, false
		}
		rows *= a.Shape[i]
	}
	return rows, cols, cols > 1
}

// BinaryScalar applies a function of an operand and a scalar.
func (c *CPU) BinaryScalar(op device.Binary, dst, a device.Array, scalar float32) {
	defer hold(dst, a)
	switch op {
	case device.Add:
		kernel.AddScalar(c.threads, dst.Float32s(), a.Float32s(), scalar)
	case device.Mul:
		kernel.MulScalar(c.threads, dst.Float32s(), a.Float32s(), scalar)
	default:
		panic(fmt.Sprintf("cpu: no scalar form of binary operation %d", op))
	}
}
