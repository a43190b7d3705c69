// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// scalars returns the floats that the argument s points to, by position, in
// every lane. AVX2 has too few registers to keep many of them: there, those of
// a kernel with many (held false) are read again at each use.
func (g *lanes) scalars(n int, held bool) func(i int) VecVirtual {
	at := Load(Param("s"), GP64())
	read := func(i int) VecVirtual { return g.broadcast(Mem{Base: at, Disp: 4 * i}) }
	if !held && !g.wide() {
		return read
	}
	vs := make([]VecVirtual, n)
	for i := range vs {
		vs[i] = read(i)
	}
	return func(i int) VecVirtual { return vs[i] }
}

// lerp moves from a towards b: from + weight·(b-a), where from is b when late
// is not zero and else a. See lerpScalars.
func (g *lanes) lerp(a, b, weight, late VecVirtual) VecVirtual {
	out := g.vec()
	VMOVAPS(g.choose(greater, late, g.zero(), b, a), out)
	g.accumulate(out, g.sub(b, a), weight)
	return out
}

// optimizers emits the steps of optimizers. The scalars are in the order of
// the fields of the structs in optimizer_portable.go.
func (g *lanes) optimizers() {
	g.sgd()
	g.adam()
	g.adagrad()
	g.rmsprop()
	g.sparse()
	g.each("lerp", "moves dst towards src; s points to a lerpScalars.", "dst, src []float32, s *float32", "dst src", "dst", 1, func() func([]VecVirtual) []VecVirtual {
		s := g.scalars(2, true)
		return func(in []VecVirtual) []VecVirtual { return one(g.lerp(in[0], in[1], s(0), s(1))) }
	})
	g.each("clamp", "bounds x by -limit and limit; NaN stays.", "x []float32, limit float32", "x", "x", 4, func() func([]VecVirtual) []VecVirtual {
		limit := g.broadcast(argument("limit"))
		least := g.sub(g.zero(), limit)
		return func(in []VecVirtual) []VecVirtual { return one(g.max(least, g.min(limit, in[0]))) }
	})
}

func (g *lanes) sgd() {
	for _, k := range []struct {
		name                      string
		momentum, first, nesterov bool
	}{
		{"sgd", false, false, false},
		{"sgdFirst", true, true, false},
		{"sgdFirstNesterov", true, true, true},
		{"sgdMomentum", true, false, false},
		{"sgdNesterov", true, false, true},
	} {
		reads, writes := "param grad", "param"
		if k.momentum {
			writes += " buf"
			if !k.first {
				reads += " buf"
			}
		}
		g.each(k.name, "does one step; s points to an sgdScalars.", "param, grad, buf []float32, s *float32", reads, writes, 2, func() func([]VecVirtual) []VecVirtual {
			s := g.scalars(5, true)
			gradScale, decay, momentum, oneMinusDampening, negLR := s(0), s(1), s(2), s(3), s(4)
			return func(in []VecVirtual) []VecVirtual {
				param := in[0]
				grad := g.mul(in[1], gradScale)
				g.accumulate(grad, param, decay)
				d, out := grad, []VecVirtual{param}
				if k.momentum {
					if !k.first {
						d = g.mul(in[2], momentum)
						g.accumulate(d, grad, oneMinusDampening)
					}
					out = append(out, d)
					if k.nesterov {
						d = g.fma(d, momentum, grad)
					}
				}
				g.accumulate(param, d, negLR)
				return out
			}
		})
	}
}

func (g *lanes) adam() {
	const gradScale, decay, weight, late, beta2, oneMinusBeta2, rootBias2, eps, negStep = 0, 1, 2, 3, 4, 5, 6, 7, 8
	for _, k := range []struct {
		name               string
		decoupled, amsgrad bool
	}{
		{"adam", false, false},
		{"adamW", true, false},
		{"adamAMSGrad", false, true},
		{"adamWAMSGrad", true, true},
	} {
		reads, writes := "param grad m v", "param m v"
		if k.amsgrad {
			reads, writes = reads+" most", writes+" most"
		}
		g.each(k.name, "does one step; s points to an adamScalars.", "param, grad, m, v, most []float32, s *float32", reads, writes, 1, func() func([]VecVirtual) []VecVirtual {
			s := g.scalars(9, false)
			return func(in []VecVirtual) []VecVirtual {
				param, grad := in[0], g.mul(in[1], s(gradScale))
				if k.decoupled {
					param = g.mul(param, s(decay))
				} else {
					g.accumulate(grad, param, s(decay))
				}
				m := g.lerp(in[2], grad, s(weight), s(late))
				v := g.mul(in[3], s(beta2))
				g.accumulate(v, g.mul(grad, s(oneMinusBeta2)), grad)
				out := []VecVirtual{param, m, v}
				under := v
				if k.amsgrad {
					most := in[4]
					under = g.choose(unordered, most, most, most, g.max(most, v))
					out = append(out, under)
				}
				denom := g.add(g.div(g.sqrt(under), s(rootBias2)), s(eps))
				out[0] = g.add(param, g.div(g.mul(m, s(negStep)), denom))
				return out
			}
		})
	}
}

