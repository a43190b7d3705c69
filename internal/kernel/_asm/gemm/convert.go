// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const (
	toHalfSignature   = "func(dst *uint16, src *float32, n int)"
	fromHalfSignature = "func(dst *float32, src *uint16, n int)"
	roundSignature    = "func(dst, src *float32, n int)"
)

// conversions writes the routines between float32 and the types of 16 bits. All
// take a multiple of 32 elements.
func conversions() {
	for _, s := range []simd{simd512, simd256} {
		convert(s, "toBF16", toHalfSignature, "rounds n floats to bfloat16, to nearest even.", 4, 2, func(from, to Mem) {
			VMOVUPS(from, s.v[0])
			s.roundBF16(s.v[0], s.v[1], s.v[2], s.v[3])
			s.narrow(s.v[0], to)
		})
		convert(s, "roundBF16", roundSignature, "rounds n floats to those that bfloat16 has, to nearest even.", 4, 4, func(from, to Mem) {
			VMOVUPS(from, s.v[0])
			s.roundBF16(s.v[0], s.v[1], s.v[2], s.v[3])
			if s.wide() {
				VPSLLD(Imm(16), s.v[0], s.v[0])
			} else {
				VPSLLD(Imm(16), Y0, Y0)
			}
			VMOVUPS(s.v[0], to)
		})
		convert(s, "fromBF16", fromHalfSignature, "widens n bfloat16.", 2, 4, func(from, to Mem) {
			VPMOVZXWD(from, s.v[0])
			VPSLLD(Imm(16), s.v[0], s.v[0])
			VMOVUPS(s.v[0], to)
		})
		convert(s, "toF16", toHalfSignature, "rounds n floats to float16, to nearest even.", 4, 2, func(from, to Mem) {
			VMOVUPS(from, s.v[0])
			VCVTPS2PH(Imm(0), s.v[0], to)
		})
		convert(s, "fromF16", fromHalfSignature, "widens n float16.", 2, 4, func(from, to Mem) {
			VCVTPH2PS(from, s.v[0])
			VMOVUPS(s.v[0], to)
		})
	}
}

// convert writes a loop over 32 elements a round; one handles a register of
// floats.
func convert(s simd, name, signature, doc string, fromSize, toSize int, one func(from, to Mem)) {
	begin(name+s.suffix, signature, doc+" n is a multiple of 32.")
	load("dst", RDI)
	load("src", RSI)
	load("n", RCX)
	if name == "toBF16" || name == "roundBF16" {
		for i, c := range []uint32{0x7fff, 1, 0x40} {
			MOVL(U32(c), EAX)
			if s.wide() {
				VPBROADCASTD(EAX, zmm[16+i])
			} else {
				VMOVD(EAX, ymm[8+i].AsX())
				VPBROADCASTD(ymm[8+i].AsX(), ymm[8+i])
			}
		}
	}
	Label("loop")
	for at := 0; at < 32; at += s.lanes() {
		one(Mem{Base: RSI, Disp: fromSize * at}, Mem{Base: RDI, Disp: toSize * at})
	}
	ADDQ(Imm(uint64(32*fromSize)), RSI)
	ADDQ(Imm(uint64(32*toSize)), RDI)
	SUBQ(Imm(32), RCX)
	JNZ(LabelRef("loop"))
	end()
}

// roundBF16 leaves in every float of x the bits of the bfloat16 nearest to it:
// what is cut off counts by an addition that carries, half a unit less one, and
// one more where the last bit is odd. A NaN keeps its upper half and becomes
// quiet.
func (s simd) roundBF16(x, t, u, nan VecPhysical) {
	base := 8
	if s.wide() {
		base = 16
	}
	half, one, quiet := s.v[base], s.v[base+1], s.v[base+2]
	VPSRLD(Imm(16), x, t)
	if s.wide() {
		VPANDD(one, t, u)
		VCMPPS(Imm(3), x, x, K1)
	} else {
		VPAND(one, t, u)
		VCMPPS(Imm(3), x, x, nan)
	}
	VPADDD(half, u, u)
	VPADDD(u, x, x)
	VPSRLD(Imm(16), x, x)
	if s.wide() {
		VPORD(quiet, t, K1, x)
		return
	}
	VPOR(quiet, t, t)
	VBLENDVPS(nan, t, x, x)
}

// narrow stores the lower halves of the floats of x.
func (s simd) narrow(x VecPhysical, to Mem) {
	if s.wide() {
		VPMOVDW(x, to)
		return
	}
	VPACKUSDW(x, x, x)
	VPERMQ(Imm(0x08), x, x)
	VMOVDQU(X0, to)
}
