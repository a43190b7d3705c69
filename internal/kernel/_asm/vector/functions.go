// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A function of a vector is made in two steps: the first, before the loop,
// places its constants, and returns the second, which emits one evaluation.
type function func(x VecVirtual) VecVirtual

// The coefficients below are least-maximum fits (Lawson's iteration in double
// precision) made for these reductions; the errors given are in units of the
// last place of a float32 result, before rounding.

// expm1 of r = x - n·ln 2, |r| ≤ ½ ln 2, is r + r²·q(r): 0.2.
var expm1Coefficients = []float64{0.4999999815403321, 0.16666543620789032, 0.04166719986455765, 0.008366520598417125, 0.0013882521130731025}

// The tail of the normal distribution: 1-Φ(a) = exp(-a²/2)·P(t) for a ≥ 0,
// t = 1/(1 + 0.28a), P(t) = t·Σ cᵢtⁱ. 0.1, of ½.
const tailScale = 0.28

var tailCoefficients = []float64{0.11107633747559821, 0.12019327113093073, 0.05374217460635918, 0.24432504275494502, -0.2480908159449137, 0.39581887746674377, -0.21686392337833432, 0.03979903373430675}

// erf(x)/x - 1 as a polynomial in x² for |x| < 0.75: 0.1.
var erfCoefficients = []float64{0.1283791654989521, -0.3761261876552589, 0.11283376661171282, -0.026834628073976168, 0.005114351750359447, -0.000674955315381584}

// log(1+f) = f - f²/2 + f³·p(f) for 1+f in [√½, √2]: 0.1.
var logCoefficients = []float64{0.33333331707948927, -0.2500082103705108, 0.2000122685024759, -0.16623357236482045, 0.14201758558691907, -0.13160183972237416, 0.12761573699197234, -0.0763448820117602}

const ln2Hi = 0.693359375 // nine bits: n·ln2Hi is exact

// reduction splits x into n·ln 2 + r and gives n, r and expm1(r).
func (g *lanes) reduction() func(x VecVirtual) (n, em1 VecVirtual) {
	log2e, hi, lo := g.constant(math.Log2E), g.constant(ln2Hi), g.constant(math.Ln2-ln2Hi)
	c := g.constants(expm1Coefficients...)
	return func(x VecVirtual) (n, em1 VecVirtual) {
		n = g.round(g.mul(x, log2e))
		r := g.vec()
		VMOVAPS(x, r)
		g.subtractProduct(r, n, hi)
		g.subtractProduct(r, n, lo)
		return n, g.fma(g.polynomial(r, c), g.mul(r, r), r)
	}
}

// powerOfTwo makes 2ⁿ of an integer in float form, -127 ≤ n ≤ 127; 2⁻¹²⁷ is 0.
func (g *lanes) powerOfTwo() function {
	bias := g.bits(127)
	return func(n VecVirtual) VecVirtual {
		i := g.vec()
		VCVTPS2DQ(n, i)
		VPADDD(bias, i, i)
		VPSLLD(Imm(23), i, i)
		return i
	}
}

// exp is eˣ over the whole range, subnormal results included.
func (g *lanes) exp() function {
	split := g.reduction()
	one := g.constant(1)
	lowest, highest := g.constant(-105), g.constant(90)
	bias := Op(nil)
	if !g.wide() {
		bias = g.bits(127)
	}
	return func(x VecVirtual) VecVirtual {
		x = g.min(highest, g.max(lowest, x))
		n, em1 := split(x)
		v := g.add(em1, one)
		if g.wide() {
			VSCALEFPS(n, v, v)
			return v
		}
		// 2ⁿ in two factors, for n goes beyond the exponents of floats.
		i, half := g.vec(), g.vec()
		VCVTPS2DQ(n, i)
		VPSRAD(Imm(1), i, half)
		VPSUBD(half, i, i)
		for _, f := range []VecVirtual{half, i} {
			VPADDD(bias, f, f)
			VPSLLD(Imm(23), f, f)
			VMULPS(f, v, v)
		}
		return v
	}
}

// expNegative is eˣ for x ≤ 0 (a little above does no harm), 0 where the
// result would be subnormal.
func (g *lanes) expNegative() function {
	split := g.reduction()
	one, lowest := g.constant(1), g.constant(-88)
	if g.wide() {
		lowest = g.constant(-200)
	}
	scale := function(nil)
	if !g.wide() {
		scale = g.powerOfTwo()
	}
	return func(x VecVirtual) VecVirtual {
		n, em1 := split(g.max(lowest, x))
		v := g.add(em1, one)
		if g.wide() {
			VSCALEFPS(n, v, v)
			return v
		}
		return g.mul(v, scale(n))
	}
}

