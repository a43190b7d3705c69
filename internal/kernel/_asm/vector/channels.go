// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// channels emits what norms over the channels of images are made of. In all of
// them s points to channelScalars.
func (g *lanes) channels() {
	g.moments()
	g.largest()
	g.norms()
	if g.wide() {
		g.low = true
		g.moments()
		g.norms()
		g.low = false
	}
}

func (g *lanes) norms() {
	for _, k := range []struct {
		name, args, reads string
		add, relu         bool
	}{
		{"channelNorm", "dst, x []float32, s *float32", "x", false, false},
		{"channelNormReLU", "dst, x []float32, s *float32", "x", false, true},
		{"channelNormAdd", "dst, x, r []float32, s *float32", "x r", true, false},
		{"channelNormAddReLU", "dst, x, r []float32, s *float32", "x r", true, true},
	} {
		doc := "computes dst = (x - mean)·scale + shift"
		if k.add {
			doc += " + r"
		}
		if k.relu {
			doc += ", and 0 where that is negative"
		}
		g.each(k.name, doc+".", k.args, k.reads, "dst", 4, func() func([]VecVirtual) []VecVirtual {
			s := g.loaded(3)
			zero := g.zero()
			return func(in []VecVirtual) []VecVirtual {
				v := g.fma(g.sub(in[0], s[0]), s[1], s[2])
				if k.add {
					v = g.add(v, in[1])
				}
				if k.relu {
					v = g.max(zero, v)
				}
				return one(v)
			}
		})
	}
	g.channelSums("channelSums", "returns Σ g and Σ g·(x - mean).", "g, x", unmasked)
	g.channelSums("channelSumsReLU", "returns Σ g and Σ g·(x - mean) over where (x - mean)·scale + shift > 0.", "g, x", recomputed)
	g.channelSums("channelSumsMasked", "returns Σ g and Σ g·(x - mean) over where y > 0.", "g, x, y", masked)
	for _, k := range []struct {
		name, doc, args, reads, writes string
		mask                           mask
	}{
		{"channelGrad", "computes dx = g·scale + (x - mean)·slope + offset.", "dx, g, x []float32, s *float32", "g x", "dx", unmasked},
		{"channelGradReLU", "does it with g = 0 where (x - mean)·scale + shift ≤ 0.", "dx, g, x []float32, s *float32", "g x", "dx", recomputed},
		{"channelGradMasked", "does it with g = 0 where y ≤ 0, and writes that g to dr.", "dx, dr, g, x, y []float32, s *float32", "g x y", "dr dx", masked},
	} {
		g.each(k.name, k.doc, k.args, k.reads, k.writes, 2, func() func([]VecVirtual) []VecVirtual {
			s := g.loaded(5)
			zero := g.zero()
			return func(in []VecVirtual) []VecVirtual {
				centred := g.sub(in[1], s[0])
				grad := g.where(k.mask, in, centred, s, zero)
				dx := g.fma(centred, s[3], s[4])
				g.accumulate(dx, grad, s[1])
				if k.mask == masked {
					return []VecVirtual{grad, dx}
				}
				return one(dx)
			}
		})
	}
}

// mask says how a gradient is masked by the activation behind a norm.
type mask int

const (
	unmasked   mask = iota
	recomputed      // by the sign of the result, from x
	masked          // by the sign of the result, which is given
)

// where returns the gradient in[0], 0 where the result was not positive.
func (g *lanes) where(m mask, in []VecVirtual, centred VecVirtual, s []VecVirtual, zero VecVirtual) VecVirtual {
	switch m {
	case recomputed:
		return g.choose(greater, g.fma(centred, s[1], s[2]), zero, in[0], zero)
	case masked:
		return g.choose(greater, in[2], zero, in[0], zero)
	}
	return in[0]
}

// halves converts a vector to two of float64.
func (g *lanes) halves(v VecVirtual) (low, high VecVirtual) {
	low, high = g.vec(), g.vec()
	if g.wide() {
		upper := YMM()
		VEXTRACTF64X4(Imm(1), v, upper)
		VCVTPS2PD(v.AsY(), low)
		VCVTPS2PD(upper, high)
		return low, high
	}
	upper := XMM()
	VEXTRACTF128(Imm(1), v, upper)
	VCVTPS2PD(v.AsX(), low)
	VCVTPS2PD(upper, high)
	return low, high
}

