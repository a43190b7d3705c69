// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// merging is one way of merging elements: its number in package kernel, and what
// it makes of an accumulator and an operand.
type merging struct {
	code int
	fold func(acc VecVirtual, x Op)
	mean bool // divides at the end
}

// Numbers of mergings.
const (
	mergeSum = iota
	mergeProduct
	mergeMin
	mergeMax
	mergeAnd
	mergeOr
	mergeXor
	mergeMean
)

// element is a type of elements. A unit is a register's worth of them in
// memory, which is one accumulator or, of 16 bits, two.
type element struct {
	name     string
	mergings []merging
	unroll   int
	divide   func(acc, divisor VecVirtual)
	// Of 16 bits; others are loaded and stored as they are.
	load  func(at Mem) []VecVirtual
	store func(acc []VecVirtual, at Mem, past bool)
}

// merges emits a function for each type of elements.
func (g *lanes) merges() {
	divide := func(acc, divisor VecVirtual) { VDIVPS(divisor, acc, acc) }
	ofFloats := []merging{
		{code: mergeSum, fold: func(acc VecVirtual, x Op) { VADDPS(x, acc, acc) }},
		{code: mergeProduct, fold: func(acc VecVirtual, x Op) { VMULPS(x, acc, acc) }},
		{code: mergeMin, fold: func(acc VecVirtual, x Op) { g.extreme(acc, x, false) }},
		{code: mergeMax, fold: func(acc VecVirtual, x Op) { g.extreme(acc, x, true) }},
		{code: mergeMean, fold: func(acc VecVirtual, x Op) { VADDPS(x, acc, acc) }, mean: true},
	}
	upper := Op(nil)
	var round [3]Op
	for _, e := range []element{
		{name: "Float32", mergings: ofFloats, divide: divide},
		{name: "Float64", mergings: []merging{
			{code: mergeSum, fold: func(acc VecVirtual, x Op) { VADDPD(x, acc, acc) }},
			{code: mergeMean, fold: func(acc VecVirtual, x Op) { VADDPD(x, acc, acc) }, mean: true},
		}, divide: func(acc, divisor VecVirtual) { VDIVPD(divisor, acc, acc) }},
		{name: "BFloat16", mergings: ofFloats, divide: divide,
			load: func(at Mem) []VecVirtual {
				// Elements of even places, shifted up, and of odd ones.
				v, even, odd := g.vec(), g.vec(), g.vec()
				g.move(at, v)
				VPSLLD(Imm(16), v, even)
				g.andBits(upper, v, odd)
				return []VecVirtual{even, odd}
			},
			store: func(acc []VecVirtual, at Mem, past bool) {
				even, odd := g.roundUpper(acc[0], round), g.roundUpper(acc[1], round)
				VPSRLD(Imm(16), even, even)
				g.andBits(upper, odd, odd)
				g.orBits(even, odd, odd)
				g.moveTo(odd, at, past)
			}},
		{name: "Float16", mergings: ofFloats, divide: divide,
			load: func(at Mem) []VecVirtual {
				v, w := g.vec(), g.vec()
				VCVTPH2PS(at, v)
				VCVTPH2PS(at.Offset(2*g.width), w)
				return []VecVirtual{v, w}
			},
			store: func(acc []VecVirtual, at Mem, past bool) {
				for i, v := range acc {
					to := at.Offset(2 * g.width * i)
					if !past {
						VCVTPS2PH(Imm(0), v, to)
						continue
					}
					half := VecVirtual(XMM())
					if g.wide() {
						half = YMM()
					}
					VCVTPS2PH(Imm(0), v, half)
					VMOVNTPS(half, to)
				}
			}},
		{name: "Int64", mergings: []merging{
			{code: mergeSum, fold: func(acc VecVirtual, x Op) { VPADDQ(x, acc, acc) }},
		}},
		{name: "Int32", mergings: []merging{
			{code: mergeSum, fold: func(acc VecVirtual, x Op) { VPADDD(x, acc, acc) }},
			{code: mergeMin, fold: func(acc VecVirtual, x Op) { VPMINSD(x, acc, acc) }},
			{code: mergeMax, fold: func(acc VecVirtual, x Op) { VPMAXSD(x, acc, acc) }},
		}},
		{name: "Int8", mergings: []merging{
			{code: mergeSum, fold: func(acc VecVirtual, x Op) { VPADDB(x, acc, acc) }},
			{code: mergeMin, fold: func(acc VecVirtual, x Op) { VPMINSB(x, acc, acc) }},
			{code: mergeMax, fold: func(acc VecVirtual, x Op) { VPMAXSB(x, acc, acc) }},
		}},
		{name: "Uint8", mergings: []merging{
			{code: mergeSum, fold: func(acc VecVirtual, x Op) { VPADDB(x, acc, acc) }},
			{code: mergeMin, fold: func(acc VecVirtual, x Op) { VPMINUB(x, acc, acc) }},
			{code: mergeMax, fold: func(acc VecVirtual, x Op) { VPMAXUB(x, acc, acc) }},
		}},
		{name: "Bits", mergings: []merging{
			{code: mergeAnd, fold: func(acc VecVirtual, x Op) { VANDPS(x, acc, acc) }},
			{code: mergeOr, fold: func(acc VecVirtual, x Op) { VORPS(x, acc, acc) }},
			{code: mergeXor, fold: func(acc VecVirtual, x Op) { VXORPS(x, acc, acc) }},
		}},
	} {
		e.unroll = 32 / g.width // 128 bytes a turn: more at once is slower from memory
		if e.load == nil {
			e.load = func(at Mem) []VecVirtual {
				v := g.vec()
				g.move(at, v)
				return []VecVirtual{v}
			}
			e.store = func(acc []VecVirtual, at Mem, past bool) { g.moveTo(acc[0], at, past) }
		} else {
			e.unroll = 32 / g.width // 128 bytes a turn: more at once is slower from memory
		}
		g.merge(&e, func() {
			upper = g.bits(0xffff0000)
			round = [3]Op{g.bits(1), g.bits(0x7fff), g.bits(0x00400000)}
		})
	}
}

