// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package kernel

func philoxLanes() int { return 0 }

func vectorPhilox([]uint32, *philoxState) {}

func wordScales(dst []float32, words []uint32, limit uint32, scale float32) {
	wordScalesGo(dst, words, limit, scale)
}
