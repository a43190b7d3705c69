// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// simd is the part of an instruction set in which 512 and 256 bits differ, so
// that the row routines of attention are written once.
//
// The tail of a row is masked: by K1 for 512 bits, by the register tail for 256.
type simd struct {
	suffix string
	bytes  int // of a register
	v      []VecPhysical
	tail   VecPhysical // 256 bits only
}

var (
	simd512 = simd{suffix: "512", bytes: 64, v: zmm}
	simd256 = simd{suffix: "256", bytes: 32, v: ymm, tail: Y15}
)

func (s simd) wide() bool { return s.bytes == 64 }

func (s simd) lanes() int { return s.bytes / 4 }

func (s simd) zero(x VecPhysical) {
	if s.wide() {
		VPXORD(x, x, x)
	} else {
		VXORPS(x, x, x)
	}
}

// setTail makes the mask of the first n lanes; it changes n and tmp.
func (s simd) setTail(n, tmp GPPhysical) {
	if s.wide() {
		firstMask(n, tmp, K1)
		return
	}
	LEAQ(maskTable(), tmp)
	NEGQ(n)
	VMOVUPS(Mem{Base: tmp, Index: n, Scale: 4, Disp: 64}, s.tail)
}

// loadTail loads the lanes of the tail and zeros.
func (s simd) loadTail(from Mem, to VecPhysical) {
	if s.wide() {
		VMOVUPS_Z(from, K1, to)
	} else {
		VMASKMOVPS(from, s.tail, to)
	}
}

func (s simd) storeTail(from VecPhysical, to Mem) {
	if s.wide() {
		VMOVUPS(from, K1, to)
	} else {
		VMASKMOVPS(from, s.tail, to)
	}
}

// keepTail clears the lanes that are not of the tail.
func (s simd) keepTail(x VecPhysical) {
	if s.wide() {
		VMOVAPS_Z(x, K1, x)
	} else {
		VANDPS(s.tail, x, x)
	}
}

// fold combines all lanes of register 0 into the lowest, using register 1.
func (s simd) fold(op func(...Op)) {
	if s.wide() {
		VEXTRACTF64X4(Imm(1), Z0, Y1)
		op(Y1, Y0, Y0)
	}
	VEXTRACTF128(Imm(1), Y0, X1)
	op(X1, X0, X0)
	VPERMILPS(Imm(0x4e), X0, X1)
	op(X1, X0, X0)
	VPERMILPS(Imm(0xb1), X0, X1)
	op(X1, X0, X0)
}

// exponential is e^x: x = n·ln 2 + r, e^r as the polynomial of degree 6 that
// interpolates it at the Chebyshev nodes of [-ln2/2, ln2/2] (relative error
// 3e-9), times 2^n. Below -87.3 it is 0, so that no result is denormal, and of what
// a mask of -Inf forbids nothing is left; NaN stays. Only for arguments up to 88.
type exponential struct {
	simd
	lowest, log2e, ln2hi, ln2lo Op
	c                           [7]Op
}

// newExponential makes the constants: of 512 bits in registers from 16 on, of
// 256 bits, which has no registers to spare, in memory.
func newExponential(s simd) exponential {
	e := exponential{simd: s}
	next := 16
	operand := func(name string, x float64) Op {
		m := constant(name, x)
		if !s.wide() {
			return m
		}
		r := s.v[next]
		next++
		VMOVUPS(m, r)
		return r
	}
	e.lowest = operand("Lowest", -87.3)
	e.log2e = operand("Log2e", math.Log2E)
	e.ln2hi = operand("Ln2hi", 0.693145751953125)
	e.ln2lo = operand("Ln2lo", 1.4286068202862268e-06)
	for i, c := range []float64{1, 1.0000000377388714, 0.5000000047146057, 0.16666415414041177,
		0.04166635277111221, 0.008375134774624326, 0.0013941118895837} {
		e.c[i] = operand(fmt.Sprint("Exp", i), c)
	}
	return e
}

var constants = map[string]Mem{}

// constant is 16 copies of x, a memory operand for either width.
func constant(name string, x float64) Mem {
	if m, ok := constants[name]; ok {
		return m
	}
	m := GLOBL("gemm"+name, 8|16 /* RODATA|NOPTR */)
	for i := range 16 {
		DATA(4*i, U32(math.Float32bits(float32(x))))
	}
	constants[name] = m
	return m
}

