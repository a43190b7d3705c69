// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/cohort-ml/cohort/nn"
)

// Gemma3Config is the size of the text part of a Gemma 3. RoPE is of the layers that see all
// tokens.
type Gemma3Config struct {
	GemmaConfig
	LocalRoPE RoPEConfig // of the layers with the window
}

// Validate reports a size that makes no model.
func (g Gemma3Config) Validate() error {
	if err := g.GemmaConfig.Validate(); err != nil {
		return err
	}
	return g.LocalRoPE.validateFor(g.headDim())
}

// Gemma3 is the decoder of the Gemma Team 2025 (arXiv 2503.19786), its text part: a [Gemma2]
// that norms queries and keys in each head and bounds no scores; five of six layers have a
// window, and a rotation of another base than the others.
type Gemma3 struct {
	Config Gemma3Config `name:"-"`
	DecoderLM
}

// NewGemma3 returns a Gemma 3 whose weights have deviation 0.02. It panics when the
// configuration is not valid.
func NewGemma3(b *nn.Build, g Gemma3Config) *Gemma3 {
	must("new gemma3", g.Validate())
	o := g.options()
	o.headNorm = true
	return &Gemma3{g, newGemma(b, g.GemmaConfig, o, []RoPEConfig{g.RoPE, g.LocalRoPE}, func(windowed bool) int {
		if windowed {
			return 1
		}
		return 0
	})}
}

// Kind is "gemma3".
func (*Gemma3) Kind() string { return "gemma3" }

// huggingFaceGemma3 is the config.json of a Gemma 3's text part.
type huggingFaceGemma3 struct {
	huggingFaceGemma
	LocalBase *float64 `json:"rope_local_base_freq,omitempty"`
	Pattern   int      `json:"sliding_window_pattern,omitempty"`
	// Rotations are those of both types of layers, since version 5 of transformers. They go
	// before the rotation and the bases beside them.
	Rotations huggingFaceRotations `json:"rope_parameters,omitempty"`
}

// huggingFaceRotations are rotations by the type of layer.
type huggingFaceRotations map[string]*huggingFaceRoPE

// UnmarshalJSON reads an object of both types, either, or none.
func (r *huggingFaceRotations) UnmarshalJSON(text []byte) error {
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		return fmt.Errorf("rope_parameters: %w", err)
	}
	*r = huggingFaceRotations{}
	for _, key := range slices.Sorted(maps.Keys(parts)) {
		if key != fullAttention && key != slidingAttention {
			return fmt.Errorf("rope_parameters have %q, want rotations of %s and %s", key, fullAttention, slidingAttention)
		}
		var p *huggingFaceRoPE
		if err := json.Unmarshal(parts[key], &p); err != nil {
			return fmt.Errorf("rope_parameters of %s: %w", key, err)
		}
		(*r)[key] = p
	}
	return nil
}

var gemma3Settings = settings{
	honoured: append(gemmaSettings[:len(gemmaSettings):len(gemmaSettings)], "rope_local_base_freq", "sliding_window_pattern"),
	harmless: append(gemmaHarmless[:len(gemmaHarmless):len(gemmaHarmless)], "hidden_act", "_sliding_window_pattern"),
	plain: map[string][]any{
		"partial_rotary_factor": {1.0}, "use_bidirectional_attention": nil, "mlp_bias": nil,
		"attn_logit_softcapping": nil, // which transformers does not compute
	},
}

// parseGemma3 reads a config.json. What it does not say is what transformers takes.
func parseGemma3(c *configuration) (Gemma3Config, error) {
	base, local := 1e6, 10_000.0
	hf := huggingFaceGemma3{huggingFaceGemma: gemmaDefaults(c, "gemma3_text"), LocalBase: &local, Pattern: 6}
	hf.Vocab, hf.Context, hf.Base = 262208, 131072, &base
	if err := c.decode(gemma3Settings, &hf); err != nil {
		return Gemma3Config{}, err
	}
	if hf.Pattern < 1 || hf.LocalBase == nil {
		return Gemma3Config{}, fmt.Errorf("models: config.json wants a sliding_window_pattern of 1 or more, and a number as rope_local_base_freq")
	}
	common, err := hf.gemma(func(i int) bool { return (i+1)%hf.Pattern != 0 })
	if err != nil {
		return Gemma3Config{}, err
	}
	g := Gemma3Config{GemmaConfig: common}
	key, global := "rope_scaling", hf.Scaling
	if global == nil || global.keys == 0 {
		key, global = "rope_parameters of "+fullAttention, hf.Rotations[fullAttention]
	} else if inner := hf.Rotations[fullAttention]; inner != nil && inner.keys > 0 {
		return Gemma3Config{}, fmt.Errorf("models: config.json has both rope_scaling and rope_parameters of %s: leave one out", fullAttention)
	}
	if g.RoPE, err = global.config(key, *hf.Base, 0, hf.Context); err != nil {
		return Gemma3Config{}, err
	}
	key = "rope_parameters of " + slidingAttention
	if g.LocalRoPE, err = hf.Rotations[slidingAttention].config(key, *hf.LocalBase, 0, hf.Context); err != nil {
		return Gemma3Config{}, err
	}
	return g, inConfig(g.Validate())
}

// HuggingFaceConfig returns the config.json by which Hugging Face's tools open the model.
func (m *Gemma3) HuggingFaceConfig() ([]byte, error) {
	g := m.Config
	hf := huggingFaceGemma3{huggingFaceGemma: g.huggingFace("Gemma3ForCausalLM", "gemma3_text", m.Model.Norm.Eps)}
	local := g.LocalRoPE.base()
	hf.LocalBase = &local
	if g.LocalRoPE.Scaling != nil { // which only the newer form says
		of := func(r RoPEConfig, base *float64) *huggingFaceRoPE {
			p := huggingFaceScaling(r)
			if p == nil {
				p = &huggingFaceRoPE{Type: "default"}
			}
			p.Base = base
			return p
		}
		hf.Rotations = huggingFaceRotations{fullAttention: of(g.RoPE, hf.Base), slidingAttention: of(g.LocalRoPE, hf.LocalBase)}
		hf.Scaling = nil
	}
	return json.MarshalIndent(hf, "", "  ")
}
