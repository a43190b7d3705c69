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
	Windowed      []bool     // the layers that have the window; nil is all of them
	Still         []bool     // the layers that turn no positions (SmolLM3); nil is none of them
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
	for name, list := range map[string][]bool{"windows": g.Windowed, "layers without positions": g.Still} {
		if list != nil && len(list) != g.Layers {
			return fmt.Errorf("models: the list of %s of a Llama has %d entries for %d layers", name, len(list), g.Layers)
		}
	}
	if err := g.Activation.validate("Llama"); err != nil {
		return err
	}
	if !(g.Epsilon >= 0) {
		return fmt.Errorf("models: the epsilon of a Llama's norms is %v, want 0 (for 1e-5) or more", g.Epsilon)
	}
	return g.RoPE.validateFor(g.headDim())
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
// (Jiang et al. 2023, arXiv 2310.06825). Its parts are those of most decoders since.
type Llama struct {
	Config LlamaConfig `name:"-"`
	DecoderLM
}

// NewLlama returns a Llama whose weights have deviation 0.02. It panics when
// the configuration is not valid.
func NewLlama(b *nn.Build, g LlamaConfig) *Llama {
	must("new llama", g.Validate())
	return &Llama{g, newLlamaLike(b, g, layerOptions{})}
}

// newLlamaLike builds a decoder whose layers are Llama's, but for options. A window is that of
// the configuration.
func newLlamaLike(b *nn.Build, g LlamaConfig, o layerOptions) DecoderLM {
	return newDecoderLM(b, g, o, []RoPEConfig{g.RoPE}, func(i int) decoderLayer {
		o := g.ofLayer(i, o)
		return decoderLayer{newLlamaBlock(b, g, o), o.rotation}
	})
}

// ofLayer returns the options of a layer.
func (g LlamaConfig) ofLayer(i int, o layerOptions) layerOptions {
	if g.Window > 0 && (g.Windowed == nil || g.Windowed[i]) {
		o.window = g.Window
	}
	if g.Still != nil && g.Still[i] {
		o.rotation = still
	}
	return o
}

// rotatedInputs are what a ForwardN with rotated positions takes.
const rotatedInputs = "x, and perhaps the cosines and sines of the rotation"

// LlamaBlock is one layer: attention and a feed-forward network, each behind a
// norm and added to the residual stream.
type LlamaBlock struct {
	Attention *LlamaAttention `name:"self_attn"`
	MLP       *LlamaMLP       `name:"mlp"`
	Norm1     *nn.RMSNorm     `name:"input_layernorm"`
	Norm2     *nn.RMSNorm     `name:"post_attention_layernorm"`
}

func newLlamaBlock(b *nn.Build, g LlamaConfig, o layerOptions) *LlamaBlock {
	return &LlamaBlock{
		Attention: newLlamaAttention(b, g, o),
		MLP:       newLlamaMLP(b, g),
		Norm1:     newRMSNorm(b, g, g.Width, o),
		Norm2:     newRMSNorm(b, g, g.Width, o),
	}
}

// ForwardN maps x [batch, time, width], with the tables of the rotation where there is one, to
// one tensor of the same shape.
func (l *LlamaBlock) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("LlamaBlock", in, rotatedInputs, 1, 3)
	x := in[0]
	x = x.Add(c.CallN(l.Attention, behind(c.Call(l.Norm1, x), in)...)[0])
	return []*tensor.Tensor{x.Add(c.Call(l.MLP, c.Call(l.Norm2, x)))}
}

// behind returns what a part of a layer takes: x, and the tables among the layer's inputs.
func behind(x *tensor.Tensor, in []*tensor.Tensor) []*tensor.Tensor {
	return append([]*tensor.Tensor{x}, in[1:]...)
}

// LlamaAttention is causal attention in which several heads of queries share
// one of keys and values (Ainslie et al. 2023), with positions by rotation. The norms of
// queries and keys (Henry et al. 2020, arXiv 2010.04245) are those of later families.
type LlamaAttention struct {
	Query *nn.Linear `name:"q_proj"`
	Key   *nn.Linear `name:"k_proj"`
	Value *nn.Linear `name:"v_proj"`
	Out   *nn.Linear `name:"o_proj"`

	QueryNorm *nn.RMSNorm `name:"q_norm"` // of the channels of a head, nil for none
	KeyNorm   *nn.RMSNorm `name:"k_norm"`

	Attention *nn.DotProductAttention
}

func newLlamaAttention(b *nn.Build, g LlamaConfig, o layerOptions) *LlamaAttention {
	dim, bias := g.headDim(), g.AttentionBias || o.inputBias
	a := &LlamaAttention{
		Query: newDense(b, g.Width, g.Heads*dim, bias), Key: newDense(b, g.Width, g.KeyHeads*dim, bias),
		Value: newDense(b, g.Width, g.KeyHeads*dim, bias), Out: newDense(b, g.Heads*dim, g.Width, g.AttentionBias),
		Attention: &nn.DotProductAttention{HeadDim: dim, Causal: true, Window: o.window, Scale: o.scale, SoftCap: o.softCap},
	}
	if o.headNorm {
		a.QueryNorm, a.KeyNorm = newRMSNorm(b, g, dim, o), newRMSNorm(b, g, dim, o)
	}
	return a
}

// ForwardN maps x [batch, time, width], with the tables of the rotation where there is one, to
// one tensor of the same shape.
func (a *LlamaAttention) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("LlamaAttention", in, rotatedInputs, 1, 3)
	x, dim := in[0], a.Attention.HeadDim
	q, k, v := inHeads(c.Call(a.Query, x), dim), inHeads(c.Call(a.Key, x), dim), inHeads(c.Call(a.Value, x), dim)
	if a.QueryNorm != nil {
		q, k = c.Call(a.QueryNorm, q), c.Call(a.KeyNorm, k)
	}
	if len(in) == 3 {
		q, k = turn(q, in[1], in[2]), turn(k, in[1], in[2])
	}
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