// merge emits the function of one type. prepare loads constants.
func (g *lanes) merge(e *element, prepare func()) {
	g.begin("merge"+e.name, "func(m int, dsts, srcs [][]byte, lo, hi int, divisor float32, past bool)",
		"merges the bytes [lo, hi) of all sources into all destinations, a whole number of registers. With past it writes past the caches, to addresses that are multiples of a register.")
	m, lo, hi, past := count("m"), count("lo"), count("hi"), Load(Param("past"), GP8())
	dsts, numDsts, srcs, numSrcs := pointer("dsts"), length("dsts"), pointer("srcs"), length("srcs")
	done := g.label("done")
	for _, k := range e.mergings {
		other := g.label("other")
		CMPQ(m, Imm(uint64(k.code)))
		JNE(LabelRef(other))
		g.hoisted = 0
		if e.name == "BFloat16" {
			prepare()
		}
		var divisor VecVirtual
		if k.mean {
			if e.name == "Float64" {
				x := XMM()
				VXORPD(x, x, x)
				VCVTSS2SD(argument("divisor"), x, x)
				divisor = g.vec()
				VBROADCASTSD(x, divisor)
			} else {
				divisor = g.broadcast(argument("divisor"))
			}
		}
		for _, step := range []int{e.unroll, 1} {
			loop, after, fold, folded := g.label("loop"), g.label("after"), g.label("fold"), g.label("folded")
			write, around, written := g.label("write"), g.label("around"), g.label("written")
			at, list, left, end := GP64(), GP64(), GP64(), GP64()
			unit := func(u int) Mem { return Mem{Base: at, Index: lo, Scale: 1, Disp: 4 * g.width * u} }
			Label(loop)
			LEAQ(Mem{Base: lo, Disp: 4 * g.width * step}, end)
			CMPQ(end, hi)
			JGT(LabelRef(after))
			MOVQ(Mem{Base: srcs}, at)
			acc := make([][]VecVirtual, step)
			for u := range acc {
				acc[u] = e.load(unit(u))
			}
			MOVQ(srcs, list)
			MOVQ(numSrcs, left)
			Label(fold)
			DECQ(left)
			JZ(LabelRef(folded))
			ADDQ(Imm(24), list) // a slice's header
			MOVQ(Mem{Base: list}, at)
			for u := range acc {
				if len(acc[u]) == 1 {
					k.fold(acc[u][0], unit(u))
					continue
				}
				for i, x := range e.load(unit(u)) {
					k.fold(acc[u][i], x)
				}
			}
			JMP(LabelRef(fold))
			Label(folded)
			if k.mean {
				for _, u := range acc {
					for _, v := range u {
						e.divide(v, divisor)
					}
				}
			}
			MOVQ(dsts, list)
			MOVQ(numDsts, left)
			TESTB(past, past)
			JNZ(LabelRef(around))
			for _, way := range []string{write, around} {
				Label(way)
				MOVQ(Mem{Base: list}, at)
				for u := range acc {
					e.store(acc[u], unit(u), way == around)
				}
				ADDQ(Imm(24), list)
				DECQ(left)
				JNZ(LabelRef(way))
				if way == write {
					JMP(LabelRef(written))
				}
			}
			Label(written)
			MOVQ(end, lo)
			JMP(LabelRef(loop))
			Label(after)
		}
		JMP(LabelRef(done))
		Label(other)
	}
	Label(done)
	fenced := g.label("fenced")
	TESTB(past, past)
	JZ(LabelRef(fenced))
	SFENCE() // another process may be told next that the results are there
	Label(fenced)
	end()
}

