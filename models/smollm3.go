// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"fmt"

	"github.com/cohort-ml/cohort/nn"
)

// SmolLM3Config is the size of a SmolLM3: that of a Llama, of which Still are the layers
// without positions.
type SmolLM3Config struct{ LlamaConfig }

// SmolLM3 is the decoder of that name by Hugging Face (2025): a Llama in which every fourth
// layer turns no positions (Yang et al. 2025, "RoPE to NoPE and Back Again", arXiv
// 2501.18795). Such layers may have a window.
type SmolLM3 struct {
	Config SmolLM3Config `name:"-"`
	DecoderLM
}

// NewSmolLM3 returns a SmolLM3 whose weights have deviation 0.02. It panics when the
// configuration is not valid.
func NewSmolLM3(b *nn.Build, g SmolLM3Config) *SmolLM3 {
	must("new smollm3", g.Validate())
	return &SmolLM3{g, newLlamaLike(b, g.LlamaConfig, layerOptions{})}
}

// Kind is "smollm3".
func (*SmolLM3) Kind() string { return "smollm3" }

// huggingFaceSmolLM3 is the config.json of a SmolLM3.
type huggingFaceSmolLM3 struct {
	huggingFaceDecoder
	// Turned has a 1 for each layer with positions, in spite of its key. Without it every
	// Interval-th has none.
	Turned   []int `json:"no_rope_layers,omitempty"`
	Interval int   `json:"no_rope_layer_interval,omitempty"`
}

var smollm3Settings = settings{
	honoured: append(rotatedSettings[:len(rotatedSettings):len(rotatedSettings)], "use_sliding_window", "attention_bias", "mlp_bias", "no_rope_layers", "no_rope_layer_interval"),
	harmless: append(rotatedHarmless[:len(rotatedHarmless):len(rotatedHarmless)], "max_window_layers"),
	plain:    rotatedPlain,
}

// parseSmolLM3 reads a config.json. What it does not say is what transformers takes.
func parseSmolLM3(c *configuration) (SmolLM3Config, error) {
	base := 2e6
	hf := huggingFaceSmolLM3{Interval: 4, huggingFaceDecoder: huggingFaceDecoder{
		ModelType: "smollm3", Activation: "silu", Vocab: 128256, Context: 32768, Width: 2048, Hidden: 11008, Layers: 36, Heads: 16,
		KeyHeads: c.absent("num_key_value_heads", 4), Epsilon: 1e-6, Base: &base, Tied: true,
	}}
	if err := c.decode(smollm3Settings, &hf); err != nil {
		return SmolLM3Config{}, err
	}
	g, err := hf.sizes()
	if err != nil {
		return SmolLM3Config{}, err
	}
	if hf.Turned != nil && len(hf.Turned) != g.Layers {
		return SmolLM3Config{}, fmt.Errorf("models: config.json has %d no_rope_layers for %d layers", len(hf.Turned), g.Layers)
	}
	if hf.Turned == nil && hf.Interval < 1 {
		return SmolLM3Config{}, fmt.Errorf("models: config.json wants a no_rope_layer_interval of %d, which must be 1 or more", hf.Interval)
	}
	still, any := make([]bool, g.Layers), false
	for i := range still {
		if hf.Turned == nil {
			still[i] = (i+1)%hf.Interval == 0
		} else {
			still[i] = hf.Turned[i] == 0
		}
		any = any || still[i]
	}
	if any {
		g.Still = still
	}
	if !hf.UseWindow { // and so no layer has it, whatever layer_types says
		hf.Window, hf.LayerTypes = nil, nil
	}
	if err := hf.windows(&g, func(i int) bool { return hf.Window != nil && still[i] }); err != nil {
		return SmolLM3Config{}, err
	}
	return SmolLM3Config{g}, inConfig(g.Validate())
}

// HuggingFaceConfig returns the config.json by which Hugging Face's tools open the model.
func (m *SmolLM3) HuggingFaceConfig() ([]byte, error) {
	g := m.Config
	hf := huggingFaceSmolLM3{huggingFaceDecoder: huggingFaceOf("SmolLM3ForCausalLM", "smollm3", g.LlamaConfig, m.Model.Norm.Eps)}
	hf.UseWindow = hf.Window != nil
	for i := range g.Layers {
		turned := 1
		if g.Still != nil && g.Still[i] {
			turned = 0
		}
		hf.Turned = append(hf.Turned, turned)
	}
	return json.MarshalIndent(hf, "", "  ")
}
