// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// rowUnroll is how many vectors of a row a reduction takes at once, each into
// an accumulator of its own.
const rowUnroll = 4

// count loads an integer argument.
func count(name string) Register { return Load(Param(name), GP64()) }

// overRows emits a loop over rows; the arrays in dense, of which a row is cols
// elements, and those in single, of which it is one, move along.
func (g *lanes) overRows(rows, cols Register, dense, single []Register, body func()) {
	rowBytes := GP64()
	MOVQ(cols, rowBytes)
	SHLQ(Imm(2), rowBytes)
	loop, done := g.label("row"), g.label("end")
	Label(loop)
	DECQ(rows)
	JL(LabelRef(done))
	body()
	for _, r := range dense {
		ADDQ(rowBytes, r)
	}
	for _, r := range single {
		ADDQ(Imm(4), r)
	}
	JMP(LabelRef(loop))
	Label(done)
}

// reduce folds a row into one value that fills the result's lanes: step gives
// the contribution of one place, fold combines two, start is the neutral value.
func (g *lanes) reduce(cols Register, start func() VecVirtual, step func(c cursor) VecVirtual, fold func(a, b, dst Op)) VecVirtual {
	var acc [rowUnroll]VecVirtual
	for i := range acc {
		acc[i] = start()
	}
	g.over(cols, rowUnroll, func(c cursor) { fold(step(c), acc[c.u], acc[c.u]) })
	fold(acc[1], acc[0], acc[0])
	fold(acc[3], acc[2], acc[2])
	fold(acc[2], acc[0], acc[0])
	return g.horizontal(acc[0], fold)
}

func plus(a, b, dst Op)     { VADDPS(a, b, dst) }
func greatest(a, b, dst Op) { VMAXPS(a, b, dst) }

// inverse returns 1/n in every lane.
func (g *lanes) inverse(n Register) VecVirtual {
	x := XMM()
	VXORPS(x, x, x)
	VCVTSI2SSQ(n, x, x)
	return g.div(g.register(g.constant(1)), g.broadcast(x))
}

func (g *lanes) storeScalar(v VecVirtual, at Register) { VMOVSS(v.AsX(), Mem{Base: at}) }

// columnSums walks down strips of eight vectors, then of one, then the tail.
func (g *lanes) columnSums() {
	g.begin("columnSums", "func(dst, x []float32, rows, stride int)", "computes the sums over rows rows of x, stride elements apart.")
	dst, x, n, rows := pointer("dst"), pointer("x"), length("dst"), count("rows")
	stride := count("stride")
	SHLQ(Imm(2), stride)
	g.tail(n)
	at, left := GP64(), GP64()
	strip := func(vectors int) {
		var acc []VecVirtual
		for range vectors {
			acc = append(acc, g.zero())
		}
		MOVQ(x, at)
		MOVQ(rows, left)
		loop := g.label("down")
		Label(loop)
		for i, a := range acc {
			m := Mem{Base: at, Disp: 4 * g.width * i}
			if g.masked {
				VADDPS(g.load(m), a, a)
			} else {
				VADDPS(m, a, a)
			}
		}
		ADDQ(stride, at)
		DECQ(left)
		JNZ(LabelRef(loop))
		for i, a := range acc {
			g.store(a, Mem{Base: dst, Disp: 4 * g.width * i})
		}
	}
	for _, vectors := range []int{8, 1} {
		loop, after := g.label("strip"), g.label("narrower")
		elems := vectors * g.width
		Label(loop)
		CMPQ(n, U32(uint32(elems)))
		JL(LabelRef(after))
		strip(vectors)
		ADDQ(U32(uint32(4*elems)), x)
		ADDQ(U32(uint32(4*elems)), dst)
		SUBQ(U32(uint32(elems)), n)
		JMP(LabelRef(loop))
		Label(after)
	}
	done := g.label("done")
	TESTQ(n, n)
	JZ(LabelRef(done))
	g.masked = true
	strip(1)
	g.masked = false
	Label(done)
	end()
}

func (g *lanes) layerNorm() {
	g.begin("layerNorm", "func(dst, mean, rstd, x, gamma, beta []float32, eps float32)", "normalises len(mean) rows of len(gamma) columns.")
	dst, mean, rstd, x := pointer("dst"), pointer("mean"), pointer("rstd"), pointer("x")
	gamma, beta := pointer("gamma"), pointer("beta")
	rows, cols := length("mean"), length("gamma")
	g.tail(cols)
	inverse, eps, one := g.inverse(cols), g.broadcast(argument("eps")), g.constant(1)
	g.overRows(rows, cols, []Register{dst, x}, []Register{mean, rstd}, func() {
		m := g.mul(g.reduce(cols, g.zero, func(c cursor) VecVirtual { return g.load(c.of(x)) }, plus), inverse)
		g.storeScalar(m, mean)
		squares := g.reduce(cols, g.zero, func(c cursor) VecVirtual {
			d := g.tailOnly(g.sub(g.load(c.of(x)), m))
			return g.mul(d, d)
		}, plus)
		r := g.div(g.register(one), g.sqrt(g.fma(squares, inverse, eps)))
		g.storeScalar(r, rstd)
		g.over(cols, 2, func(c cursor) {
			xhat := g.mul(g.sub(g.load(c.of(x)), m), r)
			g.store(g.fma(xhat, g.load(c.of(gamma)), g.load(c.of(beta))), c.of(dst))
		})
	})
	end()
}

