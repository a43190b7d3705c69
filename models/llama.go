// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// LlamaConfig is the size of a Llama.
type LlamaConfig struct {
	Vocab    int // entries of the vocabulary
	Context  int // most tokens in a sequence
	Width    int // of the residual stream
	Hidden   int // width inside the feed-forward network
	Heads    int // of the queries
	KeyHeads int // of keys and values; they divide Heads
	HeadDim  int // channels of a head, even; 0 is Width / Heads
	Layers   int
	Epsilon  float64 // of the norms; 0 is 1e-5
	Tied     bool    // the output layer is the embedding table again
	RoPE     RoPEConfig
	// What published models vary; the zero values are Llama's own.
	AttentionBias bool       // the projections of attention have biases
	MLPBias       bool       // those of the feed-forward networks do
	Activation    Activation // of the gate; "" is "silu"
	Window        int        // a token sees so many, itself included (Mistral); 0 is all before it
}

// Validate reports a size that makes no model.
func (g LlamaConfig) Validate() error {
	if err := checkSizes("Llama", []size{
		{"vocabulary", g.Vocab, 1 << 24}, {"context", g.Context, 1 << 24}, {"width", g.Width, 1 << 20}, {"hidden width", g.Hidden, 1 << 22},
		{"number of heads", g.Heads, 1 << 20}, {"number of key heads", g.KeyHeads, 1 << 20}, {"number of layers", g.Layers, 1 << 14},
	}); err != nil {
		return err
	}
	if g.Heads%g.KeyHeads != 0 {
		return fmt.Errorf("models: the key heads of a Llama must divide its heads: %d %% %d = %d", g.Heads, g.KeyHeads, g.Heads%g.KeyHeads)
	}
	if g.HeadDim == 0 && g.Width%g.Heads != 0 {
		return fmt.Errorf("models: a Llama of width %d and %d heads must say how many channels a head has", g.Width, g.Heads)
	}
	if d := g.headDim(); d < 2 || d%2 != 0 || d > 1<<16 {
		return fmt.Errorf("models: the heads of a Llama have %d channels, want an even number up to %d", d, 1<<16)
	}
	if g.Window < 0 {
		return fmt.Errorf("models: a token of a Llama sees %d tokens, want 0 (for all before it) or more", g.Window)
	}
	if err := g.Activation.validate("Llama"); err != nil {
		return err
	}
	if !(g.Epsilon >= 0) {
		return fmt.Errorf("models: the epsilon of a Llama's norms is %v, want 0 (for 1e-5) or more", g.Epsilon)
	}
	return g.RoPE.validate()
}

func (g LlamaConfig) headDim() int {
	if g.HeadDim != 0 {
		return g.HeadDim
	}
	return g.Width / g.Heads
}

// Llama is the decoder-only transformer of Touvron et al. 2023 (arXiv
// 2302.13971, 2307.09288) with its Hugging Face names: norms before each part,
// rotary positions, grouped queries, SwiGLU. With a window it is a Mistral
// (Jiang et al. 2023, arXiv 2310.06825).
type Llama struct {
	Config LlamaConfig   `name:"-"`
	Model  *LlamaDecoder `name:"model"`
	Head   *nn.Linear    `name:"lm_head"` // nil if tied
}

// NewLlama returns a Llama whose weights have deviation 0.02. It panics when
// the configuration is not valid.
func NewLlama(b *nn.Build, g LlamaConfig) *Llama {
	if err := g.Validate(); err != nil {
		panic(tensor.NewError("new llama", nil, "%v", err))
	}
	m := &Llama{Config: g, Model: newLlamaDecoder(b, g)}
	if !g.Tied {
		m.Head = newDense(b, g.Width, g.Vocab, false)
	}
	return m
}

// Forward turns int64 token ids [batch, time] into logits [batch, time, vocab].
func (m *Llama) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	h := c.Call(m.Model, ids)
	if m.Head == nil {
		return tensor.Linear(h, c.Param(m.Model.Tokens.Weight), nil)
	}
	return c.Call(m.Head, h)
}

// LlamaDecoder is the transformer up to its last norm: token ids [batch, time]
// to features [batch, time, width].
type LlamaDecoder struct {
	Tokens *nn.Embedding `name:"embed_tokens"`
	Layers []*LlamaBlock
	Norm   *nn.RMSNorm

	rope RoPEConfig
	dim  int // channels of a head
}

func newLlamaDecoder(b *nn.Build, g LlamaConfig) *LlamaDecoder {
	d := &LlamaDecoder{Tokens: &nn.Embedding{Weight: b.Normal(0.02, g.Vocab, g.Width)}, rope: g.RoPE, dim: g.headDim()}
	for range g.Layers {
		d.Layers = append(d.Layers, &LlamaBlock{
			Attention: newLlamaAttention(b, g),
			MLP:       newLlamaMLP(b, g),
			Norm1:     newRMSNorm(b, g),
			Norm2:     newRMSNorm(b, g),
		})
	}
	d.Norm = newRMSNorm(b, g)
	return d
}

func newRMSNorm(b *nn.Build, g LlamaConfig) *nn.RMSNorm {
	n := nn.NewRMSNorm(b, g.Width)
	if n.Eps = g.Epsilon; n.Eps == 0 {
		n.Eps = 1e-5
	}
	return n
}

