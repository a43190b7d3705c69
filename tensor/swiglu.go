// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/work"
)

// SwiGLU returns silu(gate)·up elementwise, silu(x) being x/(1 + e^-x), for two
// values of one shape (Shazeer 2020): the middle of Llama's perceptron. The
// result has gate's dtype; it is computed in float32.
func SwiGLU(gate, up *Tensor) *Tensor {
	if isHalf(gate.dtype) || isHalf(up.dtype) {
		return inFloat32(func(in []*Tensor) *Tensor { return SwiGLU(in[0], in[1]) }, gate, up).To(PromoteTypes(gate.dtype, up.dtype))
	}
	both := []*Tensor{gate, up}
	if isHalf(gate.dtype) {
		return inFloat32(func(in []*Tensor) *Tensor { return SwiGLU(in[0], in[1]) }, both...)
	}
	wantFloat32s("swiglu", both)
	if !slices.Equal(gate.shape, up.shape) {
		fail("swiglu", both, "wants two operands of one shape")
	}
	gate, up = gate.Contiguous(), up.Contiguous()
	both = []*Tensor{gate, up}
	out := result("swiglu", Float32, gate.shape, both...)
	fused("swiglu", nil, []*Tensor{out, gate, up}, func(p *work.Pool, a []device.Array) {
		kernel.SwiGLU(p, a[0].Float32s(), a[1].Float32s(), a[2].Float32s())
	})
	return out.record("swiglu", both, both, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, func() *Tensor {
				return gate.Div(gate.Neg().Exp().AddScalar(1)).Mul(up)
			})
			return
		}
		g = g.Contiguous()
		dgate, dup := result("swiglu", Float32, gate.shape, g), result("swiglu", Float32, gate.shape, g)
		fused("swiglu grad", nil, []*Tensor{dgate, dup, gate, up, g}, func(p *work.Pool, a []device.Array) {
			kernel.SwiGLUBackward(p, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), a[3].Float32s(), a[4].Float32s())
		})
		if b.needs(0) {
			b.give(0, dgate)
		}
		if b.needs(1) {
			b.give(1, dup)
		}
	})
}
