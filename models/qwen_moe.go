// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// QwenMoEConfig is the size of a Qwen with experts: that of a mixture of experts, of which some
// layers may have one feed-forward network instead.
type QwenMoEConfig struct {
	MoEConfig        // Hidden is the width inside an expert
	Dense     []bool // the layers without experts; nil is none of them
	// DenseHidden is the width inside the feed-forward network of a layer without experts. It is
	// kept where there is no such layer, too.
	DenseHidden int
	InputBias   bool // the projections to queries, keys and values have biases (Qwen2)
}

// Validate reports a size that makes no model.
func (g QwenMoEConfig) Validate() error {
	if g.MLPBias || g.Still != nil {
		return fmt.Errorf("models: the feed-forward networks of a Qwen with experts have no biases, and its layers all have positions")
	}
	if g.Dense != nil && len(g.Dense) != g.Layers {
		return fmt.Errorf("models: the list of layers without experts of a Qwen has %d entries for %d layers", len(g.Dense), g.Layers)
	}
	if err := checkSizes("Qwen with experts", []size{{"hidden width of layers without experts", g.DenseHidden, 1 << 22}}); err != nil {
		return err
	}
	return g.published("Qwen")
}

// Qwen2MoE is the Qwen1.5-MoE and Qwen2-MoE of Yang et al. 2024 (arXiv 2407.10671): a Qwen2
// with many small experts, and a larger one that computes every token, weighed by a gate.
type Qwen2MoE struct {
	Config QwenMoEConfig `name:"-"`
	DecoderLM
}

// NewQwen2MoE returns a Qwen2MoE whose weights have deviation 0.02. It panics when the
// configuration is not valid.
func NewQwen2MoE(b *nn.Build, g QwenMoEConfig) *Qwen2MoE {
	must("new qwen2 moe", g.Validate())
	if !g.SharedGate || g.AttentionBias {
		must("new qwen2 moe", fmt.Errorf("a Qwen2 with experts has a shared expert with a gate (SharedHidden, SharedGate), and may have biases of queries, keys and values alone (InputBias)"))
	}
	return &Qwen2MoE{g, newQwenMoE(b, g, layerOptions{inputBias: g.InputBias})}
}

// Qwen3MoE is the Qwen3 with experts of Yang et al. 2025 (arXiv 2505.09388): it norms queries and
// keys in each head, and has no shared expert.
type Qwen3MoE struct {
	Config QwenMoEConfig `name:"-"`
	DecoderLM
}

// NewQwen3MoE returns a Qwen3MoE whose weights have deviation 0.02. It panics when the
// configuration is not valid.
func NewQwen3MoE(b *nn.Build, g QwenMoEConfig) *Qwen3MoE {
	must("new qwen3 moe", g.Validate())
	if g.SharedHidden > 0 || g.Windowed != nil || g.InputBias {
		must("new qwen3 moe", fmt.Errorf("a Qwen3 with experts has no shared expert, the same window in all layers, and biases of all projections of attention (AttentionBias) or of none"))
	}
	return &Qwen3MoE{g, newQwenMoE(b, g, layerOptions{headNorm: true})}
}

func newQwenMoE(b *nn.Build, g QwenMoEConfig, o layerOptions) DecoderLM {
	return newExpertLM(b, g.MoEConfig, o, func(i int, o layerOptions) nn.ModuleN {
		if g.Dense != nil && g.Dense[i] {
			dense := g.LlamaConfig
			dense.Hidden = g.DenseHidden
			return newLlamaBlock(b, dense, o)
		}
		return &QwenMoEBlock{
			Attention: newLlamaAttention(b, g.LlamaConfig, o), Experts: newMoE(b, g.MoEConfig),
			Norm1: newRMSNorm(b, g.LlamaConfig, g.Width, o), Norm2: newRMSNorm(b, g.LlamaConfig, g.Width, o),
		}
	})
}

// QwenMoEBlock is [MoEBlock] with Qwen's names.
type QwenMoEBlock struct {
	Attention *LlamaAttention `name:"self_attn"`
	Experts   *nn.MoE         `name:"mlp"`
	Norm1     *nn.RMSNorm     `name:"input_layernorm"`
	Norm2     *nn.RMSNorm     `name:"post_attention_layernorm"`
}

