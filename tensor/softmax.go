// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/work"
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
	fused("softmax", nil, []*Tensor{out, src}, func(p *work.Pool, a []device.Array) {
		rows, cols := a[1].RowsCols()
		kernel.Softmax(p, a[0].Float32s(), a[1].Float32s(), rows, cols)
	})
	t.discard(src)
	return out.record("softmax", []*Tensor{t}, []*Tensor{out}, func(b *backprop, g *Tensor) {
		if b.create {
			b.give(0, g.Sub(g.Mul(out).SumKeep(-1)).Mul(out))
			return
		}
		g = g.Contiguous()
		dx := result("softmax", Float32, out.shape, g)
		fused("softmax grad", nil, []*Tensor{dx, out, g}, func(p *work.Pool, a []device.Array) {
			rows, cols := a[1].RowsCols()
			kernel.SoftmaxBackward(p, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), rows, cols)
		})
		b.give(0, dx)
	})
}