// tanh(|x|) = (e^{2|x|} - 1)/(e^{2|x|} + 1), with the sign of x put back.
func (g *lanes) tanh() function {
	split, power := g.reduction(), g.powerOfTwo()
	one, two, most := g.constant(1), g.constant(2), g.constant(20)
	sign, abs := g.bits(1<<31), g.bits(1<<31-1)
	return func(x VecVirtual) VecVirtual {
		a := g.and(x, abs)
		n, em1 := split(g.min(most, g.add(a, a)))
		s := power(n)
		// e^{2|x|} - 1 = 2ⁿ·expm1(r) + (2ⁿ - 1)
		m := g.fma(s, em1, g.sub(s, one))
		return g.or(g.div(m, g.add(m, two)), g.and(x, sign))
	}
}

// normalTail gives, for a ≥ 0, e = exp(-a²/2) and P with 1-Φ(a) = e·P.
func (g *lanes) normalTail() func(a VecVirtual) (e, p VecVirtual) {
	exp := g.expNegative()
	one, scale, minusHalf := g.constant(1), g.constant(tailScale), g.constant(-0.5)
	c := g.constants(tailCoefficients...)
	return func(a VecVirtual) (e, p VecVirtual) {
		d := g.vec()
		VMOVUPS(one, d)
		t := g.vec()
		g.accumulate(d, a, scale)
		VDIVPS(d, g.register(one), t)
		p = g.mul(g.polynomial(t, c), t)
		return exp(g.mul(g.mul(a, minusHalf), a)), p
	}
}

// erf is a polynomial near 0 and 1 - 2·e·P(√2|x|) further out.
func (g *lanes) erf() function {
	tail := g.normalTail()
	c := g.constants(erfCoefficients...)
	sign, abs := g.bits(1<<31), g.bits(1<<31-1)
	one, minusTwo, border, most, root2 := g.constant(1), g.constant(-2), g.constant(0.75), g.constant(5), g.constant(math.Sqrt2)
	return func(x VecVirtual) VecVirtual {
		a := g.min(most, g.and(x, abs))
		near := g.fma(g.polynomial(g.mul(a, a), c), a, a)
		e, p := tail(g.mul(a, root2))
		far := g.fma(g.mul(e, minusTwo), p, one)
		return g.or(g.choose(less, a, border, near, far), g.and(x, sign))
	}
}

// log splits off the exponent and shifts the rest into [√½, √2].
func (g *lanes) log() function {
	c := g.constants(logCoefficients...)
	one, minusHalf := g.constant(1), g.constant(-0.5)
	hi, lo := g.constant(ln2Hi), g.constant(math.Ln2-ln2Hi)
	tiny, up, upExponent := g.constant(0x1p-126), g.constant(0x1p24), g.constant(24)
	rootHalf := g.bits(math.Float32bits(math.Sqrt2 / 2))
	mantissa := g.bits(1<<23 - 1)
	inf := g.constant(math.Inf(1))
	nan := g.bits(0x7fc00000)
	minusInf := g.constant(math.Inf(-1))
	return func(x VecVirtual) VecVirtual {
		zero := g.zero()
		// Subnormal values are scaled up first.
		small := g.choose(less, x, tiny, g.mul(x, up), x)
		shift := g.choose(less, x, tiny, g.register(upExponent), zero)
		i := g.vec()
		VPSUBD(rootHalf, small, i)
		e := g.vec()
		VPSRAD(Imm(23), i, e)
		VCVTDQ2PS(e, e)
		VSUBPS(shift, e, e)
		m := g.vec()
		if g.wide() {
			VPANDD(mantissa, i, m)
		} else {
			VPAND(mantissa, i, m)
		}
		VPADDD(rootHalf, m, m)
		f := g.sub(m, one)
		f2 := g.mul(f, f)
		// Smallest terms first: n·ln2Lo + f³p - f²/2, then f, then n·ln2Hi.
		v := g.mul(g.mul(f, f2), g.polynomial(f, c))
		g.accumulate(v, e, lo)
		g.accumulate(v, f2, minusHalf)
		v = g.add(v, f)
		g.accumulate(v, e, hi)
		v = g.choose(less, x, zero, g.register(nan), v)
		v = g.choose(0 /* equal */, x, zero, g.register(minusInf), v)
		v = g.choose(0, x, inf, x, v)
		return g.choose(unordered, x, x, x, v)
	}
}

// Both forms of GELU are max(x, 0) - a·h with a = |x| and h what the
// distribution function leaves above a; clamping a keeps infinities out. Their
// gradients are q for x < 0 and 1-q else.

const tailEnd = 20 // h(a) is 0 from here on