// ForwardN maps x [batch, time, width], with the tables of the rotation, to one tensor of
// the same shape.
func (l *QwenMoEBlock) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("QwenMoEBlock", in, rotatedInputs, 1, 3)
	x := in[0]
	x = x.Add(c.CallN(l.Attention, behind(c.Call(l.Norm1, x), in)...)[0])
	return []*tensor.Tensor{x.Add(c.Call(l.Experts, c.Call(l.Norm2, x)))}
}

// Kind is "qwen2_moe".
func (*Qwen2MoE) Kind() string { return "qwen2_moe" }

// Kind is "qwen3_moe".
func (*Qwen3MoE) Kind() string { return "qwen3_moe" }

// TensorPlan says how ranks can share the modules of the model, as [MoETransformer.TensorPlan]
// does.
func (m *Qwen2MoE) TensorPlan() string { return m.plan(m.Config) }

// TensorPlan says how ranks can share the modules of the model, as [MoETransformer.TensorPlan]
// does.
func (m *Qwen3MoE) TensorPlan() string { return m.plan(m.Config) }

// plan names layers of both kinds by their numbers.
func (m *DecoderLM) plan(g QwenMoEConfig) string {
	if !slices.Contains(g.Dense, true) {
		return m.attentionPlan() + expertPlan("model.layers.*.mlp", g.SharedHidden > 0) + m.headPlan()
	}
	plan := m.attentionPlan()
	for i, dense := range g.Dense {
		at := fmt.Sprintf("model.layers.%d.mlp", i)
		if dense {
			plan += mlpPlan(at)
		} else {
			plan += expertPlan(at, g.SharedHidden > 0)
		}
	}
	return plan + m.headPlan()
}

func (*Qwen2MoE) inFiles(name string) (of func(expert int) string) { return qwenExpert(name) }

func (*Qwen3MoE) inFiles(name string) (of func(expert int) string) { return qwenExpert(name) }

// qwenExpert names the weights of one expert as published files do.
func qwenExpert(name string) (of func(expert int) string) {
	return expertNames(name, ".mlp.experts.", map[string]string{"gate_proj": "gate_proj", "up_proj": "up_proj", "down_proj": "down_proj"})
}

// huggingFaceQwenMoE is the config.json of a Qwen with experts.
type huggingFaceQwenMoE struct {
	huggingFaceDecoder
	Experts      int   `json:"num_experts"`
	Alias        int   `json:"num_local_experts,omitempty"` // the same as transformers 5 writes it
	Active       int   `json:"num_experts_per_tok"`
	ExpertHidden int   `json:"moe_intermediate_size"`
	SharedHidden int   `json:"shared_expert_intermediate_size,omitempty"`
	Normalized   bool  `json:"norm_topk_prob"`
	Step         int   `json:"decoder_sparse_step"` // each so many layers one has experts
	DenseLayers  []int `json:"mlp_only_layers"`
	InputBias    *bool `json:"qkv_bias,omitempty"`
}

var (
	qwenMoEHonoured = slices.Concat(rotatedSettings, []string{
		"num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "use_sliding_window",
	})
	qwen2MoESettings = settings{
		honoured: slices.Concat(qwenMoEHonoured, []string{"shared_expert_intermediate_size", "qkv_bias", "max_window_layers"}),
		harmless: slices.Concat(rotatedHarmless, routerHarmless),
		plain:    map[string][]any{"partial_rotary_factor": {1.0}, "attention_bias": nil, "mlp_bias": nil},
	}
	qwen3MoESettings = settings{
		honoured: slices.Concat(qwenMoEHonoured, []string{"attention_bias"}),
		harmless: slices.Concat(rotatedHarmless, routerHarmless, []string{"max_window_layers"}), // all layers have the window
		plain:    map[string][]any{"partial_rotary_factor": {1.0}, "mlp_bias": nil, "use_qk_norm": {true}},
	}
)

// parseQwen2MoE reads a config.json. What it does not say is what transformers takes.
func parseQwen2MoE(c *configuration) (QwenMoEConfig, error) {
	hf := huggingFaceQwenMoE{huggingFaceDecoder: qwenDefaults("qwen2_moe"), Active: 4, ExpertHidden: 1408, SharedHidden: 5632, Step: 1}
	hf.Width, hf.Hidden, hf.Layers, hf.Heads, hf.KeyHeads = 2048, 5632, 24, 16, c.absent("num_key_value_heads", 16)
	if err := c.decode(qwen2MoESettings, &hf); err != nil {
		return QwenMoEConfig{}, err
	}
	g, err := hf.config(60)
	if err != nil {
		return QwenMoEConfig{}, err
	}
	if hf.SharedHidden < 1 {
		return QwenMoEConfig{}, fmt.Errorf("models: config.json wants shared_expert_intermediate_size %d: a qwen2_moe has a shared expert, of width 1 or more", hf.SharedHidden)
	}
	g.SharedHidden, g.SharedGate, g.InputBias = hf.SharedHidden, true, hf.InputBias == nil || *hf.InputBias
	// The first layers have the window, every other of them.
	err = hf.windows(&g.LlamaConfig, func(i int) bool {
		return hf.Window != nil && i%2 == 0 && hf.FirstWindows != nil && i < *hf.FirstWindows
	})
	if err != nil {
		return QwenMoEConfig{}, err
	}
	return g, inConfig(g.Validate())
}

