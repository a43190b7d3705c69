// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/work"
)

// Attention returns softmax(q·kᵀ/√dim)·v for each batch and head: q [batch,
// time, heads, dim], k and v [batch, keyTime, heads, dim] give [batch, time,
// heads, dim] (Vaswani et al. 2017, §3.2). With causal, position t sees the
// keys up to t + keyTime - time.
func Attention(q, k, v *Tensor, causal bool) *Tensor {
	operands := []*Tensor{q, k, v}
	wantFloat32s("attention", operands)
	if len(q.shape) != 4 || len(k.shape) != 4 || !slices.Equal(k.shape, v.shape) ||
		q.shape[0] != k.shape[0] || !slices.Equal(q.shape[2:], k.shape[2:]) {
		fail("attention", operands, "wants q [batch, time, heads, dim], k and v [batch, keyTime, heads, dim]")
	}
	if causal && k.shape[1] < q.shape[1] {
		fail("attention", operands, "causal attention wants no fewer keys than queries")
	}
	p := attentionParams{causal: causal, scale: float32(1 / math.Sqrt(float64(q.shape[3])))}
	q, k, v = q.denseHeads(), k.denseHeads(), v.denseHeads()
	out, lse := attend(p, q, k, v)
	inputs := []*Tensor{q, k, v}
	return out.record("attention", inputs, []*Tensor{q, k, v, out, lse}, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, func() *Tensor { return attentionDefinition(p, q, k, v) })
			return
		}
		grads := make([]*Tensor, 3)
		for i, t := range inputs {
			grads[i] = result("attention", Float32, t.shape, g)
		}
		attendGrad(p, grads, g.denseHeads(), out, lse, q, k, v)
		for i, gi := range grads {
			if b.needs(i) {
				b.give(i, gi)
			}
		}
	})
}

// SelfAttention is Attention on the packed projection [batch, time, 3·width]
// of a transformer block: queries, keys and values of numHeads heads. It
// returns [batch, time, width] and moves no data to unpack.
func SelfAttention(qkv *Tensor, numHeads int, causal bool) *Tensor {
	qkv.wantDType("self attention", Float32)
	if len(qkv.shape) != 3 || numHeads < 1 || qkv.shape[2]%(3*numHeads) != 0 {
		fail("self attention", []*Tensor{qkv}, "wants [batch, time, 3·width] with a width that %d heads divide", numHeads)
	}
	batch, time, width := qkv.shape[0], qkv.shape[1], qkv.shape[2]/3
	p := attentionParams{causal: causal, scale: float32(1 / math.Sqrt(float64(width/numHeads)))}
	packed := qkv.Contiguous()
	unpack := func(t *Tensor) (q, k, v *Tensor) {
		h := t.Reshape(batch, time, 3, numHeads, width/numHeads)
		return h.Select(2, 0), h.Select(2, 1), h.Select(2, 2)
	}
	constant := packed.Detach()
	q, k, v := unpack(constant)
	out, lse := attend(p, q, k, v)
	out = out.record("self attention", []*Tensor{packed}, []*Tensor{packed, out, lse}, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, func() *Tensor {
				q, k, v := unpack(packed)
				return attentionDefinition(p, q, k, v)
			})
			return
		}
		dqkv := result("self attention", Float32, packed.shape, g)
		dq, dk, dv := unpack(dqkv)
		attendGrad(p, []*Tensor{dq, dk, dv}, g.denseHeads(), out, lse, q, k, v)
		b.give(0, dqkv)
	})
	return out.Reshape(batch, time, width)
}

func attend(p attentionParams, q, k, v *Tensor) (out, lse *Tensor) {
	out = result("attention", Float32, q.shape, q, k, v)
	lse = result("attention", Float32, []int{q.shape[0], q.shape[2], q.shape[1]}, q, k, v)
	fused("attention", p.list(), []*Tensor{out, lse, q, k, v}, func(w *work.Pool, a []device.Array) {
		kernel.Attention(w, p.shape(a[2], a[3]), heads(a[0]), heads(a[2]), heads(a[3]), heads(a[4]), a[1].Float32s())
	})
	return out, lse
}

func attendGrad(p attentionParams, grads []*Tensor, g, out, lse, q, k, v *Tensor) {
	operands := []*Tensor{grads[0], grads[1], grads[2], g, out, lse, q, k, v}
	fused("attention grad", p.list(), operands, func(w *work.Pool, a []device.Array) {
		kernel.AttentionBackward(w, p.shape(a[6], a[7]), heads(a[0]), heads(a[1]), heads(a[2]),
			heads(a[3]), heads(a[4]), heads(a[6]), heads(a[7]), heads(a[8]), a[5].Float32s())
	})
}

// attentionParams are the scalars of the attention kernels.
type attentionParams struct {
	causal bool
	scale  float32
}

func (p attentionParams) list() []float64 {
	return []float64{param01(p.causal), float64(p.scale)}
}

func (p attentionParams) shape(q, k device.Array) kernel.AttentionShape {
	return kernel.AttentionShape{
		Batch: q.Shape[0], Heads: q.Shape[2], Time: q.Shape[1], KeyTime: k.Shape[1], Dim: q.Shape[3],
		Causal: p.causal, Scale: p.scale,
	}
}

func heads(a device.Array) kernel.Heads {
	return kernel.Heads{Data: a.Span(), Batch: a.Strides[0], Time: a.Strides[1], Head: a.Strides[2]}
}

// denseHeads returns t with a dense last dim.
func (t *Tensor) denseHeads() *Tensor {
	if t.strides[3] == 1 || t.shape[3] == 1 {
		return t
	}
	return t.Clone()
}

func attentionDefinition(p attentionParams, q, k, v *Tensor) *Tensor {
	q, k, v = q.Permute(0, 2, 1, 3), k.Permute(0, 2, 1, 3), v.Permute(0, 2, 1, 3)
	scores := q.MatMul(k.T()).MulScalar(float64(p.scale))
	if p.causal {
		scores = scores.causalMask(math.Inf(-1))
	}
	return scores.Softmax().MatMul(v).Permute(0, 2, 1, 3)
}

// causalMask sets the elements of the last two dims whose key lies after the
// query to value.
func (t *Tensor) causalMask(value float64) *Tensor {
	src := t.Contiguous()
	out := result("causal mask", Float32, t.shape, t)
	fused("causal mask", []float64{value}, []*Tensor{out, src}, func(_ *work.Pool, a []device.Array) {
		n := len(a[1].Shape)
		queries, keys := a[1].Shape[n-2], a[1].Shape[n-1]
		dst := a[0].Float32s()
		copy(dst, a[1].Float32s())
		for row := 0; row*keys < len(dst); row++ {
			for key := row%queries + keys - queries + 1; key < keys; key++ {
				dst[row*keys+key] = float32(value)
			}
		}
	})
	return out.record("causal mask", []*Tensor{t}, nil, func(b *backprop, g *Tensor) {
		b.give(0, g.causalMask(0))
	})
}
