// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// transpose emits the transposition of squares of eight by eight words, in
// registers of AVX2: pairs of rows are interleaved by words, by pairs of words
// and by halves.
func transpose() {
	TEXT("transpose256", 4 /* NOSPLIT */, "func(dst, src *byte, dstRow, srcCol, blocks int)")
	Pragma("noescape")
	Doc("transpose256 writes eight rows of 8·blocks words, dstRow bytes apart, from as many columns, srcCol bytes apart.")
	dst, src := Load(Param("dst"), GP64()), Load(Param("src"), GP64())
	dstRow, srcCol, n := Load(Param("dstRow"), GP64()), Load(Param("srcCol"), GP64()), Load(Param("blocks"), GP64())
	step3 := func(step Register) GPVirtual {
		r := GP64()
		LEAQ(Mem{Base: step, Index: step, Scale: 2}, r)
		return r
	}
	dst3, src3 := step3(dstRow), step3(srcCol)
	half := GP64()
	at := func(low, high Register, step, step3 Register, i int) Mem {
		base := low
		if i >= 4 {
			base = high
		}
		switch i % 4 {
		case 1:
			return Mem{Base: base, Index: step, Scale: 1}
		case 2:
			return Mem{Base: base, Index: step, Scale: 2}
		case 3:
			return Mem{Base: base, Index: step3, Scale: 1}
		}
		return Mem{Base: base}
	}
	Label("loop")
	LEAQ(Mem{Base: src, Index: srcCol, Scale: 4}, half)
	var v, u [8]VecVirtual
	for i := range v {
		v[i] = YMM()
		VMOVUPS(at(src, half, srcCol, src3, i), v[i])
	}
	for i := 0; i < 8; i += 2 {
		u[i], u[i+1] = YMM(), YMM()
		VUNPCKLPS(v[i+1], v[i], u[i])
		VUNPCKHPS(v[i+1], v[i], u[i+1])
	}
	// v[k] has words k and k+4 of the first four columns, v[k+4] those of the others.
	for i := 0; i < 8; i += 4 {
		for j := range 2 {
			v[i+2*j], v[i+2*j+1] = YMM(), YMM()
			VUNPCKLPD(u[i+2+j], u[i+j], v[i+2*j])
			VUNPCKHPD(u[i+2+j], u[i+j], v[i+2*j+1])
		}
	}
	LEAQ(Mem{Base: dst, Index: dstRow, Scale: 4}, half)
	for k := range 4 {
		low, high := YMM(), YMM()
		VPERM2F128(Imm(0x20), v[k+4], v[k], low)
		VPERM2F128(Imm(0x31), v[k+4], v[k], high)
		VMOVUPS(low, at(dst, half, dstRow, dst3, k))
		VMOVUPS(high, at(dst, half, dstRow, dst3, k+4))
	}
	LEAQ(Mem{Base: src, Index: srcCol, Scale: 8}, src)
	ADDQ(Imm(32), dst)
	DECQ(n)
	JNZ(LabelRef("loop"))
	end()
}
