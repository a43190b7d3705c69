// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const (
	packRowsSignature       = "func(dst *float32, dstStep int, src *float32, srcStep, count, width, pad int)"
	packTransposedSignature = "func(dst *float32, dstStep int, src *float32, srcStep, rows, k, pad int)"
)

func loadPack() {
	load("dst", RDI)
	loadStride("dstStep", RDX)
	load("src", RSI)
	loadStride("srcStep", RBX)
}

func packRows512() {
	begin("packRows512", packRowsSignature, "copies count rows of width ≤ 32, with zeros up to pad ≤ 32.")
	loadPack()
	load("count", RCX)
	for i, name := range []string{"width", "pad"} {
		load(name, RAX)
		MOVQ(I32(-1), R8)
		BZHIQ(RAX, R8, R8)
		KMOVW(R8L, packMasks[2*i])
		SHRQ(Imm(16), R8)
		KMOVW(R8L, packMasks[2*i+1])
	}
	// An empty mask makes a store slow: narrow rows have a loop of their own.
	CMPQ(RAX, Imm(16))
	JLE(LabelRef("narrow"))
	Label("wide")
	VMOVUPS_Z(Mem{Base: RSI}, K1, Z0)
	VMOVUPS_Z(Mem{Base: RSI, Disp: 64}, K2, Z1)
	VMOVUPS(Z0, K3, Mem{Base: RDI})
	VMOVUPS(Z1, K4, Mem{Base: RDI, Disp: 64})
	ADDQ(RBX, RSI)
	ADDQ(RDX, RDI)
	DECQ(RCX)
	JNZ(LabelRef("wide"))
	end()
	Label("narrow")
	VMOVUPS_Z(Mem{Base: RSI}, K1, Z0)
	VMOVUPS(Z0, K3, Mem{Base: RDI})
	ADDQ(RBX, RSI)
	ADDQ(RDX, RDI)
	DECQ(RCX)
	JNZ(LabelRef("narrow"))
	end()
}

// packMasks are the masks of packRows512.
var packMasks = []OpmaskPhysical{K1, K2, K3, K4}

func packRows256() {
	begin("packRows256", packRowsSignature, "copies count rows of width ≤ 16, with zeros up to pad ≤ 16 rounded up to 8; what a row writes beyond pad the next one overwrites.")
	loadPack()
	load("count", RCX)
	load("width", RAX)
	masks256(RAX, R8, R9, Y2, Y3)
	load("pad", RAX)
	CMPQ(RAX, Imm(8))
	JLE(LabelRef("narrow"))
	Label("wide")
	VMASKMOVPS(Mem{Base: RSI}, Y2, Y0)
	VMASKMOVPS(Mem{Base: RSI, Disp: 32}, Y3, Y1)
	VMOVUPS(Y0, Mem{Base: RDI})
	VMOVUPS(Y1, Mem{Base: RDI, Disp: 32})
	ADDQ(RBX, RSI)
	ADDQ(RDX, RDI)
	DECQ(RCX)
	JNZ(LabelRef("wide"))
	end()
	Label("narrow")
	VMASKMOVPS(Mem{Base: RSI}, Y2, Y0)
	VMOVUPS(Y0, Mem{Base: RDI})
	ADDQ(RBX, RSI)
	ADDQ(RDX, RDI)
	DECQ(RCX)
	JNZ(LabelRef("narrow"))
	end()
}

// masks256 sets lo and hi to ones in the first n of 16 positions; it changes n,
// zero and table.
func masks256(n, zero, table GPPhysical, lo, hi VecPhysical) {
	LEAQ(maskTable(), table)
	NEGQ(n)
	VMOVUPS(Mem{Base: table, Index: n, Scale: 4, Disp: 64}, lo)
	XORL(zero.As32(), zero.As32())
	ADDQ(Imm(8), n)
	CMOVQGT(zero, n) // n below 8: none in the second half
	VMOVUPS(Mem{Base: table, Index: n, Scale: 4, Disp: 64}, hi)
}

// rowPointers fills a table with the addresses of the first n rows of src; rows
// that do not exist repeat the last one, so that every load is of memory that
// the caller owns.
func rowPointers(n int) Mem {
	table := AllocLocal(8 * n)
	load("rows", R9)
	for r := range n {
		MOVQ(RSI, table.Offset(8*r))
		if r < n-1 {
			LEAQ(Mem{Base: RSI, Index: RBX, Scale: 1}, R10)
			CMPQ(R9, Imm(uint64(r+1)))
			CMOVQGT(R10, RSI)
		}
	}
	return table
}

