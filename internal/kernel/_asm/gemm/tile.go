// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const tileSignature = "func(rows, cols, k int, a *float32, aRow, aCol int, b *float32, bRow int, c *float32, ldc int, alpha, beta float32, bias *float32)"

// tileBF16Signature has a C of float32 or, if half is not 0, of bfloat16.
const tileBF16Signature = "func(rows, cols, k int, a *float32, aRow, aCol int, b *float32, bRow int, c *float32, ldcBytes int, alpha, beta float32, bias *float32, half int)"

// Registers of a tile: four pointers into A three rows apart, so that every
// row is a pointer plus 0, 1 or 2 times the distance of rows.
var (
	aPointers = []GPPhysical{RDI, RSI, R8, R9}
	aRow      = R10
	aCol      = R12
	bPointer  = RBX
	bRow      = RDX
	count     = RCX
	cPointer  = RAX
	cRow      = R13
	scratch   = R11
)

func aElement(r int) Mem {
	m := Mem{Base: aPointers[r/3]}
	if r%3 != 0 {
		m.Index, m.Scale = aRow, uint8(r%3)
	}
	return m
}

func loadTile() {
	load("k", count)
	load("a", aPointers[0])
	loadStride("aRow", aRow)
	loadStride("aCol", aCol)
	load("b", bPointer)
	loadStride("bRow", bRow)
}

// startTile loads what the row count decides and fetches the tile of C ahead.
func startTile(rows, lines int, loadRow func()) {
	LEAQ(Mem{Base: aRow, Index: aRow, Scale: 2}, scratch)
	for g := 1; 3*g < rows; g++ {
		LEAQ(Mem{Base: aPointers[g-1], Index: scratch, Scale: 1}, aPointers[g])
	}
	load("c", cPointer)
	loadRow()
	for r := range rows {
		for l := range lines {
			PREFETCHT0(Mem{Base: cPointer, Disp: 64 * l})
		}
		if r < rows-1 {
			ADDQ(cRow, cPointer)
		}
	}
	load("c", cPointer)
}

func advance(rows int) {
	for g := 0; 3*g < rows; g++ {
		ADDQ(aCol, aPointers[g])
	}
	ADDQ(bRow, bPointer)
}

// tile512 keeps up to 12 rows of two registers of C; the masks let it read and
// write exactly cols columns of B and C. With bf16 an element of A and B is a
// pair of bfloat16.
func tile512(name, doc string, bf16 bool) {
	if bf16 {
		begin(name, tileBF16Signature, doc)
	} else {
		begin(name, tileSignature, doc)
	}
	loadTile()
	load("cols", scratch)
	MOVQ(I32(-1), RAX)
	BZHIQ(scratch, RAX, RAX)
	KMOVW(EAX, K1)
	if bf16 {
		KMOVD(EAX, K3)
	}
	SHRQ(Imm(16), RAX)
	KMOVW(EAX, K2)
	load("rows", RAX)
	CMPQ(scratch, Imm(16))
	JLE(LabelRef("narrow"))
	for _, vectors := range []int{2, 1} {
		if vectors == 1 {
			Label("narrow")
		}
		for rows := 12; rows > 1; rows-- {
			CMPQ(RAX, Imm(uint64(rows)))
			JEQ(LabelRef(fmt.Sprintf("rows%dx%d", rows, vectors)))
		}
		JMP(LabelRef(fmt.Sprintf("rows1x%d", vectors)))
	}
	for _, vectors := range []int{2, 1} {
		for rows := 12; rows >= 1; rows-- {
			tile512Rows(rows, vectors, bf16)
		}
	}
}

