// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// MoEConfig is the size of a mixture-of-experts transformer: a Llama whose
// feed-forward networks are many, of which each token uses a few.
type MoEConfig struct {
	LlamaConfig
	Experts int // in each layer
	Active  int // for each token
}

// Validate reports a size that makes no model.
func (g MoEConfig) Validate() error {
	if err := g.LlamaConfig.Validate(); err != nil {
		return err
	}
	if g.Window != 0 {
		return fmt.Errorf("models: a token of a mixture of experts sees all before it, not a window of %d", g.Window)
	}
	if err := checkSizes("mixture of experts", []size{{"number of experts", g.Experts, 1 << 16}}); err != nil {
		return err
	}
	return checkSizes("mixture of experts", []size{{"number of active experts", g.Active, g.Experts}})
}

// MoETransformer is the decoder of Jiang et al. 2024 (Mixtral, arXiv 2401.04088).
type MoETransformer struct {
	Config MoEConfig   `name:"-"`
	Model  *MoEDecoder `name:"model"`
	Head   *nn.Linear  `name:"lm_head"`
}

// NewMoETransformer returns the model. It panics when the configuration is not
// valid.
func NewMoETransformer(b *nn.Build, g MoEConfig) *MoETransformer {
	if err := g.Validate(); err != nil {
		panic(tensor.NewError("new moe", nil, "%v", err))
	}
	d := &MoEDecoder{Tokens: &nn.Embedding{Weight: b.Normal(0.02, g.Vocab, g.Width)}, rope: g.RoPE, dim: g.headDim()}
	for range g.Layers {
		d.Layers = append(d.Layers, &MoEBlock{
			Attention: newLlamaAttention(b, g.LlamaConfig),
			Experts:   NewMoE(b, g),
			Norm1:     newRMSNorm(b, g.LlamaConfig),
			Norm2:     newRMSNorm(b, g.LlamaConfig),
		})
	}
	d.Norm = newRMSNorm(b, g.LlamaConfig)
	return &MoETransformer{Config: g, Model: d, Head: newDense(b, g.Width, g.Vocab, false)}
}

// ForwardN turns int64 token ids [batch, time] into logits [batch, time, vocab]
// and the mean over the layers of the loss that keeps experts equally busy; see
// [MoE]. Training adds a hundredth of it.
func (m *MoETransformer) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("MoETransformer", in, "ids", 1)
	out := c.CallN(m.Model, in...)
	return []*tensor.Tensor{c.Call(m.Head, out[0]), out[1]}
}

// MoEDecoder is the transformer up to its last norm.
type MoEDecoder struct {
	Tokens *nn.Embedding `name:"embed_tokens"`
	Layers []*MoEBlock
	Norm   *nn.RMSNorm

	rope RoPEConfig
	dim  int
}

// ForwardN turns int64 token ids [batch, time] into features [batch, time,
// width] and the balance loss.
func (d *MoEDecoder) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("MoEDecoder", in, "ids", 1)
	cos, sin := d.rope.tables(c, in[0].Dim(-1), d.dim)
	x := c.Call(d.Tokens, in[0])
	var balance *tensor.Tensor
	for _, layer := range d.Layers {
		out := c.CallN(layer, x, cos, sin)
		x = out[0]
		if balance == nil {
			balance = out[1]
		} else {
			balance = balance.Add(out[1])
		}
	}
	return []*tensor.Tensor{c.Call(d.Norm, x), balance.MulScalar(1 / float64(len(d.Layers)))}
}

// MoEBlock is one layer: attention and the experts, each behind a norm and added
// to the residual stream.
type MoEBlock struct {
	Attention *LlamaAttention `name:"self_attn"`
	Experts   *MoE            `name:"block_sparse_moe"`
	Norm1     *nn.RMSNorm     `name:"input_layernorm"`
	Norm2     *nn.RMSNorm     `name:"post_attention_layernorm"`
}

// ForwardN maps x [batch, time, width], with the tables of the rotation, to the
// same shape and the layer's balance loss.
func (l *MoEBlock) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("MoEBlock", in, rotatedInputs, 3)
	x, cos, sin := in[0], in[1], in[2]
	x = x.Add(c.CallN(l.Attention, c.Call(l.Norm1, x), cos, sin)[0])
	out := c.CallN(l.Experts, c.Call(l.Norm2, x))
	return []*tensor.Tensor{x.Add(out[0]), out[1]}
}

// MoE is a set of feed-forward networks of which a router chooses a few for
// each token (Shazeer et al. 2017). A token's output is the sum of its experts'
// outputs, weighted by the router's probabilities among them. No token is
// dropped, however many want one expert.
type MoE struct {
	Gate    *nn.Linear
	Experts []*LlamaMLP

	active int
}

// NewMoE returns the experts of one layer.
func NewMoE(b *nn.Build, g MoEConfig) *MoE {
	m := &MoE{Gate: newDense(b, g.Width, g.Experts, false), active: g.Active}
	for range g.Experts {
		m.Experts = append(m.Experts, newLlamaMLP(b, g.LlamaConfig))
	}
	return m
}

// ForwardN maps x [batch, time, width] to the same shape, and returns the
// balance loss of Fedus et al. 2021 (Switch Transformers, equation 4) beside it:
// experts · Σ share of choices · mean probability, which is least, Active,
// when all experts are chosen equally often.
func (m *MoE) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("MoE", in, "x", 1)
	width := in[0].Dim(-1)
	x := in[0].Reshape(-1, width) // [tokens, width]
	tokens, experts := x.Dim(0), len(m.Experts)
	probs := c.Call(m.Gate, x).To(tensor.Float32).Softmax(-1) // [tokens, experts]
	top, chosen := probs.TopK(m.active, -1, true)
	weights := top.Div(top.SumKeep(-1)).Flatten(0, 1) // [tokens·active]

	// One list of places in chosen for each expert. The host reads them, for how many
	// an expert gets depends on the data.
	on := tensor.On(x.Device())
	places := make([][]int64, experts)
	for place, e := range chosen.Int64s() {
		places[e] = append(places[e], int64(place))
	}
	out := c.Tape().Const(tensor.New(x.Device(), tensor.Float32, tokens, width))
	share := make([]float32, experts)
	for e, expert := range m.Experts {
		share[e] = float32(len(places[e])) / float32(tokens)
		if len(places[e]) == 0 {
			continue
		}
		rows := make([]int64, len(places[e])) // of x
		for i, place := range places[e] {
			rows[i] = place / int64(m.active)
		}
		where := on.FromInt64(rows)
		y := c.Call(expert, x.IndexSelect(0, where))
		w := weights.IndexSelect(0, on.FromInt64(places[e])).Reshape(-1, 1)
		out = out.IndexAdd(0, where, y.Mul(w))
	}
	balance := probs.Mean(0).Mul(c.Tape().Const(on.FromFloat32(share))).Sum().MulScalar(float64(experts))
	return []*tensor.Tensor{out.Reshape(in[0].Shape()...), balance}
}

// String names the size.
func (g MoEConfig) String() string {
	return fmt.Sprintf("%d of %d experts, %d layers of width %d", g.Active, g.Experts, g.Layers, g.Width)
}
