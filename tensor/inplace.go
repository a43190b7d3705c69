// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// The operations of this file write in place and are never recorded: they are
// for parameters, gradients, buffers and inputs. A backward pass that had
// saved the old value panics.

// CopyFrom overwrites t with src, which has its shape and dtype.
func (t *Tensor) CopyFrom(src *Tensor) {
	t.wantSame("copy from", src)
	for i, s := range t.strides {
		if s == 0 && t.shape[i] > 1 && t.NumElems() > 0 { // of nothing, any strides do
			fail("copy from", []*Tensor{t, src}, "dim %d of the destination is one element repeated", i)
		}
	}
	src = src.apartFrom(t)
	t.storage.version++
	t.copied("copy from", src, true, (*Tensor).CopyFrom)
	t.Device().Copy(t.array(), src.array())
}

// Fill sets every element.
func (t *Tensor) Fill(value float64) {
	t.wantValue("fill", value)
	t.storage.version++
	t.filled(value)
	t.Device().Fill(t.array(), value)
}

// Axpy adds alpha·x, of t's shape and dtype; both are contiguous. Of integers
// alpha must be whole.
func (t *Tensor) Axpy(alpha float64, x *Tensor) {
	t.wantSame("axpy", x)
	t.wantWhole("axpy", alpha)
	if !t.IsContiguous() || !x.IsContiguous() {
		fail("axpy", []*Tensor{t, x}, "wants contiguous tensors")
	}
	x = x.apartFrom(t)
	t.storage.version++
	t.copied("axpy", x, false, func(dst, src *Tensor) { dst.Axpy(alpha, src) })
	t.Device().Axpy(t.array(), alpha, x.array())
}

// AddAt adds x, of float32 or bfloat16, to the indices of a dim from first on. t is contiguous
// float32, and x is under no tape.
func (t *Tensor) AddAt(dim, first int, x *Tensor) {
	present("add at", t, x)
	t.wantDType("add at", Float32)
	d := dimIndex("add at", t, dim)
	shape := t.Shape()
	if len(x.shape) == len(shape) {
		shape[d] = x.shape[d]
	}
	if !slices.Equal(shape, x.shape) || first < 0 || first+x.shape[d] > t.shape[d] || !t.IsContiguous() {
		fail("add at", []*Tensor{t, x}, "wants a part of dim %d, from index %d on, of a contiguous tensor", d, first)
	}
	t.storage.version++
	if wide := x.To(Float32).Contiguous(); wide != x {
		defer wide.Free()
		x = wide
	}
	fused(device.AddRegion{Dim: d, Start: first}, t.detach(), x)
}

// Scale multiplies every element of a contiguous tensor by s, which must be
// whole where the elements are.
func (t *Tensor) Scale(s float64) {
	t.wantWhole("scale", s)
	if !t.IsContiguous() {
		fail("scale", []*Tensor{t}, "wants a contiguous tensor")
	}
	t.storage.version++
	t.scaled(s)
	t.Device().BinaryScalar(device.Mul, t.array(), t.array(), s)
}

// CopyScaled overwrites t with s·src, of t's shape and dtype; both are contiguous.
// Of integers s must be whole.
func (t *Tensor) CopyScaled(s float64, src *Tensor) {
	t.wantSame("copy scaled", src)
	t.wantWhole("copy scaled", s)
	if !t.IsContiguous() || !src.IsContiguous() {
		fail("copy scaled", []*Tensor{t, src}, "wants contiguous tensors")
	}
	src = src.apartFrom(t)
	t.storage.version++
	t.copied("copy scaled", src, true, func(dst, src *Tensor) { dst.CopyScaled(s, src) })
	t.Device().BinaryScalar(device.Mul, t.array(), src.array(), s)
}

// wantWhole fails when the number cannot be one of t's dtype.
func (t *Tensor) wantWhole(op string, s float64) {
	if t.dtype == Bool || !t.dtype.IsFloat() && s != math.Trunc(s) {
		fail(op, []*Tensor{t}, "cannot take %v into %v", s, t.dtype)
	}
}

// wantValue fails when no element of t can be v: integers have a range.
func (t *Tensor) wantValue(op string, v float64) {
	if t.dtype == Bool || t.dtype.IsFloat() {
		return
	}
	t.wantWhole(op, v)
	if low, high := intRange(t.dtype); v < low || v >= high+1 {
		fail(op, []*Tensor{t}, "cannot take %v into %v", v, t.dtype)
	}
}

// apartFrom returns t, or a copy when it is another view of the storage that
// dst is a view of: kernels would read elements that they have written already.
func (t *Tensor) apartFrom(dst *Tensor) *Tensor {
	if t.storage != dst.storage || t.offset == dst.offset && slices.Equal(t.strides, dst.strides) {
		return t
	}
	return t.detach().Clone()
}

func (t *Tensor) wantSame(op string, u *Tensor) {
	present(op, t, u)
	if !slices.Equal(t.shape, u.shape) || t.dtype != u.dtype {
		fail(op, []*Tensor{t, u}, "both must have one shape and dtype")
	}
	if t.Device() != u.Device() {
		fail(op, []*Tensor{t, u}, "the operands are on two devices, %s and %s", t.Device().Name(), u.Device().Name())
	}
}
