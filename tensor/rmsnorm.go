// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// RMSNorm divides the last dim by its root mean square, √(mean(x²) + eps), and
// scales it by weight, of that dim's size (Zhang and Sennrich 2019). A nil
// weight means ones. The result has x's dtype; it is computed in float32.
func RMSNorm(x, weight *Tensor, eps float64) *Tensor {
	present("rms norm", x)
	if isHalf(x.dtype) {
		return inFloat32(func(in []*Tensor) *Tensor { return RMSNorm(in[0], in[1], eps) }, x, weight)
	}
	operands := []*Tensor{x, weight}
	wantFloat32s("rms norm", operands)
	if len(x.shape) == 0 {
		fail("rms norm", operands, "wants at least one dim")
	}
	cols := x.shape[len(x.shape)-1]
	if weight != nil {
		if !slices.Equal(weight.shape, []int{cols}) {
			fail("rms norm", operands, "the weight must have shape [%d]", cols)
		}
		weight = weight.Contiguous()
	}
	src := x.rows(cols)
	out := result("rms norm", Float32, src.shape, src, weight)
	rstd := result("rms norm", Float32, src.shape[:1], src, weight)
	fused(device.RMSNorm{Eps: eps}, out, rstd, src, weight)
	saves := []*Tensor{src, rstd}
	if weight != nil {
		saves = append(saves, weight)
	}
	out = out.record("rms norm", []*Tensor{src, weight}, saves, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, func() *Tensor { return rmsNormDefinition(src, weight, eps) })
			return
		}
		g = g.Contiguous()
		dx := result("rms norm", Float32, src.shape, g)
		var dweight *Tensor
		if b.needs(1) {
			dweight = result("rms norm", Float32, weight.shape, g)
		}
		fused(device.RMSNormGrad{}, dx, dweight, g, src, rstd, weight)
		if b.needs(0) {
			b.give(0, dx)
		}
		if b.needs(1) {
			b.give(1, dweight)
		}
	})
	return out.Reshape(x.shape...)
}

func rmsNormDefinition(x, weight *Tensor, eps float64) *Tensor {
	y := x.Div(x.Mul(x).MeanKeep(-1).AddScalar(eps).Sqrt())
	if weight != nil {
		y = y.Mul(weight)
	}
	return y
}
