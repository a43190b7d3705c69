// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
)

// New returns a tensor whose elements are zero.
func New(dev Device, dtype DType, shape ...int) *Tensor {
	t := alloc(nil, dev, dtype, shape, false)
	t.filled(0)
	dev.Fill(t.array(), 0)
	return t
}

// NewShared returns a zero tensor in memory that processes on the same machine
// can map, so that collectives reduce it in place. DDP buckets are of it; use
// it for what is communicated often.
func NewShared(dev Device, dtype DType, shape ...int) *Tensor {
	t := alloc(nil, dev, dtype, shape, true)
	t.filled(0)
	return t
}

// NewPinned returns a zero tensor on the CPU whose memory dev reads and writes
// by itself, without a copy between, where dev is a processor that can do so: a
// loader's batches for a GPU lie in such memory. For any other device it is a
// tensor on the CPU like another. [Tensor.Release] ends the pinning.
func NewPinned(dev Device, dtype DType, shape ...int) *Tensor {
	t := New(CPU(), dtype, shape...)
	pinner, ok := dev.(device.Pinner)
	if !ok || t.NumElems() == 0 {
		return t
	}
	s := t.storage
	unpin, err := pinner.Pin(s.mem)
	if err != nil {
		fail("new pinned", []*Tensor{t}, "device %s cannot pin the memory: %v", dev.Name(), err)
	}
	s.takeFromCollector() // which was told to free it without unpinning it
	s.unpin = unpin
	s.leaveToCollector()
	return t
}

// Creation makes tensors on a device; see [On].
type Creation struct{ dev Device }

// On returns what makes tensors on dev: On(dev).Zeros(2, 3). The functions of
// the same names in this package make them on the CPU.
func On(dev Device) Creation { return Creation{dev} }

// Zeros returns a float32 tensor of zeros.
func (c Creation) Zeros(shape ...int) *Tensor { return New(c.dev, Float32, shape...) }

// Full returns a float32 tensor with every element set to value.
func (c Creation) Full(value float64, shape ...int) *Tensor {
	t := alloc(nil, c.dev, Float32, shape, false)
	t.filled(value)
	c.dev.Fill(t.array(), value)
	return t
}

// Empty returns a tensor whose elements are not set: for whoever writes all of
// them. What is in it before is some earlier value's.
func (c Creation) Empty(dtype DType, shape ...int) *Tensor {
	return alloc(nil, c.dev, dtype, shape, false).unset()
}

// Released returns a tensor that has no memory until [Tensor.Restore] gives it some, as
// after [Tensor.Release].
func (c Creation) Released(dtype DType, shape ...int) *Tensor {
	wantSizes("new", nil, shape)
	shape = slices.Clone(shape)
	s := &storage{dev: c.dev, mem: device.Memory{Size: numElems(shape) * dtype.Size()}, state: released}
	return &Tensor{storage: s, shape: shape, strides: denseStrides(shape), dtype: dtype}
}

// FromFloat32 returns a tensor with a copy of data in row-major order. No shape
// means one dim.
func (c Creation) FromFloat32(data []float32, shape ...int) *Tensor {
	return fromSlice(c.dev, Float32, data, shape)
}

// FromFloat64 is FromFloat32 for float64.
func (c Creation) FromFloat64(data []float64, shape ...int) *Tensor {
	return fromSlice(c.dev, Float64, data, shape)
}

// FromInt64 is FromFloat32 for indices.
func (c Creation) FromInt64(data []int64, shape ...int) *Tensor {
	return fromSlice(c.dev, Int64, data, shape)
}

// FromUint8 is FromFloat32 for bytes, such as the pixels of an image.
func (c Creation) FromUint8(data []uint8, shape ...int) *Tensor {
	return fromSlice(c.dev, Uint8, data, shape)
}

// FromBool is FromFloat32 for masks.
func (c Creation) FromBool(data []bool, shape ...int) *Tensor {
	return fromSlice(c.dev, Bool, data, shape)
}

