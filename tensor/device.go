// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/device/cpu"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// Device is a kind of processor that tensors live on: [CPU] or [Meta].
type Device = device.Device

// Meta is the device without data: operations check and compute shapes only.
var Meta = device.Meta

// CPU returns the processor of this machine: the device of tensors that name
// no other. The process has one, with one pool of [NumThreads] threads.
func CPU() Device { return theCPU() }

// NumThreads returns how many threads compute in this process: what
// [SetNumThreads] chose, else the variable COHORT_NUM_THREADS, else the number
// of cores.
func NumThreads() int { return theCPU().NumThreads() }

// SetNumThreads chooses how many threads compute in this process. It comes
// before the first use of [CPU], which starts them; later on, any other number
// than the present one is an error.
func SetNumThreads(n int) error {
	if n < 1 || n > maxThreads {
		return fmt.Errorf("tensor: %d threads: want 1 to %d", n, maxThreads)
	}
	chosenThreads.CompareAndSwap(0, int64(n))
	if got := NumThreads(); got != n {
		return fmt.Errorf("tensor: %d threads: the process computes on %d already; choose before the first tensor is made", n, got)
	}
	return nil
}

// NewThreadGroup returns a device that is this processor with numThreads threads of its own,
// beside those of [CPU]. name is for people, such as "cpu:1". Each call starts other threads,
// which stay until the process ends. What is computed on one group waits for no other group, so
// goroutines that each have a group of their own compute at the same time.
func NewThreadGroup(name string, numThreads int) (Device, error) {
	if numThreads < 1 || numThreads > maxThreads {
		return nil, fmt.Errorf("tensor: thread group %q: %d threads: want 1 to %d", name, numThreads, maxThreads)
	}
	return theCPU().Group(name, numThreads), nil
}

// MemoryInUse returns how many bytes the tensors of this process hold on the CPU now, and the
// most that they have held at once since [ResetMemoryPeak]. Shared tensors count too. The
// memory that Cohort keeps for later tensors does not.
func MemoryInUse() (now, peak int64) {
	s := theCPU().MemoryStats()
	return s.InUse, s.Peak
}

// ResetMemoryPeak makes the peak of [MemoryInUse] count from now on.
func ResetMemoryPeak() { theCPU().ResetMemoryPeak() }

// FLOPs returns how many floating-point operations the products of this process on the CPU have come
// to: those of matrices, convolutions and attention, with their gradients. again is the part that
// [Tape.Recompute] has done a second time. All ranks that are goroutines of one process count together.
func FLOPs() (done, again int64) { return theCPU().FLOPs(), recomputed.Load() }

// recomputed is the part of FLOPs that was done a second time.
var recomputed atomic.Int64

// ToDevice returns the values on another device, t itself if they are there.
// The result is under the tape of t; the gradient goes back to the device of t.
// Values from the CPU are copied when the device comes to it; a copy to the CPU
// waits until they have been computed. A copy to [Meta] keeps the shape alone;
// from it there is nothing to copy: that panics with an *Error.
func (t *Tensor) ToDevice(dev Device) *Tensor {
	from := t.Device()
	if from == dev {
		return t
	}
	src := t.detach().Contiguous()
	if dev != Meta {
		src.wantData("to device")
	}
	out := alloc(t.tape, dev, t.dtype, t.shape, false)
	if t.tape != nil && t.tape.observer != nil {
		t.tape.observe("to device", out, nil, t)
	}
	if n := t.NumElems() * t.dtype.Size(); n > 0 && dev != Meta {
		at := src.offset * t.dtype.Size()
		if dev == CPU() {
			src.storage.read(at, out.host("to device"))
		} else {
			data, ok := src.storage.host(at, n)
			if !ok {
				data = make([]byte, n)
				src.storage.read(at, data)
			}
			out.storage.write(0, data)
		}
		runtime.KeepAlive(src)
	}
	return out.record("to device", []*Tensor{t}, nil, func(b *backprop, g *Tensor) { b.give(0, g.ToDevice(from)) })
}

const maxThreads = 4096

var chosenThreads atomic.Int64 // 0 for none

var theCPU = sync.OnceValue(func() *cpu.CPU {
	if n := chosenThreads.Load(); n != 0 {
		return cpu.New(int(n))
	}
	n, err := envvar.NumThreads.IntOr(runtime.NumCPU(), 1, maxThreads)
	if err != nil {
		panic(&Error{Op: "cpu", Msg: err.Error()})
	}
	return cpu.New(n)
})