func (g *lanes) gelu() function {
	tail := g.normalTail()
	abs, most := g.bits(1<<31-1), g.constant(tailEnd)
	return func(x VecVirtual) VecVirtual {
		a := g.min(most, g.and(x, abs))
		e, p := tail(a)
		v := g.max(g.zero(), x)
		g.subtractProduct(v, g.mul(a, p), e)
		return v
	}
}

func (g *lanes) geluGradient() function {
	tail := g.normalTail()
	abs, most, density, one := g.bits(1<<31-1), g.constant(tailEnd), g.constant(1/math.Sqrt(2*math.Pi)), g.constant(1)
	return func(x VecVirtual) VecVirtual {
		a := g.min(most, g.and(x, abs))
		e, p := tail(a)
		g.subtractProduct(p, a, density)
		q := g.mul(e, p)
		return g.bySign(x, q, g.sub(g.register(one), q))
	}
}

// The tanh form is x·s with s the logistic function of 2u, u = √(2/π)(x + 0.044715x³).
const (
	twoU  = 2 * 0.79788456080286535588
	cubic = 0.044715
)

func (g *lanes) geluTanhTail() func(a VecVirtual) (e, w, a2 VecVirtual) {
	exp := g.expNegative()
	one, linear, cube := g.constant(1), g.constant(-twoU), g.constant(-twoU*cubic)
	return func(a VecVirtual) (e, w, a2 VecVirtual) {
		a2 = g.mul(a, a)
		poly := g.vec()
		VMOVUPS(linear, poly)
		g.accumulate(poly, a2, cube)
		e = exp(g.mul(poly, a))
		w = g.div(g.register(one), g.add(e, one))
		return e, w, a2
	}
}

func (g *lanes) geluTanh() function {
	tail := g.geluTanhTail()
	abs, most := g.bits(1<<31-1), g.constant(tailEnd)
	return func(x VecVirtual) VecVirtual {
		a := g.min(most, g.and(x, abs))
		e, w, _ := tail(a)
		v := g.max(g.zero(), x)
		g.subtractProduct(v, g.mul(a, w), e)
		return v
	}
}

func (g *lanes) geluTanhGradient() function {
	tail := g.geluTanhTail()
	abs, most, one := g.bits(1<<31-1), g.constant(tailEnd), g.constant(1)
	linear, cube := g.constant(twoU), g.constant(3*twoU*cubic)
	return func(x VecVirtual) VecVirtual {
		a := g.min(most, g.and(x, abs))
		e, w, a2 := tail(a)
		slope := g.vec()
		VMOVUPS(linear, slope)
		g.accumulate(slope, a2, cube)
		// q = h·(1 - a·w·slope), h = e·w
		inner := g.vec()
		VMOVUPS(one, inner)
		g.subtractProduct(inner, g.mul(a, w), slope)
		q := g.mul(g.mul(e, w), inner)
		return g.bySign(x, q, g.sub(g.register(one), q))
	}
}

// logisticTail gives, for a ≥ 0, e = exp(-a) and w = 1/(1+e): the logistic
// function of a is w and that of -a is e·w.
func (g *lanes) logisticTail() func(a VecVirtual) (e, w VecVirtual) {
	exp := g.expNegative()
	one, sign := g.constant(1), g.bits(1<<31)
	return func(a VecVirtual) (e, w VecVirtual) {
		e = exp(g.xor(a, sign))
		return e, g.div(g.register(one), g.add(e, one))
	}
}

const logisticEnd = 110 // exp(-a) is 0 from here on

func (g *lanes) sigmoid() function {
	tail := g.logisticTail()
	abs := g.bits(1<<31 - 1)
	return func(x VecVirtual) VecVirtual {
		e, w := tail(g.and(x, abs))
		return g.bySign(x, g.mul(e, w), w)
	}
}

// silu is max(x, 0) - a·e·w, as the forms of GELU are.
func (g *lanes) silu() function {
	tail := g.logisticTail()
	abs, most := g.bits(1<<31-1), g.constant(logisticEnd)
	return func(x VecVirtual) VecVirtual {
		a := g.min(most, g.and(x, abs))
		e, w := tail(a)
		v := g.max(g.zero(), x)
		g.subtractProduct(v, g.mul(a, w), e)
		return v
	}
}

// siluGradient is q = e·w·(1 - a·w) for x < 0 and 1-q else.
func (g *lanes) siluGradient() function {
	tail := g.logisticTail()
	abs, most, one := g.bits(1<<31-1), g.constant(logisticEnd), g.constant(1)
	return func(x VecVirtual) VecVirtual {
		a := g.min(most, g.and(x, abs))
		e, w := tail(a)
		inner := g.vec()
		VMOVUPS(one, inner)
		g.subtractProduct(inner, a, w)
		q := g.mul(g.mul(e, w), inner)
		return g.bySign(x, q, g.sub(g.register(one), q))
	}
}
