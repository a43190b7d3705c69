// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// DecoderLM is what decoders have in common: a table of tokens, layers of one shape, a norm,
// and an output layer. Each family is a struct that embeds it, in a file of its own, which
// chooses the parts: [Llama], [Qwen2], [Qwen3], [SmolLM3], [Gemma2], [Gemma3], and with experts
// [Mixtral], [Qwen2MoE], [Qwen3MoE] and [MoETransformer].
type DecoderLM struct {
	Model *Decoder   `name:"model"`
	Head  *nn.Linear `name:"lm_head"` // nil if tied

	sizes   LlamaConfig
	options layerOptions // of all layers
	experts int          // of a layer, 0 for none
}

// layerOptions are what families vary in a layer. The zero value is Llama's.
type layerOptions struct {
	inputBias bool // the projections to queries, keys and values have biases, and that of the result has none
	headNorm  bool // queries and keys are normed in each head
	plusOne   bool // the weights of norms are added to 1
	around    bool // norms stand behind attention and the feed-forward network too
	rotation  int  // which of the decoder's rotations turns queries and keys; still is none
	window    int  // how many tokens one sees, itself included; 0 is all
	scale     float64
	softCap   float64 // of the scores of attention
	cap       float64 // of the logits
}

// still is the rotation of a layer without positions.
const still = -1

// newDecoderLM builds a decoder of layers that layer makes.
func newDecoderLM(b *nn.Build, g LlamaConfig, o layerOptions, rotations []RoPEConfig, layer func(i int) decoderLayer) DecoderLM {
	d := &Decoder{Tokens: &nn.Embedding{Weight: b.Normal(0.02, g.Vocab, g.Width)}, rotations: rotations, dim: g.headDim()}
	for i := range g.Layers {
		l := layer(i)
		d.Layers = append(d.Layers, l.module)
		d.turns = append(d.turns, l.rotation)
	}
	d.Norm = newRMSNorm(b, g, g.Width, o)
	m := DecoderLM{Model: d, sizes: g, options: o}
	if !g.Tied {
		m.Head = newDense(b, g.Width, g.Vocab, false)
	}
	return m
}

// decoderLayer is a layer, and which of the decoder's rotations it takes.
type decoderLayer struct {
	module   nn.ModuleN
	rotation int
}

// Forward turns int64 token ids [batch, time] into logits [batch, time, vocab], or those of
// [nn.Ctx.WithCounted].
func (m *DecoderLM) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	h := c.Counted(c.Call(m.Model, ids))
	var logits *tensor.Tensor
	if m.Head == nil {
		logits = tensor.Linear(h, c.Param(m.Model.Tokens.Weight), nil)
	} else {
		logits = c.Call(m.Head, h)
	}
	if most := m.options.cap; most != 0 {
		logits = logits.MulScalar(1 / most).Tanh().MulScalar(most)
	}
	return logits
}

// Vocab is the number of tokens that the model knows.
func (m *DecoderLM) Vocab() int { return m.sizes.Vocab }

// Context is how many tokens it takes at once.
func (m *DecoderLM) Context() int { return m.sizes.Context }

// Shape is how many parts it has.
func (m *DecoderLM) Shape() CausalShape {
	return CausalShape{Heads: m.sizes.Heads, KeyHeads: m.sizes.KeyHeads, Layers: m.sizes.Layers, Experts: m.experts}
}

// IsBlock says whether a module is one of the layers.
func (m *DecoderLM) IsBlock(module any) bool {
	switch module.(type) {
	case *LlamaBlock, *GemmaBlock, *MoEBlock, *QwenMoEBlock:
		return true
	}
	return false
}

// LoRATargets are the projections to queries and values.
func (m *DecoderLM) LoRATargets() []string { return []string{"q_proj", "v_proj"} }

// TensorPlan says how ranks can share the modules of the model.
func (m *DecoderLM) TensorPlan() string {
	return m.attentionPlan() + mlpPlan("model.layers.*.mlp") + m.headPlan()
}

// mlpPlan is the part of the plan for a feed-forward network.
func mlpPlan(at string) string {
	return fmt.Sprintf("%[1]s.gate_proj: column\n%[1]s.up_proj: column\n%[1]s.down_proj: row\n", at)
}

// attentionPlan is the part of the plan that does not depend on what is beside attention.
func (m *DecoderLM) attentionPlan() string {
	var b strings.Builder
	fmt.Fprintf(&b, `
model.embed_tokens: vocabulary
model.layers.*.input_layernorm: sequence
model.layers.*.self_attn.q_proj: column in %d
model.layers.*.self_attn.k_proj: column in %d
model.layers.*.self_attn.v_proj: column in %[2]d
model.layers.*.self_attn.attention: heads
model.layers.*.self_attn.o_proj: row
model.layers.*.post_attention_layernorm: sequence
model.norm: sequence
.: logits
`, m.sizes.Heads, m.sizes.KeyHeads)
	if m.options.headNorm {
		b.WriteString("model.layers.*.self_attn.q_norm: heads\nmodel.layers.*.self_attn.k_norm: heads\n")
	}
	if m.options.around {
		b.WriteString("model.layers.*.pre_feedforward_layernorm: sequence\nmodel.layers.*.post_feedforward_layernorm: sequence\n")
	}
	return b.String()
}

// headPlan is the part of the plan for the output layer.
func (m *DecoderLM) headPlan() string {
	if m.Head == nil {
		return "model: output to copy\n" // for the table, which is read as the output layer
	}
	return "lm_head: column\n"
}

// fromHuggingFace leaves out the tables of the rotation, which older files
// hold.
func (*DecoderLM) fromHuggingFace(name string) string {
	if strings.Contains(name, "rotary_emb.") {
		return ""
	}
	return withPrefix(name, "model.", "lm_head.")
}

// Decoder is the transformer up to its last norm: token ids [batch, time] to features
// [batch, time, width].
type Decoder struct {
	Tokens *nn.Embedding `name:"embed_tokens"`
	Layers []nn.ModuleN
	Norm   *nn.RMSNorm

	rotations []RoPEConfig // tables that the layers share
	turns     []int        // which of them each layer takes
	dim       int          // channels of a head
	scale     float64      // multiplies the rows of the table; 0 does not
}

// Forward computes the features of every position.
func (d *Decoder) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	cos, sin := make([]*tensor.Tensor, len(d.rotations)), make([]*tensor.Tensor, len(d.rotations))
	for i, r := range d.rotations {
		cos[i], sin[i] = r.tables(c, ids.Dim(-1), d.dim)
	}
	x := c.Call(d.Tokens, ids)
	if d.scale != 0 {
		x = x.MulScalar(d.scale)
	}
	for i, layer := range d.Layers {
		if at := d.turns[i]; at == still {
			x = c.CallN(layer, x)[0]
		} else {
			x = c.CallN(layer, x, cos[at], sin[at])[0]
		}
	}
	return c.Call(d.Norm, x)
}

// newRMSNorm is a norm of as many channels as dim.
func newRMSNorm(b *nn.Build, g LlamaConfig, dim int, o layerOptions) *nn.RMSNorm {
	n := &nn.RMSNorm{Eps: g.Epsilon, PlusOne: o.plusOne}
	if n.Eps == 0 {
		n.Eps = 1e-5
	}
	if o.plusOne {
		n.Weight = b.Empty(dim)
	} else {
		n.Weight = b.Full(1, dim)
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

// must panics when the configuration of a model is not valid.
func must(op string, err error) {
	if err != nil {
		panic(tensor.NewError(op, nil, "%v", err))
	}
}