func tile512Rows(rows, vectors int, bf16 bool) {
	name := fmt.Sprintf("%dx%d", rows, vectors)
	acc := func(r, v int) VecPhysical { return zmm[r*vectors+v] }
	mask := []OpmaskPhysical{K1, K2}
	Label("rows" + name)
	startTile(rows, vectors, func() {
		if bf16 {
			load("ldcBytes", cRow)
		} else {
			loadStride("ldc", cRow)
		}
	})
	for i := range rows * vectors {
		VPXORD(zmm[i], zmm[i], zmm[i])
	}
	TESTQ(count, count)
	JZ(LabelRef("store" + name))
	Label("loop" + name)
	for v := range vectors {
		VMOVUPS_Z(Mem{Base: bPointer, Disp: 64 * v}, mask[v], zmm[24+v])
	}
	for r := range rows {
		x := zmm[26+r%4]
		VBROADCASTSS(aElement(r), x)
		for v := range vectors {
			if bf16 {
				vdpbf16ps(zmm[24+v], x, acc(r, v))
			} else {
				VFMADD231PS(zmm[24+v], x, acc(r, v))
			}
		}
	}
	advance(rows)
	DECQ(count)
	JNZ(LabelRef("loop" + name))

	// C = alpha·sum + bias, then + beta·C if beta is not 0. A product alone is
	// what it is: a sum that began with 0 is never -0.
	Label("store" + name)
	load("bias", scratch)
	MOVL(argument("alpha"), EBX)
	SUBL(U32(math.Float32bits(1)), EBX)
	ORQ(scratch, RBX)
	JZ(LabelRef("scaled" + name))
	VBROADCASTSS(argument("alpha"), Z24)
	VPXORD(Z26, Z26, Z26)
	VPXORD(Z27, Z27, Z27)
	TESTQ(scratch, scratch)
	JZ(LabelRef("unbiased" + name))
	for v := range vectors {
		VMOVUPS_Z(Mem{Base: scratch, Disp: 64 * v}, mask[v], zmm[26+v])
	}
	Label("unbiased" + name)
	for r := range rows {
		for v := range vectors {
			VFMADD213PS(zmm[26+v], Z24, acc(r, v))
		}
	}
	Label("scaled" + name)
	MOVL(argument("beta"), scratch.As32())
	SHLL(Imm(1), scratch.As32())
	JZ(LabelRef("write" + name))
	VBROADCASTSS(argument("beta"), Z25)
	for r := range rows {
		for v := range vectors {
			x := zmm[28+(r*vectors+v)%4]
			VMOVUPS_Z(Mem{Base: cPointer, Disp: 64 * v}, mask[v], x)
			VFMADD231PS(x, Z25, acc(r, v))
		}
		if r < rows-1 {
			ADDQ(cRow, cPointer)
		}
	}
	load("c", cPointer)
	Label("write" + name)
	write := func(one func(r int)) {
		for r := range rows {
			one(r)
			if r < rows-1 {
				ADDQ(cRow, cPointer)
			}
		}
		end()
	}
	if bf16 {
		load("half", scratch)
		TESTQ(scratch, scratch)
		JNZ(LabelRef("half" + name))
	}
	write(func(r int) {
		for v := range vectors {
			VMOVUPS(acc(r, v), mask[v], Mem{Base: cPointer, Disp: 64 * v})
		}
	})
	if bf16 {
		Label("half" + name)
		write(func(r int) {
			x := zmm[24+r%8]
			vcvtne2ps2bf16(acc(r, 0), acc(r, vectors-1), x)
			VMOVDQU16(x, K3, Mem{Base: cPointer})
		})
	}
}

const tilesSignature = "func(tiles, k int, a *float32, aNext, aRow, aCol int, b *float32, bNext, bRow int, c *float32, cNext, ldc int, alpha, beta float32, bias *float32)"

