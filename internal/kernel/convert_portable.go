// SPDX-License-Identifier: Apache-2.0

package kernel

import "math"

// The Go twins of the conversions in bf16_amd64.s.

func portableToBF16(dst []uint16, src []float32) {
	src = src[:len(dst)]
	for i, x := range src {
		dst[i] = bf16(x)
	}
}

func portableFromBF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	for i, x := range src {
		dst[i] = math.Float32frombits(uint32(x) << 16)
	}
}

func portableRoundBF16(dst, src []float32) {
	src = src[:len(dst)]
	for i, x := range src {
		dst[i] = math.Float32frombits(uint32(bf16(x)) << 16)
	}
}

func portableToF16(dst []uint16, src []float32) {
	src = src[:len(dst)]
	for i, x := range src {
		dst[i] = f16(x)
	}
}

func portableFromF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	for i, x := range src {
		dst[i] = fromF16Bits(x)
	}
}

// bf16 returns the bits of the bfloat16 nearest to x: what is cut off counts by
// an addition that carries, half a unit less one, and one more where the last
// bit is odd.
func bf16(x float32) uint16 {
	b := math.Float32bits(x)
	if x != x {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// f16 returns the bits of the binary16 nearest to x.
func f16(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00 | uint16(b>>13&0x3ff)
	case b >= 0x47800000: // 65536 and more
		return sign | 0x7c00
	case b >= 0x38800000: // 2^-14 and more: normal
		return sign | uint16((b-112<<23+0xfff+b>>13&1)>>13)
	}
	// The floats from 0.5 on are 2^-24 apart, as the small numbers of binary16
	// are: the addition rounds as it should.
	y := math.Float32frombits(b) + 0.5
	return sign | uint16(math.Float32bits(y)-math.Float32bits(0.5))
}

// fromF16Bits returns the number of a binary16.
func fromF16Bits(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exponent, fraction := uint32(h>>10&31), uint32(h&0x3ff)
	switch exponent {
	case 0:
		x := math.Float32bits(float32(fraction) * (1.0 / (1 << 24)))
		return math.Float32frombits(x | sign)
	case 31:
		if fraction != 0 {
			fraction |= 0x200
		}
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}
