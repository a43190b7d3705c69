// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// Attention returns softmax(q·kᵀ/√dim)·v for each batch and head: q [batch,
// time, heads, dim], k and v [batch, keyTime, heads, dim] give [batch, time,
// heads, dim] (Vaswani et al. 2017, §3.2). With causal, position t sees the
// keys up to t + keyTime - time.
func Attention(q, k, v *Tensor, causal bool) *Tensor {
	operands := []*Tensor{q, k, v}
	if len(q.shape) != 4 || len(k.shape) != 4 || !slices.Equal(k.shape, v.shape) ||
		q.shape[0] != k.shape[0] || !slices.Equal(q.shape[2:], k.shape[2:]) {
		fail("attention", operands, "wants q [batch, time, heads, dim], k and v [batch, keyTime, heads, dim]")
	}
	if causal && k.shape[1] < q.shape[1] {
		fail("attention", operands, "causal attention wants no fewer keys than queries")
	}
	p := device.Attention{Causal: causal, Scale: float32(1 / math.Sqrt(float64(q.shape[3])))}
	q, k, v = q.denseHeads(), k.denseHeads(), v.denseHeads()
	out, lse := attend(p, q, k, v)
	inputs := []*Tensor{q, k, v}
	return out.record("attention", inputs, []*Tensor{q, k, v, out, lse}, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, inputs, func() *Tensor { return attentionDefinition(p, q, k, v) })
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
	if len(qkv.shape) != 3 || numHeads < 1 || qkv.shape[2]%(3*numHeads) != 0 {
		fail("self attention", []*Tensor{qkv}, "wants [batch, time, 3·width] with a width that %d heads divide", numHeads)
	}
	batch, time, width := qkv.shape[0], qkv.shape[1], qkv.shape[2]/3
	p := device.Attention{Causal: causal, Scale: float32(1 / math.Sqrt(float64(width/numHeads)))}
	packed := qkv.Contiguous()
	heads := func(t *Tensor) (q, k, v *Tensor) {
		h := t.Reshape(batch, time, 3, numHeads, width/numHeads)
		return h.Select(2, 0), h.Select(2, 1), h.Select(2, 2)
	}
	constant := packed.Detach()
	q, k, v := heads(constant)
	out, lse := attend(p, q, k, v)
	out = out.record("self attention", []*Tensor{packed}, []*Tensor{packed, out, lse}, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, []*Tensor{packed}, func() *Tensor {
				q, k, v := heads(packed)
				return attentionDefinition(p, q, k, v)
			})
			return
		}
		dqkv := result("self attention", Float32, packed.shape, g)
		dq, dk, dv := heads(dqkv)
		attendGrad(p, []*Tensor{dq, dk, dv}, g.denseHeads(), out, lse, q, k, v)
		b.give(0, dqkv)
	})
	return out.Reshape(batch, time, width)
}

func attend(p device.Attention, q, k, v *Tensor) (out, lse *Tensor) {
	out = result("attention", Float32, q.shape, q, k, v)
	lse = result("attention", Float32, []int{q.shape[0], q.shape[2], q.shape[1]}, q, k, v)
	out.Device().Attention(p, out.array(), lse.array(), q.array(), k.array(), v.array())
	return out, lse
}

func attendGrad(p device.Attention, grads []*Tensor, g, out, lse, q, k, v *Tensor) {
	g.Device().AttentionGrad(p, grads[0].array(), grads[1].array(), grads[2].array(),
		g.array(), out.array(), lse.array(), q.array(), k.array(), v.array())
}

// denseHeads returns t with a dense last dim.
func (t *Tensor) denseHeads() *Tensor {
	if t.strides[3] == 1 || t.shape[3] == 1 {
		return t
	}
	return t.Clone()
}

func attentionDefinition(p device.Attention, q, k, v *Tensor) *Tensor {
	q, k, v = q.Permute(0, 2, 1, 3), k.Permute(0, 2, 1, 3), v.Permute(0, 2, 1, 3)
	scores := q.MatMul(k.T()).MulScalar(float64(p.Scale))
	if p.Causal {
		scores = scores.causalMask(math.Inf(-1))
	}
	return scores.Softmax().MatMul(v).Permute(0, 2, 1, 3)
}

// causalMask sets the elements of the last two dims whose key lies after the
// query to value.
func (t *Tensor) causalMask(value float64) *Tensor {
	src := t.Contiguous()
	out := result("causal mask", Float32, t.shape, t)
	out.Device().CausalMask(out.array(), src.array(), float32(value))
	return out.record("causal mask", []*Tensor{t}, nil, func(b *backprop, g *Tensor) {
		b.give(0, g.causalMask(0))
	})
}
