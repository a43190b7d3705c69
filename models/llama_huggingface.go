// SPDX-License-Identifier: Apache-2.0

package models

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// huggingFaceLlama is the config.json of a Hugging Face Llama or Mistral, as far
// as it concerns us. The rotation is described by rope_parameters since version 5 of
// transformers, before by rope_theta and rope_scaling.
type huggingFaceLlama struct {
	Architectures []string         `json:"architectures"`
	ModelType     string           `json:"model_type"`
	TorchDType    string           `json:"torch_dtype"`
	Activation    Activation       `json:"hidden_act"`
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
	Base          *float64         `json:"rope_theta"`
	Scaling       *huggingFaceRoPE `json:"rope_scaling"`
	RoPE          *huggingFaceRoPE `json:"rope_parameters,omitempty"`
	OldContext    int              `json:"original_max_position_embeddings,omitempty"`
	Window        *int             `json:"sliding_window,omitempty"`
	LayerTypes    []string         `json:"layer_types,omitempty"`
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
	// What the two have in common.
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

type huggingFaceRoPE struct {
	Type       string   `json:"rope_type,omitempty"`
	OldType    string   `json:"type,omitempty"`
	Base       *float64 `json:"rope_theta,omitempty"`
	Factor     float64  `json:"factor,omitempty"`
	LowFactor  float64  `json:"low_freq_factor,omitempty"`
	HighFactor float64  `json:"high_freq_factor,omitempty"`
	Context    int      `json:"original_max_position_embeddings,omitempty"`

	keys    int // that the object has
	refused []string
}

// UnmarshalJSON reads an object and keeps the names of what is not honoured.
func (p *huggingFaceRoPE) UnmarshalJSON(text []byte) error {
	type plain huggingFaceRoPE // without this method
	c, err := readConfig(text)
	if err != nil {
		return err
	}
	known := []string{"rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
	for _, key := range slices.Sorted(maps.Keys(c.keys)) {
		var v any
		if err := json.Unmarshal(c.keys[key], &v); err != nil {
			return err
		}
		if !slices.Contains(known, key) && !neutral(v) && !(key == "partial_rotary_factor" && v == 1.0) {
			p.refused = append(p.refused, key)
		}
	}
	if v, ok := c.keys["rope_theta"]; ok && string(v) == "null" {
		p.refused = append(p.refused, "rope_theta null")
	}
	p.keys = len(c.keys)
	maps.DeleteFunc(c.keys, func(key string, _ json.RawMessage) bool { return !slices.Contains(known, key) })
	if text, err = json.Marshal(c.keys); err != nil {
		return err
	}
	return json.Unmarshal(text, (*plain)(p))
}

// huggingFaceOf returns the config.json of a model with such sizes, whose norms have an epsilon.
func huggingFaceOf(g LlamaConfig, epsilon float64) huggingFaceLlama {
	base := cmp.Or(g.RoPE.Base, 10_000)
	hf := huggingFaceLlama{
		Architectures: []string{"LlamaForCausalLM"}, ModelType: "llama", TorchDType: "float32", Activation: cmp.Or(g.Activation, "silu"),
		Vocab: g.Vocab, Context: g.Context, Width: g.Width, Hidden: g.Hidden, Layers: g.Layers, Heads: g.Heads, KeyHeads: g.KeyHeads,
		HeadDim: g.headDim(), Epsilon: epsilon, Tied: g.Tied, AttentionBias: g.AttentionBias, MLPBias: g.MLPBias, Base: &base,
	}
	if s := g.RoPE.Scaling; s != nil {
		hf.Scaling = &huggingFaceRoPE{Type: "llama3", Factor: s.Factor, LowFactor: s.LowFactor, HighFactor: s.HighFactor, Context: s.Context}
		if s.HighFactor == 0 {
			hf.Scaling = &huggingFaceRoPE{Type: "linear", Factor: s.Factor}
		}
	}
	return hf
}

// HuggingFaceConfig returns the config.json that makes Hugging Face tools open
// the model's weights as a Llama or, where it has a window, as a Mistral.
func (m *Llama) HuggingFaceConfig() ([]byte, error) {
	g := m.Config
	hf := huggingFaceOf(g, m.Model.Norm.Eps)
	if g.Window != 0 {
		if g.AttentionBias || g.MLPBias {
			return nil, fmt.Errorf("models: a Llama with a window of %d tokens and biases is no model that Hugging Face's tools know", g.Window)
		}
		hf.Architectures, hf.ModelType, hf.Window = []string{"MistralForCausalLM"}, "mistral", &g.Window
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
	hf := huggingFaceLlama{
		ModelType: "llama", Activation: "silu", Vocab: 32000, Context: 2048, Width: 4096, Hidden: 11008, Layers: 32, Heads: 32, Epsilon: 1e-6, Base: &base,
	}
	known := llamaSettings
	switch kind, err := c.modelType(); {
	case err != nil:
		return LlamaConfig{}, err
	case kind == "mistral":
		window := 4096
		hf.Context, hf.Hidden, hf.Window, known = 4096*32, 14336, &window, mistralSettings
		if _, ok := c.keys["num_key_value_heads"]; !ok {
			hf.KeyHeads = 8
		}
	case kind != "llama":
		return LlamaConfig{}, fmt.Errorf("models: config.json is of a %q, want a llama or a mistral", kind)
	}
	if err := c.decode(known, &hf); err != nil {
		return LlamaConfig{}, err
	}
	return hf.sizes()
}

// sizes returns what a config.json says that was read.
func (hf *huggingFaceLlama) sizes() (LlamaConfig, error) {
	if hf.Epsilon <= 0 {
		return LlamaConfig{}, fmt.Errorf("models: config.json wants rms_norm_eps %v, which must be positive", hf.Epsilon)
	}
	// Of layers of one type there may be a list; all see the window or none does.
	switch types := slices.Compact(slices.Sorted(slices.Values(hf.LayerTypes))); {
	case len(types) == 0 || slices.Equal(types, []string{"sliding_attention"}) && hf.Window != nil:
	case slices.Equal(types, []string{"full_attention"}):
		hf.Window = nil
	default:
		return LlamaConfig{}, fmt.Errorf("models: config.json wants layer_types of %q, which is not supported: want one type for all, full_attention, or of a mistral with a window sliding_attention", types)
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
	if w := hf.Window; w != nil && *w < hf.Context {
		if *w < 1 || hf.ModelType == "llama" {
			return LlamaConfig{}, fmt.Errorf("models: config.json wants a sliding_window of %d tokens; a mistral has one, of 1 or more", *w)
		}
		g.Window = *w
	}
	if err := g.Validate(); err != nil {
		return LlamaConfig{}, fmt.Errorf("%w (in config.json)", err)
	}
	return g, nil
}

// rope returns how positions turn. As in transformers, rope_scaling goes before
// rope_parameters where both are there, and what they say of the base before
// what stands beside them.
func (hf *huggingFaceLlama) rope() (RoPEConfig, error) {
	if hf.Base == nil {
		return RoPEConfig{}, fmt.Errorf("models: config.json has a rope_theta of null: want a number")
	}
	key, p := "rope_scaling", hf.Scaling
	if p == nil || p.keys == 0 {
		key, p = "rope_parameters", hf.RoPE
	}
	r := RoPEConfig{Base: *hf.Base}
	if r.Base <= 0 {
		return RoPEConfig{}, fmt.Errorf("models: config.json wants rope_theta %v, which must be positive", r.Base)
	}
	if p == nil {
		return r, nil
	}
	kind := cmp.Or(p.Type, p.OldType)
	if len(p.refused) > 0 {
		return RoPEConfig{}, fmt.Errorf("models: config.json has settings in %s, of type %q, that are not supported: %s", key, kind, strings.Join(p.refused, ", "))
	}
	if p.Base != nil {
		if r.Base = *p.Base; r.Base <= 0 {
			return RoPEConfig{}, fmt.Errorf("models: config.json wants %s with rope_theta %v, which must be positive", key, r.Base)
		}
	}
	switch kind {
	case "default", "":
	case "linear":
		r.Scaling = &RoPEScaling{Factor: p.Factor}
	case "llama3":
		if p.LowFactor == 0 && p.HighFactor == 0 { // which stands for linear scaling
			return RoPEConfig{}, fmt.Errorf("models: config.json wants rotary embeddings of type llama3 without low_freq_factor and high_freq_factor")
		}
		// A length of the first training beside goes before one inside.
		r.Scaling = &RoPEScaling{
			Factor: p.Factor, LowFactor: p.LowFactor, HighFactor: p.HighFactor, Context: cmp.Or(hf.OldContext, p.Context, hf.Context),
		}
	default:
		return RoPEConfig{}, fmt.Errorf("models: config.json wants rotary embeddings of type %q in %s; there are default, linear and llama3", kind, key)
	}
	return r, nil
}

// fromHuggingFace leaves out the tables of the rotation, which older files
// hold.
func (*Llama) fromHuggingFace(name string) string {
	if strings.Contains(name, "rotary_emb.") {
		return ""
	}
	return withPrefix(name, "model.", "lm_head.")
}
