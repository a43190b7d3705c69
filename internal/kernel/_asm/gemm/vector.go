// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A vector times a matrix is bound by memory: the matrix is read once, and as it
// lies.

// addRows goes over a few rows at once, eight registers of columns at a time:
// reads that follow each other in every row are what the processor foresees. An
// element of size 2 is a bfloat16.
func addRows(s simd, name, doc string, size int) {
	kind := map[int]string{4: "float32", 2: "uint16"}[size]
	begin(name, fmt.Sprintf("func(sums *float32, b *%s, bRow int, x *float32, rows, cols int)", kind), doc)
	widen := func(x VecPhysical) {
		VPMOVZXWD(x.AsY(), x)
		VPSLLD(Imm(16), x, x)
	}
	load("sums", RDI)
	load("b", RSI)
	load("bRow", RBX)
	SHLQ(Imm(uint64(size/2)), RBX)
	load("cols", RDX)
	factor := s.v[8]
	for _, part := range []struct {
		name      string
		registers int
	}{{"wide", 8}, {"one", 1}, {"tail", 1}} {
		acc := s.v[:part.registers]
		tail := part.name == "tail"
		Label(part.name)
		if tail {
			TESTQ(RDX, RDX)
			JZ(LabelRef("done"))
			MOVQ(RDX, RAX)
			s.setTail(RAX, R8)
		} else {
			CMPQ(RDX, Imm(uint64(part.registers*s.lanes())))
			JLT(LabelRef(map[string]string{"wide": "one", "one": "tail"}[part.name]))
		}
		for i, v := range acc {
			if tail {
				s.loadTail(Mem{Base: RDI}, v)
			} else {
				VMOVUPS(Mem{Base: RDI, Disp: s.bytes * i}, v)
			}
		}
		MOVQ(RSI, R8)
		load("x", R9)
		load("rows", RCX)
		Label("rows" + part.name)
		VBROADCASTSS(Mem{Base: R9}, factor)
		for i, v := range acc {
			from := Mem{Base: R8, Disp: s.lanes() * size * i}
			element := s.v[9+i%6]
			switch {
			case size == 2 && tail:
				VMOVDQU16_Z(from, K1, element)
				widen(element)
			case size == 2:
				VPMOVZXWD(from, element)
				VPSLLD(Imm(16), element, element)
			case tail:
				s.loadTail(from, element)
			default:
				VFMADD231PS(from, factor, v)
				continue
			}
			VFMADD231PS(element, factor, v)
		}
		ADDQ(RBX, R8)
		ADDQ(Imm(4), R9)
		DECQ(RCX)
		JNZ(LabelRef("rows" + part.name))
		for i, v := range acc {
			if tail {
				s.storeTail(v, Mem{Base: RDI})
			} else {
				VMOVUPS(v, Mem{Base: RDI, Disp: s.bytes * i})
			}
		}
		if !tail {
			elements := part.registers * s.lanes()
			ADDQ(I32(int32(4*elements)), RDI)
			ADDQ(I32(int32(size*elements)), RSI)
			SUBQ(I32(int32(elements)), RDX)
			JMP(LabelRef(part.name))
		}
	}
	Label("done")
	end()
}

