// SPDX-License-Identifier: Apache-2.0

package models

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/dist/mesh"
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

// TestHuggingFaceInParts: the tensors of a folder that are read one after the other, and
// the shards that a rank reads, are those of the model that is read at once.
func TestHuggingFaceInParts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "llama")
	m := NewLlama(&nn.Build{Generator: tensor.NewGenerator(3)}, LlamaConfig{Vocab: 13, Context: 8, Width: 32, Hidden: 48, Heads: 4, KeyHeads: 2, Layers: 2, Tied: true})
	if err := SaveHuggingFace(dir, m, 4<<10, nil); err != nil { // in several files
		t.Fatal(err)
	}
	want := nn.StateDict(m)
	i := 0
	err := EachHuggingFace(dir, func(s nn.NamedTensor) error {
		if s.Name != want[i].Name || !bytes.Equal(s.Tensor.Buffer().Data, want[i].Tensor.Buffer().Data) {
			t.Errorf("tensor %d is %s, want %s with its values", i, s.Name, want[i].Name)
		}
		i++
		return nil
	})
	if err != nil || i != len(want) {
		t.Errorf("visited %d of %d tensors: %v", i, len(want), err)
	}
	place, err := mesh.Sketch(1, mesh.Axis{Name: "fsdp", Size: 3})
	if err != nil {
		t.Fatal(err)
	}
	var parts []checkpoint.Part
	for _, s := range want {
		l := mesh.Layout{Mesh: place, Shape: s.Tensor.Shape(), Placements: []mesh.Placement{mesh.Shard(0)}}
		shape, err := l.LocalShape()
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, checkpoint.Part{Name: s.Name, Tensor: mesh.Tensor{Local: tensor.Zeros(shape...), Layout: l}})
	}
	if err := LoadHuggingFaceParts(dir, parts); err != nil {
		t.Fatal(err)
	}
	for i, p := range parts {
		boxes, err := p.Boxes()
		if err != nil || len(boxes) != 1 {
			t.Fatal(boxes, err)
		}
		rows := want[i].Tensor.Narrow(0, boxes[0].Start[0], boxes[0].Shape[0])
		if !bytes.Equal(p.Local.Buffer().Data, rows.Contiguous().Buffer().Data) {
			t.Errorf("the shard of %s differs", p.Name)
		}
	}
}