// tiles512 computes full tiles one after the other: without masks, and without
// the way through Go, which takes as long as storing a tile.
func tiles512() {
	const rows, vectors = 12, 2
	begin("gemmTiles512", tilesSignature, "computes tiles of 12 rows by 32 columns, whose operands and C are aNext, bNext and cNext elements apart.")
	acc := func(r, v int) VecPhysical { return zmm[r*vectors+v] }
	Label("tile")
	loadTile()
	startTile(rows, vectors, func() { loadStride("ldc", cRow) })
	for i := range rows * vectors {
		VPXORD(zmm[i], zmm[i], zmm[i])
	}
	Label("loop")
	for v := range vectors {
		VMOVUPS(Mem{Base: bPointer, Disp: 64 * v}, zmm[24+v])
	}
	for r := range rows {
		x := zmm[26+r%4]
		VBROADCASTSS(aElement(r), x)
		for v := range vectors {
			VFMADD231PS(zmm[24+v], x, acc(r, v))
		}
	}
	advance(rows)
	DECQ(count)
	JNZ(LabelRef("loop"))

	load("bias", scratch)
	MOVL(argument("alpha"), EBX)
	SUBL(U32(math.Float32bits(1)), EBX)
	ORQ(scratch, RBX)
	JZ(LabelRef("scaled"))
	VBROADCASTSS(argument("alpha"), Z24)
	VPXORD(Z26, Z26, Z26)
	VPXORD(Z27, Z27, Z27)
	TESTQ(scratch, scratch)
	JZ(LabelRef("unbiased"))
	for v := range vectors {
		VMOVUPS(Mem{Base: scratch, Disp: 64 * v}, zmm[26+v])
	}
	Label("unbiased")
	for r := range rows {
		for v := range vectors {
			VFMADD213PS(zmm[26+v], Z24, acc(r, v))
		}
	}
	Label("scaled")
	MOVL(argument("beta"), scratch.As32())
	SHLL(Imm(1), scratch.As32())
	JZ(LabelRef("write"))
	VBROADCASTSS(argument("beta"), Z25)
	for r := range rows {
		for v := range vectors {
			VFMADD231PS(Mem{Base: cPointer, Disp: 64 * v}, Z25, acc(r, v))
		}
		if r < rows-1 {
			ADDQ(cRow, cPointer)
		}
	}
	load("c", cPointer)
	Label("write")
	for r := range rows {
		for v := range vectors {
			VMOVUPS(acc(r, v), Mem{Base: cPointer, Disp: 64 * v})
		}
		if r < rows-1 {
			ADDQ(cRow, cPointer)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		loadStride(name+"Next", scratch)
		ADDQ(scratch, argument(name))
	}
	DECQ(argument("tiles"))
	JNZ(LabelRef("tile"))
	end()
}

// tile256 keeps up to 6 rows of two registers of C. It reads 16 columns of B
// whatever cols is; it reads and writes exactly cols columns of C.
func tile256() {
	begin("gemmTile256", tileSignature, "computes a tile of rows ≤ 6 by cols ≤ 16; 16 columns of B can be read.")
	loadTile()
	load("rows", RAX)
	for rows := 6; rows > 1; rows-- {
		CMPQ(RAX, Imm(uint64(rows)))
		JEQ(LabelRef(fmt.Sprintf("rows%d", rows)))
	}
	for rows := 1; rows <= 6; rows++ {
		tile256Rows(rows)
	}
}

func tile256Rows(rows int) {
	name := fmt.Sprint(rows)
	acc := func(r, v int) VecPhysical { return ymm[r*2+v] }
	Label("rows" + name)
	startTile(rows, 1, func() { loadStride("ldc", cRow) })
	for i := range rows * 2 {
		VXORPS(ymm[i], ymm[i], ymm[i])
	}
	TESTQ(count, count)
	JZ(LabelRef("store" + name))
	Label("loop" + name)
	for v := range 2 {
		VMOVUPS(Mem{Base: bPointer, Disp: 32 * v}, ymm[12+v])
	}
	for r := range rows {
		x := ymm[14+r%2]
		VBROADCASTSS(aElement(r), x)
		for v := range 2 {
			VFMADD231PS(ymm[12+v], x, acc(r, v))
		}
	}
	advance(rows)
	DECQ(count)
	JNZ(LabelRef("loop" + name))

	Label("store" + name)
	VBROADCASTSS(argument("alpha"), Y12)
	for i := range rows * 2 {
		VMULPS(Y12, ymm[i], ymm[i])
	}
	// The masks stay in Y12 and Y13; all ones for a full tile.
	load("cols", scratch)
	load("bias", RBX)
	NEGQ(scratch)
	LEAQ(maskTable(), RDX)
	VMOVUPS(Mem{Base: RDX, Index: scratch, Scale: 4, Disp: 64}, Y12)
	XORL(ESI, ESI)
	ADDQ(Imm(8), scratch)
	CMOVQGT(RSI, scratch) // fewer than 8 columns: none in the second half
	VMOVUPS(Mem{Base: RDX, Index: scratch, Scale: 4, Disp: 64}, Y13)
	TESTQ(RBX, RBX)
	JZ(LabelRef("unbiased" + name))
	for v := range 2 {
		VMASKMOVPS(Mem{Base: RBX, Disp: 32 * v}, ymm[12+v], Y14)
		for r := range rows {
			VADDPS(Y14, acc(r, v), acc(r, v))
		}
	}
	Label("unbiased" + name)
	MOVL(argument("beta"), EBX)
	SHLL(Imm(1), EBX)
	JZ(LabelRef("write" + name))
	VBROADCASTSS(argument("beta"), Y15)
	for r := range rows {
		for v := range 2 {
			VMASKMOVPS(Mem{Base: cPointer, Disp: 32 * v}, ymm[12+v], Y14)
			VFMADD231PS(Y14, Y15, acc(r, v))
		}
		if r < rows-1 {
			ADDQ(cRow, cPointer)
		}
	}
	load("c", cPointer)
	Label("write" + name)
	load("cols", RBX)
	CMPQ(RBX, Imm(16))
	JNE(LabelRef("writemasked" + name))
	writeTile256(rows, acc, false)
	Label("writemasked" + name)
	writeTile256(rows, acc, true)
}

// writeTile256 stores a tile; a masked store is slow, so that full tiles have
// plain ones.
func writeTile256(rows int, acc func(r, v int) VecPhysical, masked bool) {
	for r := range rows {
		for v := range 2 {
			to := Mem{Base: cPointer, Disp: 32 * v}
			if masked {
				VMASKMOVPS(acc(r, v), ymm[12+v], to)
			} else {
				VMOVUPS(acc(r, v), to)
			}
		}
		if r < rows-1 {
			ADDQ(cRow, cPointer)
		}
	}
	end()
}