// parseQwen3MoE reads a config.json. What it does not say is what transformers takes.
func parseQwen3MoE(c *configuration) (QwenMoEConfig, error) {
	hf := huggingFaceQwenMoE{huggingFaceDecoder: qwenDefaults("qwen3_moe"), Active: 8, ExpertHidden: 768, Step: 1}
	hf.Width, hf.Hidden, hf.Layers, hf.Heads, hf.KeyHeads = 2048, 6144, 24, 32, c.absent("num_key_value_heads", 4)
	if err := c.decode(qwen3MoESettings, &hf); err != nil {
		return QwenMoEConfig{}, err
	}
	g, err := hf.config(128)
	if err == nil {
		err = hf.oneWindow(&g.LlamaConfig)
	}
	if err != nil {
		return QwenMoEConfig{}, err
	}
	return g, inConfig(g.Validate())
}

// config returns the sizes that both families have, but for the windows.
func (hf *huggingFaceQwenMoE) config(absent int) (QwenMoEConfig, error) {
	llama, err := hf.sizes()
	if err != nil {
		return QwenMoEConfig{}, err
	}
	experts, err := oneOfTwo(hf.Alias, hf.Experts, absent)
	if err != nil {
		return QwenMoEConfig{}, err
	}
	if hf.Step < 1 {
		return QwenMoEConfig{}, fmt.Errorf("models: config.json wants decoder_sparse_step %d: want 1 or more", hf.Step)
	}
	if !hf.UseWindow {
		hf.Window = nil
	}
	g := QwenMoEConfig{DenseHidden: llama.Hidden}
	g.MoEConfig = MoEConfig{LlamaConfig: llama, Experts: experts, Active: hf.Active, Router: nn.MoEOptions{Unnormalized: !hf.Normalized}}
	g.Hidden = hf.ExpertHidden
	dense := make([]bool, g.Layers)
	for i := range dense {
		dense[i] = (i+1)%hf.Step != 0
	}
	for _, i := range hf.DenseLayers {
		if i >= 0 && i < g.Layers {
			dense[i] = true
		}
	}
	if slices.Contains(dense, true) {
		g.Dense = dense
	}
	return g, nil
}

// huggingFace returns the config.json of a model of a family with such sizes.
func (g QwenMoEConfig) huggingFace(class, kind string, epsilon float64) huggingFaceQwenMoE {
	hf := huggingFaceQwenMoE{
		huggingFaceDecoder: huggingFaceOf(class, kind, g.LlamaConfig, epsilon), Experts: g.Experts, Active: g.Active, ExpertHidden: g.Hidden,
		SharedHidden: g.SharedHidden, Normalized: !g.Router.Unnormalized, Step: 1, DenseLayers: []int{},
	}
	hf.Hidden, hf.UseWindow = g.DenseHidden, hf.Window != nil
	for i, dense := range g.Dense {
		if dense {
			hf.DenseLayers = append(hf.DenseLayers, i)
		}
	}
	return hf
}

// HuggingFaceConfig returns the config.json by which Hugging Face's tools open the model.
func (m *Qwen2MoE) HuggingFaceConfig() ([]byte, error) {
	hf := m.Config.huggingFace("Qwen2MoeForCausalLM", m.Kind(), m.Model.Norm.Eps)
	hf.InputBias = &m.Config.InputBias
	return json.MarshalIndent(hf, "", "  ")
}

// HuggingFaceConfig returns the config.json by which Hugging Face's tools open the model.
func (m *Qwen3MoE) HuggingFaceConfig() ([]byte, error) {
	hf := m.Config.huggingFace("Qwen3MoeForCausalLM", m.Kind(), m.Model.Norm.Eps)
	hf.LayerTypes = nil
	return json.MarshalIndent(hf, "", "  ")
}
