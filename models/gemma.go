// SPDX-License-Identifier: Apache-2.0

package models

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// GemmaConfig is what the sizes of a [Gemma2] and a [Gemma3] have in common: those of a Llama,
// whose Activation "" is "gelu_pytorch_tanh" here, and
type GemmaConfig struct {
	LlamaConfig
	// QueryScalar is by whose root the scores of attention are divided; 0 is the channels of a
	// head.
	QueryScalar float64
	// LogitCap c takes each logit x to c·tanh(x/c); 0 leaves them.
	LogitCap float64
}

// Validate reports a size that makes no model.
func (g GemmaConfig) Validate() error {
	switch {
	case g.MLPBias || g.Still != nil:
		return fmt.Errorf("models: the feed-forward networks of a Gemma have no biases, and its layers all have positions")
	case !(g.QueryScalar >= 0) || math.IsInf(g.QueryScalar, 1):
		return fmt.Errorf("models: the scores of a Gemma are divided by the root of %v, want a positive number, or 0 for the channels of a head", g.QueryScalar)
	case !(g.LogitCap >= 0) || math.IsInf(g.LogitCap, 1):
		return fmt.Errorf("models: the logits of a Gemma are bounded by %v, want a positive number, or 0 for no bound", g.LogitCap)
	}
	return g.LlamaConfig.Validate()
}

// options are what the layers of both have.
func (g GemmaConfig) options() layerOptions {
	return layerOptions{
		plusOne: true, around: true, cap: g.LogitCap, scale: 1 / math.Sqrt(cmp.Or(g.QueryScalar, float64(g.headDim()))),
	}
}

// newGemma builds a decoder of Gemma's layers. rotation says which of the rotations a layer
// takes.
func newGemma(b *nn.Build, g GemmaConfig, o layerOptions, rotations []RoPEConfig, rotation func(windowed bool) int) DecoderLM {
	sizes := g.LlamaConfig
	sizes.Activation = cmp.Or(sizes.Activation, "gelu_pytorch_tanh")
	m := newDecoderLM(b, sizes, o, rotations, func(i int) decoderLayer {
		o := sizes.ofLayer(i, o)
		return decoderLayer{newGemmaBlock(b, sizes, o), rotation(o.window != 0)}
	})
	m.Model.scale = float64(float32(math.Sqrt(float64(g.Width))))
	return m
}

// GemmaBlock is one layer: attention and a feed-forward network, each between two norms and
// added to the residual stream.
type GemmaBlock struct {
	Attention *LlamaAttention `name:"self_attn"`
	MLP       *LlamaMLP       `name:"mlp"`
	Norm1     *nn.RMSNorm     `name:"input_layernorm"`
	Norm2     *nn.RMSNorm     `name:"post_attention_layernorm"` // behind attention, unlike that of Llama's name
	Norm3     *nn.RMSNorm     `name:"pre_feedforward_layernorm"`
	Norm4     *nn.RMSNorm     `name:"post_feedforward_layernorm"`
}

func newGemmaBlock(b *nn.Build, g LlamaConfig, o layerOptions) *GemmaBlock {
	return &GemmaBlock{
		Attention: newLlamaAttention(b, g, o),
		MLP:       newLlamaMLP(b, g),
		Norm1:     newRMSNorm(b, g, g.Width, o),
		Norm2:     newRMSNorm(b, g, g.Width, o),
		Norm3:     newRMSNorm(b, g, g.Width, o),
		Norm4:     newRMSNorm(b, g, g.Width, o),
	}
}

// ForwardN maps x [batch, time, width], with the tables of the rotation, to one tensor of the
// same shape.
func (l *GemmaBlock) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("GemmaBlock", in, rotatedInputs, 3)
	x := in[0]
	x = x.Add(c.Call(l.Norm2, c.CallN(l.Attention, behind(c.Call(l.Norm1, x), in)...)[0]))
	return []*tensor.Tensor{x.Add(c.Call(l.Norm4, c.Call(l.MLP, c.Call(l.Norm3, x))))}
}

// decimal is a number that is written with a point: where transformers declares a float, it
// takes no 30.
type decimal float64

// MarshalJSON writes 30 as 30.0.
func (d decimal) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(float64(d))
	if err == nil && !bytes.ContainsAny(text, ".e") {
		text = append(text, ".0"...)
	}
	return text, err
}

// huggingFaceGemma is the config.json of a Gemma 2 or 3.
type huggingFaceGemma struct {
	huggingFaceDecoder
	Gate        Activation `json:"hidden_activation"`
	QueryScalar float64    `json:"query_pre_attn_scalar"`
	ScoreCap    *decimal   `json:"attn_logit_softcapping"`
	LogitCap    *decimal   `json:"final_logit_softcapping"`
}

var (
	gemmaSettings = append(rotatedSettings[:len(rotatedSettings):len(rotatedSettings)],
		"attention_bias", "hidden_activation", "query_pre_attn_scalar", "final_logit_softcapping")
	gemmaHarmless = append(rotatedHarmless[:len(rotatedHarmless):len(rotatedHarmless)],
		"cache_implementation", // who generates chooses
	)
)

// gemmaDefaults is what transformers takes for what the config.json of a Gemma does not say.
func gemmaDefaults(c *configuration, kind string) huggingFaceGemma {
	base, window := 10_000.0, 4096
	return huggingFaceGemma{Gate: "gelu_pytorch_tanh", QueryScalar: 256, huggingFaceDecoder: huggingFaceDecoder{
		ModelType: kind, Width: 2304, Hidden: 9216, Layers: 26, Heads: 8, KeyHeads: c.absent("num_key_value_heads", 4),
		HeadDim: c.absent("head_dim", 256), Epsilon: 1e-6, Tied: true, Base: &base, Window: &window,
	}}
}

// gemma returns the sizes that a config.json says.
func (hf *huggingFaceGemma) gemma(sliding func(layer int) bool) (GemmaConfig, error) {
	hf.Activation = hf.Gate // what hidden_act says is an older file's, and not computed
	sizes, err := hf.sizes()
	if err != nil {
		return GemmaConfig{}, err
	}
	if err := hf.windows(&sizes, sliding); err != nil {
		return GemmaConfig{}, err
	}
	if hf.QueryScalar <= 0 {
		return GemmaConfig{}, fmt.Errorf("models: config.json wants query_pre_attn_scalar %v, which must be positive", hf.QueryScalar)
	}
	g := GemmaConfig{LlamaConfig: sizes, QueryScalar: hf.QueryScalar}
	if hf.LogitCap != nil {
		if g.LogitCap = float64(*hf.LogitCap); g.LogitCap <= 0 {
			return GemmaConfig{}, fmt.Errorf("models: config.json wants final_logit_softcapping %v, which must be positive or null", g.LogitCap)
		}
	}
	return g, inConfig(g.Validate())
}

// huggingFace returns the config.json of a Gemma of a family.
func (g GemmaConfig) huggingFace(class, kind string, epsilon float64) huggingFaceGemma {
	hf := huggingFaceGemma{
		huggingFaceDecoder: huggingFaceOf(class, kind, g.LlamaConfig, epsilon),
		Gate:               cmp.Or(g.Activation, "gelu_pytorch_tanh"), QueryScalar: cmp.Or(g.QueryScalar, float64(g.headDim())),
	}
	hf.Activation = ""
	hf.LayerTypes = g.layerTypes()
	if g.Window == 0 {
		window := g.Context // which no sequence is longer than
		hf.Window = &window
	}
	if g.LogitCap != 0 {
		hf.LogitCap = (*decimal)(&g.LogitCap)
	}
	return hf
}
