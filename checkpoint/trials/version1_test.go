// SPDX-License-Identifier: Apache-2.0

package trials

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// loadVersion1 loads a checkpoint of version 1 on two ranks.
func loadVersion1(t *testing.T, path string) error {
	t.Helper()
	return onMesh(t, axesOf("fsdp2"), func(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int) error {
		shard := func(name string, shape ...int) checkpoint.Part {
			l := mesh.Layout{Mesh: m, Shape: shape, Placements: []mesh.Placement{mesh.Shard(0)}}
			local, err := l.LocalShape()
			if err != nil {
				panic(err)
			}
			return checkpoint.Part{Name: name, Tensor: mesh.Tensor{Local: tensor.Full(-1, local...), Layout: l}}
		}
		weight, bias := shard("layer.weight", 3, 4), checkpoint.Part{Name: "layer.bias", Tensor: mesh.Tensor{Local: tensor.Empty(tensor.BFloat16, 3)}}
		average, square := shard("exp_avg.layer.weight", 3, 4), shard("exp_avg_sq.layer.weight", 3, 4)
		count := checkpoint.Part{Name: "step.layer.weight", Tensor: mesh.Tensor{Local: tensor.Empty(tensor.Int64, 1)}}
		var p checkpoint.Progress
		step, err := checkpoint.Load(ctx, g, storage.Dir(path), checkpoint.State{
			Sections: map[string][]checkpoint.Part{checkpoint.Model: {weight, bias}, checkpoint.Optimizer: {average, square, count}},
			Values:   map[string]any{"progress": &p},
		})
		if err != nil {
			return err
		}
		if step != 3 || p.Step != 3 || p.Seed != 5 || p.Task != "lm" || string(p.Loader) == "" {
			return fmt.Errorf("step %d, progress %+v", step, p)
		}
		want := []float32{0, 1, 2, 3, 4, 5, 6, 7}
		if rank == 1 {
			want = []float32{8, 9, 10, 11}
		}
		for i, x := range want {
			if w, a, s := weight.Local.Float32s()[i], average.Local.Float32s()[i], square.Local.Float32s()[i]; w != x || a != x/4 || s != x/8 {
				return fmt.Errorf("rank %d has %v, %v, %v at %d", rank, w, a, s, i)
			}
		}
		if b := bias.Local.To(tensor.Float32).Float32s(); !slices.Equal(b, []float32{0.5, -2, 4}) || count.Local.Int64s()[0] != 3 {
			return fmt.Errorf("rank %d has %v, %v", rank, b, count.Local)
		}
		return nil
	})
}

// TestVersion1: checkpoints of version 1, whose manifest lists files alone, are loaded on any
// mesh, and each byte of theirs is compared.
func TestVersion1(t *testing.T) {
	path := t.TempDir()
	if err := os.CopyFS(path, os.DirFS(filepath.Join("testdata", "version1"))); err != nil {
		t.Fatal(err)
	}
	if err := loadVersion1(t, path); err != nil {
		t.Fatal(err)
	}
	step := filepath.Join(path, checkpoint.StepName(3))
	for _, name := range []string{"model.safetensors", "optimizer.safetensors", "progress.json"} {
		good, err := os.ReadFile(filepath.Join(step, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []int{len(good) - 1, len(good) - 9, len(good) / 2} {
			bad := slices.Clone(good)
			bad[at] ^= 1
			if err := os.WriteFile(filepath.Join(step, name), bad, 0o666); err != nil {
				t.Fatal(err)
			}
			err := loadVersion1(t, path)
			var damaged *checkpoint.DamagedError
			if !errors.As(err, &damaged) || damaged.File != name {
				t.Errorf("another bit in byte %d of %s: %v", at, name, err)
			}
			// It was set aside.
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(path, os.DirFS(filepath.Join("testdata", "version1"))); err != nil {
				t.Fatal(err)
			}
		}
	}
}