func packTransposed512() {
	begin("packTransposed512", packTransposedSignature, "writes column j of rows ≤ 16 rows of k elements to dst[j·dstStep:][:pad], pad ≤ 16.")
	loadPack()
	table := rowPointers(16)
	load("k", RCX)
	load("pad", RAX)
	firstMask(RAX, R8, K3)
	MOVL(U32(0xffff), R8L)
	KMOVW(R8L, K1)
	XORQ(R11, R11) // offset in a row
	Label("block")
	CMPQ(RCX, Imm(16))
	JLT(LabelRef("tail"))
	for _, tail := range []bool{false, true} {
		if tail {
			Label("tail")
			TESTQ(RCX, RCX)
			JZ(LabelRef("done"))
			firstMask(RCX, R8, K1)
		}
		for r := range 16 {
			MOVQ(table.Offset(8*r), R8)
			VMOVUPS_Z(Mem{Base: R8, Index: R11, Scale: 1}, K1, zmm[r])
		}
		columns := transpose16()
		for j, z := range columns {
			VMOVUPS(z, K3, Mem{Base: RDI})
			if tail {
				DECQ(RCX)
				JZ(LabelRef("done"))
			}
			if !tail || j < 15 {
				ADDQ(RDX, RDI)
			}
		}
		if !tail {
			ADDQ(Imm(64), R11)
			SUBQ(Imm(16), RCX)
			JMP(LabelRef("block"))
		}
	}
	Label("done")
	end()
}

// transpose16 transposes Z0 to Z15 and returns the registers of the columns.
func transpose16() []VecPhysical {
	lo, hi := zmm[:16], zmm[16:]
	for i := range 8 {
		VUNPCKLPS(lo[2*i+1], lo[2*i], hi[2*i])
		VUNPCKHPS(lo[2*i+1], lo[2*i], hi[2*i+1])
	}
	// lo[4g+j] gets, in lane l, column 4l+j of rows 4g to 4g+3.
	for g := range 4 {
		VUNPCKLPD(hi[4*g+2], hi[4*g], lo[4*g])
		VUNPCKHPD(hi[4*g+2], hi[4*g], lo[4*g+1])
		VUNPCKLPD(hi[4*g+3], hi[4*g+1], lo[4*g+2])
		VUNPCKHPD(hi[4*g+3], hi[4*g+1], lo[4*g+3])
	}
	columns := make([]VecPhysical, 16)
	for j := range 4 {
		t := hi[4*j:]
		VSHUFF32X4(Imm(0x88), lo[4+j], lo[j], t[0])
		VSHUFF32X4(Imm(0x88), lo[12+j], lo[8+j], t[1])
		VSHUFF32X4(Imm(0xdd), lo[4+j], lo[j], t[2])
		VSHUFF32X4(Imm(0xdd), lo[12+j], lo[8+j], t[3])
		VSHUFF32X4(Imm(0x88), t[1], t[0], lo[j])
		VSHUFF32X4(Imm(0xdd), t[1], t[0], lo[8+j])
		VSHUFF32X4(Imm(0x88), t[3], t[2], lo[4+j])
		VSHUFF32X4(Imm(0xdd), t[3], t[2], lo[12+j])
		for l := range 4 {
			columns[4*l+j] = lo[4*l+j]
		}
	}
	return columns
}

func packTransposed256() {
	begin("packTransposed256", packTransposedSignature, "writes column j of rows ≤ 8 rows of k elements to dst[j·dstStep:][:8]; what a column writes beyond pad ≤ 8 the next one overwrites.")
	loadPack()
	table := rowPointers(8)
	load("k", RCX)
	LEAQ(maskTable(), R9)
	XORQ(R11, R11)
	Label("block")
	CMPQ(RCX, Imm(8))
	JLT(LabelRef("tail"))
	for _, tail := range []bool{false, true} {
		if tail {
			Label("tail")
			TESTQ(RCX, RCX)
			JZ(LabelRef("done"))
			MOVQ(RCX, R8)
			NEGQ(R8)
			VMOVUPS(Mem{Base: R9, Index: R8, Scale: 4, Disp: 64}, Y15)
		}
		for r := range 8 {
			MOVQ(table.Offset(8*r), R8)
			if tail {
				VMASKMOVPS(Mem{Base: R8, Index: R11, Scale: 1}, Y15, ymm[r])
			} else {
				VMOVUPS(Mem{Base: R8, Index: R11, Scale: 1}, ymm[r])
			}
		}
		for _, y := range transpose8() {
			VMOVUPS(y, Mem{Base: RDI})
			ADDQ(RDX, RDI)
			if tail {
				DECQ(RCX)
				JZ(LabelRef("done"))
			}
		}
		if !tail {
			ADDQ(Imm(32), R11)
			SUBQ(Imm(8), RCX)
			JMP(LabelRef("block"))
		}
	}
	Label("done")
	end()
}

// transpose8 transposes Y0 to Y7 and returns the registers of the columns.
func transpose8() []VecPhysical {
	lo, hi := ymm[:8], ymm[8:]
	for i := range 4 {
		VUNPCKLPS(lo[2*i+1], lo[2*i], hi[2*i])
		VUNPCKHPS(lo[2*i+1], lo[2*i], hi[2*i+1])
	}
	for g := range 2 {
		VUNPCKLPD(hi[4*g+2], hi[4*g], lo[4*g])
		VUNPCKHPD(hi[4*g+2], hi[4*g], lo[4*g+1])
		VUNPCKLPD(hi[4*g+3], hi[4*g+1], lo[4*g+2])
		VUNPCKHPD(hi[4*g+3], hi[4*g+1], lo[4*g+3])
	}
	for j := range 4 {
		VPERM2F128(Imm(0x20), lo[4+j], lo[j], hi[j])
		VPERM2F128(Imm(0x31), lo[4+j], lo[j], hi[4+j])
	}
	return hi
}
