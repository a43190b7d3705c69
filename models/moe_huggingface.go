// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/nn"
)

// moeType is the model_type of a [MoETransformer]'s config.json. It is none of Hugging Face's:
// their tools keep the weights of each expert apart, and here they are stacked.
const moeType = "cohort_moe"

// huggingFaceMoE is the config.json of a mixture of experts: that of a Llama, with the names
// that Mixtral and Qwen have for the same things.
type huggingFaceMoE struct {
	huggingFaceDecoder
	Experts      int     `json:"num_local_experts"`
	Active       int     `json:"num_experts_per_tok"`
	SharedHidden int     `json:"shared_expert_intermediate_size,omitempty"`
	SharedGate   bool    `json:"shared_expert_gate,omitempty"`
	Balance      float64 `json:"router_aux_loss_coef,omitempty"`
	Z            float64 `json:"router_z_loss_coef,omitempty"`
	Capacity     float64 `json:"capacity_factor,omitempty"`
	Sigmoid      bool    `json:"router_sigmoid,omitempty"`
	Unnormalized bool    `json:"router_unnormalized,omitempty"`
	Scale        float64 `json:"routed_scaling_factor,omitempty"`
	BiasStep     float64 `json:"router_bias_step,omitempty"`
}

var moeSettings = settings{
	honoured: slices.Concat(rotatedSettings, []string{
		"attention_bias", "mlp_bias", "num_local_experts", "num_experts_per_tok", "shared_expert_intermediate_size", "shared_expert_gate",
		"router_aux_loss_coef", "router_z_loss_coef", "capacity_factor", "router_sigmoid", "router_unnormalized", "routed_scaling_factor", "router_bias_step",
	}),
	harmless: rotatedHarmless,
	plain:    rotatedPlain,
}

// HuggingFaceConfig returns the config.json by which [LoadHuggingFace] opens the model's
// weights. Hugging Face's own tools do not: they keep the weights of each expert apart.
func (m *MoETransformer) HuggingFaceConfig() ([]byte, error) {
	g, r := m.Config, m.Config.Router
	hf := huggingFaceMoE{
		huggingFaceDecoder: huggingFaceOf("MoETransformer", moeType, g.LlamaConfig, m.Model.Norm.Eps),
		Experts:            g.Experts, Active: g.Active, SharedHidden: g.SharedHidden, SharedGate: g.SharedGate,
		Balance: r.Balance, Z: r.Z, Capacity: r.Capacity, Sigmoid: r.Sigmoid, Unnormalized: r.Unnormalized, Scale: r.Scale, BiasStep: r.BiasStep,
	}
	return json.MarshalIndent(hf, "", "  ")
}

func parseMoE(c *configuration) (MoEConfig, error) {
	base := 10_000.0
	hf := huggingFaceMoE{huggingFaceDecoder: huggingFaceDecoder{ModelType: moeType, Activation: "silu", Epsilon: 1e-5, Base: &base}}
	if err := c.decode(moeSettings, &hf); err != nil {
		return MoEConfig{}, err
	}
	llama, err := hf.sizes()
	if err != nil {
		return MoEConfig{}, err
	}
	g := MoEConfig{
		LlamaConfig: llama, Experts: hf.Experts, Active: hf.Active, SharedHidden: hf.SharedHidden, SharedGate: hf.SharedGate,
		Router: nn.MoEOptions{
			Sigmoid: hf.Sigmoid, Unnormalized: hf.Unnormalized, Scale: hf.Scale, Capacity: hf.Capacity, Balance: hf.Balance, Z: hf.Z, BiasStep: hf.BiasStep,
		},
	}
	if err := g.Validate(); err != nil {
		return MoEConfig{}, fmt.Errorf("%w (in config.json)", err)
	}
	return g, nil
}
