// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// pool runs pooling and its gradients.
func (c *CPU) pool(op device.Op, a []device.Array) bool {
	switch op := op.(type) {
	case device.MaxPool:
		kernel.MaxPool2d(c.threads, mixedOf(a[0]), device.Elems[int32](a[1]), mixedOf(a[2]), a[2].Shape[0], windows(op.H), windows(op.W))
	case device.MaxPoolGrad:
		kernel.MaxPool2dBackward(c.threads, mixedOf(a[0]), mixedOf(a[1]), device.Elems[int32](a[2]), a[0].Shape[0], a[0].Shape[1], a[1].Shape[1])
	case device.MaxPoolPick:
		kernel.PickAt(c.threads, mixedOf(a[0]), mixedOf(a[1]), device.Elems[int32](a[2]), a[0].Shape[0], a[0].Shape[1], a[1].Shape[1])
	case device.AvgPool:
		kernel.AvgPool2d(c.threads, mixedOf(a[0]), mixedOf(a[1]), a[1].Shape[0], windows(op.H), windows(op.W), op.Divisor)
	case device.AvgPoolGrad:
		kernel.AvgPool2dBackward(c.threads, mixedOf(a[0]), mixedOf(a[1]), a[1].Shape[0], windows(op.H), windows(op.W), op.Divisor)
	default:
		return false
	}
	return true
}

func windows(w device.Windows) kernel.Windows {
	if w.Adaptive {
		return kernel.AdaptiveWindows(w.In, w.Out)
	}
	return kernel.SlidingWindows(w.In, w.Out, w.Size, w.Stride, w.Padding, w.Dilation, w.CountPadding)
}
