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
	fused("swiglu", nil, []*Tensor{out, gate, up}, func(p *work.Pool, a []device.Array) {
		if a[0].DType == BFloat16 {
			kernel.SwiGLUBF16(p, device.Elems[uint16](a[0]), device.Elems[uint16](a[1]), device.Elems[uint16](a[2]))
			return
		}
		kernel.SwiGLU(p, a[0].Float32s(), a[1].Float32s(), a[2].Float32s())
	})
	return out.record("swiglu", both, both, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, func() *Tensor { return gate.SiLU().Mul(up) })
			return
		}
		g = g.Contiguous()
		dgate, dup := result("swiglu", gate.dtype, gate.shape, g), result("swiglu", gate.dtype, gate.shape, g)
		fused("swiglu grad", nil, []*Tensor{dgate, dup, gate, up, g}, func(p *work.Pool, a []device.Array) {
			if a[0].DType == BFloat16 {
				kernel.SwiGLUBackwardBF16(p, device.Elems[uint16](a[0]), device.Elems[uint16](a[1]), device.Elems[uint16](a[2]),
					device.Elems[uint16](a[3]), device.Elems[uint16](a[4]))
				return
			}
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
