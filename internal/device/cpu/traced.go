// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/trace"
)

// traced says to the recorder of this goroutine that an operation begins. The caller has looked at
// trace.On, so that an operation that nobody traces does nothing for it.
func traced(name string, flops int64, operands ...device.Array) trace.Running {
	bytes := int64(0)
	for _, a := range operands {
		if a.Ptr != nil {
			bytes += int64(a.NumElems()) * int64(a.DType.Size())
		}
	}
	return trace.Begin(name, flops, bytes)
}
