// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// SwiGLU returns silu(gate)·up elementwise, silu(x) being x/(1 + e^-x), for two
// values of one shape (Shazeer 2020): the middle of Llama's perceptron. The
// result has the wider dtype; it is computed in float32.
func SwiGLU(gate, up *Tensor) *Tensor {
	present("swiglu", gate, up)
	both := []*Tensor{gate, up}
	switch dtype := PromoteTypes(gate.dtype, up.dtype); {
	case dtype == Float16:
		return inFloat32(func(in []*Tensor) *Tensor { return SwiGLU(in[0], in[1]) }, both...)
	case mixes(gate.dtype) && mixes(up.dtype):
		gate, up = gate.To(dtype), up.To(dtype)
	default:
		wantFloat32s("swiglu", both)
	}
	if !slices.Equal(gate.shape, up.shape) {
		fail("swiglu", both, "wants two operands of one shape")
	}
	gate, up = gate.Contiguous(), up.Contiguous()
	both = []*Tensor{gate, up}
	out := result("swiglu", gate.dtype, gate.shape, both...)
	fused(device.SwiGLU{}, out, gate, up)
	return out.record("swiglu", both, both, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, func() *Tensor { return gate.SiLU().Mul(up) })
			return
		}
		g = g.Contiguous()
		dgate, dup := result("swiglu", gate.dtype, gate.shape, g), result("swiglu", gate.dtype, gate.shape, g)
		fused(device.SwiGLUGrad{}, dgate, dup, gate, up, g)
		if b.needs(0) {
			b.give(0, dgate)
		}
		if b.needs(1) {
			b.give(1, dup)
		}
	})
}
