// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// GPTConfig is the size of a GPT.
type GPTConfig struct {
	Vocab   int // entries of the vocabulary
	Context int // most tokens in a sequence
	Width   int // of the residual stream
	Heads   int // of attention; they divide Width
	Layers  int
	Tanh    bool // GELU by GPT-2's tanh formula
}

// Validate reports a size that makes no model.
func (g GPTConfig) Validate() error {
	for _, f := range []struct {
		name       string
		size, most int
	}{
		{"vocabulary", g.Vocab, 1 << 24}, {"context", g.Context, 1 << 24}, {"width", g.Width, 1 << 20},
		{"number of heads", g.Heads, 1 << 20}, {"number of layers", g.Layers, 1 << 14},
	} {
		if f.size < 1 || f.size > f.most {
			return fmt.Errorf("models: the %s of a GPT is %d, want 1 to %d", f.name, f.size, f.most)
		}
	}
	if g.Width%g.Heads != 0 {
		return fmt.Errorf("models: the width of a GPT must be a multiple of its heads: %d %% %d = %d", g.Width, g.Heads, g.Width%g.Heads)
	}
	return nil
}

// GPT is the decoder-only transformer of GPT-2 (Radford et al. 2019), with its
// Hugging Face names. The output layer is the embedding table again (Press and
// Wolf 2017).
type GPT struct {
	Config      GPTConfig `name:"-"`
	Transformer *Decoder
}

// NewGPT returns a GPT with GPT-2's first values. It panics when the
// configuration is not valid.
func NewGPT(b *nn.Build, g GPTConfig) *GPT {
	if err := g.Validate(); err != nil {
		panic(err)
	}
	return &GPT{Config: g, Transformer: NewDecoder(b, g)}
}

// Forward turns int64 token ids [batch, time] into logits [batch, time, vocab].
func (m *GPT) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	h := c.Call(m.Transformer, ids)
	return tensor.Linear(h, c.Param(m.Transformer.Tokens.Weight), nil)
}

// Decoder is the transformer up to its last norm: token ids [batch, time] to
// features [batch, time, width].
type Decoder struct {
	Tokens    *nn.Embedding `name:"wte"`
	Positions *nn.Embedding `name:"wpe"`
	Blocks    []*Block      `name:"h"`
	Norm      *nn.LayerNorm `name:"ln_f"`
}

// NewDecoder returns a decoder with GPT-2's first values: weights of deviation
// 0.02, those that write into the residual stream divided by the square root
// of their number.
func NewDecoder(b *nn.Build, g GPTConfig) *Decoder {
	const std = 0.02
	residual := std / math.Sqrt(float64(2*g.Layers))
	d := &Decoder{
		Tokens:    &nn.Embedding{Weight: b.Normal(std, g.Vocab, g.Width)},
		Positions: &nn.Embedding{Weight: b.Normal(std, g.Context, g.Width)},
	}
	for range g.Layers {
		d.Blocks = append(d.Blocks, &Block{
			Norm1: nn.NewLayerNorm(b, g.Width),
			Attention: &SelfAttention{
				QKV:      newProjection(b, std, g.Width, 3*g.Width),
				Out:      newProjection(b, residual, g.Width, g.Width),
				numHeads: g.Heads,
			},
			Norm2: nn.NewLayerNorm(b, g.Width),
			MLP: &MLP{
				In:  newProjection(b, std, g.Width, 4*g.Width),
				Act: &nn.GELU{Tanh: g.Tanh},
				Out: newProjection(b, residual, 4*g.Width, g.Width),
			},
		})
	}
	d.Norm = nn.NewLayerNorm(b, g.Width)
	return d
}

// Forward computes the features of every position; with an nn.KVCache those of
// the positions that follow its own.
func (d *Decoder) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	time, past := ids.Dim(-1), c.KVCache().Len()
	positions := tensor.Arange(ids.Device(), past+time).Narrow(0, past, time)
	x := c.Call(d.Tokens, ids).Add(c.Call(d.Positions, positions))
	for _, block := range d.Blocks {
		x = c.Call(block, x)
	}
	return c.Call(d.Norm, x)
}

// Block is one layer: attention and a multilayer perceptron, each behind a
// norm and added to the residual stream.
type Block struct {
	Norm1     *nn.LayerNorm  `name:"ln_1"`
	Attention *SelfAttention `name:"attn"`
	Norm2     *nn.LayerNorm  `name:"ln_2"`
	MLP       *MLP           `name:"mlp"`
}

// Forward maps [batch, time, width] to the same shape.
func (b *Block) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	x = x.Add(c.Call(b.Attention, c.Call(b.Norm1, x)))
	return x.Add(c.Call(b.MLP, c.Call(b.Norm2, x)))
}

// SelfAttention is causal multi-head attention (Vaswani et al. 2017).
type SelfAttention struct {
	QKV *Projection `name:"c_attn"`
	Out *Projection `name:"c_proj"`

	numHeads int
}

// Forward maps [batch, time, width] to the same shape.
func (a *SelfAttention) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	o := tensor.AttentionOptions{Causal: true}
	qkv := c.Call(a.QKV, x)
	if c.KVCache() == nil {
		return c.Call(a.Out, tensor.SelfAttention(qkv, a.numHeads, o))
	}
	heads := qkv.Reshape(x.Dim(0), x.Dim(1), 3, a.numHeads, -1)
	k, v := c.KVCache().Append(a, heads.Select(2, 1), heads.Select(2, 2))
	y := tensor.ScaledDotProductAttention(heads.Select(2, 0), k, v, o)
	return c.Call(a.Out, y.Reshape(x.Shape()...))
}

// MLP widens four times, bends, and narrows again.
type MLP struct {
	In  *Projection `name:"c_fc"`
	Act *nn.GELU    `name:"act"`
	Out *Projection `name:"c_proj"`
}

// Forward maps [batch, time, width] to the same shape.
func (m *MLP) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return c.Call(m.Out, c.Call(m.Act, c.Call(m.In, x)))
}

// Projection is a linear layer with the weight laid out [in, out], as GPT-2's
// checkpoints have it.
type Projection struct {
	Weight *nn.Parameter // [in, out]
	Bias   *nn.Parameter // [out]
}

func newProjection(b *nn.Build, std float64, in, out int) *Projection {
	return &Projection{Weight: b.Normal(std, in, out), Bias: b.Empty(out)}
}

// Forward computes x·W + b.
func (p *Projection) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.Affine(x, c.Param(p.Weight), c.Param(p.Bias))
}
