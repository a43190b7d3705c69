// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/nn"
)

// Gemma2Config is the size of a Gemma 2.
type Gemma2Config struct {
	GemmaConfig
	// ScoreCap c takes each score x of attention to c·tanh(x/c); 0 leaves them.
	ScoreCap float64
}

// Validate reports a size that makes no model.
func (g Gemma2Config) Validate() error {
	if !(g.ScoreCap >= 0) || math.IsInf(g.ScoreCap, 1) {
		return fmt.Errorf("models: the scores of a Gemma 2 are bounded by %v, want a positive number, or 0 for no bound", g.ScoreCap)
	}
	return g.GemmaConfig.Validate()
}

// Gemma2 is the decoder of the Gemma Team 2024 (arXiv 2408.00118): norms before and behind each
// part, with weights that are added to 1; a table of tokens whose rows are multiplied by the
// root of the width; GeGLU; bounded scores and logits; and a window in every other layer.
type Gemma2 struct {
	Config Gemma2Config `name:"-"`
	DecoderLM
}

// NewGemma2 returns a Gemma 2 whose weights have deviation 0.02. It panics when the
// configuration is not valid.
func NewGemma2(b *nn.Build, g Gemma2Config) *Gemma2 {
	must("new gemma2", g.Validate())
	o := g.options()
	o.softCap = g.ScoreCap
	return &Gemma2{g, newGemma(b, g.GemmaConfig, o, []RoPEConfig{g.RoPE}, func(bool) int { return 0 })}
}

// Kind is "gemma2".
func (*Gemma2) Kind() string { return "gemma2" }

var gemma2Settings = settings{
	honoured: append(gemmaSettings[:len(gemmaSettings):len(gemmaSettings)], "attn_logit_softcapping"),
	harmless: append(gemmaHarmless[:len(gemmaHarmless):len(gemmaHarmless)], "hidden_act"),
	plain:    map[string][]any{"partial_rotary_factor": {1.0}, "use_bidirectional_attention": nil, "mlp_bias": nil},
}

// parseGemma2 reads a config.json. What it does not say is what transformers takes.
func parseGemma2(c *configuration) (Gemma2Config, error) {
	hf := gemmaDefaults(c, "gemma2")
	scores, logits := decimal(50), decimal(30)
	hf.Vocab, hf.Context, hf.ScoreCap, hf.LogitCap = 256000, 8192, &scores, &logits
	if err := c.decode(gemma2Settings, &hf); err != nil {
		return Gemma2Config{}, err
	}
	common, err := hf.gemma(func(i int) bool { return i%2 == 0 })
	if err != nil {
		return Gemma2Config{}, err
	}
	g := Gemma2Config{GemmaConfig: common}
	if hf.ScoreCap != nil {
		if g.ScoreCap = float64(*hf.ScoreCap); g.ScoreCap <= 0 {
			return Gemma2Config{}, fmt.Errorf("models: config.json wants attn_logit_softcapping %v, which must be positive or null", g.ScoreCap)
		}
	}
	return g, inConfig(g.Validate())
}

// HuggingFaceConfig returns the config.json by which Hugging Face's tools open the model.
func (m *Gemma2) HuggingFaceConfig() ([]byte, error) {
	hf := m.Config.huggingFace("Gemma2ForCausalLM", "gemma2", m.Model.Norm.Eps)
	if m.Config.ScoreCap != 0 {
		hf.ScoreCap = (*decimal)(&m.Config.ScoreCap)
	}
	return json.MarshalIndent(hf, "", "  ")
}
