// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// each emits one elementwise kernel. The arrays in args are read if they are
// in reads and written if they are in writes (names separated by spaces);
// prepare runs before the loop and returns the loop's body, which turns what
// was read into what is written.
func (g *lanes) each(name, doc, args, reads, writes string, unroll int, prepare func() func(in []VecVirtual) []VecVirtual) {
	arrays := strings.Split(strings.Split(args, " []")[0], ", ")
	g.begin(name, "func("+args+")", doc)
	n := length(arrays[0])
	base := map[string]Register{}
	for _, a := range arrays {
		base[a] = pointer(a)
	}
	g.tail(n)
	body := prepare()
	g.over(n, unroll, func(c cursor) {
		var in []VecVirtual
		for _, a := range strings.Fields(reads) {
			in = append(in, g.load(c.of(base[a])))
		}
		for i, v := range body(in) {
			g.store(v, c.of(base[strings.Fields(writes)[i]]))
		}
	})
	end()
}

func one(v VecVirtual) []VecVirtual { return []VecVirtual{v} }

// elementwise emits the families of kernels that differ in one expression.
func (g *lanes) elementwise() {
	for _, k := range []struct {
		name, doc string
		f         func(a, b VecVirtual) VecVirtual
	}{
		{"add", "computes dst = a + b.", func(a, b VecVirtual) VecVirtual { return g.add(a, b) }},
		{"sub", "computes dst = a - b.", func(a, b VecVirtual) VecVirtual { return g.sub(a, b) }},
		{"mul", "computes dst = a * b.", func(a, b VecVirtual) VecVirtual { return g.mul(a, b) }},
		{"div", "computes dst = a / b.", func(a, b VecVirtual) VecVirtual { return g.div(a, b) }},
		{"max", "computes dst = max(a, b), NaN if either is.", func(a, b VecVirtual) VecVirtual {
			return g.choose(unordered, a, a, a, g.max(a, b))
		}},
		{"min", "computes dst = min(a, b), NaN if either is.", func(a, b VecVirtual) VecVirtual {
			return g.choose(unordered, a, a, a, g.min(a, b))
		}},
		{"reluBackward", "computes dst = b where a > 0, else 0.", func(a, b VecVirtual) VecVirtual {
			zero := g.zero()
			return g.choose(greater, a, zero, b, zero)
		}},
		{"sigmoidBackward", "computes dst = b·a(1-a).", func(a, b VecVirtual) VecVirtual {
			v := g.vec()
			VMOVAPS(a, v)
			g.subtractProduct(v, a, a)
			return g.mul(v, b)
		}},
	} {
		g.each(k.name, k.doc, "dst, a, b []float32", "a b", "dst", 4, func() func([]VecVirtual) []VecVirtual {
			return func(in []VecVirtual) []VecVirtual { return one(k.f(in[0], in[1])) }
		})
	}
	for _, k := range []struct {
		name, doc string
		f         func(a, s VecVirtual) VecVirtual
	}{
		{"addScalar", "computes dst = a + s.", func(a, s VecVirtual) VecVirtual { return g.add(a, s) }},
		{"mulScalar", "computes dst = a * s.", func(a, s VecVirtual) VecVirtual { return g.mul(a, s) }},
	} {
		g.each(k.name, k.doc, "dst, a []float32, s float32", "a", "dst", 4, func() func([]VecVirtual) []VecVirtual {
			s := g.broadcast(argument("s"))
			return func(in []VecVirtual) []VecVirtual { return one(k.f(in[0], s)) }
		})
	}
	g.each("addScaled", "computes dst = a + s*b with one rounding.", "dst, a, b []float32, s float32", "a b", "dst", 4, func() func([]VecVirtual) []VecVirtual {
		s := g.broadcast(argument("s"))
		return func(in []VecVirtual) []VecVirtual {
			g.accumulate(in[0], in[1], s)
			return one(in[0])
		}
	})
	for _, k := range []struct {
		name, doc string
		unroll    int
		f         func() function
	}{
		{"sqrt", "computes dst = √a.", 1, func() function { return func(a VecVirtual) VecVirtual { return g.sqrt(a) } }},
		{"reciprocal", "computes dst = 1/a.", 1, func() function {
			one := g.constant(1)
			return func(a VecVirtual) VecVirtual { return g.div(g.register(one), a) }
		}},
		{"neg", "computes dst = -a.", 4, func() function {
			sign := g.bits(1 << 31)
			return func(a VecVirtual) VecVirtual { return g.xor(a, sign) }
		}},
		{"relu", "computes dst = max(a, 0).", 4, func() function {
			return func(a VecVirtual) VecVirtual { return g.max(g.zero(), a) }
		}},
		{"exp", "computes dst = eᵃ.", 1, g.exp},
		{"log", "computes the natural logarithm.", 1, g.log},
		{"tanh", "computes the hyperbolic tangent.", 1, g.tanh},
		{"erf", "computes the error function.", 1, g.erf},
		{"gelu", "computes a·Φ(a).", 1, g.gelu},
		{"geluTanh", "computes GPT-2's form of gelu.", 1, g.geluTanh},
		{"sigmoid", "computes 1/(1 + e⁻ᵃ).", 1, g.sigmoid},
		{"silu", "computes a/(1 + e⁻ᵃ).", 1, g.silu},
	} {
		g.each(k.name, k.doc, "dst, a []float32", "a", "dst", k.unroll, func() func([]VecVirtual) []VecVirtual {
			f := k.f()
			return func(in []VecVirtual) []VecVirtual { return one(f(in[0])) }
		})
	}
	for _, k := range []struct {
		name, doc string
		f         func() function
	}{
		{"geluBackward", "computes dst = b times the gradient of gelu at a.", g.geluGradient},
		{"geluTanhBackward", "computes dst = b times the gradient of geluTanh at a.", g.geluTanhGradient},
		{"siluBackward", "computes dst = b times the gradient of silu at a.", g.siluGradient},
	} {
		g.each(k.name, k.doc, "dst, a, b []float32", "a b", "dst", 1, func() func([]VecVirtual) []VecVirtual {
			f := k.f()
			return func(in []VecVirtual) []VecVirtual { return one(g.mul(f(in[0]), in[1])) }
		})
	}
	g.each("expShifted", "computes dst = scale·exp(a - shift), for a ≤ shift.", "dst, a []float32, shift, scale float32", "a", "dst", 1, func() func([]VecVirtual) []VecVirtual {
		shift, scale := g.broadcast(argument("shift")), g.broadcast(argument("scale"))
		exp := g.expNegative()
		return func(in []VecVirtual) []VecVirtual { return one(g.mul(exp(g.sub(in[0], shift)), scale)) }
	})
}

