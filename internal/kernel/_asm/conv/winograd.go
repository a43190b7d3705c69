// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// all are the registers of AVX-512.
var all = []VecPhysical{Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15,
	Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23, Z24, Z25, Z26, Z27, Z28, Z29, Z30, Z31}

func open(name, signature, doc string) {
	TEXT(name, 4 /* NOSPLIT */, signature)
	Pragma("noescape")
	Doc(name + " " + doc)
}

// winogradInput512 replaces a patch d of 4 by 4 by Bᵀ·d·B.
func winogradInput512() {
	open("winogradInput512", "func(dst *float32, xiStep, step int, src *float32, count int)",
		"transforms count patches of 4 by 4, 16 lanes each, that lie one after the other.")
	load("dst", RDI)
	loadStride("xiStep", RDX, 4)
	loadStride("step", RBX, 4)
	load("src", RSI)
	load("count", RCX)
	row := func(d, t []VecPhysical) {
		VSUBPS(d[2], d[0], t[0])
		VADDPS(d[2], d[1], t[1])
		VSUBPS(d[1], d[2], t[2])
		VSUBPS(d[3], d[1], t[3])
	}
	Label("patch")
	for i := range 16 {
		VMOVUPS(Mem{Base: RSI, Disp: 64 * i}, all[i])
	}
	for j := range 4 { // columns
		row([]VecPhysical{all[j], all[4+j], all[8+j], all[12+j]},
			[]VecPhysical{all[16+j], all[20+j], all[24+j], all[28+j]})
	}
	for i := range 4 {
		row(all[16+4*i:], all[4*i:])
	}
	MOVQ(RDI, RAX)
	for i := range 16 {
		VMOVUPS(all[i], Mem{Base: RAX})
		if i < 15 {
			ADDQ(RDX, RAX)
		}
	}
	ADDQ(RBX, RDI)
	ADDQ(I32(1024), RSI)
	DECQ(RCX)
	JNZ(LabelRef("patch"))
	VZEROUPPER()
	RET()
}

// winogradWeights512 makes G·g·Gᵀ of kernels g of 3 by 3.
func winogradWeights512() {
	open("winogradWeights512", "func(dst *float32, xiStep, step int, src *float32, tapStep, kernelStep, count, lanes int)",
		"transforms count kernels of 3 by 3, up to 16 lanes each; tapStep may be negative.")
	load("dst", RDI)
	loadStride("xiStep", RDX, 4)
	loadStride("step", RBX, 4)
	load("src", RSI)
	loadStride("tapStep", R8, 4)
	loadStride("kernelStep", R9, 4)
	load("count", RCX)
	load("lanes", R10)
	MOVQ(I32(-1), RAX)
	BZHIQ(R10, RAX, RAX)
	KMOVW(EAX, K1)
	VBROADCASTSS(halfConstant(), Z31)
	// u0 = g0, u1 = (g0+g2+g1)/2, u2 = (g0+g2-g1)/2, u3 = g2
	row := func(g, u []VecPhysical, tmp VecPhysical) {
		VADDPS(g[2], g[0], tmp)
		VADDPS(g[1], tmp, u[0])
		VSUBPS(g[1], tmp, u[1])
		VMULPS(Z31, u[0], u[0])
		VMULPS(Z31, u[1], u[1])
	}
	Label("kernel")
	MOVQ(RSI, RAX)
	for t := range 9 {
		VMOVUPS_Z(Mem{Base: RAX}, K1, all[t])
		if t < 8 {
			ADDQ(R8, RAX)
		}
	}
	rows := [][]VecPhysical{all[0:3], {Z9, Z10, Z11}, {Z12, Z13, Z14}, all[6:9]}
	for j := range 3 {
		row([]VecPhysical{all[j], all[3+j], all[6+j]}, []VecPhysical{all[9+j], all[12+j]}, Z30)
	}
	MOVQ(RDI, RAX)
	for i, r := range rows {
		row(r, []VecPhysical{Z28, Z29}, Z30)
		for j, z := range []VecPhysical{r[0], Z28, Z29, r[2]} {
			VMOVUPS(z, K1, Mem{Base: RAX})
			if 4*i+j < 15 {
				ADDQ(RDX, RAX)
			}
		}
	}
	ADDQ(RBX, RDI)
	ADDQ(R9, RSI)
	DECQ(RCX)
	JNZ(LabelRef("kernel"))
	VZEROUPPER()
	RET()
}