func (g *lanes) layerNormBackward() {
	g.begin("layerNormBackward", "func(dx, dgamma, dbeta, g, x, mean, rstd, gamma []float32)", "does len(mean) rows of len(gamma) columns; it adds to dgamma and dbeta.")
	dx, dgamma, dbeta, grad, x := pointer("dx"), pointer("dgamma"), pointer("dbeta"), pointer("g"), pointer("x")
	mean, rstd, gamma := pointer("mean"), pointer("rstd"), pointer("gamma")
	rows, cols := length("mean"), length("gamma")
	g.tail(cols)
	inverse := g.inverse(cols)
	g.overRows(rows, cols, []Register{dx, grad, x}, []Register{mean, rstd}, func() {
		m, r := g.broadcast(Mem{Base: mean}), g.broadcast(Mem{Base: rstd})
		const unroll = 2
		var sums, products [unroll]VecVirtual
		for u := range unroll {
			sums[u], products[u] = g.zero(), g.zero()
		}
		// Loads beyond the tail give zeros for g, which makes them harmless.
		g.over(cols, unroll, func(c cursor) {
			gr := g.load(c.of(grad))
			xhat := g.mul(g.sub(g.load(c.of(x)), m), r)
			g.store(g.fma(gr, xhat, g.load(c.of(dgamma))), c.of(dgamma))
			g.store(g.add(g.load(c.of(dbeta)), gr), c.of(dbeta))
			gg := g.mul(gr, g.load(c.of(gamma)))
			VADDPS(gg, sums[c.u], sums[c.u])
			g.accumulate(products[c.u], gg, xhat)
		})
		c1 := g.mul(g.horizontalSum(g.add(sums[0], sums[1])), inverse)
		c2 := g.mul(g.horizontalSum(g.add(products[0], products[1])), inverse)
		g.over(cols, unroll, func(c cursor) {
			d := g.mul(g.load(c.of(grad)), g.load(c.of(gamma)))
			xhat := g.mul(g.sub(g.load(c.of(x)), m), r)
			d = g.sub(d, c1)
			g.subtractProduct(d, xhat, c2)
			g.store(g.mul(d, r), c.of(dx))
		})
	})
	end()
}

// shiftedExps emits the part that softmax and cross-entropy share: the maximum
// of a row of x, and the sum of exp(x - maximum); keep sees each exponential.
func (g *lanes) shiftedExps(x, cols Register, exp function, lowest Op, keep func(v VecVirtual, c cursor)) (top, sum VecVirtual) {
	start := func() VecVirtual {
		v := g.vec()
		VMOVUPS(lowest, v)
		return v
	}
	top = g.reduce(cols, start, func(c cursor) VecVirtual {
		v := g.load(c.of(x))
		if g.masked {
			v = g.tailOr(v, g.register(lowest))
		}
		return v
	}, greatest)
	acc := [2]VecVirtual{g.zero(), g.zero()}
	g.over(cols, len(acc), func(c cursor) {
		v := exp(g.sub(g.load(c.of(x)), top))
		keep(v, c)
		VADDPS(g.tailOnly(v), acc[c.u], acc[c.u])
	})
	return top, g.horizontalSum(g.add(acc[0], acc[1]))
}

func (g *lanes) softmax() {
	g.begin("softmax", "func(dst, x []float32, rows, cols int)", "computes the softmax of each row.")
	dst, x, rows, cols := pointer("dst"), pointer("x"), count("rows"), count("cols")
	g.tail(cols)
	exp, lowest, one := g.expNegative(), g.constant(math.Inf(-1)), g.constant(1)
	g.overRows(rows, cols, []Register{dst, x}, nil, func() {
		_, sum := g.shiftedExps(x, cols, exp, lowest, func(v VecVirtual, c cursor) { g.store(v, c.of(dst)) })
		scale := g.div(g.register(one), sum)
		g.over(cols, rowUnroll, func(c cursor) { g.store(g.mul(g.load(c.of(dst)), scale), c.of(dst)) })
	})
	end()
}

func (g *lanes) maxAndSumExp() {
	g.begin("maxAndSumExp", "func(maximum, sum, x []float32, cols int)", "computes both for each of len(maximum) rows.")
	maximum, sum, x, rows, cols := pointer("maximum"), pointer("sum"), pointer("x"), length("maximum"), count("cols")
	g.tail(cols)
	exp, lowest := g.expNegative(), g.constant(math.Inf(-1))
	g.overRows(rows, cols, []Register{x}, []Register{maximum, sum}, func() {
		top, total := g.shiftedExps(x, cols, exp, lowest, func(VecVirtual, cursor) {})
		g.storeScalar(top, maximum)
		g.storeScalar(total, sum)
	})
	end()
}

func (g *lanes) softmaxBackward() {
	g.begin("softmaxBackward", "func(dx, y, g []float32, rows, cols int)", "computes dx = y·(g - Σ y·g) for each row.")
	dx, y, grad, rows, cols := pointer("dx"), pointer("y"), pointer("g"), count("rows"), count("cols")
	g.tail(cols)
	g.overRows(rows, cols, []Register{dx, y, grad}, nil, func() {
		dot := g.reduce(cols, g.zero, func(c cursor) VecVirtual { return g.mul(g.load(c.of(y)), g.load(c.of(grad))) }, plus)
		g.over(cols, 2, func(c cursor) {
			g.store(g.mul(g.sub(g.load(c.of(grad)), dot), g.load(c.of(y))), c.of(dx))
		})
	})
	end()
}
