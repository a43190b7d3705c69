// SPDX-License-Identifier: Apache-2.0

package train

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
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
		"one": {Replicate: 1}, "replicas": {Replicate: 2}, "shards": {FSDP: 2}, "stages": {PP: 2}, "sequences": {CP: 2},
	}
	for name, mesh := range meshes {
		t.Run(name, func(t *testing.T) {
			c := halfway(t, text, mesh, func(c *LMConfig) { c.Layers = max(1, mesh.PP) })
			path := checkpoint.Path(c.Out, 3)
			for _, other := range []MeshConfig{{}, {Replicate: 1}, {FSDP: 2}} {
				got, err := Prove(t.Context(), path, ProveOptions{Mesh: other})
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
