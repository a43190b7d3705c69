// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"github.com/cohort-ml/cohort/tensor"
)

// DotProductAttention is attention itself, between the projections of an attention layer:
// softmax(q·kᵀ·scale)·v in heads (Vaswani et al. 2017, §3.2.1). It has no parameters. It is a
// module so that a strategy can step in on it: context parallelism computes it over the
// sequence of several ranks. How many heads there are follows from the shapes, so that a layer
// whose projections were cut between heads works unchanged.
type DotProductAttention struct {
	// HeadDim is the number of channels of a head.
	HeadDim int
	// Causal lets a token see those up to its own.
	Causal bool
	// Scale multiplies q·kᵀ; 0 is 1/√HeadDim.
	Scale float64
	// SoftCap c takes each score x to c·tanh(x/c); 0 leaves them. See
	// tensor.AttentionOptions.
	SoftCap float64
	// Window is how many tokens one sees, itself among them; 0 is all. It wants Causal.
	Window int
	// Dropout is the share of the attention's weights that training drops.
	Dropout float64
}

// ForwardN takes one of
//
//	qkv               [batch, time, 3·width], queries, keys and values of all heads side by side
//	q, k, v           [batch, time, heads, dim], and twice [batch, keyTime, keyHeads, dim]
//	q, k, v, mask     see tensor.AttentionOptions for the mask, which may be nil
//
// and returns [batch, time, width] or [batch, time, heads, dim]. Within packed documents
// ([Ctx.WithDocuments]) a token sees its own document alone.
func (m *DotProductAttention) ForwardN(c *Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	WantInputs("DotProductAttention", x, "queries, keys and values in one tensor, or in three and perhaps a mask", 1, 3, 4)
	o := tensor.AttentionOptions{Causal: m.Causal, Scale: m.Scale, SoftCap: m.SoftCap, Part: c.part}
	if m.Window > 0 && !m.Causal {
		panic(tensor.NewError("DotProductAttention", x, "a window of %d wants Causal", m.Window))
	}
	if c.Training() {
		o.Dropout, o.Generator = m.Dropout, c.Generator()
	}
	time, keyTime := x[0].Dim(1), x[0].Dim(1)
	if len(x) > 1 {
		keyTime = x[1].Dim(1)
	}
	o.Mask = c.attentionMask(m.Window, keyTime-time, time)
	if len(x) == 4 && x[3] != nil {
		o.Mask = both(o.Mask, x[3])
	}
	if len(x) > 1 {
		return []*tensor.Tensor{tensor.ScaledDotProductAttention(x[0], x[1], x[2], o)}
	}
	width := x[0].Dim(-1)
	if m.HeadDim < 1 || width%(3*m.HeadDim) != 0 {
		panic(tensor.NewError("DotProductAttention", x, "queries, keys and values of whole heads of %d channels take a multiple of %d: %d %% %d = %d",
			m.HeadDim, 3*m.HeadDim, width, 3*max(m.HeadDim, 1), width%(3*max(m.HeadDim, 1))))
	}
	return []*tensor.Tensor{tensor.SelfAttention(x[0], width/(3*m.HeadDim), o)}
}

// both returns the mask of what two masks let take part. The first is bool, or nil.
func both(own, given *tensor.Tensor) *tensor.Tensor {
	switch {
	case own == nil:
		return given
	case given.DType() == tensor.Bool:
		return own.LogicalAnd(given)
	}
	return given.Add(own.To(tensor.Float32).Log()) // 0 for true, -Inf for false
}
