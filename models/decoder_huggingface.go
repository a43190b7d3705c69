// SPDX-License-Identifier: Apache-2.0

package models

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// huggingFaceDecoder is the config.json of a Hugging Face decoder, as far as it concerns us:
// what most families have. The rotation is described by rope_parameters since version 5 of
// transformers, before by rope_theta and rope_scaling.
type huggingFaceDecoder struct {
	Architectures []string         `json:"architectures"`
	ModelType     string           `json:"model_type"`
	TorchDType    string           `json:"torch_dtype"`
	Activation    Activation       `json:"hidden_act,omitempty"`
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
	AttentionBias bool             `json:"attention_bias,omitempty"`
	MLPBias       bool             `json:"mlp_bias,omitempty"`
	Base          *float64         `json:"rope_theta"`
	Scaling       *huggingFaceRoPE `json:"rope_scaling"`
	RoPE          *huggingFaceRoPE `json:"rope_parameters,omitempty"`
	OldContext    int              `json:"original_max_position_embeddings,omitempty"`
	Window        *int             `json:"sliding_window,omitempty"`
	LayerTypes    []string         `json:"layer_types,omitempty"`
	// Of the Qwens and SmolLM3.
	UseWindow    bool `json:"use_sliding_window,omitempty"`
	FirstWindows *int `json:"max_window_layers,omitempty"`
	// Pad is null: some classes have a padding token of their own, which a small vocabulary lacks.
	Pad *int `json:"pad_token_id"`
}

var (
	llamaSettings = settings{
		honoured: append(slices.Clip(rotatedSettings), "attention_bias", "mlp_bias"),
		harmless: rotatedHarmless,
		plain:    rotatedPlain,
	}
	mistralSettings = settings{
		honoured: rotatedSettings,
		harmless: rotatedHarmless,
		plain:    map[string][]any{"partial_rotary_factor": {1.0}, "attention_bias": nil, "mlp_bias": nil},
	}
	// What decoders have in common.
	rotatedSettings = []string{
		"model_type", "hidden_act", "vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
		"num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings", "rope_theta", "rope_scaling", "rope_parameters",
		"original_max_position_embeddings", "sliding_window", "layer_types",
	}
	rotatedHarmless = []string{
		"architectures", "is_decoder",
		"attention_dropout", // who trains chooses
	}
	rotatedPlain = map[string][]any{"partial_rotary_factor": {1.0}}
)

const (
	fullAttention    = "full_attention"
	slidingAttention = "sliding_attention"
)

// huggingFaceOf returns the config.json of a model of a family with such sizes, whose norms
// have an epsilon.
func huggingFaceOf(class, kind string, g LlamaConfig, epsilon float64) huggingFaceDecoder {
	base := g.RoPE.base()
	hf := huggingFaceDecoder{
		Architectures: []string{class}, ModelType: kind, TorchDType: "float32", Activation: cmp.Or(g.Activation, "silu"),
		Vocab: g.Vocab, Context: g.Context, Width: g.Width, Hidden: g.Hidden, Layers: g.Layers, Heads: g.Heads, KeyHeads: g.KeyHeads,
		HeadDim: g.headDim(), Epsilon: epsilon, Tied: g.Tied, AttentionBias: g.AttentionBias, MLPBias: g.MLPBias, Base: &base,
		Scaling: huggingFaceScaling(g.RoPE),
	}
	if g.Window != 0 {
		hf.Window, hf.LayerTypes = &g.Window, g.layerTypes()
	}
	return hf
}

// layerTypes are the names of what each layer sees.
func (g LlamaConfig) layerTypes() []string {
	types := make([]string, g.Layers)
	for i := range types {
		types[i] = fullAttention
		if g.Window != 0 && (g.Windowed == nil || g.Windowed[i]) {
			types[i] = slidingAttention
		}
	}
	return types
}

// HuggingFaceConfig returns the config.json that makes Hugging Face tools open
// the model's weights as a Llama or, where it has a window, as a Mistral.
func (m *Llama) HuggingFaceConfig() ([]byte, error) {
	g := m.Config
	hf := huggingFaceOf("LlamaForCausalLM", "llama", g, m.Model.Norm.Eps)
	hf.LayerTypes = nil
	switch {
	case g.Windowed != nil || g.Still != nil:
		return nil, fmt.Errorf("models: a Llama with a window in some layers, or with layers without positions, is no model that Hugging Face's tools know")
	case g.Window != 0 && (g.AttentionBias || g.MLPBias):
		return nil, fmt.Errorf("models: a Llama with a window of %d tokens and biases is no model that Hugging Face's tools know", g.Window)
	case g.Window != 0:
		hf.Architectures, hf.ModelType = []string{"MistralForCausalLM"}, "mistral"
	}
	return json.MarshalIndent(hf, "", "  ")
}

