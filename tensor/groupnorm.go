// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// GroupNorm cuts the channels of x [batch, channels, …] into numGroups runs,
// normalises each run of each sample to mean 0 and variance 1, and scales and
// shifts each channel by gamma and beta, both [channels] or nil (Wu and He 2018).
// The result has the dtype of x; statistics are float32.
func GroupNorm(x *Tensor, numGroups int, gamma, beta *Tensor, eps float64) *Tensor {
	present("group norm", x)
	const op = "group norm"
	operands := []*Tensor{x, gamma, beta}
	wantHalfOrFloat32s(op, operands)
	if len(x.shape) < 2 {
		fail(op, operands, "wants x [batch, channels, …]")
	}
	channels := x.shape[1]
	if numGroups < 1 || channels%numGroups != 0 {
		fail(op, operands, "%d groups do not divide the %d channels", numGroups, channels)
	}
	for _, t := range operands[1:] {
		if t != nil && !slices.Equal(t.shape, []int{channels}) {
			fail(op, operands, "gamma and beta must have shape [%d], the channels of x", channels)
		}
	}
	if x.NumElems() == 0 {
		return x
	}
	src, gamma, beta := x.mixed().Contiguous().Reshape(x.shape[0], channels, -1), float32Contiguous(gamma), float32Contiguous(beta)
	inputs := []*Tensor{src, gamma, beta}
	out := result(op, src.dtype, src.shape, inputs...)
	mean := result(op, Float32, []int{src.shape[0], numGroups}, inputs...)
	rstd := result(op, Float32, mean.shape, inputs...)
	fused(device.GroupNorm{NumGroups: numGroups, Eps: eps}, out, mean, rstd, src, gamma, beta)
	saves := []*Tensor{src, mean, rstd}
	if gamma != nil {
		saves = append(saves, gamma)
	}
	out = out.record(op, inputs, saves, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, func() *Tensor { return groupNormDefinition(src, numGroups, gamma, beta, eps) })
			return
		}
		g = g.Contiguous()
		dx := result(op, src.dtype, src.shape, g)
		var dgamma, dbeta *Tensor
		if gamma != nil && b.needs(1) {
			dgamma = result(op, Float32, gamma.shape, g)
		}
		if beta != nil && b.needs(2) {
			dbeta = result(op, Float32, beta.shape, g)
		}
		fused(device.GroupNormGrad{NumGroups: numGroups}, dx, dgamma, dbeta, g, src, mean, rstd, gamma)
		for i, gi := range []*Tensor{dx, dgamma, dbeta} {
			if gi != nil && b.needs(i) {
				b.give(i, gi)
			}
		}
	})
	return out.To(x.dtype).Reshape(x.shape...)
}

// InstanceNorm normalises each channel of each sample of x [batch, channels, …]
// (Ulyanov et al. 2016): a [GroupNorm] with a group a channel.
func InstanceNorm(x, gamma, beta *Tensor, eps float64) *Tensor {
	present("instance norm", x)
	if len(x.shape) < 2 || x.shape[1] == 0 {
		fail("instance norm", []*Tensor{x, gamma, beta}, "wants x [batch, channels, …]")
	}
	return GroupNorm(x, x.shape[1], gamma, beta, eps)
}

func groupNormDefinition(x *Tensor, numGroups int, gamma, beta *Tensor, eps float64) *Tensor {
	groups := x.To(Float32).Reshape(x.shape[0], numGroups, -1)
	centred := groups.Sub(groups.MeanKeep(-1))
	y := centred.Div(centred.Mul(centred).MeanKeep(-1).AddScalar(eps).Sqrt()).Reshape(x.shape...)
	if gamma != nil {
		y = y.Mul(gamma.Reshape(-1, 1))
	}
	if beta != nil {
		y = y.Add(beta.Reshape(-1, 1))
	}
	return y.To(x.dtype)
}
