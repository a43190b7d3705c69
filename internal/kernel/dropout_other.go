// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package kernel

import "github.com/cohort-ml/cohort/internal/random"

func dropoutMask(mask []uint8, n int, rng random.Philox, stream, offset uint64, keep uint32) {
	dropoutMaskGo(mask, n, rng, stream, offset, keep)
}

func maskScale(dst, x []float32, mask []uint8, scale float32) { maskScaleGo(dst, x, mask, scale) }
