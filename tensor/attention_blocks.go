// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// AttentionBlocks is one attention that is computed a block of queries and keys at a
// time, for example by several ranks, of which each has a part of the sequence. It is
// for wrappers that communicate: nothing is recorded, and what the methods return is
// under no tape. The caller frees it ([Tensor.Free]).
//
// The blocks of the same queries are merged ([AttentionSums]): their results and
// log-sum-exps are those of the softmax over the keys of all (Milakov and Gimelshein
// 2018; Liu et al. 2023, "Ring Attention"). The gradient of a block needs only the
// merged result and the merged log-sum-exp.
type AttentionBlocks struct{ p attentionParams }

// AttentionBlock is where a block lies in the whole attention, and which keys its
// queries see.
type AttentionBlock struct {
	Query, Key int     // places of the first query and the first key in the whole
	Causal     bool    // query t of the block sees its keys up to t + keyTime - time
	Mask       *Tensor // as that of [AttentionOptions], for the block alone; nil for none
}

// NewAttentionBlocks returns the attention of queries with heads, each of dim
// channels. Of the options it takes Scale, Dropout and Generator, and Part, which must
// say how long the whole is if there is dropout. Dropout draws one stream.
func NewAttentionBlocks(dim int, o AttentionOptions) *AttentionBlocks {
	if o.Mask != nil || o.Causal {
		fail("attention blocks", nil, "each block has its own mask; give it to Forward and Backward")
	}
	if o.Dropout > 0 && (o.Part.Time == 0 || o.Part.KeyTime == 0) {
		fail("attention blocks", nil, "dropout wants the numbers of queries and keys of the whole attention, in Part")
	}
	return &AttentionBlocks{newAttentionParams(nil, o, dim)}
}

// at returns the parameters of a block.
func (a *AttentionBlocks) at(b AttentionBlock, q, k *Tensor) attentionParams {
	p := a.p
	p.Causal = b.Causal
	p.Part.Query += b.Query
	p.Part.Key += b.Key
	p.mask = nil
	if b.Mask != nil {
		p.mask = attentionMask([]*Tensor{q, k, b.Mask}, b.Mask.detach(), []int{q.shape[0], q.shape[2], q.shape[1], k.shape[1]})
	}
	return p
}

// Forward returns softmax(q·kᵀ·scale + mask)·v of a block, like q, and the
// log-sum-exps of the scores, float32 [batch, heads, time]. The operands are as those of
// [ScaledDotProductAttention], of one dtype.
func (a *AttentionBlocks) Forward(b AttentionBlock, q, k, v *Tensor) (out, lse *Tensor) {
	q, k, v = blockOperand(q), blockOperand(k), blockOperand(v)
	return attend(a.at(b, q, k), q, k, v)
}

// Backward returns this block's part of the gradients of q, k and v, like them. g is
// the gradient of the merged result out, and lse the merged log-sum-exp; both are cut
// to the queries of the block.
func (a *AttentionBlocks) Backward(b AttentionBlock, g, out, lse, q, k, v *Tensor) (dq, dk, dv *Tensor) {
	q, k, v = blockOperand(q), blockOperand(k), blockOperand(v)
	g, out, lse = blockOperand(g.To(q.dtype)), blockOperand(out), lse.detach().Contiguous()
	var grads []*Tensor
	for _, t := range []*Tensor{q, k, v} {
		grads = append(grads, New(t.Device(), t.dtype, t.shape...))
	}
	attendGrad(a.at(b, q, k), grads, g, out, lse, q, k, v)
	return grads[0], grads[1], grads[2]
}

// blockOperand returns a value under no tape, with a dense last dim.
func blockOperand(t *Tensor) *Tensor { return t.detach().denseHeads() }

// AttentionSums is the merged result of the blocks that have been added: float32 [batch,
// time, heads, dim], and its log-sum-exps [batch, heads, time]. Both are contiguous.
type AttentionSums struct{ Out, LSE *Tensor }

// NewAttentionSums makes tensors the attention to no keys: zeros, and sums of nothing.
func NewAttentionSums(out, lse *Tensor) AttentionSums {
	s := AttentionSums{out.detach(), lse.detach()}
	s.Out.Fill(0)
	s.LSE.Fill(math.Inf(-1))
	return s
}

// Add merges the result of a block of the queries from first on.
func (s AttentionSums) Add(first int, out, lse *Tensor) {
	shape := slices.Clone(s.Out.shape)
	shape[1] = out.shape[1]
	if !slices.Equal(out.shape, shape) || !slices.Equal(lse.shape, []int{shape[0], shape[2], shape[1]}) || first+shape[1] > s.Out.shape[1] {
		fail("attention merge", []*Tensor{s.Out, out, lse}, "wants a block of the result, from query %d on", first)
	}
	to, sums := s.Out.Narrow(1, first, shape[1]), s.LSE.Narrow(2, first, shape[1])
	s.Out.storage.version++
	s.LSE.storage.version++
	fused(device.AttentionMerge{}, to, sums, blockOperand(out), lse.detach().Contiguous())
}
