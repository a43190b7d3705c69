// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"fmt"

	"github.com/cohort-ml/cohort/nn"
)

// Qwen3Config is the size of a dense Qwen3: that of a Llama.
type Qwen3Config struct{ LlamaConfig }

// Validate reports a size that makes no model.
func (g Qwen3Config) Validate() error {
	if g.MLPBias || g.Still != nil {
		return fmt.Errorf("models: the feed-forward networks of a Qwen3 have no biases, and its layers all have positions")
	}
	return g.LlamaConfig.Validate()
}

// Qwen3 is the dense decoder of Yang et al. 2025 (arXiv 2505.09388): a Llama that norms
// queries and keys in each head before they turn.
type Qwen3 struct {
	Config Qwen3Config `name:"-"`
	DecoderLM
}

// NewQwen3 returns a Qwen3 whose weights have deviation 0.02. It panics when the
// configuration is not valid.
func NewQwen3(b *nn.Build, g Qwen3Config) *Qwen3 {
	must("new qwen3", g.Validate())
	return &Qwen3{g, newLlamaLike(b, g.LlamaConfig, layerOptions{headNorm: true})}
}

// Kind is "qwen3".
func (*Qwen3) Kind() string { return "qwen3" }

var qwen3Settings = settings{
	honoured: append(rotatedSettings[:len(rotatedSettings):len(rotatedSettings)], "use_sliding_window", "max_window_layers", "attention_bias"),
	harmless: rotatedHarmless,
	plain:    map[string][]any{"partial_rotary_factor": {1.0}, "mlp_bias": nil, "use_qk_norm": {true}},
}

// parseQwen3 reads a config.json. What it does not say is what transformers takes.
func parseQwen3(c *configuration) (Qwen3Config, error) {
	hf := qwenDefaults("qwen3")
	hf.KeyHeads, hf.HeadDim = c.absent("num_key_value_heads", 32), c.absent("head_dim", 128)
	if err := c.decode(qwen3Settings, &hf); err != nil {
		return Qwen3Config{}, err
	}
	g, err := hf.qwen()
	if err != nil {
		return Qwen3Config{}, err
	}
	return Qwen3Config{g}, inConfig(Qwen3Config{g}.Validate())
}

// HuggingFaceConfig returns the config.json by which Hugging Face's tools open the model.
func (m *Qwen3) HuggingFaceConfig() ([]byte, error) {
	hf := huggingFaceOf("Qwen3ForCausalLM", "qwen3", m.Config.LlamaConfig, m.Model.Norm.Eps)
	hf.UseWindow = hf.Window != nil
	return json.MarshalIndent(hf, "", "  ")
}
