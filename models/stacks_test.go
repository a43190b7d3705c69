// SPDX-License-Identifier: Apache-2.0

package models

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestFusedExperts: folders whose experts are fused, as programs around transformers 5 write
// them, are the same models.
func TestFusedExperts(t *testing.T) {
	for _, name := range []string{"mixtral", "qwen2-moe", "qwen3-moe"} {
		from := filepath.Join(golden("families"), name)
		m, err := LoadCausalLM(from)
		if err != nil {
			t.Fatal(err)
		}
		state := make(map[string]*tensor.Tensor)
		for _, s := range nn.StateDict(m) {
			path, part, isExpert := strings.Cut(strings.Replace(s.Name, ".block_sparse_moe.", ".mlp.", 1), ".experts.")
			switch {
			case !isExpert:
				state[path] = s.Tensor
			case part == "up_proj":
			case part == "gate_proj":
				up := find(t, m, strings.Replace(s.Name, "gate_proj", "up_proj", 1))
				state[path+".experts.gate_up_proj"] = tensor.Cat(1, s.Tensor, up)
			default:
				state[path+".experts."+part] = s.Tensor
			}
		}
		config, err := os.ReadFile(filepath.Join(from, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), name)
		save := func() {
			all := func(yield func(string, *tensor.Tensor) bool) {
				for name, x := range state {
					if !yield(name, x) {
						return
					}
				}
			}
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if err := huggingface.Save(dir, all, huggingface.SaveOptions{Files: map[string][]byte{"config.json": config}}); err != nil {
				t.Fatal(err)
			}
		}
		save()
		again, err := LoadCausalLM(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range nn.StateDict(m) {
			if !slices.Equal(find(t, again, s.Name).Float32s(), s.Tensor.Float32s()) {
				t.Errorf("%s: %s differs", name, s.Name)
			}
		}
		// One expert too few is an error that names what is missing.
		for n, x := range state {
			if strings.HasSuffix(n, ".experts.down_proj") {
				state[n] = x.Narrow(0, 0, x.Dim(0)-1).Clone()
			}
		}
		save()
		last := map[string]string{"mixtral": "experts.3.w2.weight", "qwen2-moe": "experts.4.down_proj.weight", "qwen3-moe": "experts.3.down_proj.weight"}[name]
		if _, err := LoadCausalLM(dir); err == nil || !strings.Contains(err.Error(), last) {
			t.Errorf("%s: %v, want an error with %s", name, err, last)
		}
	}
}

// TestForgedStacks: neither a configuration nor the header of a file makes more names than
// a model has.
func TestForgedStacks(t *testing.T) {
	g := MixtralConfig{MoEConfig{LlamaConfig: LlamaConfig{Vocab: 9, Context: 9, Width: 2, Hidden: 2, Heads: 1, KeyHeads: 1, Layers: 5}, Experts: 1 << 16, Active: 1}}
	if err := g.Validate(); err == nil || !strings.Contains(err.Error(), "all layers together of a Mixtral is 327680") {
		t.Errorf("%d experts in %d layers: %v", g.Experts, g.Layers, err)
	}
	var infos headers
	for i := range 10 {
		name := fmt.Sprintf("layers.%d.mlp.experts.gate_up_proj", i)
		infos = append(infos, safetensors.Info{Name: name, DType: safetensors.F32, Shape: []int{maxStacked / 4, 2, 1}})
	}
	infos = append(infos, safetensors.Info{Name: "layers.0.mlp.experts.down_proj", DType: safetensors.F32, Shape: []int{1 << 40, 0, 1}})
	// Six of ten fit, each with two tensors an expert, and nothing is made of no bytes.
	if n, want := len(unfused(infos).Infos()), 6*2*maxStacked/4+4+1; n != want {
		t.Errorf("%d tensors, want %d", n, want)
	}
}

// headers is a source of which there is only the header.
type headers []safetensors.Info

func (h headers) Name() string                          { return "headers" }
func (h headers) Infos() []safetensors.Info             { return h }
func (h headers) ReadTensor(string, []byte) error       { return errors.ErrUnsupported }
func (h headers) ReadRange(string, []byte, int64) error { return errors.ErrUnsupported }

// find returns a tensor of a model.
func find(t *testing.T, m any, name string) *tensor.Tensor {
	t.Helper()
	for _, s := range nn.StateDict(m) {
		if s.Name == name {
			return s.Tensor
		}
	}
	t.Fatalf("there is no %s", name)
	return nil
}
