// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"runtime"
	"sync"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/device/cpu"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// DType is the type of a tensor's elements.
type DType = device.DType

// The element types. Computation is in float32; int64 is for indices.
const (
	Float32 = device.Float32
	Int64   = device.Int64
)

// Device is a kind of processor that tensors live on: [CPU] or [Meta].
type Device = device.Device

// Meta is the device without data: operations check and compute shapes only.
var Meta = device.Meta

// CPU returns the processor of this machine: the device of tensors that name
// no other. The process has one, with one pool of [NumThreads] threads.
func CPU() Device { return theCPU() }

// NumThreads returns how many threads compute in this process: the variable
// COHORT_NUM_THREADS, else the number of cores.
func NumThreads() int { return theCPU().NumThreads() }

var theCPU = sync.OnceValue(func() *cpu.CPU {
	n, err := envvar.NumThreads.IntOr(runtime.NumCPU(), 1, 4096)
	if err != nil {
		panic(err)
	}
	return cpu.New(n)
})
