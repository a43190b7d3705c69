// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// philoxWords runs a block of Philox4x32 in each lane, as many as a register
// has, ten rounds without a loop. In four registers then lie the four words of
// the blocks; two steps of interleaving within 128 bits bring the words of a block
// together, and blocks in order, for the lanes were numbered so.
func (g *lanes) philoxWords() {
	g.begin("philoxWords", "func(dst []uint32, s *uint32)",
		"computes the words of whole registers of blocks; s points to the fields of a philoxState.")
	dst, n, s := pointer("dst"), length("dst"), Load(Param("s"), GP64())
	const roundKeys, offsets, counter = 0, 4 * 20, 4 * 36
	integer := func(disp int) VecVirtual { return g.broadcast(Mem{Base: s, Disp: disp}) }
	mul0, mul1 := g.bits(0xd2511f53), g.bits(0xcd9e8d57)
	blocks := g.vec()
	g.addInts(g.load(Mem{Base: s, Disp: offsets}), integer(counter), blocks)
	step := g.register(g.bits(uint32(g.width)))
	c1, c2, c3 := integer(counter+4), integer(counter+8), integer(counter+12)
	odd := Register(nil)
	if g.wide() {
		bits := GP32()
		MOVL(U32(0xaaaa), bits)
		k := K()
		KMOVW(bits, k)
		odd = k
	}
	// multiply gives the high and the low words of x·m.
	multiply := func(x VecVirtual, m Op) (high, low VecVirtual) {
		even, shifted, other := g.vec(), g.vec(), g.vec()
		VPMULUDQ(m, x, even)
		VPSRLQ(Imm(32), x, shifted)
		VPMULUDQ(m, shifted, other)
		high, low = g.vec(), g.vec()
		VMOVSHDUP(even, high)
		if g.wide() {
			VMOVAPS(other, odd, high)
			VMOVAPS(even, low)
			VMOVSLDUP(other, odd, low)
			return high, low
		}
		VPBLENDD(Imm(0xaa), other, high, high)
		VMOVSLDUP(other, low)
		VPBLENDD(Imm(0xaa), low, even, low)
		return high, low
	}
	loop, done := g.label("loop"), g.label("done")
	Label(loop)
	SUBQ(Imm(uint64(4*g.width)), n)
	JL(LabelRef(done))
	w := [4]VecVirtual{blocks, c1, c2, c3}
	for round := range 10 {
		high0, low0 := multiply(w[0], mul0)
		high1, low1 := multiply(w[2], mul1)
		k0, k1 := integer(roundKeys+8*round), integer(roundKeys+8*round+4)
		w = [4]VecVirtual{g.xor(g.xor(high1, w[1]), k0), low1, g.xor(g.xor(high0, w[3]), k1), low0}
	}
	pairs := [4]VecVirtual{g.vec(), g.vec(), g.vec(), g.vec()}
	VPUNPCKLDQ(w[1], w[0], pairs[0])
	VPUNPCKHDQ(w[1], w[0], pairs[1])
	VPUNPCKLDQ(w[3], w[2], pairs[2])
	VPUNPCKHDQ(w[3], w[2], pairs[3])
	for i := range 4 {
		v := g.vec()
		if i%2 == 0 {
			VPUNPCKLQDQ(pairs[2+i/2], pairs[i/2], v)
		} else {
			VPUNPCKHQDQ(pairs[2+i/2], pairs[i/2], v)
		}
		g.store(v, Mem{Base: dst, Disp: 4 * g.width * i})
	}
	ADDQ(U32(uint32(16*g.width)), dst)
	g.addInts(blocks, step, blocks)
	JMP(LabelRef(loop))
	Label(done)
	end()
}

func (g *lanes) addInts(a, b, dst VecVirtual) { VPADDD(a, b, dst) }

// wordScales turns words into what dropout multiplies by.
func (g *lanes) wordScales() {
	g.begin("wordScales", "func(dst []float32, words []uint32, limit uint32, scale float32)",
		"computes dst = scale where the word is not below limit, else 0.")
	dst, words, n := pointer("dst"), pointer("words"), length("dst")
	g.tail(n)
	limit, scale := g.broadcast(argument("limit")), g.broadcast(argument("scale"))
	g.over(n, 4, func(c cursor) {
		w, v := g.load(c.of(words)), g.vec()
		if g.wide() {
			k := K()
			VPCMPUD(Imm(5), limit, w, k)
			VMOVAPS_Z(scale, k, v)
		} else {
			VPMAXUD(limit, w, v)
			VPCMPEQD(w, v, v)
			VANDPS(scale, v, v)
		}
		g.store(v, c.of(dst))
	})
	end()
}
