// SPDX-License-Identifier: Apache-2.0

// Package cpu computes on the processor of this machine: it maps the arrays of
// package device to the slices of package kernel, on one thread pool and one
// memory pool. Common layouts go straight to a kernel; the rest take loops
// that are right and slow.
package cpu

import (
	"runtime"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/mem"
	"github.com/cohort-ml/cohort/internal/work"
)

// CPU is the device. Several goroutines may use it at once; their loops then
// run on fewer threads each.
type CPU struct {
	threads *work.Pool
	memory  *mem.Pool
}

// New returns a device that computes on numThreads threads.
func New(numThreads int) *CPU {
	return &CPU{threads: work.New(numThreads), memory: mem.NewPool()}
}

// Name returns "cpu".
func (*CPU) Name() string { return "cpu" }

// NumThreads returns how many threads compute.
func (c *CPU) NumThreads() int { return c.threads.NumThreads() }

// MemoryStats returns what the memory pool holds. Slabs are not in it.
func (c *CPU) MemoryStats() mem.Stats { return c.memory.Stats() }

// Alloc returns memory; see device.Device.
func (c *CPU) Alloc(size int, shared bool) device.Memory {
	if shared && size > 0 {
		slab, err := mem.NewSlab(size)
		if err != nil {
			panic(err)
		}
		return device.Memory{Ptr: slab.Pointer(), Size: size, Slab: slab}
	}
	b := c.memory.Get(size)
	return device.Memory{Ptr: b.Pointer(), Size: size, Block: b}
}

// Free gives memory back; see device.Device.
func (c *CPU) Free(m device.Memory) {
	if m.Slab != nil {
		// The only failure is a descriptor closed by somebody else.
		_ = m.Slab.Close()
		return
	}
	c.memory.Put(m.Block)
}

// Host returns the bytes themselves.
func (*CPU) Host(m device.Memory, offset, size int) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(m.Ptr, offset)), size)
}

// hold keeps the memory of operands until it is called: a kernel's defer.
func hold(operands ...device.Array) {
	for i := range operands {
		runtime.KeepAlive(operands[i].Owner)
	}
}

// Fill sets every element.
func (c *CPU) Fill(dst device.Array, value float64) {
	defer hold(dst)
	if dst.DType == device.Float32 && dst.IsContiguous() {
		kernel.Fill(c.threads, dst.Float32s(), float32(value))
		return
	}
	one := []float64{value}
	forRuns([]device.Array{dst}, func(ptrs []unsafe.Pointer, n int, strides []int) {
		convert(dst.DType, device.Float64, ptrs[0], strides[0], unsafe.Pointer(&one[0]), 0, n)
	})
}

// Copy copies between any strides, and converts between dtypes.
func (c *CPU) Copy(dst, src device.Array) {
	defer hold(dst, src)
	dense := dst.IsContiguous() && src.IsContiguous()
	if dst.DType != src.DType {
		if dense && dst.NumElems() > 0 {
			c.convertDense(dst, src)
			return
		}
		forRuns([]device.Array{dst, src}, func(ptrs []unsafe.Pointer, n int, strides []int) {
			convert(dst.DType, src.DType, ptrs[0], strides[0], ptrs[1], strides[1], n)
		})
		return
	}
	size := dst.DType.Size()
	if dense && size == 4 {
		kernel.Copy(c.threads, unsafe.Slice((*float32)(dst.Ptr), dst.NumElems()), unsafe.Slice((*float32)(src.Ptr), dst.NumElems()))
		return
	}
	forRuns([]device.Array{dst, src}, func(ptrs []unsafe.Pointer, n int, strides []int) {
		switch {
		case strides[0] == 1 && strides[1] == 1:
			copy(unsafe.Slice((*byte)(ptrs[0]), n*size), unsafe.Slice((*byte)(ptrs[1]), n*size))
		case size == 8:
			copyRun[uint64](ptrs, n, strides)
		case size == 4:
			copyRun[uint32](ptrs, n, strides)
		case size == 2:
			copyRun[uint16](ptrs, n, strides)
		default:
			copyRun[uint8](ptrs, n, strides)
		}
	})
}

func copyRun[T any](ptrs []unsafe.Pointer, n int, strides []int) {
	for i := range n {
		*elem[T](ptrs[0], i*strides[0]) = *elem[T](ptrs[1], i*strides[1])
	}
}

// Axpy adds alpha·x to dst.
func (c *CPU) Axpy(dst device.Array, alpha float32, x device.Array) {
	defer hold(dst, x)
	d := dst.Float32s()
	kernel.AddScaled(c.threads, d, d, alpha, x.Float32s())
}

func elem[T any](p unsafe.Pointer, i int) *T {
	return (*T)(unsafe.Add(p, i*int(unsafe.Sizeof(*new(T)))))
}

// forRuns walks arrays of one shape together and calls fn for each run along
// the last dim with the address of its first elements, its length and the
// strides along it.
func forRuns(arrays []device.Array, fn func(ptrs []unsafe.Pointer, n int, strides []int)) {
	shape := arrays[0].Shape
	if arrays[0].NumElems() == 0 {
		return
	}
	inner := len(shape) - 1
	n := 1
	strides := make([]int, len(arrays))
	if inner >= 0 {
		n = shape[inner]
		for i, a := range arrays {
			strides[i] = a.Strides[inner]
		}
	}
	ptrs := make([]unsafe.Pointer, len(arrays))
	for i, a := range arrays {
		ptrs[i] = a.Ptr
	}
	index := make([]int, max(0, inner))
	for {
		fn(ptrs, n, strides)
		d := inner - 1
		for ; d >= 0; d-- {
			index[d]++
			step := 1
			if index[d] == shape[d] {
				index[d], step = 0, 1-shape[d]
			}
			for i, a := range arrays {
				ptrs[i] = unsafe.Add(ptrs[i], step*a.Strides[d]*a.DType.Size())
			}
			if step == 1 {
				break
			}
		}
		if d < 0 {
			return
		}
	}
}
