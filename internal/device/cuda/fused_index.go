// SPDX-License-Identifier: Apache-2.0

package cuda

import "github.com/cohort-ml/cohort/internal/device"

// around returns how many elements lie along a dim and inside it.
func around(a device.Array, dim int) (size, inner int) {
	inner = 1
	for _, s := range a.Shape[dim+1:] {
		inner *= s
	}
	return a.Shape[dim], inner
}

// index runs what takes elements by their indices along a dim.
func (d *Device) index(op device.Op, a []device.Array) bool {
	name := device.OpName(op)
	switch op := op.(type) {
	case device.CheckIndices:
		if n := a[0].NumElems(); n > 0 {
			word, number, site := d.checked(name, op.Check)
			d.launch(name, "check_indices", oneWarp, a[0].Ptr, op.Limit, word, number, site, n)
		}
	case device.Probabilities:
		if n := a[0].NumElems(); n > 0 {
			word, number, site := d.checked(name, op.Check)
			d.launch(name, "probabilities", oneWarp, a[0].Ptr, word, number, site, n)
		}
	case device.IndexSelect:
		d.pick(name, "index_select", op.Dim, a, a[0], a[1])
	case device.GatherElems:
		d.pick(name, "gather_elements", op.Dim, a, a[0], a[1])
	case device.ScatterElems:
		size, inner := around(a[0], op.Dim)
		count, _ := around(a[2], op.Dim)
		if n := a[2].NumElems(); n > 0 {
			d.launch(name, "scatter_elements", overElements(n/count), a[0].Ptr, a[1].Ptr, a[2].Ptr, int32(a[0].DType.Size()), size, count, inner, n/count)
		}
	case device.IndexAdd:
		d.addByIndex(name, op.Dim, a, false)
	case device.ScatterAddElems:
		d.addByIndex(name, op.Dim, a, true)
	default:
		return false
	}
	return true
}

// pick runs a kernel whose elements come from those of x that ids name.
func (d *Device) pick(name, kernel string, dim int, a []device.Array, out, x device.Array) {
	size, inner := around(x, dim)
	count, _ := around(out, dim)
	if n := out.NumElems(); n > 0 {
		d.launch(name, kernel, overElements(n), out.Ptr, x.Ptr, a[2].Ptr, int32(out.DType.Size()), size, count, inner, n)
	}
}

// addByIndex adds elements; each has an index of its own, or each slice.
func (d *Device) addByIndex(name string, dim int, a []device.Array, each bool) {
	size, inner := around(a[0], dim)
	count, _ := around(a[1], dim)
	if n := a[1].NumElems(); n > 0 {
		d.launch(name, "add_by_index_"+class(a[0].DType), overElements(n/count), a[0].Ptr, a[1].Ptr, a[2].Ptr, number(each), size, count, inner, n/count)
	}
}

// regions runs what moves or adds parts of arrays.
func (d *Device) regions(op device.Op, a []device.Array) bool {
	name := device.OpName(op)
	switch op := op.(type) {
	case device.Concat:
		size, inner := around(a[0], op.Dim)
		count, _ := around(a[1], op.Dim)
		if n := a[1].NumElems(); n > 0 {
			d.launch(name, "concat", overElements(n), a[0].Ptr, a[1].Ptr, int32(a[0].DType.Size()), op.Start, size, count, inner, n)
		}
	case device.AddRegion:
		size, inner := around(a[0], op.Dim)
		count, _ := around(a[1], op.Dim)
		if n := a[1].NumElems(); n > 0 {
			d.launch(name, "add_region", overElements(n), a[0].Ptr, a[1].Ptr, op.Start, size, count, inner, n)
		}
	case device.Triangle:
		dims := len(a[1].Shape)
		if n := a[1].NumElems(); n > 0 {
			d.launch(name, "triangle", overElements(n), a[0].Ptr, a[1].Ptr, int32(a[0].DType.Size()), op.K, number(op.Upper), a[1].Shape[dims-2], a[1].Shape[dims-1], n)
		}
	case device.SumRows:
		if rows, cols := a[1].RowsCols(); cols > 0 {
			d.launch(name, "sum_rows", overRows(cols), a[0].Ptr, a[1].Ptr, int32(a[1].DType), rows, cols)
		}
	default:
		return false
	}
	return true
}