// dotVector adds up in lanes: four rows at a time, so that the vector is loaded
// once for them. An element of size 2 is half of a slot of x, which holds a pair.
func dotVector(s simd, name, doc string, multiplyAdd func(y, x, z VecPhysical), size int) {
	kind := map[int]string{4: "float32", 2: "uint16"}[size]
	begin(name, fmt.Sprintf("func(sums *float32, src *%s, srcStep int, x *float32, rows, k int)", kind), doc)
	load("sums", RDI)
	load("src", RSI)
	load("srcStep", RBX)
	SHLQ(Imm(uint64(size/2)), RBX)
	load("x", RDX)
	load("rows", RAX)
	load("k", RCX)
	// Rows that do not exist repeat the one before.
	rows := []GPPhysical{RSI, R8, R9, R10}
	for r := 1; r < 4; r++ {
		MOVQ(rows[r-1], rows[r])
		LEAQ(Mem{Base: rows[r], Index: RBX, Scale: 1}, R11)
		CMPQ(RAX, Imm(uint64(r)))
		CMOVQGT(R11, rows[r])
	}
	// Registers: four sums a row, or two; the same number for x; one for a row.
	perRow := len(s.v) / 8
	acc := func(r, i int) VecPhysical { return s.v[r*perRow+i] }
	x := s.v[4*perRow : 5*perRow]
	row := s.v[5*perRow : 6*perRow]
	for i := range 4 * perRow {
		s.zero(s.v[i])
	}
	for _, registers := range []int{perRow, 1} {
		loop := fmt.Sprint("loop", registers)
		elements := registers * s.bytes / size
		Label(loop)
		CMPQ(RCX, I32(int32(elements)))
		JLT(LabelRef("below" + loop))
		for i := range registers {
			VMOVUPS(Mem{Base: RDX, Disp: s.bytes * i}, x[i])
		}
		for r := range 4 {
			for i := range registers {
				VMOVUPS(Mem{Base: rows[r], Disp: s.bytes * i}, row[i])
				multiplyAdd(row[i], x[i], acc(r, i))
			}
			ADDQ(I32(int32(s.bytes*registers)), rows[r])
		}
		ADDQ(I32(int32(s.bytes*registers)), RDX)
		SUBQ(I32(int32(elements)), RCX)
		JMP(LabelRef(loop))
		Label("below" + loop)
	}
	TESTQ(RCX, RCX)
	JZ(LabelRef("reduce"))
	loadTail := s.loadTail
	if size == 2 {
		loadTail = func(from Mem, to VecPhysical) { VMOVDQU16_Z(from, K1, to) }
		MOVQ(I32(-1), R11)
		BZHIQ(RCX, R11, R11)
		KMOVD(R11L, K1)
	} else {
		s.setTail(RCX, R11)
	}
	if size == 2 { // x has whole pairs, with zeros beyond its end
		INCQ(RCX)
		ANDQ(I32(-2), RCX)
		MOVQ(I32(-1), R11)
		BZHIQ(RCX, R11, R11)
		KMOVD(R11L, K2)
		VMOVDQU16_Z(Mem{Base: RDX}, K2, x[0])
	} else {
		loadTail(Mem{Base: RDX}, x[0])
	}
	for r := range 4 {
		loadTail(Mem{Base: rows[r]}, row[0])
		multiplyAdd(row[0], x[0], acc(r, 0))
	}
	Label("reduce")
	for r := range 4 {
		for step := perRow / 2; step > 0; step /= 2 {
			for i := range step {
				VADDPS(acc(r, i+step), acc(r, i), acc(r, i))
			}
		}
		s.foldInto(acc(r, 0), row[0])
		VMOVSS(acc(r, 0).AsX(), Mem{Base: RDI, Disp: 4 * r})
	}
	end()
}

// foldInto adds all lanes of x into the lowest; it changes t.
func (s simd) foldInto(x, t VecPhysical) {
	if s.wide() {
		VEXTRACTF64X4(Imm(1), x, t.AsY())
		VADDPS(t.AsY(), x.AsY(), x.AsY())
		VEXTRACTF32X4(Imm(1), x.AsY(), t.AsX())
	} else {
		VEXTRACTF128(Imm(1), x, t.AsX())
	}
	VADDPS(t.AsX(), x.AsX(), x.AsX())
	VPERMILPS(Imm(0x4e), x.AsX(), t.AsX())
	VADDPS(t.AsX(), x.AsX(), x.AsX())
	VPERMILPS(Imm(0xb1), x.AsX(), t.AsX())
	VADDPS(t.AsX(), x.AsX(), x.AsX())
}
