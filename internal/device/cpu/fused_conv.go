// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// conv runs convolutions and their gradients.
func (c *CPU) conv(op device.Op, a []device.Array) bool {
	switch op := op.(type) {
	case device.Conv2d:
		s := kernel.Conv2dShape(op.Shape)
		if op.Low {
			kernel.Conv2dBF16(c.threads, s, mixedOf(a[0]), mixedOf(a[1]), mixedOf(a[2]), a[3].Float32s())
			break
		}
		kernel.Conv2d(c.threads, s, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), a[3].Float32s())
	case device.Conv2dInputGrad:
		s := kernel.Conv2dShape(op.Shape)
		if op.Low {
			kernel.Conv2dBackwardInputBF16(c.threads, s, mixedOf(a[0]), mixedOf(a[1]), mixedOf(a[2]))
			break
		}
		kernel.Conv2dBackwardInput(c.threads, s, a[0].Float32s(), a[1].Float32s(), a[2].Float32s())
	case device.Conv2dWeightGrad:
		s := kernel.Conv2dShape(op.Shape)
		if op.Low {
			kernel.Conv2dBackwardWeightBF16(c.threads, s, mixedOf(a[0]), mixedOf(a[1]), mixedOf(a[2]), op.Beta)
			break
		}
		kernel.Conv2dBackwardWeight(c.threads, s, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), op.Beta)
	case device.Conv2dBiasGrad:
		s := imagesOf(a[1])
		kernel.Conv2dBackwardBias(c.threads, a[0].Float32s(), mixedOf(a[1]), s.Num, s.Channels, s.Plane, op.Accumulate)
	default:
		return false
	}
	return true
}