// newDense is a linear layer of deviation 0.02, with a bias of 0 or none.
func newDense(b *nn.Build, in, out int, bias bool) *nn.Linear {
	l := &nn.Linear{Weight: b.Normal(0.02, out, in)}
	if bias {
		l.Bias = b.Empty(out)
	}
	return l
}

// Forward computes the features of every position.
func (d *LlamaDecoder) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	cos, sin := d.rope.tables(c, ids.Dim(-1), d.dim)
	x := c.Call(d.Tokens, ids)
	for _, layer := range d.Layers {
		x = c.CallN(layer, x, cos, sin)[0]
	}
	return c.Call(d.Norm, x)
}

// rotatedInputs are what a ForwardN with rotated positions takes.
const rotatedInputs = "x, and the cosines and sines of the rotation"

// LlamaBlock is one layer: attention and a feed-forward network, each behind a
// norm and added to the residual stream.
type LlamaBlock struct {
	Attention *LlamaAttention `name:"self_attn"`
	MLP       *LlamaMLP       `name:"mlp"`
	Norm1     *nn.RMSNorm     `name:"input_layernorm"`
	Norm2     *nn.RMSNorm     `name:"post_attention_layernorm"`
}

// ForwardN maps x [batch, time, width], with the tables of the rotation, to one tensor of the
// same shape.
func (l *LlamaBlock) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("LlamaBlock", in, rotatedInputs, 3)
	x, cos, sin := in[0], in[1], in[2]
	x = x.Add(c.CallN(l.Attention, c.Call(l.Norm1, x), cos, sin)[0])
	return []*tensor.Tensor{x.Add(c.Call(l.MLP, c.Call(l.Norm2, x)))}
}

// LlamaAttention is causal attention in which several heads of queries share
// one of keys and values (Ainslie et al. 2023), with positions by rotation.
type LlamaAttention struct {
	Query *nn.Linear `name:"q_proj"`
	Key   *nn.Linear `name:"k_proj"`
	Value *nn.Linear `name:"v_proj"`
	Out   *nn.Linear `name:"o_proj"`

	Attention *nn.DotProductAttention
}

func newLlamaAttention(b *nn.Build, g LlamaConfig) *LlamaAttention {
	dim, bias := g.headDim(), g.AttentionBias
	return &LlamaAttention{
		Query: newDense(b, g.Width, g.Heads*dim, bias), Key: newDense(b, g.Width, g.KeyHeads*dim, bias),
		Value: newDense(b, g.Width, g.KeyHeads*dim, bias), Out: newDense(b, g.Heads*dim, g.Width, bias),
		Attention: &nn.DotProductAttention{HeadDim: dim, Causal: true, Window: g.Window},
	}
}

// ForwardN maps x [batch, time, width], with the tables of the rotation, to one tensor of the
// same shape.
func (a *LlamaAttention) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("LlamaAttention", in, rotatedInputs, 3)
	x, cos, sin := in[0], in[1], in[2]
	dim := a.Attention.HeadDim
	q, k, v := inHeads(c.Call(a.Query, x), dim), inHeads(c.Call(a.Key, x), dim), inHeads(c.Call(a.Value, x), dim)
	q, k = tensor.RoPE(q, cos, sin), tensor.RoPE(k, cos, sin)
	if cache := c.KVCache(); cache != nil {
		k, v = cache.Append(a, k, v)
	}
	y := c.CallN(a.Attention, q, k, v)[0]
	return []*tensor.Tensor{c.Call(a.Out, besideEachOther(y))}
}

// inHeads takes x [batch, time, width] to heads of dim channels, [batch, time, heads, dim]. How
// many there are follows from the width, which is smaller where ranks share the heads.
func inHeads(x *tensor.Tensor, dim int) *tensor.Tensor {
	return x.Reshape(x.Dim(0), x.Dim(1), x.Dim(2)/dim, dim)
}

// besideEachOther takes heads [batch, time, heads, dim] to [batch, time, heads·dim].
func besideEachOther(x *tensor.Tensor) *tensor.Tensor {
	return x.Reshape(x.Dim(0), x.Dim(1), x.Dim(2)*x.Dim(3))
}

// LlamaMLP is a feed-forward network with the gate SwiGLU (Shazeer 2020).
type LlamaMLP struct {
	Gate *nn.Linear `name:"gate_proj"`
	Up   *nn.Linear `name:"up_proj"`
	Down *nn.Linear `name:"down_proj"`

	act func(*tensor.Tensor) *tensor.Tensor // nil for the gate of SwiGLU
}

func newLlamaMLP(b *nn.Build, g LlamaConfig) *LlamaMLP {
	m := &LlamaMLP{
		Gate: newDense(b, g.Width, g.Hidden, g.MLPBias), Up: newDense(b, g.Width, g.Hidden, g.MLPBias),
		Down: newDense(b, g.Hidden, g.Width, g.MLPBias),
	}
	if g.Activation != "silu" && g.Activation != "swish" {
		m.act = g.Activation.or("")
	}
	return m
}

// Forward maps [batch, time, width] to the same shape.
func (m *LlamaMLP) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	gate, up := c.Call(m.Gate, x), c.Call(m.Up, x)
	if m.act != nil {
		return c.Call(m.Down, m.act(gate).Mul(up))
	}
	return c.Call(m.Down, tensor.SwiGLU(gate, up))
}
