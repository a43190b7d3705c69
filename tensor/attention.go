// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// AttentionOptions are the choices of [ScaledDotProductAttention]; the zero
// value is plain attention.
type AttentionOptions struct {
	// Mask can be broadcast to [batch, heads, time, keyTime]. A float32 one is
	// added to the scores and may have a gradient; of a bool one, true takes
	// part, as in PyTorch. A query whose keys are all masked gets 0.
	Mask *Tensor
	// Causal lets position t see the keys up to t + keyTime - time. It can be
	// had together with a mask.
	Causal bool
	// Scale multiplies q·kᵀ; 0 is 1/√dim.
	Scale float64
	// SoftCap c takes each scaled score x to c·tanh(x/c) before the mask is added, so that
	// none is larger than c (Gemma 2, arXiv 2408.00118); 0 leaves them.
	SoftCap float64
	// Dropout is the share of probabilities that are set to zero, in [0, 1); it
	// needs a Generator, and draws one stream of it.
	Dropout   float64
	Generator *Generator
	// Part says of which attention this is a part. Dropout then drops what it would
	// drop there. The zero value is a whole attention.
	Part AttentionPart
}

// AttentionPart says of which attention another one is a part: how many heads,
// queries and keys the whole has (0 for as many as the part), and with which of
// them the part begins.
type AttentionPart struct {
	Heads, Time, KeyTime int
	Head, Query, Key     int
}

// ScaledDotProductAttention returns softmax(q·kᵀ·scale + mask)·v for each batch
// and head: q [batch, time, heads, dim], k and v [batch, keyTime, keyHeads, dim]
// give [batch, time, heads, dim] (Vaswani et al. 2017, §3.2). keyHeads divides
// heads; with fewer of them, neighbouring heads of q share one (grouped-query
// attention, Ainslie et al. 2023).
//
// q, k and v are float32 or bfloat16, under autocast either, and the result is
// then bfloat16; scores and softmax are float32 always.
func ScaledDotProductAttention(q, k, v *Tensor, o AttentionOptions) *Tensor {
	present("attention", q, k, v)
	operands := []*Tensor{q, k, v, o.Mask}
	dtype := lowDType("attention", operands[:3])
	q, k, v = q.To(dtype), k.To(dtype), v.To(dtype)
	if len(q.shape) != 4 || len(k.shape) != 4 || !slices.Equal(k.shape, v.shape) ||
		q.shape[0] != k.shape[0] || q.shape[3] != k.shape[3] {
		fail("attention", operands, "wants q [batch, time, heads, dim], k and v [batch, keyTime, keyHeads, dim]")
	}
	if h, hk := q.shape[2], k.shape[2]; h != hk && (hk == 0 || h%hk != 0) {
		fail("attention", operands, "the %d heads of the keys must divide the %d of the queries", hk, h)
	}
	p := newAttentionParams(operands, o, q.shape[3])
	p.mask = attentionMask(operands, o.Mask, []int{q.shape[0], q.shape[2], q.shape[1], k.shape[1]})
	q, k, v = q.denseHeads(), k.denseHeads(), v.denseHeads()
	out, lse := attend(p, q, k, v)
	inputs := []*Tensor{q, k, v, p.mask}
	return out.record("attention", inputs, p.saves(q, k, v, out, lse), func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, func() *Tensor { return attentionDefinition(p, q, k, v) })
			return
		}
		grads := make([]*Tensor, 3)
		for i, t := range inputs[:3] {
			grads[i] = result("attention", t.dtype, t.shape, g)
		}
		attendGrad(p, grads, g.denseHeads(), out, lse, q, k, v)
		for i, gi := range grads {
			if b.needs(i) {
				b.give(i, gi)
			}
		}
		if b.needs(3) {
			b.give(3, attentionMaskGrad(p, g, q, k, v))
		}
	})
}

