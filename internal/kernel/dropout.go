// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"github.com/cohort-ml/cohort/internal/random"
	"github.com/cohort-ml/cohort/internal/work"
)

// maskRun is how many elements one piece of a mask covers: the mask is a pure
// function of the element's number, so that the cut does not matter.
const maskRun = 8 << 10

// DropoutMask draws n bits, bit i%8 of mask[i/8] for element i: it is set with
// probability keep/2³², where element i's word of the stream is below keep.
// mask has (n+7)/8 bytes; bits beyond n are 0.
func DropoutMask(p *work.Pool, mask []uint8, n int, rng random.Philox, stream uint64, keep uint32) {
	mask = mask[:(n+7)/8]
	t := pieces(n, maskRun)
	if t <= 1 || threads(p) == 1 {
		dropoutMask(mask, n, rng, stream, 0, keep)
		return
	}
	p.Run(t, func(i int) {
		lo, hi := i*maskRun, min((i+1)*maskRun, n)
		dropoutMask(mask[lo/8:(hi+7)/8], hi-lo, rng, stream, uint64(lo), keep)
	})
}

// dropoutMaskGo draws the bits of elements offset to offset+n; offset is a
// multiple of eight.
func dropoutMaskGo(mask []uint8, n int, rng random.Philox, stream, offset uint64, keep uint32) {
	var words [philoxChunk]uint32
	for i := 0; i < len(mask); {
		drawn := drawWords(&words, rng, stream, offset/4+2*uint64(i), 8*(len(mask)-i))
		for w := words[:min(drawn, 8*(len(mask)-i))]; len(w) >= 8; w = w[8:] {
			bits := below(w[0], keep) | below(w[1], keep)<<1 | below(w[2], keep)<<2 | below(w[3], keep)<<3 |
				below(w[4], keep)<<4 | below(w[5], keep)<<5 | below(w[6], keep)<<6 | below(w[7], keep)<<7
			if left := n - 8*i; left < 8 {
				bits &= 1<<left - 1
			}
			mask[i] = uint8(bits)
			i++
		}
	}
}

// below is 1 where x < y, without a branch.
func below(x, y uint32) uint32 { return uint32((uint64(x) - uint64(y)) >> 63) }

// MaskScale computes dst = x·scale where the element's bit of a mask is set
// and x·0 elsewhere, so that NaN stays NaN. See [DropoutMask].
func MaskScale(p *work.Pool, dst, x []float32, mask []uint8, scale float32) {
	n := len(dst)
	x, mask = x[:n], mask[:(n+7)/8]
	if span := share(p, n); span < n { // a multiple of a line, so of eight
		p.Run(pieces(n, span), func(i int) {
			lo, hi := i*span, min((i+1)*span, n)
			MaskScale(nil, dst[lo:hi], x[lo:hi], mask[lo/8:], scale)
		})
		return
	}
	maskScale(dst, x, mask, scale)
}

func maskScaleGo(dst, x []float32, mask []uint8, scale float32) {
	factors := [2]float32{0, scale}
	n := len(dst)
	for i, bits := range mask {
		if 8*i+8 > n {
			for j := 8 * i; j < n; j++ {
				dst[j] = x[j] * factors[bits>>(j&7)&1]
			}
			return
		}
		d, s := dst[8*i:8*i+8:8*i+8], x[8*i:8*i+8:8*i+8]
		for j := range d {
			d[j] = s[j] * factors[bits>>j&1]
		}
	}
}
