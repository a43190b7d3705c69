// SPDX-License-Identifier: Apache-2.0

package models

import (
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestGPTWithoutData plans with a model that fits on no machine.
func TestGPTWithoutData(t *testing.T) {
	m := NewGPT(&nn.Build{Device: tensor.Meta}, GPTConfig{Vocab: 50257, Context: 2048, Width: 12288, Heads: 96, Layers: 96})
	if n := nn.NumParams(m); n/1e9 != 174 {
		t.Errorf("GPT-3 has %d parameters, want 174 billion", n)
	}
	ids := tensor.New(tensor.Meta, tensor.Int64, 4, 2048)
	c := nn.Training(t.Context(), nn.WithDevice(tensor.Meta))
	defer c.Close()
	if err := tensor.CrossEntropy(c.Call(m, ids), ids).Backward(c); err != nil {
		t.Error(err)
	}
	if m.Transformer.Tokens.Weight.Grad() == nil {
		t.Error("the embedding has no gradient")
	}
}

func TestGPTStateMovesThroughACheckpoint(t *testing.T) {
	m := NewGPT(&nn.Build{}, GPTConfig{Vocab: 61, Context: 24, Width: 32, Heads: 4, Layers: 2})
	dir := t.TempDir()
	err := checkpoint.Save(t.Context(), nil, storage.Dir(dir), 1, checkpoint.State{
		Sections: map[string][]checkpoint.Part{checkpoint.Model: checkpoint.Whole(nn.StateDict(m).All())},
	}, checkpoint.WithRetention(checkpoint.KeepLast(1)))
	if err != nil {
		t.Fatal(err)
	}
	ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	other := NewGPT(&nn.Build{Generator: tensor.NewGenerator(1)}, m.Config)
	if err := ck.LoadTensors(checkpoint.Model, nn.StateDict(other).All()); err != nil {
		t.Fatal(err)
	}
	want := nn.StateDict(m)
	for i, s := range nn.StateDict(other) {
		if !slices.Equal(s.Tensor.Float32s(), want[i].Tensor.Float32s()) {
			t.Errorf("%s differs", s.Name)
		}
	}
}
