// SPDX-License-Identifier: Apache-2.0

// Package cpu computes on the processor of this machine: it maps the arrays of
// package device to the slices of package kernel, on one thread pool and one
// memory pool. Dense operands go straight to a kernel; others are gathered
// into tiles first.
//
// # Files
//
//	cpu.go          the device and its memory
//	elementwise.go  elementwise primitives; functions.go has what they compute
//	reduce.go, matmul.go, matmul_bf16.go, copy.go, convert.go  the other primitives
//	strided.go      tiles of operands that are not dense
//	fused.go        operations with kernels of their own (internal/device/ops.go): it
//	                asks the files fused_*.go, of which fused_softmax.go has softmax,
//	                log-sum-exp and cross-entropy, fused_norm.go layer, RMS, group and
//	                batch norm, fused_sort.go sort, top-k and running sums, fused_groups.go
//	                rows in groups, and
//	                fused_pointwise.go activations, SwiGLU and dropout
package cpu

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/mem"
	"github.com/cohort-ml/cohort/internal/work"
)

// CPU is the device. Several goroutines may use it at once; their loops then
// run on fewer threads each.
type CPU struct {
	name    string
	threads *work.Pool
	memory  *mem.Pool
	flops   *atomic.Int64 // of products; groups of threads share it
}

// New returns a device that computes on numThreads threads.
func New(numThreads int) *CPU {
	return &CPU{name: "cpu", threads: work.New(numThreads), memory: mem.NewPool(), flops: new(atomic.Int64)}
}

// Group returns a device with numThreads other threads, and the memory of c.
func (c *CPU) Group(name string, numThreads int) *CPU {
	return &CPU{name: name, threads: work.New(numThreads), memory: c.memory, flops: c.flops}
}

// Name returns "cpu", or the name of a group of threads.
func (c *CPU) Name() string { return c.name }

// NumThreads returns how many threads compute.
func (c *CPU) NumThreads() int { return c.threads.NumThreads() }

// MemoryStats returns what the memory pool holds. InUse and Peak count slabs too.
func (c *CPU) MemoryStats() mem.Stats { return c.memory.Stats() }

// ResetMemoryPeak makes the peak of MemoryStats count from now on.
func (c *CPU) ResetMemoryPeak() { c.memory.ResetPeak() }

// FLOPs returns what the products on c and its groups of threads have come to; see device.FLOPs.
func (c *CPU) FLOPs() int64 { return c.flops.Load() }

// Alloc returns memory; see device.Device.
func (c *CPU) Alloc(size int, shared bool) device.Memory {
	if shared && size > 0 {
		slab, err := mem.NewSlab(size)
		if err != nil {
			panic(err)
		}
		c.memory.Count(size)
		return device.Memory{Ptr: slab.Pointer(), Size: size, Handle: slab}
	}
	b := c.memory.Get(size)
	return device.Memory{Ptr: b.Pointer(), Size: size, Handle: b}
}

// Free gives memory back; see device.Device.
func (c *CPU) Free(m device.Memory) {
	switch h := m.Handle.(type) {
	case *mem.Slab:
		c.memory.Count(-m.Size)
		// The only failure is a descriptor closed by somebody else.
		_ = h.Close()
	case *mem.Block:
		c.memory.Put(h)
	}
}

// Slab returns the slab that a memory of the CPU is in, which processes on the same
// machine can map; nil for memory that is in none.
func Slab(m device.Memory) *mem.Slab {
	slab, _ := m.Handle.(*mem.Slab)
	return slab
}

// Write copies data to memory.
func (c *CPU) Write(m device.Memory, offset int, data []byte) {
	copy(c.Host(m, offset, len(data)), data)
}

// Read copies from memory.
func (c *CPU) Read(m device.Memory, offset int, dst []byte) { copy(dst, c.Host(m, offset, len(dst))) }

// Host returns the bytes themselves.
func (*CPU) Host(m device.Memory, offset, size int) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(m.Ptr, offset)), size)
}

// Late is false: a call has taken effect when it returns.
func (*CPU) Late() bool { return false }

// Fault returns none: the checks of calls have them.
func (*CPU) Fault(bool) device.Fault { return device.Fault{} }

// hold keeps the memory of operands until it is called: a kernel's defer.
func hold(operands ...device.Array) {
	for i := range operands {
		runtime.KeepAlive(operands[i].Owner)
	}
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

var _ device.Device = (*CPU)(nil)
