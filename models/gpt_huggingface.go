// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"fmt"
	"strings"
)

// huggingFaceGPT2 is the config.json of a Hugging Face GPT-2, as far as it
// concerns us.
type huggingFaceGPT2 struct {
	Architectures []string `json:"architectures"`
	ModelType     string   `json:"model_type"`
	TorchDType    string   `json:"torch_dtype"`
	Activation    string   `json:"activation_function"`
	Vocab         int      `json:"vocab_size"`
	Context       int      `json:"n_positions"`
	Width         int      `json:"n_embd"`
	Layers        int      `json:"n_layer"`
	Heads         int      `json:"n_head"`
	Epsilon       float64  `json:"layer_norm_epsilon"`
	Tied          bool     `json:"tie_word_embeddings"`
	BOS           *int     `json:"bos_token_id"`
	EOS           *int     `json:"eos_token_id"`
	ResidDrop     float64  `json:"resid_pdrop"`
	EmbedDrop     float64  `json:"embd_pdrop"`
	AttnDrop      float64  `json:"attn_pdrop"`
	// Other ways to compute attention, which a GPT does not have.
	Scaled        *bool `json:"scale_attn_weights,omitempty"`
	LayerScaled   bool  `json:"scale_attn_by_inverse_layer_idx,omitempty"`
	CrossAttended bool  `json:"add_cross_attention,omitempty"`
}

const gpt2Epsilon = 1e-5

// HuggingFaceConfig returns the config.json that makes Hugging Face tools open
// the model's weights as a GPT-2.
func (m *GPT) HuggingFaceConfig() ([]byte, error) {
	g := m.Config
	activation := "gelu"
	if g.Tanh {
		activation = "gelu_new"
	}
	return json.MarshalIndent(huggingFaceGPT2{
		Architectures: []string{"GPT2LMHeadModel"}, ModelType: "gpt2", TorchDType: "float32", Activation: activation,
		Vocab: g.Vocab, Context: g.Context, Width: g.Width, Layers: g.Layers, Heads: g.Heads, Epsilon: gpt2Epsilon, Tied: true,
	}, "", "  ")
}

// ParseGPTConfig reads a config.json of a Hugging Face GPT-2.
func ParseGPTConfig(data []byte) (GPTConfig, error) {
	hf := huggingFaceGPT2{Activation: "gelu_new", Epsilon: gpt2Epsilon, Tied: true}
	if err := json.Unmarshal(data, &hf); err != nil {
		return GPTConfig{}, fmt.Errorf("models: config.json: %w", err)
	}
	if hf.ModelType != "gpt2" {
		return GPTConfig{}, fmt.Errorf("models: config.json is of a %q, want a gpt2", hf.ModelType)
	}
	if hf.Epsilon != gpt2Epsilon || !hf.Tied {
		return GPTConfig{}, fmt.Errorf("models: config.json wants layer_norm_epsilon %v and tie_word_embeddings %v; a GPT has %v and true",
			hf.Epsilon, hf.Tied, gpt2Epsilon)
	}
	if hf.Scaled != nil && !*hf.Scaled || hf.LayerScaled || hf.CrossAttended {
		return GPTConfig{}, fmt.Errorf("models: config.json wants scale_attn_weights false, scale_attn_by_inverse_layer_idx or add_cross_attention true; a GPT has none of these")
	}
	g := GPTConfig{Vocab: hf.Vocab, Context: hf.Context, Width: hf.Width, Heads: hf.Heads, Layers: hf.Layers}
	switch hf.Activation {
	case "gelu_new", "gelu_pytorch_tanh":
		g.Tanh = true
	case "gelu":
	default:
		return GPTConfig{}, fmt.Errorf("models: config.json wants the activation %q; a GPT has gelu or gelu_new", hf.Activation)
	}
	if err := g.Validate(); err != nil {
		return GPTConfig{}, fmt.Errorf("%w (in config.json)", err)
	}
	return g, nil
}

func (m *GPT) fromHuggingFace(name string) string {
	name = withPrefix(name, "transformer.", "lm_head.")
	// The output layer is tied; older files hold the causal mask too.
	if name == "lm_head.weight" || strings.HasSuffix(name, ".attn.bias") || strings.HasSuffix(name, ".attn.masked_bias") {
		return ""
	}
	return name
}
