// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/nn"
)

// MixtralConfig is the size of a Mixtral: that of a mixture of experts without a shared one.
type MixtralConfig struct{ MoEConfig }

// Validate reports a size that makes no model.
func (g MixtralConfig) Validate() error {
	if g.AttentionBias || g.MLPBias || g.Still != nil || g.Windowed != nil || g.SharedHidden > 0 || g.Router.Unnormalized {
		return fmt.Errorf("models: a Mixtral has no biases and no shared expert, its layers all have positions and the same window, and the weights of a token's experts sum to 1")
	}
	return g.published("Mixtral")
}

// published reports what no published family has.
func (g MoEConfig) published(family string) error {
	if r := g.Router; r.Sigmoid || r.Scale != 0 && r.Scale != 1 || r.BiasStep != 0 {
		return fmt.Errorf("models: the router of a %s scores experts by a softmax over all of them, and has no scale and no bias", family)
	}
	if err := g.Validate(); err != nil {
		return err
	}
	return checkSizes(family, []size{{"number of experts of all layers together", g.Layers * g.Experts, maxStacked}})
}

// Mixtral is the decoder of Jiang et al. 2024 (arXiv 2401.04088): a Mistral whose feed-forward
// networks are experts. A token's weights are a softmax over the experts that it chose. In
// training its layers add the losses of the router by nn.Ctx.AddLoss, where the
// configuration has weights for them.
type Mixtral struct {
	Config MixtralConfig `name:"-"`
	DecoderLM
}

// NewMixtral returns a Mixtral whose weights have deviation 0.02. It panics when the
// configuration is not valid.
func NewMixtral(b *nn.Build, g MixtralConfig) *Mixtral {
	must("new mixtral", g.Validate())
	return &Mixtral{g, newExpertLM(b, g.MoEConfig, layerOptions{}, func(_ int, o layerOptions) nn.ModuleN { return newMoEBlock(b, g.MoEConfig, o) })}
}

// Kind is "mixtral".
func (*Mixtral) Kind() string { return "mixtral" }

// TensorPlan says how ranks can share the modules of the model, as [MoETransformer.TensorPlan]
// does.
func (m *Mixtral) TensorPlan() string {
	return m.attentionPlan() + expertPlan("model.layers.*.block_sparse_moe", false) + m.headPlan()
}

// inFiles names the weights of one expert as published files do.
func (*Mixtral) inFiles(name string) (of func(expert int) string) {
	return expertNames(name, ".block_sparse_moe.experts.", mixtralNames)
}

// fromClass also takes the names of the class in transformers 5, which some programs write.
func (*Mixtral) fromClass(name string) string {
	name = (*DecoderLM)(nil).fromHuggingFace(name)
	path, part, ok := strings.Cut(name, ".mlp.")
	if !ok {
		return name
	}
	for own, file := range mixtralNames {
		if at, isExpert := strings.CutSuffix(part, "."+own+".weight"); isExpert {
			part = at + "." + file + ".weight"
			break
		}
	}
	return path + ".block_sparse_moe." + part
}

// mixtralNames are the names of an expert's projections in files.
var mixtralNames = map[string]string{"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}

// huggingFaceMixtral is the config.json of a Mixtral.
type huggingFaceMixtral struct {
	huggingFaceDecoder
	Experts int `json:"num_local_experts"`
	Alias   int `json:"num_experts,omitempty"` // the same by its other name
	Active  int `json:"num_experts_per_tok"`
}

// routerHarmless are keys of training, which who trains chooses.
var routerHarmless = []string{"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"}

var mixtralSettings = settings{
	honoured: slices.Concat(rotatedSettings, []string{"num_local_experts", "num_experts", "num_experts_per_tok"}),
	harmless: slices.Concat(rotatedHarmless, routerHarmless),
	plain:    map[string][]any{"partial_rotary_factor": {1.0}, "attention_bias": nil, "mlp_bias": nil},
}

// parseMixtral reads a config.json. What it does not say is what transformers takes.
func parseMixtral(c *configuration) (MixtralConfig, error) {
	base := 1e6
	hf := huggingFaceMixtral{Active: 2, huggingFaceDecoder: huggingFaceDecoder{
		ModelType: "mixtral", Activation: "silu", Vocab: 32000, Context: 4096 * 32, Width: 4096, Hidden: 14336, Layers: 32, Heads: 32, Epsilon: 1e-5, Base: &base,
	}}
	hf.KeyHeads = c.absent("num_key_value_heads", 8)
	if err := c.decode(mixtralSettings, &hf); err != nil {
		return MixtralConfig{}, err
	}
	llama, err := hf.sizes()
	if err != nil {
		return MixtralConfig{}, err
	}
	if err := hf.oneWindow(&llama); err != nil {
		return MixtralConfig{}, err
	}
	experts, err := oneOfTwo(hf.Experts, hf.Alias, 8)
	if err != nil {
		return MixtralConfig{}, err
	}
	g := MixtralConfig{MoEConfig{LlamaConfig: llama, Experts: experts, Active: hf.Active}}
	return g, inConfig(g.Validate())
}

// oneOfTwo returns the number of experts, which has two names, or what holds without either.
func oneOfTwo(local, plain, absent int) (int, error) {
	switch {
	case local < 0 || plain < 0:
		return 0, fmt.Errorf("models: config.json wants %d experts (num_local_experts, num_experts): want 1 or more", min(local, plain))
	case local == 0 && plain == 0:
		return absent, nil
	case local != 0 && plain != 0 && local != plain:
		return 0, fmt.Errorf("models: config.json wants num_local_experts %d and num_experts %d, which are two names of one number", local, plain)
	}
	return max(local, plain), nil
}

// oneWindow sets the window of a family that has it in all layers or in none.
func (hf *huggingFaceDecoder) oneWindow(g *LlamaConfig) error {
	want := fullAttention
	if hf.Window != nil {
		if *hf.Window < 1 {
			return fmt.Errorf("models: config.json wants a sliding_window of %d tokens: want 1 or more, or null", *hf.Window)
		}
		g.Window, want = *hf.Window, slidingAttention
	}
	for _, kind := range hf.LayerTypes {
		if kind != want {
			return fmt.Errorf("models: config.json wants layer_types with %q beside a sliding_window that makes all layers %s, which is not supported", kind, want)
		}
	}
	return nil
}

// HuggingFaceConfig returns the config.json by which Hugging Face's tools open the model.
func (m *Mixtral) HuggingFaceConfig() ([]byte, error) {
	hf := huggingFaceMixtral{huggingFaceOf("MixtralForCausalLM", m.Kind(), m.Config.LlamaConfig, m.Model.Norm.Eps), m.Config.Experts, 0, m.Config.Active}
	hf.LayerTypes = nil
	return json.MarshalIndent(hf, "", "  ")
}
