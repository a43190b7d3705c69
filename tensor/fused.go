// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"
	"sync"

	"github.com/cohort-ml/cohort/internal/device"
)

// A fused operation is added in four places:
//
//   - internal/device/ops.go: a struct with its parameters and its arguments;
//   - internal/kernel: its kernel on slices, for the CPU;
//   - internal/device/cpu/fused_NOUN.go: a case that calls the kernel;
//   - here in tensor, a file with the operation (shapes checked, results
//     allocated, fused called, recorded) and its backward, a fused operation too,
//     with b.composite and the definition in recorded operations for when a graph
//     of it is asked for; and a row in a table such as norm_cases_test.go.

// fused runs an operation with a kernel of its own on operands, results among
// them. A nil operand is an absent one.
func fused(op device.Op, operands ...*Tensor) {
	kept := argLists.Get().(*[]device.Array)
	args := slices.Grow((*kept)[:0], len(operands))[:len(operands)]
	defer func() {
		clear(args)
		*kept = args
		argLists.Put(kept)
	}()
	var dev Device
	for i, t := range operands {
		if t != nil {
			args[i] = t.array()
			if dev != nil && t.Device() != dev {
				failDevices(device.OpName(op), operands, dev, t.Device())
			}
			dev = t.Device()
		}
	}
	if !dev.Fused(op, args...) {
		failKernel(device.OpName(op), operands, dev)
	}
}

// argLists are lists of operands that no call uses. Fused does not keep its own.
var argLists = sync.Pool{New: func() any { return new([]device.Array) }}

// failDevices fails for operands that are on two devices.
func failDevices(op string, operands []*Tensor, a, b Device) {
	fail(op, slices.Clone(operands), "the operands are on two devices, %s and %s: move one by ToDevice", a.Name(), b.Name())
}

// failKernel fails for an operation that a device does not have.
func failKernel(op string, operands []*Tensor, dev Device) {
	fail(op, slices.Clone(operands), "device %s has no kernel for it: compute it on another, such as tensor.CPU(), with operands moved by ToDevice", dev.Name())
}
