// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"fmt"
	"strings"
)

// huggingFaceLlama is the config.json of a Hugging Face Llama, as far as it
// concerns us. The rotation is described by rope_parameters since version 5 of
// transformers, before by rope_theta and rope_scaling.
type huggingFaceLlama struct {
	Architectures []string         `json:"architectures"`
	ModelType     string           `json:"model_type"`
	TorchDType    string           `json:"torch_dtype"`
	Activation    string           `json:"hidden_act"`
	Vocab         int              `json:"vocab_size"`
	Context       int              `json:"max_position_embeddings"`
	Width         int              `json:"hidden_size"`
	Hidden        int              `json:"intermediate_size"`
	Layers        int              `json:"num_hidden_layers"`
	Heads         int              `json:"num_attention_heads"`
	KeyHeads      int              `json:"num_key_value_heads"`
	HeadDim       int              `json:"head_dim,omitempty"`
	Epsilon       float64          `json:"rms_norm_eps"`
	Tied          bool             `json:"tie_word_embeddings"`
	AttentionBias bool             `json:"attention_bias"`
	MLPBias       bool             `json:"mlp_bias"`
	Base          float64          `json:"rope_theta"`
	Scaling       *huggingFaceRoPE `json:"rope_scaling"`
	RoPE          *huggingFaceRoPE `json:"rope_parameters,omitempty"`
}

type huggingFaceRoPE struct {
	Type       string  `json:"rope_type,omitempty"`
	OldType    string  `json:"type,omitempty"`
	Base       float64 `json:"rope_theta,omitempty"`
	Factor     float64 `json:"factor,omitempty"`
	LowFactor  float64 `json:"low_freq_factor,omitempty"`
	HighFactor float64 `json:"high_freq_factor,omitempty"`
	Context    int     `json:"original_max_position_embeddings,omitempty"`
}

// HuggingFaceConfig returns the config.json that makes Hugging Face tools open
// the model's weights as a Llama.
func (m *Llama) HuggingFaceConfig() ([]byte, error) {
	g := m.Config
	hf := huggingFaceLlama{
		Architectures: []string{"LlamaForCausalLM"}, ModelType: "llama", TorchDType: "float32", Activation: "silu",
		Vocab: g.Vocab, Context: g.Context, Width: g.Width, Hidden: g.Hidden, Layers: g.Layers, Heads: g.Heads, KeyHeads: g.KeyHeads,
		HeadDim: g.headDim(), Epsilon: m.Model.Norm.Eps, Tied: g.Tied, Base: g.RoPE.Base,
	}
	if hf.Base == 0 {
		hf.Base = 10_000
	}
	if s := g.RoPE.Scaling; s != nil {
		hf.Scaling = &huggingFaceRoPE{Type: "llama3", Factor: s.Factor, LowFactor: s.LowFactor, HighFactor: s.HighFactor, Context: s.Context}
		if s.HighFactor == 0 {
			hf.Scaling = &huggingFaceRoPE{Type: "linear", Factor: s.Factor}
		}
	}
	return json.MarshalIndent(hf, "", "  ")
}

// ParseLlamaConfig reads a config.json of a Hugging Face Llama.
func ParseLlamaConfig(data []byte) (LlamaConfig, error) {
	hf := huggingFaceLlama{Activation: "silu", Epsilon: 1e-6, Base: 10_000}
	if err := json.Unmarshal(data, &hf); err != nil {
		return LlamaConfig{}, fmt.Errorf("models: config.json: %w", err)
	}
	switch {
	case hf.ModelType != "llama":
		return LlamaConfig{}, fmt.Errorf("models: config.json is of a %q, want a llama", hf.ModelType)
	case hf.Activation != "silu":
		return LlamaConfig{}, fmt.Errorf("models: config.json wants the activation %q; a Llama has silu", hf.Activation)
	case hf.AttentionBias || hf.MLPBias:
		return LlamaConfig{}, fmt.Errorf("models: config.json wants attention_bias %t and mlp_bias %t; a Llama has neither", hf.AttentionBias, hf.MLPBias)
	case hf.Epsilon <= 0:
		return LlamaConfig{}, fmt.Errorf("models: config.json wants rms_norm_eps %v, which must be positive", hf.Epsilon)
	}
	if hf.KeyHeads == 0 {
		hf.KeyHeads = hf.Heads
	}
	rope, err := hf.rope()
	if err != nil {
		return LlamaConfig{}, err
	}
	g := LlamaConfig{
		Vocab: hf.Vocab, Context: hf.Context, Width: hf.Width, Hidden: hf.Hidden, Heads: hf.Heads, KeyHeads: hf.KeyHeads,
		HeadDim: hf.HeadDim, Layers: hf.Layers, Epsilon: hf.Epsilon, Tied: hf.Tied, RoPE: rope,
	}
	if err := g.Validate(); err != nil {
		return LlamaConfig{}, fmt.Errorf("%w (in config.json)", err)
	}
	return g, nil
}

func (hf *huggingFaceLlama) rope() (RoPEConfig, error) {
	r, p := RoPEConfig{Base: hf.Base}, hf.Scaling
	if hf.RoPE != nil {
		p = hf.RoPE
		if p.Base != 0 {
			r.Base = p.Base
		}
	}
	if p == nil {
		return r, nil
	}
	kind := p.Type
	if kind == "" {
		kind = p.OldType
	}
	switch kind {
	case "default", "":
	case "linear":
		r.Scaling = &RoPEScaling{Factor: p.Factor}
	case "llama3":
		if p.LowFactor == 0 && p.HighFactor == 0 { // which stands for linear scaling
			return RoPEConfig{}, fmt.Errorf("models: config.json wants rotary embeddings of type llama3 without low_freq_factor and high_freq_factor")
		}
		r.Scaling = &RoPEScaling{Factor: p.Factor, LowFactor: p.LowFactor, HighFactor: p.HighFactor, Context: p.Context}
	default:
		return RoPEConfig{}, fmt.Errorf("models: config.json wants rotary embeddings of type %q; there are default, linear and llama3", kind)
	}
	return r, nil
}

func (m *Llama) fromHuggingFace(name string) string {
	if strings.HasSuffix(name, "rotary_emb.inv_freq") || m.Head == nil && name == "lm_head.weight" {
		return ""
	}
	return withPrefix(name, "model.", "lm_head.")
}
