// SPDX-License-Identifier: Apache-2.0

package tensor

import "github.com/cohort-ml/cohort/internal/device"

// DType is the type of a tensor's elements.
type DType = device.DType

// The element types. Parameters are float32 and most computation is; bfloat16
// is for matrix products and what lies between them, the integers are for
// indices and raw data, bool is for masks.
const (
	Float32  = device.Float32
	BFloat16 = device.BFloat16
	Float16  = device.Float16
	Float64  = device.Float64
	Int64    = device.Int64
	Int32    = device.Int32
	Int8     = device.Int8
	Uint8    = device.Uint8
	Bool     = device.Bool
)

// To returns the values as another dtype, t itself if it has it. Rounding is
// to the nearest, ties to even; from a floating dtype to an integer the fraction
// is cut off; anything but 0 is true. The gradient goes back between floating
// dtypes, none goes through others.
func (t *Tensor) To(dtype DType) *Tensor {
	if t.dtype == dtype {
		return t
	}
	out := result("to", dtype, t.shape, t)
	out.copied("to", t, true, func(dst, src *Tensor) { dst.CopyFrom(src.To(dtype)) })
	out.Device().Copy(out.array(), t.array())
	if !t.dtype.IsFloat() || !dtype.IsFloat() {
		return out
	}
	from := t.dtype
	return out.record("to", []*Tensor{t}, nil, func(b *backprop, g *Tensor) { b.give(0, g.To(from)) })
}
