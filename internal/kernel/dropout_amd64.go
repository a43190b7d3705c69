// SPDX-License-Identifier: Apache-2.0

package kernel

import "github.com/cohort-ml/cohort/internal/random"

// maskParams is what the assembly of Philox reads; the order is that of
// _asm/vector/dropout.go.
type maskParams struct {
	keys                  [20]uint64
	mul0, mul1            uint64
	streamLow, streamHigh uint64
	bound                 uint64 // twice
	first                 uint64 // block
	lanes                 [8]uint64
	step                  uint64
	sign                  uint64 // twice
}

// dropoutMask is dropoutMaskGo with the instructions of this processor. One call
// of the assembly does no more than maskRun elements.
func dropoutMask(mask []uint8, n int, rng random.Philox, stream, offset uint64, keep uint32) {
	if useISA == portable {
		dropoutMaskGo(mask, n, rng, stream, offset, keep)
		return
	}
	m := maskParams{mul0: 0xd2511f53, mul1: 0xcd9e8d57, streamLow: stream & (1<<32 - 1), streamHigh: stream >> 32, sign: 0x8000000080000000}
	k0, k1 := uint32(rng.Key), uint32(rng.Key>>32)
	for round := range 10 {
		m.keys[2*round], m.keys[2*round+1] = uint64(k0), uint64(k1)
		k0, k1 = k0+0x9e3779b9, k1+0xbb67ae85
	}
	bytes, bound := 8, keep // of a loop
	m.step, m.lanes = 8, [8]uint64{0, 4, 1, 5, 2, 6, 3, 7}
	if useISA == avx2 {
		bytes, bound = 4, keep^1<<31 // there the comparison is one of signed numbers
		m.step, m.lanes = 4, [8]uint64{0, 2, 1, 3}
	}
	m.bound = uint64(bound)<<32 | uint64(bound)
	at, whole := 0, n/8
	for whole-at >= bytes {
		loops := min(whole-at, maskRun/8) / bytes
		m.first = (offset + 8*uint64(at)) / 4
		if useISA == avx2 {
			dropoutMask256(&mask[at], loops, &m.keys[0])
		} else {
			dropoutMask512(&mask[at], loops, &m.keys[0])
		}
		at += loops * bytes
	}
	dropoutMaskGo(mask[at:], n-8*at, rng, stream, offset+8*uint64(at), keep)
}

func maskScale(dst, x []float32, mask []uint8, scale float32) {
	n := len(dst)
	lo := 0
	if useISA != portable {
		for lo < n&^15 {
			hi := min(n&^15, lo+callElems)
			if useISA == avx2 {
				maskScale256(dst[lo:hi], x[lo:hi], &mask[lo/8], scale)
			} else {
				maskScale512(dst[lo:hi], x[lo:hi], &mask[lo/8], scale)
			}
			lo = hi
		}
	}
	maskScaleGo(dst[lo:], x[lo:n], mask[lo/8:], scale)
}
