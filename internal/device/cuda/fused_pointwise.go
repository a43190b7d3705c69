// SPDX-License-Identifier: Apache-2.0

package cuda

import "github.com/cohort-ml/cohort/internal/device"

// pointwise runs functions of elements, dropout and lists of arrays.
func (d *Device) pointwise(op device.Op, a []device.Array) bool {
	name := device.OpName(op)
	n := 0
	if len(a) > 0 {
		n = a[0].NumElems()
	}
	switch op := op.(type) {
	case device.Pointwise:
		if n > 0 {
			d.launch(name, "pointwise", overElements(n), a[0].Ptr, a[1].Ptr, int32(a[1].DType), int32(op.Func), number(op.Slope), op.A, op.B, n)
		}
	case device.SwiGLU:
		if n > 0 {
			d.launch(name, "swiglu", overElements(n), a[0].Ptr, a[1].Ptr, a[2].Ptr, int32(a[0].DType), n)
		}
	case device.SwiGLUGrad:
		if n > 0 {
			d.launch(name, "swiglu_grad", overElements(n), a[0].Ptr, a[1].Ptr, a[2].Ptr, a[3].Ptr, a[4].Ptr, int32(a[0].DType), n)
		}
	case device.DropoutMask:
		if op.NumElems > 0 {
			d.launch(name, "dropout_mask", overElements(n), a[0].Ptr, op.Key, op.Stream, op.Keep, op.NumElems)
		}
	case device.Dropout:
		if n > 0 {
			d.launch(name, "dropout", overElements(n), a[0].Ptr, a[1].Ptr, a[2].Ptr, float32(op.Scale), n)
		}
	case device.LerpAll:
		for i := 0; i+1 < len(a); i += 2 {
			if n := a[i].NumElems(); n > 0 {
				d.launch(name, "lerp", overElements(n), a[i].Ptr, a[i+1].Ptr, float32(op.Weight), n)
			}
		}
	case device.SwapAll:
		for i := 0; i+1 < len(a); i += 2 {
			if n := a[i].NumElems(); n > 0 {
				d.launch(name, "swap", overElements(n), a[i].Ptr, a[i+1].Ptr, n)
			}
		}
	case device.ClampAll:
		for _, x := range a {
			if n := x.NumElems(); n > 0 {
				d.launch(name, "clamp", overElements(n), x.Ptr, float32(op.Limit), n)
			}
		}
	default:
		return false
	}
	return true
}

// transformer runs the norm and the rotations of Llama and its kin.
func (d *Device) transformer(op device.Op, a []device.Array) bool {
	name := device.OpName(op)
	switch op := op.(type) {
	case device.RMSNorm:
		if rows, cols := a[2].RowsCols(); rows > 0 {
			d.launch(name, "rms_norm", overRows(rows), a[0].Ptr, a[1].Ptr, a[2].Ptr, int32(a[2].DType), a[3].Ptr, float32(op.Eps), rows, cols)
		}
	case device.RMSNormGrad:
		rows, cols := a[3].RowsCols()
		if rows > 0 {
			d.launch(name, "rms_norm_grad", overRows(rows), a[0].Ptr, a[2].Ptr, a[3].Ptr, int32(a[3].DType), a[4].Ptr, a[5].Ptr, rows, cols)
		}
		if a[1].Ptr != nil && cols > 0 {
			d.launch(name, "rms_norm_params", overRows(cols), a[1].Ptr, a[2].Ptr, a[3].Ptr, int32(a[3].DType), a[4].Ptr, rows, cols)
		}
	case device.RoPE:
		d.rotate(name, op.Back, a)
	default:
		return false
	}
	return true
}

func (d *Device) rotate(name string, back bool, a []device.Array) {
	x := a[1]
	half := x.Shape[3] / 2
	shape := []int{x.Shape[0], x.Shape[1], x.Shape[2], half}
	n := shape[0] * shape[1] * shape[2] * half
	if n == 0 {
		return
	}
	table := a[2]
	table.Strides = []int{0, half, 0, 1}
	if len(table.Shape) == 3 {
		table.Strides[0] = x.Shape[1] * half
	}
	sign := float32(1)
	if back {
		sign = -1
	}
	d.launch(name, "rope", overElements(n), a[0].Ptr, x.Ptr, int32(x.DType), a[2].Ptr, a[3].Ptr, sign, newLayout(shape, a[0], x, table), half, n)
}
