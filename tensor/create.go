// SPDX-License-Identifier: Apache-2.0

package tensor

import "unsafe"

// New returns a tensor whose elements are zero.
func New(dev Device, dtype DType, shape ...int) *Tensor {
	t := alloc(nil, dev, dtype, shape, false)
	dev.Fill(t.array(), 0)
	return t
}

// NewShared returns a zero tensor in memory that processes on the same machine
// can map, so that collectives reduce it in place. DDP buckets are of it; use
// it for what is communicated often.
func NewShared(dev Device, dtype DType, shape ...int) *Tensor {
	return alloc(nil, dev, dtype, shape, true)
}

// Zeros returns a float32 tensor of zeros on the CPU.
func Zeros(shape ...int) *Tensor { return New(CPU(), Float32, shape...) }

// Full returns a float32 tensor on the CPU with every element set to value.
func Full(value float64, shape ...int) *Tensor {
	t := alloc(nil, CPU(), Float32, shape, false)
	t.storage.dev.Fill(t.array(), value)
	return t
}

// FromFloat32 returns a tensor on the CPU with a copy of data in row-major
// order. No shape means one dim.
func FromFloat32(data []float32, shape ...int) *Tensor {
	return fromBytes(Float32, len(data), unsafe.Pointer(unsafe.SliceData(data)), shape)
}

// FromInt64 is FromFloat32 for indices.
func FromInt64(data []int64, shape ...int) *Tensor {
	return fromBytes(Int64, len(data), unsafe.Pointer(unsafe.SliceData(data)), shape)
}

// FromUint8 is FromFloat32 for bytes, such as the pixels of an image.
func FromUint8(data []uint8, shape ...int) *Tensor {
	return fromBytes(Uint8, len(data), unsafe.Pointer(unsafe.SliceData(data)), shape)
}

// FromBool is FromFloat32 for masks.
func FromBool(data []bool, shape ...int) *Tensor {
	return fromBytes(Bool, len(data), unsafe.Pointer(unsafe.SliceData(data)), shape)
}

func fromBytes(dtype DType, n int, data unsafe.Pointer, shape []int) *Tensor {
	if len(shape) == 0 {
		shape = []int{n}
	}
	t := alloc(nil, CPU(), dtype, shape, false)
	if t.NumElems() != n {
		fail("from slice", []*Tensor{t}, "%d values do not fill the shape, which has %d", n, t.NumElems())
	}
	if n > 0 {
		copy(t.host("from slice"), unsafe.Slice((*byte)(data), n*dtype.Size()))
	}
	return t
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
		storage: newStorage(dev, numElems(shape)*dtype.Size(), shared, sc),
		shape:   shape, strides: strides, dtype: dtype, tape: tape,
	}
}

// result allocates the output of an operation: on the operands' device, under
// their tape.
func result(op string, dtype DType, shape []int, operands ...*Tensor) *Tensor {
	return alloc(tapeOf(op, operands), operands[0].storage.dev, dtype, shape, false)
}

// tapeOf returns the tape that the operands share, and checks that they are on
// one device.
func tapeOf(op string, operands []*Tensor) *Tape {
	var tape *Tape
	for _, t := range operands {
		if t == nil {
			continue
		}
		if t.tape != nil {
			if tape != nil && tape != t.tape {
				fail(op, operands, "the operands belong to two tapes; to use a value under another one, Keep it and take it there by Tape.Const")
			}
			tape = t.tape
		}
		if t.storage.dev != operands[0].storage.dev {
			fail(op, operands, "the operands are on two devices, %s and %s",
				operands[0].storage.dev.Name(), t.storage.dev.Name())
		}
	}
	return tape
}
