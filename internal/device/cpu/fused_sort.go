// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// order runs sorts, and sums and products along a row: what depends on the order of
// its elements.
func (c *CPU) order(op device.Op, a []device.Array) bool {
	switch op := op.(type) {
	case device.Sort:
		c.sort(op, a[0].Int64s(), a[1])
	case device.TopK:
		c.topK(op, a[0].Int64s(), a[1])
	case device.CumSum:
		outer, n, inner := around(a[0].Shape, op.Dim)
		switch a[0].DType {
		case device.Float32:
			kernel.CumSum[float32, float64](c.threads, a[0].Float32s(), a[1].Float32s(), outer, n, inner, op.Reverse)
		case device.Float64:
			kernel.CumSum[float64, float64](c.threads, device.Elems[float64](a[0]), device.Elems[float64](a[1]), outer, n, inner, op.Reverse)
		default:
			kernel.CumSum[int64, int64](c.threads, a[0].Int64s(), a[1].Int64s(), outer, n, inner, op.Reverse)
		}
	case device.CumProd:
		rows, cols := a[1].RowsCols()
		kernel.CumProd[float32, float64](c.threads, a[0].Float32s(), a[1].Float32s(), rows, cols)
	case device.FirstZeros:
		firstZeros(a[0].Float32s(), a[1].Float32s(), a[2])
	case device.ProdGrad:
		prodGrad(device.Elems[float64](a[0]), device.Elems[float64](a[1]), op.Size)
	default:
		return false
	}
	return true
}

func (c *CPU) sort(op device.Sort, order []int64, a device.Array) {
	rows, cols := a.RowsCols()
	switch a.DType {
	case device.Float32:
		kernel.ArgSort(c.threads, order, a.Float32s(), rows, cols, op.Descending, false)
	case device.Float64:
		kernel.ArgSort(c.threads, order, device.Elems[float64](a), rows, cols, op.Descending, false)
	case device.BFloat16, device.Float16:
		kernel.ArgSort(c.threads, order, device.Elems[uint16](a), rows, cols, op.Descending, a.DType == device.Float16)
	case device.Int64:
		kernel.ArgSort(c.threads, order, a.Int64s(), rows, cols, op.Descending, false)
	case device.Int32:
		kernel.ArgSort(c.threads, order, device.Elems[int32](a), rows, cols, op.Descending, false)
	case device.Int8:
		kernel.ArgSort(c.threads, order, device.Elems[int8](a), rows, cols, op.Descending, false)
	default:
		kernel.ArgSort(c.threads, order, device.Elems[uint8](a), rows, cols, op.Descending, false)
	}
}

func (c *CPU) topK(op device.TopK, order []int64, a device.Array) {
	rows, cols := a.RowsCols()
	switch a.DType {
	case device.Float32:
		kernel.TopK(c.threads, order, a.Float32s(), rows, cols, op.K, op.Largest, false)
	case device.Float64:
		kernel.TopK(c.threads, order, device.Elems[float64](a), rows, cols, op.K, op.Largest, false)
	case device.BFloat16, device.Float16:
		kernel.TopK(c.threads, order, device.Elems[uint16](a), rows, cols, op.K, op.Largest, a.DType == device.Float16)
	case device.Int64:
		kernel.TopK(c.threads, order, a.Int64s(), rows, cols, op.K, op.Largest, false)
	case device.Int32:
		kernel.TopK(c.threads, order, device.Elems[int32](a), rows, cols, op.K, op.Largest, false)
	case device.Int8:
		kernel.TopK(c.threads, order, device.Elems[int8](a), rows, cols, op.K, op.Largest, false)
	default:
		kernel.TopK(c.threads, order, device.Elems[uint8](a), rows, cols, op.K, op.Largest, false)
	}
}

func firstZeros(at, until []float32, x device.Array) {
	rows, cols := x.RowsCols()
	elems := x.Float32s()
	clear(at)
	clear(until)
	for r := range rows {
		for i := r * cols; i < (r+1)*cols; i++ {
			if elems[i] == 0 {
				at[i] = 1
				break
			}
			until[i] = 1
		}
	}
}

func prodGrad(dst, x []float64, size int) {
	for at := 0; at < len(x); at += size {
		before := 1.0
		for i := at; i < at+size; i++ {
			dst[i] = before
			before *= x[i]
		}
		after := 1.0
		for i := at + size - 1; i >= at; i-- {
			dst[i] *= after
			after *= x[i]
		}
	}
}