// ParseLlamaConfig reads a config.json of a Hugging Face Llama or Mistral. What
// it does not say is what transformers takes.
func ParseLlamaConfig(data []byte) (LlamaConfig, error) {
	c, err := readConfig(data)
	if err != nil {
		return LlamaConfig{}, err
	}
	return parseLlama(&c)
}

func parseLlama(c *configuration) (LlamaConfig, error) {
	base := 10_000.0
	hf := huggingFaceDecoder{
		ModelType: "llama", Activation: "silu", Vocab: 32000, Context: 2048, Width: 4096, Hidden: 11008, Layers: 32, Heads: 32, Epsilon: 1e-6, Base: &base,
	}
	known := llamaSettings
	switch kind, err := c.modelType(); {
	case err != nil:
		return LlamaConfig{}, err
	case kind == "mistral":
		window := 4096
		hf.Context, hf.Hidden, hf.Window, known = 4096*32, 14336, &window, mistralSettings
		hf.KeyHeads = c.absent("num_key_value_heads", 8)
	case kind != "llama":
		return LlamaConfig{}, fmt.Errorf("models: config.json is of a %q, want a llama or a mistral", kind)
	}
	if err := c.decode(known, &hf); err != nil {
		return LlamaConfig{}, err
	}
	g, err := hf.sizes()
	if err != nil {
		return LlamaConfig{}, err
	}
	// Of layers of one type there may be a list; all see the window or none does.
	switch types := slices.Compact(slices.Sorted(slices.Values(hf.LayerTypes))); {
	case len(types) == 0 || slices.Equal(types, []string{slidingAttention}) && hf.Window != nil:
	case slices.Equal(types, []string{fullAttention}):
		hf.Window = nil
	default:
		return LlamaConfig{}, fmt.Errorf("models: config.json wants layer_types of %q, which is not supported: want one type for all, full_attention, or of a mistral with a window sliding_attention", types)
	}
	if w := hf.Window; w != nil && *w < hf.Context {
		if *w < 1 || hf.ModelType == "llama" {
			return LlamaConfig{}, fmt.Errorf("models: config.json wants a sliding_window of %d tokens; a mistral has one, of 1 or more", *w)
		}
		g.Window = *w
	}
	return g, inConfig(g.Validate())
}

// inConfig adds to an error where the sizes stand.
func inConfig(err error) error {
	if err != nil {
		return fmt.Errorf("%w (in config.json)", err)
	}
	return nil
}

// sizes returns what a config.json says that was read, but for its windows.
func (hf *huggingFaceDecoder) sizes() (LlamaConfig, error) {
	if hf.Epsilon <= 0 {
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
		HeadDim: hf.HeadDim, Layers: hf.Layers, Epsilon: hf.Epsilon, Tied: hf.Tied, RoPE: rope, AttentionBias: hf.AttentionBias, MLPBias: hf.MLPBias,
	}
	if hf.Activation != "silu" {
		g.Activation = hf.Activation
	}
	return g, inConfig(g.Validate())
}

// windows sets which layers have the window: those of layer_types, or without it those that
// sliding says.
func (hf *huggingFaceDecoder) windows(g *LlamaConfig, sliding func(layer int) bool) error {
	windowed := make([]bool, g.Layers)
	if hf.LayerTypes != nil && len(hf.LayerTypes) != g.Layers {
		return fmt.Errorf("models: config.json has %d layer_types for %d layers", len(hf.LayerTypes), g.Layers)
	}
	for i := range windowed {
		if hf.LayerTypes == nil {
			windowed[i] = sliding(i)
			continue
		}
		switch kind := hf.LayerTypes[i]; kind {
		case slidingAttention:
			windowed[i] = true
		case fullAttention:
		default:
			return fmt.Errorf("models: config.json wants layer_types with %q, which is not supported: there are %s and %s", kind, fullAttention, slidingAttention)
		}
	}
	if !slices.Contains(windowed, true) {
		return nil
	}
	if hf.Window == nil || *hf.Window < 1 {
		return fmt.Errorf("models: config.json wants layers of the type %s, and no sliding_window of 1 or more", slidingAttention)
	}
	g.Window, g.Windowed = *hf.Window, windowed
	if !slices.Contains(windowed, false) {
		g.Windowed = nil
	}
	return nil
}

// rope returns how positions turn. As in transformers, rope_scaling goes before
// rope_parameters where both are there, and what they say of the base before
// what stands beside them.
func (hf *huggingFaceDecoder) rope() (RoPEConfig, error) {
	if hf.Base == nil {
		return RoPEConfig{}, fmt.Errorf("models: config.json has a rope_theta of null: want a number")
	}
	key, p := "rope_scaling", hf.Scaling
	if p == nil || p.keys == 0 {
		key, p = "rope_parameters", hf.RoPE
	}
	return p.config(key, *hf.Base, hf.OldContext, hf.Context)
}
