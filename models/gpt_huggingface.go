// SPDX-License-Identifier: Apache-2.0

package models

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
)

// huggingFaceGPT2 is the config.json of a Hugging Face GPT-2, as far as it
// concerns us.
type huggingFaceGPT2 struct {
	Architectures []string   `json:"architectures"`
	ModelType     string     `json:"model_type"`
	TorchDType    string     `json:"torch_dtype"`
	Activation    Activation `json:"activation_function"`
	Vocab         int        `json:"vocab_size"`
	Context       int        `json:"n_positions"`
	Width         int        `json:"n_embd"`
	Hidden        *int       `json:"n_inner"`
	Layers        int        `json:"n_layer"`
	Heads         int        `json:"n_head"`
	Epsilon       float64    `json:"layer_norm_epsilon"`
	Tied          bool       `json:"tie_word_embeddings"`
	BOS           any        `json:"bos_token_id"` // a number, or a list of them: not the model's matter
	EOS           any        `json:"eos_token_id"`
	ResidDrop     float64    `json:"resid_pdrop"`
	EmbedDrop     float64    `json:"embd_pdrop"`
	AttnDrop      float64    `json:"attn_pdrop"`
	Scaled        bool       `json:"scale_attn_weights"`
	LayerScaled   bool       `json:"scale_attn_by_inverse_layer_idx"`
	// The names that other families have for the same, which go first.
	CommonContext int `json:"max_position_embeddings,omitempty"`
	CommonWidth   int `json:"hidden_size,omitempty"`
	CommonLayers  int `json:"num_hidden_layers,omitempty"`
	CommonHeads   int `json:"num_attention_heads,omitempty"`
}

var gpt2Settings = settings{
	honoured: []string{
		"model_type", "activation_function", "vocab_size", "n_positions", "n_embd", "n_inner", "n_layer", "n_head", "layer_norm_epsilon",
		"tie_word_embeddings", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "max_position_embeddings", "hidden_size", "num_hidden_layers",
		"num_attention_heads",
	},
	harmless: []string{
		"architectures", "is_decoder",
		"resid_pdrop", "embd_pdrop", "attn_pdrop", // who trains chooses
		"n_ctx",                                                                                                     // the size of a mask that was stored once
		"reorder_and_upcast_attn",                                                                                   // the same in float32
		"summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout", // of another head
		"n_special", "predict_special_tokens", // of GPT, of which GPT-2's were made
	},
}

const gpt2Epsilon = 1e-5

// HuggingFaceConfig returns the config.json that makes Hugging Face tools open
// the model's weights as a GPT-2.
func (m *GPT) HuggingFaceConfig() ([]byte, error) {
	g := m.Config
	hf := huggingFaceGPT2{
		Architectures: []string{"GPT2LMHeadModel"}, ModelType: "gpt2", TorchDType: "float32", Activation: g.activation(),
		Vocab: g.Vocab, Context: g.Context, Width: g.Width, Layers: g.Layers, Heads: g.Heads, Epsilon: m.Transformer.Norm.Eps, Tied: !g.Untied,
		Scaled: !g.Unscaled, LayerScaled: g.LayerScaled,
	}
	if g.Hidden != 0 {
		hf.Hidden = &g.Hidden
	}
	return json.MarshalIndent(hf, "", "  ")
}

// ParseGPTConfig reads a config.json of a Hugging Face GPT-2. What it does not
// say is what transformers takes.
func ParseGPTConfig(data []byte) (GPTConfig, error) {
	c, err := readConfig(data)
	if err != nil {
		return GPTConfig{}, err
	}
	return parseGPT(&c)
}

func parseGPT(c *configuration) (GPTConfig, error) {
	hf := huggingFaceGPT2{
		ModelType: "gpt2", Activation: "gelu_new", Vocab: 50257, Context: 1024, Width: 768, Layers: 12, Heads: 12, Epsilon: gpt2Epsilon, Tied: true, Scaled: true,
	}
	if err := c.decode(gpt2Settings, &hf); err != nil {
		return GPTConfig{}, err
	}
	if hf.ModelType != "gpt2" {
		return GPTConfig{}, fmt.Errorf("models: config.json is of a %q, want a gpt2", hf.ModelType)
	}
	if hf.Epsilon <= 0 {
		return GPTConfig{}, fmt.Errorf("models: config.json wants layer_norm_epsilon %v, which must be positive", hf.Epsilon)
	}
	g := GPTConfig{
		Vocab: hf.Vocab, Context: cmp.Or(hf.CommonContext, hf.Context), Width: cmp.Or(hf.CommonWidth, hf.Width), Heads: cmp.Or(hf.CommonHeads, hf.Heads),
		Layers: cmp.Or(hf.CommonLayers, hf.Layers), Untied: !hf.Tied, Unscaled: !hf.Scaled, LayerScaled: hf.LayerScaled,
	}
	if hf.Hidden != nil {
		if *hf.Hidden <= 0 {
			return GPTConfig{}, fmt.Errorf("models: config.json wants n_inner %d, which must be positive", *hf.Hidden)
		}
		g.Hidden = *hf.Hidden
	}
	if hf.Epsilon != gpt2Epsilon {
		g.Epsilon = hf.Epsilon
	}
	switch hf.Activation {
	case "gelu_new":
		g.Tanh = true
	case "gelu":
	default:
		g.Activation = hf.Activation
	}
	if err := g.Validate(); err != nil {
		return GPTConfig{}, fmt.Errorf("%w (in config.json)", err)
	}
	return g, nil
}

// fromHuggingFace leaves out the causal mask, which older files hold.
func (*GPT) fromHuggingFace(name string) string {
	name = withPrefix(name, "transformer.", "lm_head.")
	if strings.HasSuffix(name, ".attn.bias") || strings.HasSuffix(name, ".attn.masked_bias") {
		return ""
	}
	return name
}
