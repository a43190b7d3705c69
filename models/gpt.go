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
	// What published models vary; the zero values are GPT-2's own.
	Hidden      int        // width inside the feed-forward networks; 0 is 4·Width
	Activation  Activation // "" is "gelu", with Tanh "gelu_new"
	Epsilon     float64    // of the norms; 0 is 1e-5
	Untied      bool       // the output layer has weights of its own
	Unscaled    bool       // scores of attention are not divided by the root of a head's channels
	LayerScaled bool       // layer i, from 0, divides its scores by i + 1
}

// Validate reports a size that makes no model.
func (g GPTConfig) Validate() error {
	if err := checkSizes("GPT", []size{
		{"vocabulary", g.Vocab, 1 << 24}, {"context", g.Context, 1 << 24}, {"width", g.Width, 1 << 20},
		{"hidden width", g.hidden(), 1 << 22}, {"number of heads", g.Heads, 1 << 20}, {"number of layers", g.Layers, 1 << 14},
	}); err != nil {
		return err
	}
	if err := g.Activation.validate("GPT"); err != nil {
		return err
	}
	if !(g.Epsilon >= 0) {
		return fmt.Errorf("models: the epsilon of a GPT's norms is %v, want 0 (for 1e-5) or more", g.Epsilon)
	}
	if g.Width%g.Heads != 0 {
		return fmt.Errorf("models: the width of a GPT must be a multiple of its heads: %d %% %d = %d", g.Width, g.Heads, g.Width%g.Heads)
	}
	return nil
}

func (g GPTConfig) hidden() int {
	if g.Hidden != 0 {
		return g.Hidden
	}
	return 4 * g.Width
}

// activation returns the name of the function in the feed-forward networks.
func (g GPTConfig) activation() Activation {
	switch {
	case g.Activation != "":
		return g.Activation
	case g.Tanh:
		return "gelu_new"
	}
	return "gelu"
}

// scale returns the factor of a layer's scores, 0 for that of attention itself.
func (g GPTConfig) scale(layer int) float64 {
	if !g.Unscaled && !g.LayerScaled {
		return 0
	}
	scale := 1.0
	if !g.Unscaled {
		scale = 1 / math.Sqrt(float64(g.Width/g.Heads))
	}
	if g.LayerScaled {
		scale /= float64(layer + 1)
	}
	return scale
}

// GPT is the decoder-only transformer of GPT-2 (Radford et al. 2019), with its
// Hugging Face names. The output layer is the embedding table again (Press and
// Wolf 2017), unless the configuration unties it.
type GPT struct {
	Config      GPTConfig `name:"-"`
	Transformer *GPTDecoder
	Head        *nn.Linear `name:"lm_head"` // nil if tied
}

// NewGPT returns a GPT with GPT-2's first values. It panics when the
// configuration is not valid.
func NewGPT(b *nn.Build, g GPTConfig) *GPT {
	if err := g.Validate(); err != nil {
		panic(tensor.NewError("new gpt", nil, "%v", err))
	}
	m := &GPT{Config: g, Transformer: NewGPTDecoder(b, g)}
	if g.Untied {
		m.Head = newDense(b, g.Width, g.Vocab, false)
	}
	return m
}

// Forward turns int64 token ids [batch, time] into logits [batch, time, vocab], or those of
// [nn.Ctx.WithCounted].
func (m *GPT) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	h := c.Counted(c.Call(m.Transformer, ids))
	if m.Head != nil {
		return c.Call(m.Head, h)
	}
	return tensor.Linear(h, c.Param(m.Transformer.Tokens.Weight), nil)
}

// GPTDecoder is the transformer up to its last norm: token ids [batch, time] to
// features [batch, time, width].
type GPTDecoder struct {
	Tokens    *nn.Embedding `name:"wte"`
	Positions *nn.Embedding `name:"wpe"`
	Blocks    []*GPTBlock   `name:"h"`
	Norm      *nn.LayerNorm `name:"ln_f"`
}

