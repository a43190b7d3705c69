// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/half"
)

func isHalf(d device.DType) bool { return d == device.BFloat16 || d == device.Float16 }

// widen converts elements of sixteen bits to float32.
func widen(dst []float32, src []uint16, from device.DType) {
	src = src[:len(dst)]
	if from == device.BFloat16 {
		for i, h := range src {
			dst[i] = half.FromBFloat16(h)
		}
		return
	}
	for i, h := range src {
		dst[i] = half.FromFloat16(h)
	}
}

// narrow rounds float32 elements to sixteen bits.
func narrow(dst []uint16, src []float32, to device.DType) {
	src = src[:len(dst)]
	if to == device.BFloat16 {
		for i, x := range src {
			dst[i] = half.BFloat16(x)
		}
		return
	}
	for i, x := range src {
		dst[i] = half.Float16(x)
	}
}