// of replaces x by its exponential; it changes t, u and, of 256 bits, above, of 512
// K2.
func (e exponential) of(x, t, u, above VecPhysical) {
	const notLess = 5 // true of NaN
	if e.wide() {
		VCMPPS(Imm(notLess), e.lowest, x, K2)
	} else {
		VCMPPS(Imm(notLess), e.lowest, x, above)
	}
	VMULPS(e.log2e, x, t)
	if e.wide() {
		VRNDSCALEPS(Imm(8), t, t)
	} else {
		VROUNDPS(Imm(8), t, t)
	}
	VFNMADD231PS(e.ln2hi, t, x)
	VFNMADD231PS(e.ln2lo, t, x)
	VMOVUPS(e.c[6], u)
	for i := 5; i >= 0; i-- {
		VFMADD213PS(e.c[i], x, u)
	}
	if e.wide() {
		VSCALEFPS_Z(t, u, K2, x)
	} else {
		VCVTPS2DQ(t, t)
		VPSLLD(Imm(23), t, t)
		VPADDD(t, u, x)
		VANDPS(above, x, x)
	}
}

// Registers of the row routines. R12 is how many elements of the row count, R13
// the index in it, R15 is not used: it is reserved when Go links dynamically.
var (
	rowX, rowY = RDI, RSI
	rowStep    = RBX
	rowCount   = RCX
	rowIndex   = R13
	rowVisible = R12
)

func element(row GPPhysical) Mem { return Mem{Base: row, Index: rowIndex, Scale: 4} }

// eachBlock runs body for every whole register of the first visible elements,
// then tail for what is left with the mask set; rowIndex ends behind the
// registers that were used. It changes RAX and RDX.
func (s simd) eachBlock(name string, body, tail func()) {
	XORQ(rowIndex, rowIndex)
	MOVQ(rowVisible, RAX)
	Label(name)
	SUBQ(Imm(uint64(s.lanes())), RAX)
	JLT(LabelRef(name + "tail"))
	body()
	ADDQ(Imm(uint64(s.lanes())), rowIndex)
	JMP(LabelRef(name))
	Label(name + "tail")
	ADDQ(Imm(uint64(s.lanes())), RAX)
	JZ(LabelRef(name + "end"))
	s.setTail(RAX, RDX)
	tail()
	ADDQ(Imm(uint64(s.lanes())), rowIndex)
	Label(name + "end")
}

// visible sets rowVisible to n within [0, end], n in R8 and end in R9.
func visible() {
	MOVQ(R8, rowVisible)
	CMPQ(rowVisible, R9)
	CMOVQGT(R9, rowVisible)
	XORL(EAX, EAX)
	TESTQ(rowVisible, rowVisible)
	CMOVQLT(RAX, rowVisible)
}

// fill stores register 0 to the rest of a row, of R9 elements.
func (s simd) fill(name string, rows ...GPPhysical) {
	s.zero(s.v[0])
	Label(name)
	CMPQ(rowIndex, R9)
	JGE(LabelRef(name + "end"))
	for _, row := range rows {
		VMOVUPS(s.v[0], element(row))
	}
	ADDQ(Imm(uint64(s.lanes())), rowIndex)
	JMP(LabelRef(name))
	Label(name + "end")
}

func softmaxRows512() { softmaxRows(simd512) }
func softmaxRows256() { softmaxRows(simd256) }

func softmaxRows(s simd) {
	begin("softmaxRows"+s.suffix, "func(x *float32, stride, rows, n, step, end int, top, sum *float32)",
		"replaces the first n + r·step elements of row r by e^(x - top), top being their maximum, and the rest up to end, whole registers, by 0.")
	e := newExponential(s)
	v := s.v
	load("x", rowX)
	loadStride("stride", rowStep)
	load("rows", rowCount)
	load("n", R8)
	load("end", R9)
	load("top", R10)
	load("sum", R11)
	VMOVUPS(constant("LowestInf", math.Inf(-1)), v[5])
	Label("row")
	visible()
	VMOVUPS(v[5], v[0])
	s.eachBlock("max", func() {
		VMAXPS(element(rowX), v[0], v[0])
	}, func() {
		if s.wide() {
			VMOVUPS(v[5], v[1])
			VMOVUPS(element(rowX), K1, v[1])
		} else {
			VMOVUPS(element(rowX), v[1])
			VBLENDVPS(s.tail, v[1], v[5], v[1])
		}
		VMAXPS(v[1], v[0], v[0])
	})
	s.fold(VMAXPS)
	VMOVSS(X0, Mem{Base: R10})
	VBROADCASTSS(X0, v[3])
	s.zero(v[4])
	power := func() {
		VSUBPS(v[3], v[0], v[0])
		e.of(v[0], v[1], v[2], v[6])
	}
	s.eachBlock("exp", func() {
		VMOVUPS(element(rowX), v[0])
		power()
		VMOVUPS(v[0], element(rowX))
		VADDPS(v[0], v[4], v[4])
	}, func() {
		s.loadTail(element(rowX), v[0])
		power()
		s.keepTail(v[0])
		VMOVUPS(v[0], element(rowX))
		VADDPS(v[0], v[4], v[4])
	})
	s.fill("fill", rowX)
	VMOVAPS(v[4], v[0])
	s.fold(VADDPS)
	VMOVSS(X0, Mem{Base: R11})
	ADDQ(Imm(4), R10)
	ADDQ(Imm(4), R11)
	ADDQ(rowStep, rowX)
	ADDQ(argument("step"), R8)
	DECQ(rowCount)
	JNZ(LabelRef("row"))
	end()
}

