// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// The params of dropoutMask, in quadwords: the keys of ten rounds in pairs, the
// two multipliers, the stream's halves, the bound twice, the number of the first
// block, which block each lane holds, the blocks of a register, a sign bit twice.
const (
	paramMul0 = 20 + iota
	paramMul1
	paramStreamLow
	paramStreamHigh
	paramBound
	paramFirst
	paramLanes
	paramStep = paramLanes + 8
	paramSign = paramStep + 1
)

// dropout emits the mask of dropout and its use.
func (g *lanes) dropout() {
	g.dropoutMask()
	g.maskScale()
}

func (g *lanes) quad(at Register, i int) VecVirtual {
	v := g.vec()
	VPBROADCASTQ(Mem{Base: at, Disp: 8 * i}, v)
	return v
}

// dropoutMask does Philox4x32 in lanes of 64 bits, of which a product reads the
// lower half: as many blocks a register as it has quadwords, two registers at a
// time. The lanes hold the blocks in such an order that interleaving the words
// of neighbours puts them in the order of elements.
func (g *lanes) dropoutMask() {
	g.begin("dropoutMask", "func(mask *uint8, loops int, params *uint64)",
		"sets the bits of two registers' blocks a loop; see maskParams.")
	mask, n, params := Load(Param("mask"), GP64()), Load(Param("loops"), GP64()), Load(Param("params"), GP64())
	mul0, mul1 := g.quad(params, paramMul0), g.quad(params, paramMul1)
	counter := g.vec()
	g.loadInts(Mem{Base: params, Disp: 8 * paramLanes}, counter)
	first := g.quad(params, paramFirst)
	VPADDQ(first, counter, counter)
	var odd Register
	if g.wide() {
		k, r := K(), GP32()
		MOVL(U32(0xaaaa), r)
		KMOVW(r, k)
		odd = k
	}
	Label("loop")
	var c [2][4]VecVirtual
	for u := range c {
		c[u][0], c[u][1] = g.vec(), g.vec()
		g.moveInts(counter, c[u][0])
		VPSRLQ(Imm(32), counter, c[u][1])
		c[u][2], c[u][3] = g.quad(params, paramStreamLow), g.quad(params, paramStreamHigh)
		VPADDQ(g.quad(params, paramStep), counter, counter)
	}
	for round := range 10 {
		for u := range c {
			p0, p1, h0, h1 := g.vec(), g.vec(), g.vec(), g.vec()
			VPMULUDQ(mul0, c[u][0], p0)
			VPMULUDQ(mul1, c[u][2], p1)
			VPSRLQ(Imm(32), p0, h0)
			VPSRLQ(Imm(32), p1, h1)
			for i, x := range []struct{ high, word VecVirtual }{{h1, c[u][1]}, {h0, c[u][3]}} {
				key := g.quad(params, 2*round+i)
				if g.wide() {
					VPTERNLOGQ(Imm(0x96), key, x.word, x.high)
				} else {
					VPXOR(x.word, x.high, x.high)
					VPXOR(key, x.high, x.high)
				}
			}
			c[u] = [4]VecVirtual{h1, p1, h0, p0}
		}
	}
	bound, sign := g.quad(params, paramBound), VecVirtual(nil)
	if !g.wide() {
		sign = g.quad(params, paramSign)
	}
	bytes := g.width / 8 // that half the words of a register's blocks fill
	for u := range c {
		var pair [2]VecVirtual
		for i := range pair {
			low, high := c[u][2*i], c[u][2*i+1]
			up := g.vec()
			VPSLLQ(Imm(32), high, up)
			pair[i] = g.vec()
			if g.wide() {
				VPBLENDMD(up, low, odd, pair[i])
			} else {
				VPBLENDD(Imm(0xaa), up, low, pair[i])
			}
		}
		near, far := g.vec(), g.vec()
		VPUNPCKLQDQ(pair[1], pair[0], near)
		VPUNPCKHQDQ(pair[1], pair[0], far)
		for i, words := range []VecVirtual{near, far} {
			at := Mem{Base: mask, Disp: (2*u + i) * bytes}
			if g.wide() {
				k := K()
				VPCMPUD(Imm(1) /* less */, bound, words, k)
				KMOVW(k, at)
				continue
			}
			below, bits := g.vec(), GP32()
			VPXOR(sign, words, words)
			VPCMPGTD(words, bound, below)
			VMOVMSKPS(below, bits)
			MOVB(bits.As8(), at)
		}
	}
	ADDQ(Imm(uint64(4*bytes)), mask)
	DECQ(n)
	JNZ(LabelRef("loop"))
	end()
}

func (g *lanes) loadInts(m Mem, v VecVirtual) {
	if g.wide() {
		VMOVDQU64(m, v)
	} else {
		VMOVDQU(m, v)
	}
}

func (g *lanes) moveInts(from, to VecVirtual) {
	if g.wide() {
		VMOVDQA64(from, to)
	} else {
		VMOVDQA(from, to)
	}
}

// maskScale multiplies by the scale where the bit is set and by 0 elsewhere.
func (g *lanes) maskScale() {
	g.begin("maskScale", "func(dst, x []float32, mask *uint8, scale float32)",
		"computes dst = x·scale where the bit is set, x·0 elsewhere, for whole registers.")
	dst, x, mask := pointer("dst"), pointer("x"), Load(Param("mask"), GP64())
	n := length("dst")
	scale := g.broadcast(argument("scale"))
	var lane VecVirtual
	if !g.wide() {
		lane = g.vec()
		VMOVDQU(NewDataAddr(NewStaticSymbol("maskLanes"), 0), lane)
	}
	done := "done"
	Label("loop")
	SUBQ(Imm(uint64(g.width)), n)
	JL(LabelRef(done))
	factor := g.vec()
	if g.wide() {
		k := K()
		KMOVW(Mem{Base: mask}, k)
		VMOVAPS_Z(scale, k, factor)
	} else {
		VPBROADCASTB(Mem{Base: mask}, factor)
		VPAND(lane, factor, factor)
		VPCMPEQD(lane, factor, factor)
		VANDPS(scale, factor, factor)
	}
	VMULPS(Mem{Base: x}, factor, factor)
	VMOVUPS(factor, Mem{Base: dst})
	for _, p := range []Register{dst, x} {
		ADDQ(Imm(uint64(4*g.width)), p)
	}
	ADDQ(Imm(uint64(g.width/8)), mask)
	JMP(LabelRef("loop"))
	Label(done)
	end()
	if !g.wide() {
		GLOBL("maskLanes", 8|16)
		for i := range 8 {
			DATA(4*i, U32(1<<i))
		}
	}
}
