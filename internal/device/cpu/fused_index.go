// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// index runs what takes elements by their indices along a dim.
func (c *CPU) index(op device.Op, a []device.Array) bool {
	switch op := op.(type) {
	case device.CheckIndices:
		ids := a[0].Int64s()
		if bad := kernel.FindBadIndex(c.threads, ids, op.Limit); bad >= 0 {
			op.Check.Note(device.OpName(op), bad, ids[bad])
		}
	case device.IndexSelect:
		outer, size, inner := around(a[1].Shape, op.Dim)
		switch a[0].DType.Size() {
		case 1:
			kernel.IndexSelect(c.threads, device.Elems[uint8](a[0]), device.Elems[uint8](a[1]), a[2].Int64s(), outer, size, inner)
		case 2:
			kernel.IndexSelect(c.threads, device.Elems[uint16](a[0]), device.Elems[uint16](a[1]), a[2].Int64s(), outer, size, inner)
		case 4:
			kernel.IndexSelect(c.threads, device.Elems[int32](a[0]), device.Elems[int32](a[1]), a[2].Int64s(), outer, size, inner)
		default:
			kernel.IndexSelect(c.threads, device.Elems[int64](a[0]), device.Elems[int64](a[1]), a[2].Int64s(), outer, size, inner)
		}
	case device.GatherElems:
		outer, size, inner := around(a[1].Shape, op.Dim)
		n := a[2].Shape[op.Dim]
		switch a[0].DType.Size() {
		case 1:
			kernel.GatherElems(c.threads, device.Elems[uint8](a[0]), device.Elems[uint8](a[1]), a[2].Int64s(), outer, n, size, inner)
		case 2:
			kernel.GatherElems(c.threads, device.Elems[uint16](a[0]), device.Elems[uint16](a[1]), a[2].Int64s(), outer, n, size, inner)
		case 4:
			kernel.GatherElems(c.threads, device.Elems[int32](a[0]), device.Elems[int32](a[1]), a[2].Int64s(), outer, n, size, inner)
		default:
			kernel.GatherElems(c.threads, device.Elems[int64](a[0]), device.Elems[int64](a[1]), a[2].Int64s(), outer, n, size, inner)
		}
	case device.ScatterElems:
		outer, size, inner := around(a[0].Shape, op.Dim)
		n := a[2].Shape[op.Dim]
		switch a[0].DType.Size() {
		case 1:
			kernel.ScatterElems(c.threads, device.Elems[uint8](a[0]), device.Elems[uint8](a[1]), a[2].Int64s(), outer, n, size, inner)
		case 2:
			kernel.ScatterElems(c.threads, device.Elems[uint16](a[0]), device.Elems[uint16](a[1]), a[2].Int64s(), outer, n, size, inner)
		case 4:
			kernel.ScatterElems(c.threads, device.Elems[int32](a[0]), device.Elems[int32](a[1]), a[2].Int64s(), outer, n, size, inner)
		default:
			kernel.ScatterElems(c.threads, device.Elems[int64](a[0]), device.Elems[int64](a[1]), a[2].Int64s(), outer, n, size, inner)
		}
	case device.IndexAdd:
		c.indexAdd(op.Dim, a[0], a[1], a[2].Int64s())
	case device.ScatterAddElems:
		c.scatterAdd(op.Dim, a[0], a[1], a[2])
	default:
		return false
	}
	return true
}

func (c *CPU) indexAdd(dim int, dst, src device.Array, ids []int64) {
	outer, size, inner := around(dst.Shape, dim)
	switch dst.DType {
	case device.Float32:
		if outer == 1 {
			kernel.EmbeddingBackward(c.threads, dst.Float32s(), src.Float32s(), ids, inner)
			return
		}
		kernel.IndexAdd(c.threads, dst.Float32s(), src.Float32s(), ids, outer, size, inner)
	case device.Float64:
		kernel.IndexAdd(c.threads, device.Elems[float64](dst), device.Elems[float64](src), ids, outer, size, inner)
	case device.Int32:
		kernel.IndexAdd(c.threads, device.Elems[int32](dst), device.Elems[int32](src), ids, outer, size, inner)
	default:
		kernel.IndexAdd(c.threads, dst.Int64s(), src.Int64s(), ids, outer, size, inner)
	}
}

func (c *CPU) scatterAdd(dim int, dst, src, index device.Array) {
	outer, size, inner := around(dst.Shape, dim)
	n, ids := index.Shape[dim], index.Int64s()
	switch dst.DType {
	case device.Float32:
		kernel.ScatterAddElems(c.threads, dst.Float32s(), src.Float32s(), ids, outer, n, size, inner)
	case device.Float64:
		kernel.ScatterAddElems(c.threads, device.Elems[float64](dst), device.Elems[float64](src), ids, outer, n, size, inner)
	case device.Int32:
		kernel.ScatterAddElems(c.threads, device.Elems[int32](dst), device.Elems[int32](src), ids, outer, n, size, inner)
	default:
		kernel.ScatterAddElems(c.threads, dst.Int64s(), src.Int64s(), ids, outer, n, size, inner)
	}
}

// move runs what copies parts of arrays, or adds them up.
func (c *CPU) move(op device.Op, a []device.Array) bool {
	switch op := op.(type) {
	case device.Concat:
		switch a[0].DType.Size() {
		case 1:
			concat[uint8](c, op, a[0], a[1])
		case 2:
			concat[uint16](c, op, a[0], a[1])
		case 4:
			concat[int32](c, op, a[0], a[1])
		default:
			concat[int64](c, op, a[0], a[1])
		}
	case device.Triangle:
		switch a[0].DType.Size() {
		case 1:
			triangle[uint8](c, op, a[0], a[1])
		case 2:
			triangle[uint16](c, op, a[0], a[1])
		case 4:
			triangle[int32](c, op, a[0], a[1])
		default:
			triangle[int64](c, op, a[0], a[1])
		}
	case device.AddRegion:
		outer, size, inner := around(a[0].Shape, op.Dim)
		n := a[1].Shape[op.Dim]
		kernel.AddRuns(c.threads, a[0].Float32s()[min(op.Start*inner, a[0].NumElems()):], size*inner, a[1].Float32s(), n*inner, n*inner, outer)
	case device.SumRows:
		rows, cols := a[1].RowsCols()
		kernel.SumRowsBF16(c.threads, a[0].Float32s(), device.Elems[uint16](a[1]), rows, cols)
	default:
		return false
	}
	return true
}

func concat[T word](c *CPU, op device.Concat, out, x device.Array) {
	outer, total, inner := around(out.Shape, op.Dim)
	n := x.Shape[op.Dim]
	kernel.CopyRuns(c.threads, device.Elems[T](out)[op.Start*inner:], total*inner, device.Elems[T](x), n*inner, n*inner, outer)
}

func triangle[T word](c *CPU, op device.Triangle, out, x device.Array) {
	n := len(out.Shape)
	matrices := 1
	for _, s := range out.Shape[:n-2] {
		matrices *= s
	}
	kernel.Triangle(c.threads, device.Elems[T](out), device.Elems[T](x), matrices, out.Shape[n-2], out.Shape[n-1], op.K, op.Upper)
}

// word is an element seen as bits of its size.
type word interface {
	kernel.Word
	device.Element
}
