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

// DropoutMaskRows draws the bits of rows of length elements of a larger tensor: bit
// i·length+j is what [DropoutMask] of the whole draws for element starts[i]+j.
func DropoutMaskRows(p *work.Pool, mask []uint8, starts []int64, length int, rng random.Philox, stream uint64, keep uint32) {
	mask = mask[:(len(starts)*length+7)/8]
	// A task is of so many rows that its bits end with a byte.
	per := roundUp(max(1, maskRun/max(1, length)), 8)
	task := func(i int) {
		rows := starts[i*per : min((i+1)*per, len(starts))]
		bits := mask[i*per*length/8:][:(len(rows)*length+7)/8]
		clear(bits)
		drawn := make([]uint8, (length+7)/8+1)
		for r, start := range rows {
			at, skip := r*length, int(start%8)
			if at%8 == 0 && skip == 0 && length%8 == 0 {
				dropoutMask(bits[at/8:(at+length)/8], length, rng, stream, uint64(start), keep)
				continue
			}
			dropoutMask(drawn[:(skip+length+7)/8], skip+length, rng, stream, uint64(start)-uint64(skip), keep)
			for j := range length {
				bits[(at+j)/8] |= drawn[(skip+j)/8] >> ((skip + j) % 8) & 1 << ((at + j) % 8)
			}
		}
	}
	runHeads(p, pieces(len(starts), per), task)
}

// dropoutMaskGo draws the bits of elements offset to offset+n; offset is a
// multiple of eight.
func dropoutMaskGo(mask []uint8, n int, rng random.Philox, stream, offset uint64, keep uint32) {
	for i := range mask {
		block := offset/4 + 2*uint64(i)
		a, b := rng.Block(stream, block), rng.Block(stream, block+1)
		bits := below(a[0], keep) | below(a[1], keep)<<1 | below(a[2], keep)<<2 | below(a[3], keep)<<3 |
			below(b[0], keep)<<4 | below(b[1], keep)<<5 | below(b[2], keep)<<6 | below(b[3], keep)<<7
		if left := n - 8*i; left < 8 {
			bits &= 1<<left - 1
		}
		mask[i] = uint8(bits)
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

// scalesChunk is how many factors DropoutScales makes at once.
const scalesChunk = 512

// ones are what DropoutScales multiplies.
var ones = func() (x [scalesChunk]float32) {
	for i := range x {
		x[i] = 1
	}
	return x
}()

// DropoutScales fills dst with what dropout of share p multiplies elements
// offset, offset+1, … by: 0 with probability p, else 1/(1-p) (Srivastava et al.
// 2014). An element is a pure function of the generator, the stream and its
// position.
func DropoutScales(dst []float32, r random.Philox, stream, offset uint64, p float32) {
	// A word below the limit drops: of 2³² words, p·2³².
	limit := uint32(float64(p) * (1 << 32))
	scale := float32(1 / (1 - float64(p)))
	const loop = 64 // elements that assembly does at once
	var mask [(scalesChunk + loop) / 8]uint8
	for len(dst) > 0 {
		skip := int(offset % 8)
		n := min(len(dst), scalesChunk)
		drawn := roundUp(skip+n, loop)
		dropoutMask(mask[:drawn/8], drawn, r, stream, offset-uint64(skip), limit)
		if skip == 0 {
			for i := range drawn / 8 {
				mask[i] = ^mask[i] // the bits say what is kept
			}
		} else {
			for i := range (n + 7) / 8 { // and begin with the first
				mask[i] = ^(mask[i]>>skip | mask[i+1]<<(8-skip))
			}
		}
		maskScale(dst[:n], ones[:n], mask[:(n+7)/8], scale)
		dst, offset = dst[n:], offset+uint64(n)
	}
}