// sums emits the sums of all elements, accumulated in float64: half as many
// lanes, four accumulators.
func (g *lanes) sums() {
	for _, k := range []struct {
		name, doc string
		square    bool
	}{
		{"sum", "returns Σ x.", false},
		{"sumSquares", "returns Σ x².", true},
	} {
		g.begin(k.name, "func(x []float32) float64", k.doc)
		x, n := pointer("x"), length("x")
		width := g.width / 2
		const unroll = 4
		var acc [unroll]VecVirtual
		for i := range acc {
			acc[i] = g.zero()
		}
		add := func(u int, m Op) {
			v := g.vec()
			VCVTPS2PD(m, v)
			if k.square {
				VFMADD231PD(v, v, acc[u])
			} else {
				VADDPD(v, acc[u], acc[u])
			}
		}
		for _, step := range []int{unroll, 1} {
			loop, after := g.label("loop"), g.label("after")
			Label(loop)
			SUBQ(Imm(uint64(step*width)), n)
			JL(LabelRef(after))
			for u := range step {
				add(u, Mem{Base: x, Disp: 4 * width * u})
			}
			ADDQ(Imm(uint64(4*step*width)), x)
			JMP(LabelRef(loop))
			Label(after)
			ADDQ(Imm(uint64(step*width)), n)
		}
		// The tail goes one by one into the lowest lane.
		loop, after := g.label("loop"), g.label("after")
		lowest := acc[0].AsX()
		rest := XMM()
		VXORPD(rest, rest, rest)
		Label(loop)
		DECQ(n)
		JL(LabelRef(after))
		v := XMM()
		VXORPS(v, v, v)
		VCVTSS2SD(Mem{Base: x}, v, v)
		if k.square {
			VFMADD231SD(v, v, rest)
		} else {
			VADDSD(v, rest, rest)
		}
		ADDQ(Imm(4), x)
		JMP(LabelRef(loop))
		Label(after)
		VADDPD(acc[1], acc[0], acc[0])
		VADDPD(acc[3], acc[2], acc[2])
		VADDPD(acc[2], acc[0], acc[0])
		high := XMM()
		if g.wide() {
			upper := YMM()
			VEXTRACTF64X4(Imm(1), acc[0], upper)
			VADDPD(upper, acc[0].AsY(), upper)
			lowest = upper.AsX()
			VEXTRACTF64X2(Imm(1), upper, high)
		} else {
			VEXTRACTF128(Imm(1), acc[0], high)
		}
		VADDPD(high, lowest, high)
		swapped := XMM()
		VPERMILPD(Imm(1), high, swapped)
		VADDSD(swapped, high, high)
		VADDSD(rest, high, high)
		Store(high, ReturnIndex(0))
		end()
	}
}