func (g *lanes) adagrad() {
	const gradScale, decay, eps, negLR = 0, 1, 2, 3
	g.each("adagrad", "does one step; s points to an adagradScalars.", "param, grad, sum []float32, s *float32", "param grad sum", "param sum", 1, func() func([]VecVirtual) []VecVirtual {
		s := g.scalars(4, true)
		return func(in []VecVirtual) []VecVirtual {
			param, grad, sum := in[0], g.mul(in[1], s(gradScale)), in[2]
			g.accumulate(grad, param, s(decay))
			g.accumulate(sum, grad, grad)
			return []VecVirtual{g.add(param, g.div(g.mul(grad, s(negLR)), g.add(g.sqrt(sum), s(eps)))), sum}
		}
	})
}

func (g *lanes) rmsprop() {
	const gradScale, decay, alpha, oneMinusAlpha, eps, negLR, momentum, weight, late = 0, 1, 2, 3, 4, 5, 6, 7, 8
	for _, k := range []struct {
		name               string
		centered, momentum bool
	}{
		{"rmsprop", false, false},
		{"rmspropMomentum", false, true},
		{"rmspropCentered", true, false},
		{"rmspropCenteredMomentum", true, true},
	} {
		reads, writes := "param grad square", "param square"
		if k.centered {
			reads, writes = reads+" mean", writes+" mean"
		}
		if k.momentum {
			reads, writes = reads+" buf", writes+" buf"
		}
		g.each(k.name, "does one step; s points to an rmspropScalars.", "param, grad, square, mean, buf []float32, s *float32", reads, writes, 1, func() func([]VecVirtual) []VecVirtual {
			s := g.scalars(9, false)
			return func(in []VecVirtual) []VecVirtual {
				param, grad := in[0], g.mul(in[1], s(gradScale))
				g.accumulate(grad, param, s(decay))
				square := g.mul(in[2], s(alpha))
				g.accumulate(square, g.mul(grad, s(oneMinusAlpha)), grad)
				out := []VecVirtual{param, square}
				under := square
				if k.centered {
					mean := g.lerp(in[3], grad, s(weight), s(late))
					under = g.vec()
					VMOVAPS(square, under)
					g.subtractProduct(under, mean, mean)
					out = append(out, mean)
				}
				denom := g.add(g.sqrt(under), s(eps))
				if !k.momentum {
					out[0] = g.add(param, g.div(g.mul(grad, s(negLR)), denom))
					return out
				}
				buf := g.add(g.mul(in[len(in)-1], s(momentum)), g.div(grad, denom))
				g.accumulate(param, buf, s(negLR))
				return append(out, buf)
			}
		})
	}
}

// sparse emits the steps of rows that have a gradient.
func (g *lanes) sparse() {
	g.each("sparseAdam", "does one step of a row; s points to a sparseAdamScalars.", "param, grad, m, v []float32, s *float32", "param grad m v", "param m v", 1, func() func([]VecVirtual) []VecVirtual {
		s := g.scalars(5, true)
		gradScale, oneMinusBeta1, oneMinusBeta2, eps, negStep := s(0), s(1), s(2), s(3), s(4)
		return func(in []VecVirtual) []VecVirtual {
			param, grad, m, v := in[0], g.mul(in[1], gradScale), in[2], in[3]
			m = g.add(m, g.mul(g.sub(grad, m), oneMinusBeta1))
			v = g.add(v, g.mul(g.sub(g.mul(grad, grad), v), oneMinusBeta2))
			step := g.div(m, g.add(g.sqrt(v), eps))
			return []VecVirtual{g.add(param, g.mul(step, negStep)), m, v}
		}
	})
	g.each("sparseAdagrad", "does one step of a row; s points to an adagradScalars.", "param, grad, sum []float32, s *float32", "param grad sum", "param sum", 1, func() func([]VecVirtual) []VecVirtual {
		s := g.scalars(4, true)
		gradScale, eps, negLR := s(0), s(2), s(3)
		return func(in []VecVirtual) []VecVirtual {
			param, grad, sum := in[0], g.mul(in[1], gradScale), in[2]
			sum = g.add(sum, g.mul(grad, grad))
			g.accumulate(param, g.div(grad, g.add(g.sqrt(sum), eps)), negLR)
			return []VecVirtual{param, sum}
		}
	})
}