// returnSum adds up the float64 lanes of a and b and returns the sum.
func (g *lanes) returnSum(index int, a, b VecVirtual) {
	VADDPD(b, a, a)
	x, high := XMM(), XMM()
	if g.wide() {
		upper := YMM()
		VEXTRACTF64X4(Imm(1), a, upper)
		VADDPD(upper, a.AsY(), upper)
		VEXTRACTF64X2(Imm(1), upper, high)
		VADDPD(upper.AsX(), high, x)
	} else {
		VEXTRACTF128(Imm(1), a, high)
		VADDPD(a.AsX(), high, x)
	}
	VPERMILPD(Imm(1), x, high)
	VADDSD(high, x, x)
	Store(x, ReturnIndex(index))
}

// moments emits the sums of elements and of their squares. In float64 the
// squares are exact, so that one pass gives a variance to full precision.
func (g *lanes) moments() {
	g.begin("moments", "func(x []float32) (sum, squares float64)", "returns Σ x and Σ x².")
	x, n := pointer("x"), length("x")
	g.tail(n)
	var sums, squares [2]VecVirtual
	for i := range sums {
		sums[i], squares[i] = g.zero(), g.zero()
	}
	g.over(n, 2, func(c cursor) {
		low, high := g.halves(g.load(c.of(x)))
		for i, v := range []VecVirtual{low, high} {
			VADDPD(v, sums[i], sums[i])
			VFMADD231PD(v, v, squares[i])
		}
	})
	g.returnSum(0, sums[0], sums[1])
	g.returnSum(1, squares[0], squares[1])
	end()
}

// channelSums emits the two sums that the gradient of a norm needs.
func (g *lanes) channelSums(name, doc, arrays string, m mask) {
	g.begin(name, "func("+arrays+" []float32, s *float32) (sum, dot float64)", doc)
	grad, x, n := pointer("g"), pointer("x"), length("g")
	var y Register
	if m == masked {
		y = pointer("y")
	}
	g.tail(n)
	s, zero := g.loaded(3), g.zero()
	var sums, dots [2]VecVirtual
	for i := range sums {
		sums[i], dots[i] = g.zero(), g.zero()
	}
	// Loads beyond the tail give zeros for g, which makes them harmless unless
	// the mean is no number, and then so is every result.
	g.over(n, 2, func(c cursor) {
		in := []VecVirtual{g.load(c.of(grad)), nil, nil}
		centred := g.sub(g.load(c.of(x)), s[0])
		if m == masked {
			in[2] = g.load(c.of(y))
		}
		g0, g1 := g.halves(g.where(m, in, centred, s, zero))
		x0, x1 := g.halves(centred)
		VADDPD(g0, sums[0], sums[0])
		VADDPD(g1, sums[1], sums[1])
		VFMADD231PD(x0, g0, dots[0])
		VFMADD231PD(x1, g1, dots[1])
	})
	g.returnSum(0, sums[0], sums[1])
	g.returnSum(1, dots[0], dots[1])
	end()
}

// loaded returns the n floats that the argument s points to, in every lane.
func (g *lanes) loaded(n int) []VecVirtual {
	s := g.scalars(n, true)
	out := make([]VecVirtual, n)
	for i := range out {
		out[i] = s(i)
	}
	return out
}

// largest emits a step down the columns of a plane that keeps the largest element
// of each.
func (g *lanes) largest() {
	g.begin("largest", "func(best []float32, at []int32, x []float32, row int32)",
		"puts the elements of x that are greater than those of best, or no number, into best, and row into at.")
	best, at, x, n := pointer("best"), pointer("at"), pointer("x"), length("best")
	g.tail(n)
	row := g.broadcast(argument("row"))
	g.over(n, 2, func(c cursor) {
		v, old, place := g.load(c.of(x)), g.load(c.of(best)), g.load(c.of(at))
		place = g.choose(unordered, v, v, row, g.choose(greater, v, old, row, place))
		g.store(g.choose(unordered, v, v, v, g.choose(greater, v, old, v, old)), c.of(best))
		g.store(place, c.of(at))
	})
	end()
}
