// SPDX-License-Identifier: Apache-2.0

package train

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/tensor"
	"github.com/cohort-ml/cohort/train/proof"
)

// opened is a checkpoint in memory, with what a fault may change.
type opened struct {
	model, optimizer map[string]*tensor.Tensor
	progress         checkpoint.Progress
}

func openWhole(t *testing.T, out string, step int) (*checkpoint.Checkpoint, *opened) {
	t.Helper()
	ck, err := checkpoint.Open(t.Context(), storage.Dir(out), checkpoint.StepName(step))
	if err != nil {
		t.Fatal(err)
	}
	o := &opened{}
	for section, into := range map[string]*map[string]*tensor.Tensor{checkpoint.Model: &o.model, checkpoint.Optimizer: &o.optimizer} {
		src, err := ck.Source(section)
		if err != nil {
			t.Fatal(err)
		}
		*into = map[string]*tensor.Tensor{}
		for _, info := range src.Infos() {
			(*into)[info.Name] = tensor.Zeros(info.Shape...)
		}
		err = checkpoint.LoadTensors(src, func(yield func(string, *tensor.Tensor) bool) {
			for name, x := range *into {
				if !yield(name, x) {
					return
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		src.Close()
	}
	if o.progress, err = ck.ReadProgress(); err != nil {
		t.Fatal(err)
	}
	return ck, o
}

// damaged saves the checkpoint of a step again, after a fault, beside the proof of the run. What it saves has right
// checksums: nothing but the proof can tell. It returns the path.
func damaged(t *testing.T, out string, step int, fault func(*opened)) string {
	t.Helper()
	ck, o := openWhole(t, out, step)
	fault(o)
	s := checkpoint.State{Sections: map[string][]checkpoint.Part{}, Values: map[string]any{checkpoint.ProgressValue: o.progress}}
	for section, tensors := range map[string]map[string]*tensor.Tensor{checkpoint.Model: o.model, checkpoint.Optimizer: o.optimizer} {
		s.Sections[section] = checkpoint.Whole(func(yield func(string, *tensor.Tensor) bool) {
			for name, x := range tensors {
				if !yield(name, x) {
					return
				}
			}
		})
	}
	s.Files = func(w *checkpoint.Writer) error {
		for _, f := range ck.Manifest().Files {
			if filepath.Ext(f.Name) != ".json" || strings.Contains(f.Name, "index") {
				continue
			}
			text, err := ck.ReadFile(f.Name, 1<<20)
			if err == nil {
				err = w.WriteFile(f.Name, text)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	again := t.TempDir()
	if err := checkpoint.Save(t.Context(), nil, storage.Dir(again), step, s); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(checkpoint.Path(out, step), proof.FileName))
	if err != nil {
		t.Fatal(err)
	}
	path := checkpoint.Path(again, step)
	if err := os.WriteFile(filepath.Join(path, proof.FileName), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFaultsAreNamed plants what other libraries have lost in silence. Each is caught by name, on
// the mesh of the run and on one rank.
func TestFaultsAreNamed(t *testing.T) {
	const weight = "transformer.h.0.mlp.c_fc.weight"
	c := halfway(t, writeText(t, 40_000), MeshConfig{FSDP: 2}, func(c *LMConfig) { c.SaveEvery, c.Steps, c.Keep = 2, 6, 9 })
	half := func(x *tensor.Tensor, at int) *tensor.Tensor {
		n := x.Shape()[0] / 2
		return x.Narrow(0, at*n, n)
	}
	for _, f := range []struct {
		name  string
		fault func(*opened)
		kind  proof.Kind
		want  string // in the error
	}{
		{"Adam's moments are lost", func(o *opened) {
			for name, x := range o.optimizer {
				if strings.HasPrefix(name, "exp_avg") {
					x.Fill(0)
				}
			}
		}, proof.LoadedOptimizer, "loaded optimizer state exp_avg.transformer."},
		{"a bucket of the optimizer's state is zero", func(o *opened) { half(o.optimizer["exp_avg_sq."+weight], 1).Fill(0) },
			proof.LoadedOptimizer, "elements are zero"},
		{"counts of updates are lost", func(o *opened) { o.optimizer["step."+weight].Fill(0) },
			proof.LoadedOptimizer, "loaded optimizer state step." + weight + ": norm 0, was norm 4"},
		{"the loader was moved", func(o *opened) {
			var loader data.LoaderState
			if err := json.Unmarshal(o.progress.Loader, &loader); err != nil {
				t.Fatal(err)
			}
			loader.Position += 8
			o.progress.Loader, _ = json.Marshal(loader)
		}, proof.LoaderPlace, "place of the loader: after sample 48, was after sample 40"},
		{"the learning rate is another", func(o *opened) {
			var recipe map[string]any
			if err := json.Unmarshal(o.progress.Recipe, &recipe); err != nil {
				t.Fatal(err)
			}
			recipe["lr"] = 2 * recipe["lr"].(float64)
			o.progress.Recipe, _ = json.Marshal(recipe)
		}, proof.LearningRate, "learning rate of group 0: "},
		{"blocks of rows are exchanged", func(o *opened) {
			x := o.model[weight]
			first := half(x, 0).Clone()
			half(x, 0).CopyFrom(half(x, 1))
			half(x, 1).CopyFrom(first)
		}, proof.LoadedWeights, "in other places, such as rows that are exchanged"},
		{"weights were in another dtype", func(o *opened) {
			x := o.model[weight]
			x.CopyFrom(x.To(tensor.BFloat16).To(tensor.Float32))
		}, proof.LoadedWeights, "all its elements are numbers of bfloat16"},
		{"a shard is of an older step", func(o *opened) {
			_, old := openWhole(t, c.Out, 2)
			half(o.model[weight], 1).CopyFrom(half(old.model[weight], 1))
		}, proof.LoadedWeights, "loaded weights " + weight},
	} {
		path := damaged(t, c.Out, 4, f.fault)
		for _, mesh := range []MeshConfig{{}, {Replicate: 1}} {
			got, err := Prove(t.Context(), storage.Dir(path), ProveOptions{Mesh: mesh})
			if err != nil {
				t.Fatalf("%s: %v", f.name, err)
			}
			if err := got.Err(); err == nil || !strings.Contains(err.Error(), f.want) || got.Differences[0].Kind != f.kind {
				t.Errorf("%s, on %+v: %v, want %q", f.name, mesh, err, f.want)
			}
			if wrong := slices.IndexFunc(got.Differences, func(d proof.Difference) bool {
				return !d.Follows && strings.HasPrefix(string(d.Kind), "loaded") && !strings.Contains(d.Name, weight) && !strings.Contains(f.name, "moments")
			}); wrong >= 0 {
				t.Errorf("%s: also %v", f.name, got.Differences[wrong])
			}
		}
	}
	if got, err := Prove(t.Context(), storage.Dir(damaged(t, c.Out, 4, func(*opened) {})), ProveOptions{}); err != nil || got.Err() != nil || !got.Exact {
		t.Error("without a fault:", fmt.Sprint(got), err)
	}
}
