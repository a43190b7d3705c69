// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"os"
	"path/filepath"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/train/proof"
)

// halfway trains a tiny language model on a mesh, with a checkpoint in the middle.
func halfway(t *testing.T, text string, mesh MeshConfig, change func(*LMConfig)) LMConfig {
	t.Helper()
	c := tiny(t, text)
	c.MeshConfig, c.Ranks = mesh, 1
	for _, n := range mesh.sizes() {
		c.Ranks *= max(1, n)
	}
	c.Steps, c.SaveEvery, c.EvalEvery, c.Keep = 6, 3, 0, 3
	c.Batch = 8 / (c.Ranks / mesh.copies())
	if change != nil {
		change(&c)
	}
	if _, err := run(t, c.Ranks, c); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestProve: the step after a checkpoint, done again, is the step of the run: bit for bit on
// the mesh of the run, and within rounding on others.
func TestProve(t *testing.T) {
	text := writeText(t, 40_000)
	meshes := map[string]MeshConfig{
		"one": {Replicate: 1}, "replicas": {Replicate: 2}, "shards": {FSDP: 2}, "stages": {PP: 2}, "sequences": {CP: 2}, "matrices": {TP: 2},
	}
	for name, mesh := range meshes {
		t.Run(name, func(t *testing.T) {
			c := halfway(t, text, mesh, func(c *LMConfig) { c.Layers = max(1, mesh.PP) })
			path := checkpoint.Path(c.Out, 3)
			for _, other := range []MeshConfig{{}, {Replicate: 1}, {FSDP: 2}} {
				got, err := Prove(t.Context(), storage.Dir(path), ProveOptions{Mesh: other})
				if err != nil {
					t.Fatalf("%+v: %v", other, err)
				}
				if err := got.Err(); err != nil {
					t.Errorf("%+v: %v", other, err)
				}
				if want := other == (MeshConfig{}) || other == mesh; got.Exact != want {
					t.Errorf("%+v: exact is %v (%s)", other, got.Exact, got.Why)
				}
			}
			if _, err := os.Stat(filepath.Join(checkpoint.Path(c.Out, 6), proof.FileName)); err == nil {
				t.Error("the last checkpoint has a proof, of which step?")
			}
		})
	}
}

// TestProveRecipes: the other recipes are proved too, on the ranks of the run and on one; gradients by
// rows and a mixture of experts among them.
func TestProveRecipes(t *testing.T) {
	prove := func(name, out string, step int) {
		t.Helper()
		for _, mesh := range []MeshConfig{{}, {Replicate: 1}} {
			got, err := Prove(t.Context(), storage.Dir(checkpoint.Path(out, step)), ProveOptions{Mesh: mesh})
			if err != nil {
				t.Errorf("%s on %+v: %v", name, mesh, err)
			} else if err := got.Err(); err != nil || got.Exact != (mesh == MeshConfig{}) {
				t.Errorf("%s on %+v: %v, %v", name, mesh, got.Result(), err)
			}
		}
	}
	for _, model := range []string{visionMLP, visionCNN} {
		c := smallVision(t)
		c.Model, c.Epochs, c.Ranks, c.EvalEvery, c.SaveEvery, c.Keep = model, 0.2, 2, 0, 2, 99
		if err := trainVision(t.Context(), c, nil, 2, newLog()); err != nil {
			t.Fatal(err)
		}
		prove("vision "+model, c.Out, 2)
	}
	c := smallRec(t)
	c.Ranks, c.EvalEvery, c.SaveEvery, c.Keep = 2, 0, 20, 99
	if err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error { return Rec(ctx, g, c, nil, Discard) }); err != nil {
		t.Fatal(err)
	}
	prove("rec", c.Out, 20)
	lm := halfway(t, writeText(t, 40_000), MeshConfig{Replicate: 2}, func(c *LMConfig) { c.Experts, c.Accumulate, c.Batch, c.DType = 4, 2, 2, "bfloat16" })
	prove("experts", lm.Out, 3)
}
