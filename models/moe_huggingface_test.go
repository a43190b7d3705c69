// SPDX-License-Identifier: Apache-2.0

package models

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestMoEFolder: a mixture of experts is saved and opened again with all its settings, and
// computes the same.
func TestMoEFolder(t *testing.T) {
	for i, g := range []MoEConfig{
		smallMoE(),
		{
			LlamaConfig: LlamaConfig{
				Vocab: 13, Context: 8, Width: 8, Hidden: 12, Heads: 2, KeyHeads: 2, Layers: 1, Tied: true, Epsilon: 1e-6, AttentionBias: true, MLPBias: true,
				RoPE: RoPEConfig{Base: 5000, Scaling: &RoPEScaling{Factor: 2}},
			},
			Experts: 3, Active: 1, SharedHidden: 6, SharedGate: true,
			Router: nn.MoEOptions{Sigmoid: true, Unnormalized: true, Scale: 2, Capacity: 1.5, Balance: 0.1, Z: 0.2, BiasStep: 0.01},
		},
	} {
		m := NewMoETransformer(&nn.Build{Generator: tensor.NewGenerator(5)}, g)
		dir := filepath.Join(t.TempDir(), "model")
		if err := SaveHuggingFace(dir, m, 0, nil); err != nil {
			t.Fatal(err)
		}
		again, err := LoadCausalLM(dir)
		if err != nil {
			t.Fatal(err)
		}
		want := g
		for _, c := range []*MoEConfig{&want, &again.(*MoETransformer).Config} { // what is written has no defaults
			c.HeadDim, c.Epsilon, c.RoPE.Base, c.Activation = 0, 0, 0, ""
			if s := c.RoPE.Scaling; s != nil {
				c.RoPE.Scaling = &RoPEScaling{Factor: s.Factor}
			}
		}
		if other := again.(*MoETransformer).Config; !reflect.DeepEqual(want, other) {
			t.Errorf("%d: %+v, want %+v", i, other, want)
		}
		ids := tensor.FromInt64([]int64{1, 5, 2, 9, 3, 12, 4, 0}, 1, 8)
		logits := func(m nn.Module) []float32 {
			c := nn.Evaluation(t.Context())
			defer c.Close()
			return c.Call(m, ids).Float32s()
		}
		if loaded, err := LoadHuggingFace(dir); err != nil || !slices.Equal(logits(loaded), logits(m)) {
			t.Errorf("%d: the loaded model computes something else (%v)", i, err)
		}
	}
	if _, err := parsePretrained([]byte(`{"model_type": "cohort_moe", "vocab_size": 9, "max_position_embeddings": 8, "hidden_size": 8, "intermediate_size": 8,
		"num_hidden_layers": 1, "num_attention_heads": 2, "num_local_experts": 2, "num_experts_per_tok": 3}`)); err == nil || !strings.Contains(err.Error(), "number of active experts of a mixture of experts is 3, want 1 to 2") {
		t.Error(err)
	}
}
