// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/device/cpu"
	"github.com/cohort-ml/cohort/internal/mem"
)

// Buffer lends the bytes of a contiguous tensor for communication. They stay
// valid while the caller keeps t reachable and its tape open. A caller that
// writes calls [Tensor.MarkWritten] afterwards.
func (t *Tensor) Buffer() mem.Buffer {
	return mem.Buffer{Data: t.host("buffer"), Slab: cpu.Slab(t.storage.mem), Offset: t.offset * t.dtype.Size()}
}

// MarkWritten tells the tape that the data changed behind its back: a backward
// pass that had saved the old value fails instead of using the new one.
func (t *Tensor) MarkWritten() { t.wrote("mark written") }

// Version counts the writes in place to the memory of t, through any view of it. What is
// computed from two readings of the same version is computed from the same values.
func (t *Tensor) Version() uint32 { return t.storage.version }

// Loan is a tensor's memory as [Tensor.Lend] lends it. It is valid while the
// borrower keeps the tensor reachable and its tape open.
type Loan struct {
	mem.Buffer           // from the first element to the last, with what lies between
	Shape, Strides []int // the tensor's own, not to be changed; strides in elements
}

// CPUSees reports whether the CPU reads and writes the memory of a device in place,
// so that it can be lent.
func CPUSees(dev Device) bool {
	_, ok := dev.(device.Visible)
	return ok
}

// Lend lends a tensor's memory for communication, whatever its strides, once what
// was computed before has been. A value that has been freed or released, or whose
// device has memory that the CPU does not see, is an error. A borrower that writes
// calls [Tensor.MarkWritten].
func (t *Tensor) Lend() (Loan, error) {
	if err := t.lendable(); err != nil {
		return Loan{}, err
	}
	size := t.dtype.Size()
	n := span(t.shape, t.strides)
	b, ok := t.storage.host(t.offset*size, n*size)
	if !ok {
		return Loan{}, fmt.Errorf("is on device %s, whose memory the CPU does not see: copy it to the CPU by ToDevice", t.storage.dev.Name())
	}
	return Loan{mem.Buffer{Data: b, Slab: cpu.Slab(t.storage.mem), Offset: t.offset * size}, t.shape, t.strides}, nil
}

// LendOnDevice lends a tensor's memory to what moves it on its own device: the bytes
// of the [Loan] are the device's, to be reached by their address alone, and what was
// computed before need not have been. A value that has been freed or released is an error.
func (t *Tensor) LendOnDevice() (Loan, error) {
	if err := t.lendable(); err != nil {
		return Loan{}, err
	}
	b := mem.Buffer{Offset: t.offset * t.dtype.Size()}
	if n := span(t.shape, t.strides) * t.dtype.Size(); n > 0 && t.storage.mem.Ptr != nil {
		b.Data = unsafe.Slice((*byte)(unsafe.Add(t.storage.mem.Ptr, b.Offset)), n)
	}
	return Loan{b, t.shape, t.strides}, nil
}

// lendable returns why a tensor has no memory to lend.
func (t *Tensor) lendable() error {
	switch t.storage.state {
	case freed:
		return fmt.Errorf("has been freed: Backward consumed it, or its tape was closed; call Keep on it before that")
	case released:
		return fmt.Errorf("has no memory now: it was released; restore it before it is communicated")
	}
	return nil
}

// span returns the number of elements from the first one of a view to the last.
func span(shape, strides []int) int {
	n := 1
	for i, s := range shape {
		if s == 0 {
			return 0
		}
		n += (s - 1) * strides[i]
	}
	return n
}

// IsOverlapping reports whether several elements share their memory, as those
// of an expanded tensor do. Writing to such a tensor makes no sense.
func (t *Tensor) IsOverlapping() bool {
	if t.IsContiguous() {
		return false
	}
	type dim struct{ size, stride int }
	dims := make([]dim, 0, 8)
	for i, s := range t.shape {
		if s > 1 {
			dims = append(dims, dim{s, t.strides[i]})
		}
	}
	slices.SortFunc(dims, func(a, b dim) int { return a.stride - b.stride })
	reach := 0 // the last element that the dims so far lead to
	for _, d := range dims {
		if d.stride <= reach {
			return true
		}
		reach += (d.size - 1) * d.stride
	}
	return false
}
