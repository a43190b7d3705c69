// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
)

func isHalf(d device.DType) bool { return d == device.BFloat16 || d == device.Float16 }

// widen converts elements of sixteen bits to float32, on this thread.
func widen(dst []float32, src []uint16, from device.DType) {
	if from == device.BFloat16 {
		kernel.FromBF16(nil, dst, src)
		return
	}
	kernel.FromF16(nil, dst, src)
}

// narrow rounds float32 elements to sixteen bits, on this thread.
func narrow(dst []uint16, src []float32, to device.DType) {
	if to == device.BFloat16 {
		kernel.ToBF16(nil, dst, src[:len(dst)])
		return
	}
	kernel.ToF16(nil, dst, src[:len(dst)])
}