func gradientRows512() { gradientRows(simd512) }
func gradientRows256() { gradientRows(simd256) }

func gradientRows(s simd) {
	begin("gradientRows"+s.suffix, "func(x, grad *float32, stride, rows, n, step, end int, lse, delta *float32, scale float32)",
		"replaces the first n + r·step elements of row r of x by p = e^(x - lse[r]) and of grad by p·(grad - delta[r])·scale, and the rest up to end, whole registers, by 0.")
	e := newExponential(s)
	v := s.v
	load("x", rowX)
	load("grad", rowY)
	loadStride("stride", rowStep)
	load("rows", rowCount)
	load("n", R8)
	load("end", R9)
	load("lse", R10)
	load("delta", R11)
	VBROADCASTSS(argument("scale"), v[7])
	Label("row")
	visible()
	VBROADCASTSS(Mem{Base: R10}, v[3])
	VBROADCASTSS(Mem{Base: R11}, v[4])
	power := func() {
		VSUBPS(v[3], v[0], v[0])
		e.of(v[0], v[1], v[2], v[6])
	}
	gradient := func() {
		VSUBPS(v[4], v[5], v[5])
		VMULPS(v[7], v[5], v[5])
		VMULPS(v[0], v[5], v[5])
		VMOVUPS(v[0], element(rowX))
		VMOVUPS(v[5], element(rowY))
	}
	s.eachBlock("exp", func() {
		VMOVUPS(element(rowX), v[0])
		power()
		VMOVUPS(element(rowY), v[5])
		gradient()
	}, func() {
		s.loadTail(element(rowX), v[0])
		power()
		s.keepTail(v[0])
		s.loadTail(element(rowY), v[5])
		gradient()
	})
	s.fill("fill", rowX, rowY)
	ADDQ(Imm(4), R10)
	ADDQ(Imm(4), R11)
	ADDQ(rowStep, rowX)
	ADDQ(rowStep, rowY)
	ADDQ(argument("step"), R8)
	DECQ(rowCount)
	JNZ(LabelRef("row"))
	end()
}

func dotRows512() { dotRows(simd512) }
func dotRows256() { dotRows(simd256) }

func dotRows(s simd) {
	begin("dotRows"+s.suffix, "func(dst, x *float32, xStep int, y *float32, yStep, rows, n int)",
		"sets dst[r] to the dot product of row r of x and of y, n elements each.")
	v := s.v
	load("dst", R10)
	load("x", rowX)
	loadStride("xStep", rowStep)
	load("y", rowY)
	loadStride("yStep", R8)
	load("rows", rowCount)
	load("n", rowVisible)
	Label("row")
	s.zero(v[0])
	s.eachBlock("dot", func() {
		VMOVUPS(element(rowX), v[1])
		VMOVUPS(element(rowY), v[2])
		VFMADD231PS(v[1], v[2], v[0])
	}, func() {
		s.loadTail(element(rowX), v[1])
		s.loadTail(element(rowY), v[2])
		VFMADD231PS(v[1], v[2], v[0])
	})
	s.fold(VADDPS)
	VMOVSS(X0, Mem{Base: R10})
	ADDQ(Imm(4), R10)
	ADDQ(rowStep, rowX)
	ADDQ(R8, rowY)
	DECQ(rowCount)
	JNZ(LabelRef("row"))
	end()
}

func scaleRows512() { scaleRows(simd512) }
func scaleRows256() { scaleRows(simd256) }

func scaleRows(s simd) {
	begin("scaleRows"+s.suffix, "func(x *float32, step, rows, n int, factor *float32)",
		"multiplies row r of n elements by factor[r].")
	v := s.v
	load("x", rowX)
	loadStride("step", rowStep)
	load("rows", rowCount)
	load("n", rowVisible)
	load("factor", R10)
	Label("row")
	VBROADCASTSS(Mem{Base: R10}, v[1])
	s.eachBlock("scale", func() {
		VMULPS(element(rowX), v[1], v[0])
		VMOVUPS(v[0], element(rowX))
	}, func() {
		s.loadTail(element(rowX), v[0])
		VMULPS(v[1], v[0], v[0])
		s.storeTail(v[0], element(rowX))
	})
	ADDQ(Imm(4), R10)
	ADDQ(rowStep, rowX)
	DECQ(rowCount)
	JNZ(LabelRef("row"))
	end()
}
