// SPDX-License-Identifier: Apache-2.0

package models

import (
	"bytes"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestMaterialize: each model that is built on Meta and made afterwards has the state of
// one that was built on the CPU at once.
func TestMaterialize(t *testing.T) {
	for name, build := range map[string]func(b *nn.Build) any{
		"gpt": func(b *nn.Build) any {
			return NewGPT(b, GPTConfig{Vocab: 17, Context: 8, Width: 16, Heads: 2, Layers: 2})
		},
		"gpt untied": func(b *nn.Build) any {
			return NewGPT(b, GPTConfig{Vocab: 17, Context: 8, Width: 16, Heads: 2, Layers: 1, Untied: true})
		},
		"llama": func(b *nn.Build) any {
			return NewLlama(b, LlamaConfig{Vocab: 13, Context: 8, Width: 32, Hidden: 48, Heads: 4, KeyHeads: 2, Layers: 2, AttentionBias: true})
		},
		"bert": func(b *nn.Build) any {
			return NewBERT(b, BERTConfig{Vocab: 13, Context: 8, Width: 32, Heads: 4, Layers: 2})
		},
		"moe": func(b *nn.Build) any { return NewMoETransformer(b, smallMoE()) },
		"resnet": func(b *nn.Build) any {
			return NewResNet(b, ResNetConfig{Blocks: [4]int{1, 1, 1, 1}, Classes: 5, ZeroInitResidual: true})
		},
		"cnn": func(b *nn.Build) any { return NewCNN(b, CNNConfig{Channels: 1, Widths: []int{4, 8}, Classes: 10}) },
		"mlp": func(b *nn.Build) any { return NewMLP(b, 5, 4, 3) },
		"dlrm": func(b *nn.Build) any {
			return NewDLRM(b, DLRMConfig{Tables: []int{13, 12}, Width: 8, Bottom: []int{5, 16, 8}, Top: []int{12, 1}})
		},
		"factorization": func(b *nn.Build) any {
			return NewMatrixFactorization(b, MatrixFactorizationConfig{Users: 5, Items: 7, Width: 3})
		},
		"word2vec": func(b *nn.Build) any { return NewWord2Vec(b, 7, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			want := nn.StateDict(build(&nn.Build{Generator: tensor.NewGenerator(3)}))
			m := build(&nn.Build{Generator: tensor.NewGenerator(3), Device: tensor.Meta})
			if err := nn.Materialize(m, tensor.CPU()); err != nil {
				t.Fatal(err)
			}
			got := nn.StateDict(m)
			for i, s := range want {
				if got[i].Name != s.Name || !bytes.Equal(got[i].Tensor.Buffer().Data, s.Tensor.Buffer().Data) {
					t.Errorf("%s differs", s.Name)
				}
			}
		})
	}
}