// SelfAttention is [ScaledDotProductAttention] on the packed projection [batch,
// time, 3·width] of a transformer block: queries, keys and values of numHeads
// heads. It returns [batch, time, width] and moves no data to unpack.
func SelfAttention(qkv *Tensor, numHeads int, o AttentionOptions) *Tensor {
	present("self attention", qkv)
	operands := []*Tensor{qkv, o.Mask}
	qkv = qkv.To(lowDType("self attention", operands[:1]))
	if len(qkv.shape) != 3 || numHeads < 1 || qkv.shape[2]%(3*numHeads) != 0 {
		fail("self attention", operands, "wants [batch, time, 3·width] with a width that %d heads divide", numHeads)
	}
	batch, time, width := qkv.shape[0], qkv.shape[1], qkv.shape[2]/3
	p := newAttentionParams(operands, o, width/numHeads)
	p.mask = attentionMask(operands, o.Mask, []int{batch, numHeads, time, time})
	packed := qkv.Contiguous()
	unpack := func(t *Tensor) (q, k, v *Tensor) {
		h := t.Reshape(batch, time, 3, numHeads, width/numHeads)
		return h.Select(2, 0), h.Select(2, 1), h.Select(2, 2)
	}
	constant := packed.Detach()
	q, k, v := unpack(constant)
	out, lse := attend(p, q, k, v)
	out = out.record("self attention", []*Tensor{packed, p.mask}, p.saves(packed, out, lse), func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, func() *Tensor {
				q, k, v := unpack(packed)
				return attentionDefinition(p, q, k, v)
			})
			return
		}
		dqkv := result("self attention", packed.dtype, packed.shape, g)
		dq, dk, dv := unpack(dqkv)
		attendGrad(p, []*Tensor{dq, dk, dv}, g.denseHeads(), out, lse, q, k, v)
		if b.needs(0) {
			b.give(0, dqkv)
		}
		if b.needs(1) {
			b.give(1, attentionMaskGrad(p, g, q, k, v))
		}
	})
	return out.Reshape(batch, time, width)
}

func attend(p attentionParams, q, k, v *Tensor) (out, lse *Tensor) {
	out = result("attention", q.dtype, q.shape, q, k, v, p.mask)
	lse = result("attention", Float32, []int{q.shape[0], q.shape[2], q.shape[1]}, q, k, v, p.mask)
	fused(device.Attention{AttentionParams: p.AttentionParams}, out, lse, q, k, v, p.mask)
	return out, lse
}

func attendGrad(p attentionParams, grads []*Tensor, g, out, lse, q, k, v *Tensor) {
	fused(device.AttentionGrad{AttentionParams: p.AttentionParams}, grads[0], grads[1], grads[2], g, out, lse, q, k, v, p.mask)
}

// attentionParams are what the attention kernels depend on beside q, k and v.
type attentionParams struct {
	device.AttentionParams
	mask *Tensor // float32 [batch, heads, time, keyTime], the last dim dense; nil for none
}

func newAttentionParams(operands []*Tensor, o AttentionOptions, dim int) attentionParams {
	p := attentionParams{AttentionParams: device.AttentionParams{
		Causal: o.Causal, Scale: float32(o.Scale), SoftCap: float32(o.SoftCap), Dropout: float32(o.Dropout), Part: device.AttentionPart(o.Part),
	}}
	if o.Scale == 0 {
		p.Scale = float32(1 / math.Sqrt(float64(dim)))
	}
	if !(o.SoftCap >= 0) || math.IsInf(o.SoftCap, 1) {
		fail("attention", operands, "the bound of scores is %v, want a positive number, or 0 for none", o.SoftCap)
	}
	if !(o.Dropout >= 0 && o.Dropout < 1) {
		fail("attention", operands, "the share that dropout takes is %v, want one in [0, 1)", o.Dropout)
	}
	if o.Dropout > 0 {
		if o.Generator == nil {
			fail("attention", operands, "dropout wants a generator")
		}
		p.Key, p.Stream = o.Generator.normal.Key, o.Generator.nextStream()
	}
	return p
}

// attentionMask returns a mask as the kernels want it.
func attentionMask(operands []*Tensor, m *Tensor, shape []int) *Tensor {
	if m == nil {
		return nil
	}
	if got, ok := broadcastShapes(m.shape, shape); !ok || !slices.Equal(got, shape) {
		fail("attention", operands, "the mask cannot be broadcast to %v", shape)
	}
	switch m.dtype {
	case Bool:
		m = m.To(Float32).Log() // 0 for true, -Inf for false
	case Float32, BFloat16, Float16:
		m = m.To(Float32)
	default:
		fail("attention", operands, "wants a mask of float32, which is added, or of bool")
	}
	if n := len(m.shape); n == 0 || m.shape[n-1] != shape[3] || m.strides[n-1] != 1 {
		last := []int{shape[3]}
		if n > 0 {
			last = append(m.Shape()[:n-1], shape[3])
		}
		m = m.Expand(last...).Clone()
	}
	return m.Expand(shape...)
}

