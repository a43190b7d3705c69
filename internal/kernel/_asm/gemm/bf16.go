// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Packing for gemmTileBF16: an element of a panel is a pair of bfloat16, of two
// neighbours along k. The first is in the lower half.

// packSource is what a routine packs.
type packSource struct {
	suffix, kind string
	size         int
}

var (
	packFloats = packSource{"", "float32", 4}
	packHalves = packSource{"Halves", "uint16", 2}
)

func (s packSource) loadPack() {
	load("dst", RDI)
	loadStride("dstStep", RDX)
	load("src", RSI)
	load("srcStep", RBX)
	SHLQ(Imm(uint64(s.size/2)), RBX)
}

// interleave is the permutation that turns 16 or 32 words of one row and as many
// of the next into pairs, the latter apart words behind the former.
func interleave(name string, first, apart int) Mem {
	m := GLOBL("gemm"+name, 8|16 /* RODATA|NOPTR */)
	for j := range 16 {
		DATA(4*j, U32(uint32(first+j)|uint32(first+apart+j)<<16))
	}
	return m
}

func packPairsBF16(s packSource) {
	begin("packPairs"+s.suffix+"BF16", "func(dst *float32, dstStep int, src *"+s.kind+", srcStep, count, width, pad int)",
		"packs count rows of width ≤ 32 by twos, with zeros up to pad ≤ 32; an odd last row is paired with zeros.")
	s.loadPack()
	load("count", RCX)
	load("width", RAX)
	MOVQ(I32(-1), R8)
	BZHIQ(RAX, R8, R8)
	KMOVD(R8L, K5)
	KMOVW(R8L, K1)
	SHRQ(Imm(16), R8)
	KMOVW(R8L, K2)
	load("pad", RAX)
	MOVQ(I32(-1), R8)
	BZHIQ(RAX, R8, R8)
	KMOVW(R8L, K3)
	SHRQ(Imm(16), R8)
	KMOVW(R8L, K4)
	if s.size == 4 {
		VMOVDQU16(interleave("PairFloats", 0, 16), Z31)
	} else {
		VMOVDQU16(interleave("PairLow", 0, 32), Z31)
		VMOVDQU16(interleave("PairHigh", 16, 32), Z30)
	}
	// Z0 and Z1 hold a row, Z2 and Z3 the next: floats, or halves in Z0 and Z2.
	row := func(mem GPPhysical, at, vectors int) {
		if s.size == 2 {
			VMOVDQU16_Z(Mem{Base: mem}, K5, zmm[at])
			return
		}
		for v := range vectors {
			VMOVUPS_Z(Mem{Base: mem, Disp: 64 * v}, packMasks[v], zmm[at+v])
		}
	}
	combine := func(vectors int) {
		if s.size == 2 {
			if vectors == 2 {
				VMOVDQA64(Z0, Z1)
				VPERMT2W(Z2, Z30, Z1)
			}
			VPERMT2W(Z2, Z31, Z0)
			return
		}
		for v := range vectors {
			vcvtne2ps2bf16(zmm[v], zmm[2+v], zmm[v])
			VPERMW(zmm[v], Z31, zmm[v])
		}
	}
	CMPQ(RAX, Imm(16))
	JLE(LabelRef("narrow"))
	for _, vectors := range []int{2, 1} {
		name := fmt.Sprint(vectors)
		if vectors == 1 {
			Label("narrow")
		}
		CMPQ(RCX, Imm(2))
		JLT(LabelRef("odd" + name))
		for _, odd := range []bool{false, true} {
			if odd {
				Label("odd" + name)
				TESTQ(RCX, RCX)
				JZ(LabelRef("done"))
				VPXORD(Z2, Z2, Z2)
				VPXORD(Z3, Z3, Z3)
			} else {
				Label("loop" + name)
				row(RSI, 0, vectors)
				ADDQ(RBX, RSI)
			}
			row(RSI, map[bool]int{false: 2, true: 0}[odd], vectors)
			combine(vectors)
			for v := range vectors {
				VMOVUPS(zmm[v], packMasks[2+v], Mem{Base: RDI, Disp: 64 * v})
			}
			if odd {
				break
			}
			ADDQ(RBX, RSI)
			ADDQ(RDX, RDI)
			SUBQ(Imm(2), RCX)
			CMPQ(RCX, Imm(2))
			JGE(LabelRef("loop" + name))
		}
		if vectors == 2 {
			JMP(LabelRef("done"))
		}
	}
	Label("done")
	end()
}

func packTransposedBF16(s packSource) {
	begin("packTransposed"+s.suffix+"BF16", "func(dst *float32, dstStep int, src *"+s.kind+", srcStep, rows, k, pad int)",
		"writes pair j of rows ≤ 16 rows of k elements to dst[j·dstStep:][:pad], pad ≤ 16; an odd last element is paired with zero.")
	s.loadPack()
	table := rowPointers(16)
	load("k", RCX)
	load("pad", RAX)
	firstMask(RAX, R8, K3)
	MOVQ(I32(-1), R8)
	KMOVD(R8L, K5)
	KMOVW(R8L, K1)
	KMOVW(R8L, K2)
	XORQ(R11, R11) // offset in a row
	Label("block")
	CMPQ(RCX, Imm(32))
	JLT(LabelRef("tail"))
	for _, tail := range []bool{false, true} {
		if tail {
			Label("tail")
			TESTQ(RCX, RCX)
			JZ(LabelRef("done"))
			MOVQ(I32(-1), R8)
			BZHIQ(RCX, R8, R8)
			KMOVD(R8L, K5)
			KMOVW(R8L, K1)
			SHRQ(Imm(16), R8)
			KMOVW(R8L, K2)
			INCQ(RCX)
			SHRQ(Imm(1), RCX) // pairs
		}
		for r := range 16 {
			MOVQ(table.Offset(8*r), R8)
			from := Mem{Base: R8, Index: R11, Scale: 1}
			if s.size == 2 {
				VMOVDQU16_Z(from, K5, zmm[r])
				continue
			}
			lo, hi := zmm[16+2*(r%8)], zmm[17+2*(r%8)]
			VMOVUPS_Z(from, K1, lo)
			VMOVUPS_Z(from.Offset(64), K2, hi)
			vcvtne2ps2bf16(lo, hi, zmm[r])
		}
		for _, z := range transpose16() {
			VMOVUPS(z, K3, Mem{Base: RDI})
			ADDQ(RDX, RDI)
			if tail {
				DECQ(RCX)
				JZ(LabelRef("done"))
			}
		}
		if !tail {
			ADDQ(Imm(uint64(32*s.size)), R11)
			SUBQ(Imm(32), RCX)
			JMP(LabelRef("block"))
		}
	}
	Label("done")
	end()
}
