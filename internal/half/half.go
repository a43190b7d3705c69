// SPDX-License-Identifier: Apache-2.0

// Package half converts single numbers between float32 and the two formats of
// sixteen bits: bfloat16 (eight bits of exponent, as float32 has) and IEEE 754
// binary16, called float16. Both are held as a uint16 of their bits.
//
// Rounding is to the nearest, ties to even, and a NaN stays one. Whole slices
// are converted by package kernel, with the processor's instructions.
package half

import "math"

// BFloat16 rounds x to bfloat16.
func BFloat16(x float32) uint16 {
	bits := math.Float32bits(x)
	if x != x {
		return uint16(bits>>16) | 0x40 // quiet, so that no payload rounds to infinity
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// FromBFloat16 returns the value of a bfloat16, which float32 holds exactly.
func FromBFloat16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// Float16 rounds x to float16; what is too large becomes infinite.
func Float16(x float32) uint16 {
	bits := math.Float32bits(x)
	sign := uint16(bits>>16) & 0x8000
	bits &= 0x7fffffff
	switch {
	case bits > 0x7f800000:
		return sign | 0x7e00 | uint16(bits>>13&0x1ff)
	case bits >= 0x47800000: // 2¹⁶ and more
		return sign | 0x7c00
	case bits < 0x38800000: // below the smallest normal number: a multiple of 2⁻²⁴
		// Adding 2⁻¹ puts that multiple in the last bits, rounded by the processor.
		y := math.Float32frombits(bits) + 0.5
		return sign | uint16(math.Float32bits(y)-math.Float32bits(0.5))
	}
	bits += 0xfff + bits>>13&1
	return sign | uint16((bits-0x38000000)>>13)
}

// FromFloat16 returns the value of a float16, which float32 holds exactly.
func FromFloat16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exponent, mantissa := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exponent {
	case 0:
		x := float32(mantissa) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(x) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | mantissa<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | mantissa<<13)
}
