// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"
	"sync"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/work"
)

// A fused operation is added in two places: its kernel in internal/kernel, and
// here in tensor a file with
//
//   - the operation: shapes checked, results allocated, fused called, recorded;
//   - its backward: a fused kernel too, and b.composite with the operation's
//     definition in recorded operations for when a graph of it is asked for;
//   - a row in ops_test.go.
//
// A device that has no kernel of that name says so by an *Error.

// fused runs a kernel on operands, results among them. A nil operand is an
// absent one.
func fused(op string, params []float64, operands []*Tensor, cpu func(p *work.Pool, a []device.Array)) {
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
				fail(op, operands, "the operands are on two devices, %s and %s", dev.Name(), t.Device().Name())
			}
			dev = t.Device()
		}
	}
	if !dev.Fused(device.Fused{Name: op, Params: params, CPU: cpu}, args...) {
		fail(op, operands, "device %s has no kernel for it", dev.Name())
	}
}

// argLists are lists of operands that no call uses. Fused does not keep its own.
var argLists = sync.Pool{New: func() any { return new([]device.Array) }}

// param01 is a flag among the params of a fused operation.
func param01(set bool) float64 {
	if set {
		return 1
	}
	return 0
}
