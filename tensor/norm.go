// SPDX-License-Identifier: Apache-2.0

package tensor

import "slices"

// LayerNorm normalises the last dim to mean 0 and variance 1, then scales by
// gamma and shifts by beta, both of that dim's size (Ba et al. 2016).
func LayerNorm(x, gamma, beta *Tensor, eps float64) *Tensor {
	operands := []*Tensor{x, gamma, beta}
	if len(x.shape) == 0 {
		fail("layer norm", operands, "wants at least one dim")
	}
	cols := x.shape[len(x.shape)-1]
	if !slices.Equal(gamma.shape, []int{cols}) || !slices.Equal(beta.shape, []int{cols}) {
		fail("layer norm", operands, "gamma and beta must have shape [%d]", cols)
	}
	src := x.rows(cols)
	out := result("layer norm", Float32, src.shape, operands...)
	mean := result("layer norm", Float32, src.shape[:1], operands...)
	rstd := result("layer norm", Float32, src.shape[:1], operands...)
	out.Device().LayerNorm(out.array(), mean.array(), rstd.array(), src.array(), gamma.array(), beta.array(), float32(eps))
	inputs := []*Tensor{src, gamma, beta}
	out = out.record("layer norm", inputs, []*Tensor{src, gamma, mean, rstd}, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, inputs, func() *Tensor { return layerNormDefinition(src, gamma, beta, eps) })
			return
		}
		g = g.Contiguous()
		dx := result("layer norm", Float32, src.shape, g)
		dgamma := result("layer norm", Float32, gamma.shape, g)
		dbeta := result("layer norm", Float32, beta.shape, g)
		dx.Device().LayerNormGrad(dx.array(), dgamma.array(), dbeta.array(),
			g.array(), src.array(), mean.array(), rstd.array(), gamma.array())
		for i, gi := range []*Tensor{dx, dgamma, dbeta} {
			if b.needs(i) {
				b.give(i, gi)
			}
		}
	})
	return out.Reshape(x.shape...)
}

func layerNormDefinition(x, gamma, beta *Tensor, eps float64) *Tensor {
	centred := x.Sub(x.MeanKeep(-1))
	variance := centred.Mul(centred).MeanKeep(-1)
	return centred.Div(variance.AddScalar(eps).Sqrt()).Mul(gamma).Add(beta)
}

// Softmax returns exp(t) over its sum in the last dim.
func (t *Tensor) Softmax() *Tensor {
	if len(t.shape) == 0 {
		fail("softmax", []*Tensor{t}, "wants at least one dim")
	}
	t.wantDType("softmax", Float32)
	src := t.Contiguous()
	out := result("softmax", Float32, t.shape, t)
	out.Device().Softmax(out.array(), src.array())
	return out.record("softmax", []*Tensor{t}, []*Tensor{out}, func(b *backprop, g *Tensor) {
		if b.create {
			b.give(0, g.Sub(g.Mul(out).SumKeep(-1)).Mul(out))
			return
		}
		g = g.Contiguous()
		dx := result("softmax", Float32, out.shape, g)
		dx.Device().SoftmaxGrad(dx.array(), out.array(), g.array())
		b.give(0, dx)
	})
}
