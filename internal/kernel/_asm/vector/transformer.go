// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// transformer emits what transformers need beside the other sets: the norm
// without a mean, the gated activation and the rotary embedding.
func (g *lanes) transformer() {
	g.rmsNorm()
	g.rmsNormBackward()
	g.swiGLU()
	g.rotate()
	if g.wide() {
		prefetchRows() // the same for all
	}
}

// prefetchRows asks for lines, and waits for none.
func prefetchRows() {
	TEXT("prefetchRows", 4 /* NOSPLIT */, "func(x *float32, step, rows, n int)")
	Pragma("noescape")
	Doc("prefetchRows fetches rows of n elements, step apart, into the second-level cache.")
	x, step, rows, n := Load(Param("x"), GP64()), count("step"), count("rows"), count("n")
	SHLQ(Imm(2), step)
	SHLQ(Imm(2), n)
	at, end := GP64(), GP64()
	Label("row")
	DECQ(rows)
	JL(LabelRef("done"))
	MOVQ(x, at)
	LEAQ(Mem{Base: x, Index: n, Scale: 1}, end)
	Label("line")
	PREFETCHT1(Mem{Base: at})
	ADDQ(Imm(64), at)
	CMPQ(at, end)
	JLT(LabelRef("line"))
	ADDQ(step, x)
	JMP(LabelRef("row"))
	Label("done")
	RET()
}

func (g *lanes) rmsNorm() {
	g.begin("rmsNorm", "func(dst, rstd, x, weight []float32, eps float32)", "divides len(rstd) rows of len(weight) columns by their root mean square and scales them.")
	dst, rstd, x, weight := pointer("dst"), pointer("rstd"), pointer("x"), pointer("weight")
	rows, cols := length("rstd"), length("weight")
	g.tail(cols)
	inverse, eps, one := g.inverse(cols), g.broadcast(argument("eps")), g.constant(1)
	g.overRows(rows, cols, []Register{dst, x}, []Register{rstd}, func() {
		squares := g.reduce(cols, g.zero, func(c cursor) VecVirtual {
			v := g.load(c.of(x))
			return g.mul(v, v)
		}, plus)
		r := g.div(g.register(one), g.sqrt(g.fma(squares, inverse, eps)))
		g.storeScalar(r, rstd)
		g.over(cols, 2, func(c cursor) {
			g.store(g.mul(g.mul(g.load(c.of(x)), r), g.load(c.of(weight))), c.of(dst))
		})
	})
	end()
}

func (g *lanes) rmsNormBackward() {
	g.begin("rmsNormBackward", "func(dx, dweight, g, x, rstd, weight []float32)", "does len(rstd) rows of len(weight) columns; it adds to dweight.")
	dx, dweight, grad, x := pointer("dx"), pointer("dweight"), pointer("g"), pointer("x")
	rstd, weight := pointer("rstd"), pointer("weight")
	rows, cols := length("rstd"), length("weight")
	g.tail(cols)
	inverse := g.inverse(cols)
	g.overRows(rows, cols, []Register{dx, grad, x}, []Register{rstd}, func() {
		r := g.broadcast(Mem{Base: rstd})
		const unroll = 2
		var products [unroll]VecVirtual
		for u := range unroll {
			products[u] = g.zero()
		}
		g.over(cols, unroll, func(c cursor) {
			gr := g.load(c.of(grad))
			xhat := g.mul(g.load(c.of(x)), r)
			g.store(g.fma(gr, xhat, g.load(c.of(dweight))), c.of(dweight))
			g.accumulate(products[c.u], g.mul(gr, g.load(c.of(weight))), xhat)
		})
		c2 := g.mul(g.horizontalSum(g.add(products[0], products[1])), inverse)
		g.over(cols, unroll, func(c cursor) {
			d := g.mul(g.load(c.of(grad)), g.load(c.of(weight)))
			g.subtractProduct(d, g.mul(g.load(c.of(x)), r), c2)
			g.store(g.mul(d, r), c.of(dx))
		})
	})
	end()
}

// logistic is 1/(1 + e^-x): e^-|x| keeps infinities out.
func (g *lanes) logistic() function {
	exp := g.expNegative()
	sign, one := g.bits(1<<31), g.constant(1)
	return func(x VecVirtual) VecVirtual {
		e := exp(g.or(x, sign))
		w := g.div(g.register(one), g.add(e, one))
		return g.bySign(x, g.mul(e, w), w)
	}
}

func (g *lanes) swiGLU() {
	g.each("swiGLU", "computes dst = gate·logistic(gate)·up.", "dst, gate, up []float32", "gate up", "dst", 1, func() func([]VecVirtual) []VecVirtual {
		logistic := g.logistic()
		return func(in []VecVirtual) []VecVirtual {
			return one(g.mul(g.mul(in[0], logistic(in[0])), in[1]))
		}
	})
	g.each("swiGLUBackward", "computes the gradients of swiGLU from that of its result.", "dgate, dup, gate, up, g []float32", "gate up g", "dgate dup", 1, func() func([]VecVirtual) []VecVirtual {
		logistic, plusOne := g.logistic(), g.constant(1)
		return func(in []VecVirtual) []VecVirtual {
			gate, up, grad := in[0], in[1], in[2]
			s := logistic(gate)
			value := g.mul(gate, s)
			// s·(1 + gate·(1 - s)) = s + value·(1 - s)
			slope := g.fma(value, g.sub(g.register(plusOne), s), s)
			return []VecVirtual{g.mul(g.mul(grad, up), slope), g.mul(grad, value)}
		}
	})
}

func (g *lanes) rotate() {
	g.begin("rotate", "func(dst, x, cos, sin []float32, heads, dstStep, xStep int, sign float32)",
		"turns the pairs (i, i + len(cos)) of heads rows by the angles, or back where sign is -1.")
	dst, x, cos, sin := pointer("dst"), pointer("x"), pointer("cos"), pointer("sin")
	half, heads := length("cos"), count("heads")
	dstStep, xStep := count("dstStep"), count("xStep")
	SHLQ(Imm(2), dstStep)
	SHLQ(Imm(2), xStep)
	g.tail(half)
	sign := g.broadcast(argument("sign"))
	dst2, x2 := GP64(), GP64()
	LEAQ(Mem{Base: dst, Index: half, Scale: 4}, dst2)
	LEAQ(Mem{Base: x, Index: half, Scale: 4}, x2)
	loop, done := g.label("row"), g.label("end")
	Label(loop)
	DECQ(heads)
	JL(LabelRef(done))
	g.over(half, 1, func(c cursor) {
		a, b := g.load(c.of(x)), g.load(c.of(x2))
		cosine, sine := g.load(c.of(cos)), g.mul(g.load(c.of(sin)), sign)
		first := g.mul(a, cosine)
		g.subtractProduct(first, b, sine)
		g.store(first, c.of(dst))
		g.store(g.fma(a, sine, g.mul(b, cosine)), c.of(dst2))
	})
	for _, r := range []Register{dst, dst2} {
		ADDQ(dstStep, r)
	}
	for _, r := range []Register{x, x2} {
		ADDQ(xStep, r)
	}
	JMP(LabelRef(loop))
	Label(done)
	end()
}