// winogradOutput512 makes Aᵀ·m·A + bias, 2 by 2, of products m of 4 by 4.
func winogradOutput512() {
	open("winogradOutput512", "func(dst *float32, lineStep, dstStep int, src *float32, xiStep, srcStep, rows int, bias *float32)",
		"transforms rows of 16 products of 4 by 4 to two lines of 32; bias, which may be nil, has an element a row.")
	load("dst", RDI)
	loadStride("lineStep", R8, 4)
	loadStride("dstStep", RBX, 4)
	load("src", RSI)
	loadStride("xiStep", RDX, 4)
	loadStride("srcStep", R9, 4)
	load("rows", RCX)
	load("bias", R10)
	lo := GLOBL("winogradZip", 8|16 /* RODATA|NOPTR */)
	for half := range 2 {
		for i := range 16 {
			DATA(64*half+4*i, U32(8*half+i/2+16*(i%2)))
		}
	}
	VMOVDQU32(lo, Z30)
	VMOVDQU32(lo.Offset(64), Z31)
	VPXORD(Z29, Z29, Z29)
	Label("row")
	TESTQ(R10, R10)
	JZ(LabelRef("unbiased"))
	VBROADCASTSS(Mem{Base: R10}, Z29)
	ADDQ(Imm(4), R10)
	Label("unbiased")
	MOVQ(RSI, RAX)
	for i := range 16 {
		VMOVUPS(Mem{Base: RAX}, all[i])
		if i < 15 {
			ADDQ(RDX, RAX)
		}
	}
	// y0 = m0+m1+m2, y1 = m1-m2-m3
	row := func(m, y []VecPhysical, tmp VecPhysical) {
		VADDPS(m[2], m[1], y[0])
		VSUBPS(m[2], m[1], y[1])
		VADDPS(m[0], y[0], y[0])
		VSUBPS(m[3], y[1], y[1])
	}
	for j := range 4 {
		row([]VecPhysical{all[j], all[4+j], all[8+j], all[12+j]}, []VecPhysical{all[16+j], all[20+j]}, Z28)
	}
	for line := range 2 {
		y := []VecPhysical{all[2*line], all[2*line+1]}
		row(all[16+4*line:], y, Z28)
		VADDPS(Z29, y[0], y[0])
		VADDPS(Z29, y[1], y[1])
		VMOVAPS(y[0], Z4)
		VPERMT2PS(y[1], Z30, Z4)
		VPERMT2PS(y[1], Z31, y[0])
		to := Mem{Base: RDI}
		if line == 1 {
			to.Index, to.Scale = R8, 1
		}
		VMOVUPS(Z4, to)
		to.Disp = 64
		VMOVUPS(y[0], to)
	}
	ADDQ(RBX, RDI)
	ADDQ(R9, RSI)
	DECQ(RCX)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// winogradGrad512 makes A·y·Aᵀ of gradients y of 2 by 2.
func winogradGrad512() {
	open("winogradGrad512", "func(dst *float32, xiStep, step int, src *float32, count int)",
		"transforms count gradients of 2 by 2, 16 lanes each, that lie one after the other.")
	load("dst", RDI)
	loadStride("xiStep", RDX, 4)
	loadStride("step", RBX, 4)
	load("src", RSI)
	load("count", RCX)
	VPXORD(Z31, Z31, Z31)
	Label("patch")
	for i := range 4 {
		VMOVUPS(Mem{Base: RSI, Disp: 64 * i}, all[i])
	}
	// p0 = y0, p1 = y0+y1, p2 = y0-y1, p3 = -y1
	row := func(y0, y1 VecPhysical, p []VecPhysical) []VecPhysical {
		VADDPS(y1, y0, p[0])
		VSUBPS(y1, y0, p[1])
		VSUBPS(y1, Z31, p[2])
		return []VecPhysical{y0, p[0], p[1], p[2]}
	}
	left, right := row(Z0, Z2, all[4:]), row(Z1, Z3, all[7:])
	MOVQ(RDI, RAX)
	for i := range 4 {
		for j, z := range row(left[i], right[i], all[10+3*i:]) {
			VMOVUPS(z, Mem{Base: RAX})
			if 4*i+j < 15 {
				ADDQ(RDX, RAX)
			}
		}
	}
	ADDQ(RBX, RDI)
	ADDQ(I32(256), RSI)
	DECQ(RCX)
	JNZ(LabelRef("patch"))
	VZEROUPPER()
	RET()
}

// winogradKernel512 makes Gᵀ·u·G of sums u of 4 by 4.
func winogradKernel512() {
	open("winogradKernel512", "func(dst *float32, tapStep int, src *float32, xiStep int)",
		"transforms 16 sums of 4 by 4 to kernels of 3 by 3.")
	load("dst", RDI)
	loadStride("tapStep", RDX, 4)
	load("src", RSI)
	loadStride("xiStep", RBX, 4)
	VBROADCASTSS(halfConstant(), Z31)
	for i := range 16 {
		VMOVUPS(Mem{Base: RSI}, all[i])
		if i < 15 {
			ADDQ(RBX, RSI)
		}
	}
	// g0 = u0 + (u1+u2)/2, g1 = (u1-u2)/2, g2 = (u1+u2)/2 + u3
	row := func(u, g []VecPhysical) {
		VADDPS(u[2], u[1], g[0])
		VSUBPS(u[2], u[1], g[1])
		VMULPS(Z31, g[0], g[0])
		VMULPS(Z31, g[1], g[1])
		VADDPS(u[3], g[0], g[2])
		VADDPS(u[0], g[0], g[0])
	}
	for j := range 4 { // all[16+4i+j] is row i, column j
		row([]VecPhysical{all[j], all[4+j], all[8+j], all[12+j]}, []VecPhysical{all[16+j], all[20+j], all[24+j]})
	}
	for i := range 3 {
		row(all[16+4*i:], all[3*i:])
	}
	for i := range 9 {
		VMOVUPS(all[i], Mem{Base: RDI})
		if i < 8 {
			ADDQ(RDX, RDI)
		}
	}
	VZEROUPPER()
	RET()
}

var half Mem

// halfConstant is 0.5.
func halfConstant() Mem {
	if half.Symbol.Name == "" {
		half = GLOBL("winogradHalf", 8|16 /* RODATA|NOPTR */)
		DATA(0, U32(0x3f000000))
	}
	return half
}
