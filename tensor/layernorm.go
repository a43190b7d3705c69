// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// LayerNorm normalises the last dim to mean 0 and variance 1, then scales by
// gamma and shifts by beta, both of that dim's size (Ba et al. 2016); nil is 1 and 0.
// The result has x's dtype, float32 or bfloat16; it is computed in float32, and so
// are the parameters and their gradients.
func LayerNorm(x, gamma, beta *Tensor, eps float64) *Tensor {
	present("layer norm", x)
	operands := []*Tensor{x, gamma, beta}
	if len(x.shape) == 0 {
		fail("layer norm", operands, "wants at least one dim")
	}
	cols := x.shape[len(x.shape)-1]
	gamma, beta = orFull("layer norm", gamma, 1, x, cols), orFull("layer norm", beta, 0, x, cols)
	if x.dtype == BFloat16 {
		gamma, beta = gamma.To(Float32), beta.To(Float32)
		wantFloat32s("layer norm", []*Tensor{gamma, beta})
	} else {
		wantFloat32s("layer norm", []*Tensor{x, gamma, beta})
	}
	if !slices.Equal(gamma.shape, []int{cols}) || !slices.Equal(beta.shape, []int{cols}) {
		fail("layer norm", operands, "gamma and beta must have shape [%d]", cols)
	}
	src, gamma, beta := x.rows(cols), gamma.Contiguous(), beta.Contiguous()
	out := result("layer norm", x.dtype, src.shape, operands...)
	mean := result("layer norm", Float32, src.shape[:1], operands...)
	rstd := result("layer norm", Float32, src.shape[:1], operands...)
	fused(device.LayerNorm{Eps: eps}, out, mean, rstd, src, gamma, beta)
	inputs := []*Tensor{src, gamma, beta}
	out = out.record("layer norm", inputs, []*Tensor{src, gamma, mean, rstd}, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, func() *Tensor { return layerNormDefinition(src.To(Float32), gamma, beta, eps).To(src.dtype) })
			return
		}
		g = g.Contiguous()
		dx := result("layer norm", src.dtype, src.shape, g)
		dgamma := result("layer norm", Float32, gamma.shape, g)
		dbeta := result("layer norm", Float32, beta.shape, g)
		fused(device.LayerNormGrad{}, dx, dgamma, dbeta, g, src, mean, rstd, gamma)
		for i, gi := range []*Tensor{dx, dgamma, dbeta} {
			if b.needs(i) {
				b.give(i, gi)
			}
		}
	})
	return out.Reshape(x.shape...)
}

// orFull returns t, or n constants for one that is not there.
func orFull(op string, t *Tensor, value float64, like *Tensor, n int) *Tensor {
	if t != nil {
		return t
	}
	t = result(op, Float32, []int{n}, like)
	t.Device().Fill(t.array(), value)
	return t
}

func layerNormDefinition(x, gamma, beta *Tensor, eps float64) *Tensor {
	centred := x.Sub(x.MeanKeep(-1))
	variance := centred.Mul(centred).MeanKeep(-1)
	return centred.Div(variance.AddScalar(eps).Sqrt()).Mul(gamma).Add(beta)
}
