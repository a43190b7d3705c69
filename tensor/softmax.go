// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"github.com/cohort-ml/cohort/internal/device"
)

// Softmax returns exp(t) over its sum along a dim. It is computed in float32 for
// elements of sixteen bits, and rounded once.
func (t *Tensor) Softmax(dim int) *Tensor {
	return t.alongLast("softmax", dim, func(t *Tensor) *Tensor {
		if t.dtype != Float32 {
			return t.Sub(t.logSumExpKeep([]int{-1})).Exp()
		}
		return t.softmax()
	})
}

// LogSoftmax returns the logarithm of [Tensor.Softmax] without its loss of
// digits: t - log Σ eᵗ along a dim.
func (t *Tensor) LogSoftmax(dim int) *Tensor {
	return t.alongLast("log softmax", dim, func(t *Tensor) *Tensor { return t.Sub(t.logSumExpKeep([]int{-1})) })
}

// alongLast applies fn, which works on the last dim of float32 or float64, to
// any dim and dtype.
func (t *Tensor) alongLast(op string, dim int, fn func(t *Tensor) *Tensor) *Tensor {
	if len(t.shape) == 0 {
		fail(op, []*Tensor{t}, "wants at least one dim")
	}
	dim = dimIndex(op, t, dim)
	t = t.floating()
	from := t.dtype
	if isHalf(from) {
		t = t.To(Float32)
	}
	if dim != len(t.shape)-1 {
		return fn(t.Transpose(dim, -1)).Transpose(dim, -1).To(from)
	}
	return fn(t).To(from)
}

// softmax is Softmax of the last dim of float32 by a kernel.
func (t *Tensor) softmax() *Tensor {
	src := t.Detach().Contiguous()
	out := result("softmax", Float32, t.shape, t)
	fused(device.Softmax{}, out, src)
	t.discard(src)
	return out.record("softmax", []*Tensor{t}, []*Tensor{out}, func(b *backprop, g *Tensor) {
		if b.create {
			b.give(0, g.Sub(g.Mul(out).SumKeep(-1)).Mul(out))
			return
		}
		g = g.Contiguous()
		dx := result("softmax", Float32, out.shape, g)
		fused(device.SoftmaxGrad{}, dx, out, g)
		b.give(0, dx)
	})
}