// extreme leaves in acc the greater or smaller of acc and x: -0 is less than +0,
// and NaN wins.
func (g *lanes) extreme(acc VecVirtual, x Op, greatest bool) {
	y := g.register(x)
	if g.wide() {
		// VRANGEPS knows the order of zeros, but prefers numbers to NaN.
		k := K()
		VCMPPS(Imm(unordered), y, acc, k)
		how := uint64(0b0100) // the smaller one, with its own sign
		if greatest {
			how |= 1
		}
		both := g.add(acc, y)
		VRANGEPS(Imm(how), y, acc, acc)
		VMOVAPS(both, k, acc)
		return
	}
	// Both orders: of two zeros the instruction gives its second operand.
	a, b := g.vec(), g.vec()
	if greatest {
		VMAXPS(acc, y, a)
		VMAXPS(y, acc, b)
		VANDPS(a, b, a)
	} else {
		VMINPS(acc, y, a)
		VMINPS(y, acc, b)
		VORPS(a, b, a)
	}
	VCMPPS(Imm(unordered), y, acc, b)
	VADDPS(y, acc, acc)
	VBLENDVPS(b, acc, a, acc)
}

// roundUpper rounds floats to those that bfloat16 has, in the upper halves; the
// lower ones are left with anything. A NaN stays one. x is lost.
func (g *lanes) roundUpper(v VecVirtual, constants [3]Op) VecVirtual {
	one, half, quiet := constants[0], constants[1], constants[2]
	r := g.vec()
	VPSRLD(Imm(16), v, r)
	g.andBits(one, r, r)
	VPADDD(half, r, r)
	VPADDD(v, r, r)
	if g.wide() {
		k := K()
		VCMPPS(Imm(unordered), v, v, k)
		VPORD(quiet, v, k, r)
		return r
	}
	nan, q := g.vec(), g.vec()
	VCMPPS(Imm(unordered), v, v, nan)
	VPOR(quiet, v, q)
	VBLENDVPS(nan, q, r, r)
	return r
}

func (g *lanes) move(at Mem, v VecVirtual) { VMOVUPS(at, v) }

func (g *lanes) moveTo(v VecVirtual, at Mem, past bool) {
	if past {
		VMOVNTPS(v, at)
	} else {
		VMOVUPS(v, at)
	}
}

// andBits and orBits stay with integers.
func (g *lanes) andBits(a Op, b, dst VecVirtual) {
	if g.wide() {
		VPANDD(a, b, dst)
	} else {
		VPAND(a, b, dst)
	}
}

func (g *lanes) orBits(a Op, b, dst VecVirtual) {
	if g.wide() {
		VPORD(a, b, dst)
	} else {
		VPOR(a, b, dst)
	}
}