// Zeros returns a float32 tensor of zeros on the CPU.
func Zeros(shape ...int) *Tensor { return On(CPU()).Zeros(shape...) }

// Full returns a float32 tensor on the CPU with every element set to value.
func Full(value float64, shape ...int) *Tensor { return On(CPU()).Full(value, shape...) }

// Empty returns a tensor on the CPU whose elements are not set: for a reader that
// fills it by [Tensor.Buffer]. What is in it before is some earlier value's.
func Empty(dtype DType, shape ...int) *Tensor { return On(CPU()).Empty(dtype, shape...) }

// FromFloat32 returns a tensor on the CPU with a copy of data in row-major
// order. No shape means one dim.
func FromFloat32(data []float32, shape ...int) *Tensor { return On(CPU()).FromFloat32(data, shape...) }

// FromFloat64 is FromFloat32 for float64.
func FromFloat64(data []float64, shape ...int) *Tensor { return On(CPU()).FromFloat64(data, shape...) }

// FromInt64 is FromFloat32 for indices.
func FromInt64(data []int64, shape ...int) *Tensor { return On(CPU()).FromInt64(data, shape...) }

// FromUint8 is FromFloat32 for bytes, such as the pixels of an image.
func FromUint8(data []uint8, shape ...int) *Tensor { return On(CPU()).FromUint8(data, shape...) }

// FromBool is FromFloat32 for masks.
func FromBool(data []bool, shape ...int) *Tensor { return On(CPU()).FromBool(data, shape...) }

// fromSlice makes a tensor of the dtype whose elements are of type T.
func fromSlice[T any](dev Device, dtype DType, data []T, shape []int) *Tensor {
	n := len(data)
	if len(shape) == 0 {
		shape = []int{n}
	}
	t := alloc(nil, dev, dtype, shape, false)
	if t.NumElems() != n {
		fail("from slice", []*Tensor{t}, "%d values do not fill the shape, which has %d", n, t.NumElems())
	}
	switch {
	case n == 0:
	case dev == Meta:
		given(t, data)
	default:
		t.storage.write(0, bytesOf(data))
	}
	return t
}

// bytesOf returns the memory of a slice.
func bytesOf[T any](data []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), len(data)*int(unsafe.Sizeof(*new(T))))
}

// alloc returns a tensor under tape (nil for none) whose elements are not set.
func alloc(tape *Tape, dev Device, dtype DType, shape []int, shared bool) *Tensor {
	wantSizes("new", nil, shape)
	var sc *scope
	if tape != nil {
		sc = tape.scope
	}
	// One piece for both: every operation allocates here.
	dims := make([]int, 2*len(shape))
	shape, strides := dims[:copy(dims, shape):len(shape)], dims[len(shape):]
	writeDenseStrides(strides, shape)
	return &Tensor{
		storage: newStorage(dev, dtype, shape, shared, sc),
		shape:   shape, strides: strides, dtype: dtype, tape: tape,
	}
}

// result allocates the output of an operation: on the operands' device, under
// their tape.
func result(op string, dtype DType, shape []int, operands ...*Tensor) *Tensor {
	tape := tapeOf(op, operands)
	out := alloc(tape, operands[0].storage.dev, dtype, shape, false)
	if tape != nil && tape.observer != nil {
		tape.observe(op, out, nil, operands...)
	}
	return out
}

// tapeOf returns the tape that the operands share, and checks that they have
// their memory and are on one device.
func tapeOf(op string, operands []*Tensor) *Tape {
	var tape *Tape
	for i, t := range operands {
		if t == nil {
			continue
		}
		if t.storage.state != live {
			fail(op, operands, "%s: %s", ordinal(i), t.storage.state.why())
		}
		if t.tape != nil {
			if tape != nil && tape != t.tape {
				fail(op, operands, "the operands belong to two tapes; to use a value under another one, Keep it and take it there by Tape.Const")
			}
			tape = t.tape
		}
		if t.storage.dev != operands[0].storage.dev {
			failDevices(op, operands, operands[0].storage.dev, t.storage.dev)
		}
	}
	return tape
}
