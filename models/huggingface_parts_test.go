// SPDX-License-Identifier: Apache-2.0

package models

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestLoadHuggingFaceParts: the parts of three ranks of a folder's weights, in several files,
// are those of the whole model.
func TestLoadHuggingFaceParts(t *testing.T) {
	b := &nn.Build{Generator: tensor.NewGenerator(4)}
	for name, m := range map[string]Pretrained{
		"gpt2":  NewGPT(b, GPTConfig{Vocab: 17, Context: 8, Width: 16, Heads: 2, Layers: 2}),
		"llama": NewLlama(b, LlamaConfig{Vocab: 13, Context: 8, Width: 32, Hidden: 48, Heads: 4, KeyHeads: 2, Layers: 2, Tied: true}),
		"mixtral": NewMixtral(b, MixtralConfig{MoEConfig{
			LlamaConfig: LlamaConfig{Vocab: 13, Context: 8, Width: 12, Hidden: 9, Heads: 2, KeyHeads: 1, Layers: 2}, Experts: 5, Active: 2,
		}}),
		"bert": NewBERT(b, BERTConfig{Vocab: 13, Context: 8, Width: 32, Heads: 4, Layers: 1}),
	} {
		dir := filepath.Join(t.TempDir(), name)
		if err := SaveHuggingFace(dir, m, 8<<10, nil); err != nil {
			t.Fatal(err)
		}
		whole := nn.StateDict(m)
		err := dist.Spawn(t.Context(), 3, func(ctx context.Context, g *dist.Group) error {
			grid, err := mesh.New(ctx, g, mesh.Axis{Name: "fsdp"})
			if err != nil {
				return err
			}
			defer grid.Close()
			outline, err := Outline(dir)
			if err != nil {
				return err
			}
			var parts []checkpoint.Part
			for i, s := range nn.StateDict(outline) {
				// Every second tensor along its last dim, if that can be divided.
				dim := 0
				if last := s.Tensor.NumDims() - 1; i%2 == 1 && s.Tensor.Dim(last)%3 == 0 {
					dim = last
				}
				l := mesh.Layout{Mesh: grid, Shape: s.Tensor.Shape(), Placements: []mesh.Placement{mesh.Shard(dim)}}
				shape, err := mesh.LocalShape(l.Shape, grid.Shape(), l.Placements, grid.Coordinate())
				if err != nil {
					return err
				}
				parts = append(parts, checkpoint.Part{Name: s.Name, Tensor: mesh.Tensor{Local: tensor.Zeros(shape...), Layout: l}})
			}
			if err := LoadHuggingFaceParts(dir, parts); err != nil {
				return err
			}
			for i, p := range parts {
				want := whole[i].Tensor
				boxes, err := mesh.Boxes(p.Shape, grid.Shape(), p.Placements, grid.Coordinate())
				if err != nil {
					return err
				}
				if len(boxes) == 0 {
					continue
				}
				for d := range p.Shape {
					want = want.Narrow(d, boxes[0].Start[d], boxes[0].Shape[d])
				}
				if !slices.Equal(p.Local.Float32s(), want.Float32s()) {
					return fmt.Errorf("rank %d: %s has other values than the model", g.Rank(), p.Name)
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
