// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"fmt"

	"github.com/cohort-ml/cohort/nn"
)

// Qwen2Config is the size of a Qwen2 or Qwen2.5: that of a Llama.
type Qwen2Config struct{ LlamaConfig }

// Validate reports a size that makes no model.
func (g Qwen2Config) Validate() error {
	if g.AttentionBias || g.MLPBias || g.Still != nil {
		return fmt.Errorf("models: a Qwen2 has biases of queries, keys and values always, and no others; its layers all have positions")
	}
	return g.LlamaConfig.Validate()
}

// Qwen2 is the decoder of Yang et al. 2024 (Qwen2, arXiv 2407.10671; Qwen2.5, arXiv
// 2412.15115): a Llama whose projections to queries, keys and values have biases. Its last
// layers may have a window.
type Qwen2 struct {
	Config Qwen2Config `name:"-"`
	DecoderLM
}

// NewQwen2 returns a Qwen2 whose weights have deviation 0.02. It panics when the
// configuration is not valid.
func NewQwen2(b *nn.Build, g Qwen2Config) *Qwen2 {
	must("new qwen2", g.Validate())
	return &Qwen2{g, newLlamaLike(b, g.LlamaConfig, layerOptions{inputBias: true})}
}

// Kind is "qwen2".
func (*Qwen2) Kind() string { return "qwen2" }

var qwen2Settings = settings{
	honoured: append(rotatedSettings[:len(rotatedSettings):len(rotatedSettings)], "use_sliding_window", "max_window_layers"),
	harmless: rotatedHarmless,
	plain:    map[string][]any{"partial_rotary_factor": {1.0}, "use_mrope": nil, "mlp_bias": nil, "attention_bias": {true}, "qkv_bias": {true}},
}

// parseQwen2 reads a config.json. What it does not say is what transformers takes.
func parseQwen2(c *configuration) (Qwen2Config, error) {
	hf := qwenDefaults("qwen2")
	hf.KeyHeads = c.absent("num_key_value_heads", 32)
	if err := c.decode(qwen2Settings, &hf); err != nil {
		return Qwen2Config{}, err
	}
	g, err := hf.qwen()
	if err != nil {
		return Qwen2Config{}, err
	}
	return Qwen2Config{g}, inConfig(Qwen2Config{g}.Validate())
}

// qwenDefaults is what transformers takes for what a config.json of a Qwen does not say.
func qwenDefaults(kind string) huggingFaceDecoder {
	base, window, first := 10_000.0, 4096, 28
	return huggingFaceDecoder{
		ModelType: kind, Activation: "silu", Vocab: 151936, Context: 32768, Width: 4096, Hidden: 22016, Layers: 32, Heads: 32,
		Epsilon: 1e-6, Base: &base, Window: &window, FirstWindows: &first,
	}
}

// qwen returns the sizes of a Qwen: the layers from max_window_layers on have the window,
// where there is one at all.
func (hf *huggingFaceDecoder) qwen() (LlamaConfig, error) {
	g, err := hf.sizes()
	if err != nil {
		return LlamaConfig{}, err
	}
	if !hf.UseWindow {
		hf.Window = nil
	}
	return g, hf.windows(&g, func(i int) bool { return hf.Window != nil && hf.FirstWindows != nil && i >= *hf.FirstWindows })
}

// HuggingFaceConfig returns the config.json by which Hugging Face's tools open the model.
func (m *Qwen2) HuggingFaceConfig() ([]byte, error) {
	hf := huggingFaceOf("Qwen2ForCausalLM", "qwen2", m.Config.LlamaConfig, m.Model.Norm.Eps)
	hf.UseWindow = hf.Window != nil
	return json.MarshalIndent(hf, "", "  ")
}