// NewGPTDecoder returns a decoder with GPT-2's first values: weights of deviation
// 0.02, those that write into the residual stream divided by the square root
// of their number.
func NewGPTDecoder(b *nn.Build, g GPTConfig) *GPTDecoder {
	const std = 0.02
	residual := std / math.Sqrt(float64(2*g.Layers))
	d := &GPTDecoder{
		Tokens:    &nn.Embedding{Weight: b.Normal(std, g.Vocab, g.Width)},
		Positions: &nn.Embedding{Weight: b.Normal(std, g.Context, g.Width)},
	}
	for i := range g.Layers {
		d.Blocks = append(d.Blocks, &GPTBlock{
			Norm1: newGPTNorm(b, g),
			Attention: &GPTAttention{
				QKV:       newConv1D(b, std, g.Width, 3*g.Width),
				Out:       newConv1D(b, residual, g.Width, g.Width),
				Attention: &nn.DotProductAttention{HeadDim: g.Width / g.Heads, Causal: true, Scale: g.scale(i)},
			},
			Norm2: newGPTNorm(b, g),
			MLP: &GPTMLP{
				In:  newConv1D(b, std, g.Width, g.hidden()),
				Act: &GPTActivation{g.Activation.or(g.activation())},
				Out: newConv1D(b, residual, g.hidden(), g.Width),
			},
		})
	}
	d.Norm = newGPTNorm(b, g)
	return d
}

func newGPTNorm(b *nn.Build, g GPTConfig) *nn.LayerNorm {
	n := nn.NewLayerNorm(b, g.Width)
	if g.Epsilon != 0 {
		n.Eps = g.Epsilon
	}
	return n
}

// Forward computes the features of every position; with an nn.KVCache those of
// the positions that follow its own.
func (d *GPTDecoder) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(d.Tokens, ids).Add(c.Call(d.Positions, c.Positions(ids.Dim(-1))))
	for _, block := range d.Blocks {
		x = c.Call(block, x)
	}
	return c.Call(d.Norm, x)
}

// GPTBlock is one layer: attention and a multilayer perceptron, each behind a
// norm and added to the residual stream.
type GPTBlock struct {
	Norm1     *nn.LayerNorm `name:"ln_1"`
	Attention *GPTAttention `name:"attn"`
	Norm2     *nn.LayerNorm `name:"ln_2"`
	MLP       *GPTMLP       `name:"mlp"`
}

// Forward maps [batch, time, width] to the same shape.
func (b *GPTBlock) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	x = x.Add(c.Call(b.Attention, c.Call(b.Norm1, x)))
	return x.Add(c.Call(b.MLP, c.Call(b.Norm2, x)))
}

// GPTAttention is causal multi-head attention (Vaswani et al. 2017).
type GPTAttention struct {
	QKV       *Conv1D `name:"c_attn"`
	Out       *Conv1D `name:"c_proj"`
	Attention *nn.DotProductAttention
}

// Forward maps [batch, time, width] to the same shape.
func (a *GPTAttention) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	qkv := c.Call(a.QKV, x)
	if c.KVCache() == nil {
		return c.Call(a.Out, c.CallN(a.Attention, qkv)[0])
	}
	dim := a.Attention.HeadDim
	heads := qkv.Reshape(x.Dim(0), x.Dim(1), 3, qkv.Dim(2)/(3*dim), dim)
	k, v := c.KVCache().Append(a, heads.Select(2, 1), heads.Select(2, 2))
	y := c.CallN(a.Attention, heads.Select(2, 0), k, v)[0]
	return c.Call(a.Out, besideEachOther(y))
}

// GPTMLP widens, four times where nothing else is asked for, bends, and narrows
// again.
type GPTMLP struct {
	In  *Conv1D        `name:"c_fc"`
	Act *GPTActivation `name:"act"`
	Out *Conv1D        `name:"c_proj"`
}

// GPTActivation is the function inside a GPTMLP.
type GPTActivation struct {
	apply func(*tensor.Tensor) *tensor.Tensor
}

// Forward applies the function.
func (a *GPTActivation) Forward(_ *nn.Ctx, x *tensor.Tensor) *tensor.Tensor { return a.apply(x) }

// Forward maps [batch, time, width] to the same shape.
func (m *GPTMLP) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return c.Call(m.Out, c.Call(m.Act, c.Call(m.In, x)))
}

// Conv1D is a linear layer with the weight laid out [in, out], as GPT-2's
// checkpoints have it.
type Conv1D struct {
	Weight *nn.Parameter // [in, out]
	Bias   *nn.Parameter // [out]
}

func newConv1D(b *nn.Build, std float64, in, out int) *Conv1D {
	return &Conv1D{Weight: b.Normal(std, in, out), Bias: b.Empty(out)}
}

// Forward computes x·W + b.
func (p *Conv1D) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.Affine(x, c.Param(p.Weight), c.Param(p.Bias))
}
