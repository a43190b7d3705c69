// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"math"

	"github.com/cohort-ml/cohort/tensor"
)

// MultiheadAttention is PyTorch's module of that name (Vaswani et al. 2017,
// §3.2.2), with its names of parameters: queries, keys and values are projected,
// attended to in NumHeads heads, and projected again. Differences: batches come
// first, [batch, time, width], always; the weights of the attention are not
// returned; and a bool mask is that of tensor.ScaledDotProductAttention: true
// takes part, where PyTorch's module has true for what is left out.
type MultiheadAttention struct {
	InProjWeight *Parameter // [3·width, width]: queries, keys, values
	InProjBias   *Parameter // [3·width], nil for none
	OutProj      *Linear

	NumHeads int
	// Causal lets a position see those up to its own.
	Causal bool
	// Dropout is the share of the attention's weights that training drops.
	Dropout float64
}

// NewMultiheadAttention returns the module with PyTorch's first values, which
// draw the output's projection first.
func NewMultiheadAttention(b *Build, width, numHeads int) *MultiheadAttention {
	if numHeads < 1 || width%numHeads != 0 {
		panic(tensor.NewError("multihead attention", nil, "%d heads must divide the width, %d", numHeads, width))
	}
	m := &MultiheadAttention{OutProj: NewLinear(b, width, width), NumHeads: numHeads}
	m.OutProj.Bias.data.Fill(0)
	m.InProjWeight = b.Uniform(xavierBound(width, 3*width), 3*width, width)
	m.InProjBias = b.Empty(3 * width)
	return m
}

// xavierBound is the bound of PyTorch's xavier_uniform_ (Glorot and Bengio
// 2010, eq. 16).
func xavierBound(fanIn, fanOut int) float64 {
	return math.Sqrt(3) * math.Sqrt(2/float64(fanIn+fanOut))
}

// Forward is self-attention without a mask: [batch, time, width] to the same
// shape.
func (m *MultiheadAttention) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return m.attend(c, x, nil)
}

// ForwardN takes one of
//
//	x                         self-attention
//	x, mask
//	query, key, value
//	query, key, value, mask
//
// of [batch, time, width], keys and values with a time of their own, and a mask
// that can be broadcast to [batch, heads, time, keyTime]. It returns one value
// of the shape of the query.
func (m *MultiheadAttention) ForwardN(c *Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	WantInputs("MultiheadAttention", x, "x and perhaps a mask, or query, key, value and perhaps a mask", 1, 2, 3, 4)
	var mask *tensor.Tensor
	if len(x) == 2 || len(x) == 4 {
		mask = x[len(x)-1]
	}
	if len(x) >= 3 && (x[1] == nil || x[2] == nil) {
		panic(tensor.NewError("MultiheadAttention", x, "the key or the value is nil: give both, or x alone for self-attention"))
	}
	if len(x) <= 2 || x[0] == x[1] && x[1] == x[2] {
		return []*tensor.Tensor{m.attend(c, x[0], mask)}
	}
	return []*tensor.Tensor{m.cross(c, x[0], x[1], x[2], mask)}
}

// attention is what comes between the projections of queries, keys and values and that of the
// result. The weight of the projections may be cut between heads, along its first dim.
func (m *MultiheadAttention) attention(weight *tensor.Tensor) *DotProductAttention {
	return &DotProductAttention{HeadDim: weight.Dim(1) / m.NumHeads, Causal: m.Causal, Dropout: m.Dropout}
}

// attend is self-attention: the projections are one product, and unpacked by
// the kernel.
func (m *MultiheadAttention) attend(c *Ctx, x, mask *tensor.Tensor) *tensor.Tensor {
	weight := c.Param(m.InProjWeight)
	packed := tensor.Linear(x, weight, m.bias(c))
	attention := m.attention(weight)
	if c.KVCache() == nil && mask == nil {
		return c.Call(m.OutProj, c.CallN(attention, packed)[0])
	}
	batch, time := x.Dim(0), x.Dim(1)
	heads := packed.Reshape(batch, time, 3, packed.Dim(2)/(3*attention.HeadDim), attention.HeadDim)
	k, v := heads.Select(2, 1), heads.Select(2, 2)
	if c.KVCache() != nil {
		k, v = c.KVCache().Append(m, k, v)
	}
	y := c.CallN(attention, heads.Select(2, 0), k, v, mask)[0]
	return c.Call(m.OutProj, y.Reshape(batch, time, y.Dim(2)*y.Dim(3)))
}

func (m *MultiheadAttention) bias(c *Ctx) *tensor.Tensor { return paramOrNil(c, m.InProjBias) }

func (m *MultiheadAttention) cross(c *Ctx, query, key, value, mask *tensor.Tensor) *tensor.Tensor {
	weight, bias := c.Param(m.InProjWeight), m.bias(c)
	attention, width := m.attention(weight), weight.Dim(0)/3
	// By a dim of their own, also where ranks share the heads and have a part of each of the three.
	weight = weight.Reshape(3, width, weight.Dim(1))
	if bias != nil {
		bias = bias.Reshape(3, width)
	}
	project := func(i int, x *tensor.Tensor) *tensor.Tensor {
		var b *tensor.Tensor
		if bias != nil {
			b = bias.Select(0, i)
		}
		y := tensor.Linear(x, weight.Select(0, i), b)
		return y.Reshape(x.Dim(0), x.Dim(1), width/attention.HeadDim, attention.HeadDim)
	}
	y := c.CallN(attention, project(0, query), project(1, key), project(2, value), mask)[0]
	return c.Call(m.OutProj, y.Reshape(query.Dim(0), query.Dim(1), y.Dim(2)*y.Dim(3)))
}