// saves adds the mask to what the backward pass reads.
func (p attentionParams) saves(t ...*Tensor) []*Tensor {
	if p.mask != nil {
		t = append(t, p.mask)
	}
	return t
}

// denseHeads returns t with a dense last dim.
func (t *Tensor) denseHeads() *Tensor {
	if t.strides[3] == 1 || t.shape[3] == 1 {
		return t
	}
	return t.Clone()
}

// attentionDefinition is the attention in recorded operations, between products
// in float32.
func attentionDefinition(p attentionParams, q, k, v *Tensor) *Tensor {
	dtype := q.dtype
	weights := attentionWeights(p, q, k)
	if keep := p.kept(weights); keep != nil {
		weights = weights.Mul(keep)
	}
	return weights.To(dtype).MatMul(v.repeatHeads(q.shape[2]).Permute(0, 2, 1, 3)).Permute(0, 2, 1, 3)
}

// attentionWeights returns the softmax of the scores, 0 for a query whose keys
// are all masked.
func attentionWeights(p attentionParams, q, k *Tensor) *Tensor {
	scores := attentionScores(p, q, k)
	if p.mask == nil && !p.Causal || k.shape[1] == 0 {
		return scores.Softmax(-1)
	}
	// Infinity less infinity is no number, and would spread to the gradients.
	blind := scores.Detach().AMax(-1).EqScalar(math.Inf(-1)).Unsqueeze(-1)
	zero := scalarOf(scores, 0)
	return Where(blind, zero, Where(blind, zero, scores).Softmax(-1))
}

// attentionScores returns what the softmax is taken of, [batch, heads, time,
// keyTime].
func attentionScores(p attentionParams, q, k *Tensor) *Tensor {
	k = k.repeatHeads(q.shape[2])
	scores := q.Permute(0, 2, 1, 3).MatMul(k.Permute(0, 2, 3, 1)).To(Float32).MulScalar(float64(p.Scale))
	if p.SoftCap != 0 {
		scores = scores.MulScalar(1 / float64(p.SoftCap)).Tanh().MulScalar(float64(p.SoftCap))
	}
	if p.mask != nil {
		scores = scores.Add(p.mask)
	}
	if p.Causal {
		scores = scores.causalMask(math.Inf(-1))
	}
	return scores
}

// repeatHeads repeats the heads of keys or values for the queries that share
// them.
func (t *Tensor) repeatHeads(heads int) *Tensor {
	b, time, keyHeads, dim := t.shape[0], t.shape[1], t.shape[2], t.shape[3]
	if keyHeads == heads {
		return t
	}
	return t.Reshape(b, time, keyHeads, 1, dim).Expand(b, time, keyHeads, heads/keyHeads, dim).Reshape(b, time, heads, dim)
}

// kept returns what dropout multiplies weights by, nil for nothing.
func (p attentionParams) kept(weights *Tensor) *Tensor {
	if p.Dropout == 0 {
		return nil
	}
	keep := result("attention dropout", Float32, weights.shape, weights)
	fused(device.AttentionDropout{AttentionParams: p.AttentionParams}, keep)
	return keep
}

// attentionMaskGrad is the gradient of the scores, and so of a mask.
func attentionMaskGrad(p attentionParams, g, q, k, v *Tensor) *Tensor {
	q, k, v = q.Detach(), k.Detach(), v.Detach()
	p.mask = p.mask.Detach()
	weights := attentionWeights(p, q, k)
	dw := g.Detach().Permute(0, 2, 1, 3).MatMul(v.repeatHeads(q.shape[2]).Permute(0, 2, 3, 1)).To(Float32)
	if keep := p.kept(weights); keep != nil {
		dw = dw.Mul(keep)
	}
	return dw.Sub(dw.Mul(weights).SumKeep(-1)).Mul(weights)
}

// causalMask sets the elements of the last two dims whose key lies after the
// query to value.
func (t *Tensor) causalMask(value float64) *Tensor {
	src := t.Contiguous()
	out := result("causal mask", Float32, t.shape, t)
	fused(device.CausalMask{Value: value}, out, src)
	return out.record("causal mask", []*Tensor{t}, nil, func(b *backprop, g *Tensor) {
		b.give(0, g.causalMask(0))
	})
}
