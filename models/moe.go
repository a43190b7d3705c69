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
	// SharedHidden is the width inside a feed-forward network beside the experts that
	// computes every token; 0 is none. With SharedGate a sigmoid weighs it (Qwen).
	SharedHidden int
	SharedGate   bool
	// Router says how tokens choose. Its loss weights are those of the mean over the layers:
	// Mixtral was published with a Balance of 0.02 or less.
	Router nn.MoEOptions
}

// Validate reports a size that makes no model.
func (g MoEConfig) Validate() error {
	if err := g.LlamaConfig.Validate(); err != nil {
		return err
	}
	if err := checkSizes("mixture of experts", []size{{"number of experts", g.Experts, 1 << 16}}); err != nil {
		return err
	}
	if g.SharedHidden < 0 || g.SharedHidden > 1<<22 {
		return fmt.Errorf("models: the shared expert of a mixture of experts has the hidden width %d, want 0 (for none) to %d", g.SharedHidden, 1<<22)
	}
	if g.SharedGate && g.SharedHidden == 0 {
		return fmt.Errorf("models: a mixture of experts without a shared expert has a gate for it: set SharedHidden")
	}
	if err := g.Router.Validate(); err != nil {
		return fmt.Errorf("models: the router of a mixture of experts: %w", err)
	}
	return checkSizes("mixture of experts", []size{{"number of active experts", g.Active, g.Experts}})
}

// MoETransformer is the decoder of Jiang et al. 2024 (arXiv 2401.04088) with all that a router can
// vary. The published families are [Mixtral], [Qwen2MoE] and [Qwen3MoE]. In
// training its layers add the losses of the router by nn.Ctx.AddLoss.
type MoETransformer struct {
	Config MoEConfig `name:"-"`
	DecoderLM
}

// NewMoETransformer returns the model. It panics when the configuration is not
// valid.
func NewMoETransformer(b *nn.Build, g MoEConfig) *MoETransformer {
	must("new moe", g.Validate())
	if g.Window != 0 || g.Still != nil {
		must("new moe", fmt.Errorf("a token of a mixture of experts sees all before it, and all layers have positions"))
	}
	return &MoETransformer{g, newExpertLM(b, g, layerOptions{}, func(_ int, o layerOptions) nn.ModuleN { return newMoEBlock(b, g, o) })}
}

// newExpertLM builds a decoder of layers that layer makes, most of which have experts.
func newExpertLM(b *nn.Build, g MoEConfig, o layerOptions, layer func(i int, o layerOptions) nn.ModuleN) DecoderLM {
	m := newDecoderLM(b, g.LlamaConfig, o, []RoPEConfig{g.RoPE}, func(i int) decoderLayer {
		o := g.ofLayer(i, o)
		return decoderLayer{layer(i, o), o.rotation}
	})
	m.experts = g.Experts
	return m
}

// newMoE returns the experts of one layer, with weights of deviation 0.02.
func newMoE(b *nn.Build, g MoEConfig) *nn.MoE {
	m := &nn.MoE{Gate: newDense(b, g.Width, g.Experts, false), NumActive: g.Active, Options: g.Router}
	m.Options.Balance /= float64(g.Layers)
	m.Options.Z /= float64(g.Layers)
	m.Experts = &nn.Experts{
		Gate: b.Normal(0.02, g.Experts, g.Hidden, g.Width),
		Up:   b.Normal(0.02, g.Experts, g.Hidden, g.Width),
		Down: b.Normal(0.02, g.Experts, g.Width, g.Hidden),
	}
	if g.MLPBias {
		m.Experts.GateBias, m.Experts.UpBias, m.Experts.DownBias = b.Empty(g.Experts, g.Hidden), b.Empty(g.Experts, g.Hidden), b.Empty(g.Experts, g.Width)
	}
	if g.Activation != "silu" && g.Activation != "swish" {
		m.Experts.Activation = g.Activation.or("")
	}
	if g.SharedHidden > 0 {
		shared := g.LlamaConfig
		shared.Hidden = g.SharedHidden
		m.Shared = newLlamaMLP(b, shared)
		if g.SharedGate {
			m.SharedGate = newDense(b, g.Width, 1, false)
		}
	}
	if g.Router.BiasStep != 0 {
		m.ChoiceBias = &nn.Buffer{Data: b.Empty(g.Experts).Data()}
	}
	return m
}

// MoEBlock is one layer: attention and the experts, each behind a norm and added
// to the residual stream.
type MoEBlock struct {
	Attention *LlamaAttention `name:"self_attn"`
	Experts   *nn.MoE         `name:"block_sparse_moe"`
	Norm1     *nn.RMSNorm     `name:"input_layernorm"`
	Norm2     *nn.RMSNorm     `name:"post_attention_layernorm"`
}

func newMoEBlock(b *nn.Build, g MoEConfig, o layerOptions) *MoEBlock {
	return &MoEBlock{
		Attention: newLlamaAttention(b, g.LlamaConfig, o),
		Experts:   newMoE(b, g),
		Norm1:     newRMSNorm(b, g.LlamaConfig, g.Width, o),
		Norm2:     newRMSNorm(b, g.LlamaConfig, g.Width, o),
	}
}

// ForwardN maps x [batch, time, width], with the tables of the rotation, to one tensor of
// the same shape.
func (l *MoEBlock) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("MoEBlock", in, rotatedInputs, 1, 3)
	x := in[0]
	x = x.Add(c.CallN(l.Attention, behind(c.Call(l.Norm1, x), in)...)[0])
	return []*tensor.Tensor{x.Add(c.Call(l.Experts, c.Call(l.Norm2, x)))}
}

// String names the size.
func (g MoEConfig) String() string {
	return fmt.Sprintf("%d of %d experts, %d layers of width %d", g.Active, g.Experts, g.Layers, g.Width)
}
