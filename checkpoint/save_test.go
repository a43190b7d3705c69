// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// spread returns this rank's part of a tensor of float32 that counts from first on.
func spread(name string, shape []int, first float64, m *mesh.Mesh, placements ...mesh.Placement) (checkpoint.Part, error) {
	n := 1
	for _, s := range shape {
		n *= s
	}
	whole := tensor.ArangeOf(tensor.CPU(), tensor.Float32, first, first+float64(n), 1).Reshape(shape...)
	l := mesh.Layout{Mesh: m, Shape: shape, Placements: placements}
	local, err := l.LocalShape()
	if err != nil {
		return checkpoint.Part{}, err
	}
	boxes, err := l.Boxes()
	if err != nil {
		return checkpoint.Part{}, err
	}
	t := tensor.Zeros(local...)
	for _, b := range boxes {
		from, to := whole, t
		for d, n := range b.Shape {
			from, to = from.Narrow(d, b.Start[d], n), to.Narrow(d, b.LocalStart[d], n)
		}
		to.CopyFrom(from)
	}
	return checkpoint.Part{Name: name, Tensor: mesh.Tensor{Local: t, Layout: l}}, nil
}

// job is a state on a mesh dp × tp, of tensors that lie in several ways.
func job(ctx context.Context, g *dist.Group, dp, tp int) (checkpoint.State, error) {
	m, err := mesh.New(ctx, g, mesh.Axis{Name: "dp", Size: dp}, mesh.Axis{Name: "tp", Size: tp})
	if err != nil {
		return checkpoint.State{}, err
	}
	var parts []checkpoint.Part
	for i, p := range [][]mesh.Placement{
		{mesh.Replicate(), mesh.Replicate()}, {mesh.Shard(0), mesh.Replicate()}, {mesh.Replicate(), mesh.Shard(1)},
		{mesh.Shard(0), mesh.Shard(1)}, {mesh.StridedShard(0, tp), mesh.Shard(0)}, {mesh.StridedShard(0, 3), mesh.Replicate()},
		{mesh.Shard(1), mesh.Shard(0)},
	} {
		part, err := spread(fmt.Sprintf("t%d", i), []int{13, 7}, float64(1000*i), m, p...)
		if err != nil {
			return checkpoint.State{}, err
		}
		parts = append(parts, part)
	}
	whole := checkpoint.Part{Name: "whole", Tensor: mesh.Tensor{Local: tensor.FromInt64([]int64{1, 2, 3})}}
	scalar := checkpoint.Part{Name: "scalar", Tensor: mesh.Tensor{Local: tensor.Full(7)}}
	return checkpoint.State{
		Sections:   map[string][]checkpoint.Part{checkpoint.Model: append(parts, whole), checkpoint.Optimizer: {scalar}},
		Values:     map[string]any{"loader": map[string]int{"position": 41}},
		RankValues: map[string]any{"generator": g.Rank()},
		Files:      func(w *checkpoint.Writer) error { return w.WriteFile("config.json", []byte("{}")) },
	}, nil
}

// TestReshard saves on meshes of all shapes and loads on others.
func TestReshard(t *testing.T) {
	shapes := [][2]int{{1, 1}, {2, 1}, {1, 3}, {2, 2}, {4, 1}}
	for _, from := range shapes {
		dir := storage.Dir(t.TempDir())
		err := dist.Spawn(t.Context(), from[0]*from[1], func(ctx context.Context, g *dist.Group) error {
			s, err := job(ctx, g, from[0], from[1])
			if err != nil {
				return err
			}
			return checkpoint.Save(ctx, g, dir, 5, s, checkpoint.WithShare(64))
		})
		if err != nil {
			t.Fatal(from, err)
		}
		c, err := checkpoint.Open(t.Context(), dir, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Verify(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		for _, to := range shapes {
			err := dist.Spawn(t.Context(), to[0]*to[1], func(ctx context.Context, g *dist.Group) error {
				want, err := job(ctx, g, to[0], to[1])
				if err != nil {
					return err
				}
				got, err := job(ctx, g, to[0], to[1])
				if err != nil {
					return err
				}
				for _, parts := range got.Sections {
					for _, p := range parts {
						p.Local.Fill(0)
					}
				}
				var loader map[string]int
				rank := -1
				got.Values, got.RankValues = map[string]any{"loader": &loader}, map[string]any{"generator": &rank}
				var loaded checkpoint.Loaded
				step, err := checkpoint.Load(ctx, g, dir, got, checkpoint.WithLoaded(&loaded))
				if err != nil {
					return err
				}
				same := from[0]*from[1] == to[0]*to[1]
				if step != 5 || loader["position"] != 41 || loaded.RankValues != same || same && rank != g.Rank() {
					return fmt.Errorf("step %d, loader %v, rank %d, %+v", step, loader, rank, loaded)
				}
				for name, parts := range got.Sections {
					for i, p := range parts {
						if w := want.Sections[name][i]; !slices.Equal(bytesOf(p.Local), bytesOf(w.Local)) {
							return fmt.Errorf("%s: %v, want %v", p.Name, p.Local, w.Local)
						}
					}
				}
				return nil
			})
			if err != nil {
				t.Errorf("from %v to %v: %v", from, to, err)
			}
		}
	}
}

func bytesOf(t *tensor.Tensor) []byte { return t.Contiguous().Buffer().Data }

// TestManifestIsPlain looks at the files of a checkpoint of several ranks.
func TestManifestIsPlain(t *testing.T) {
	root := t.TempDir()
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		s, err := job(ctx, g, 2, 1)
		if err != nil {
			return err
		}
		return checkpoint.Save(ctx, g, storage.Dir(root), 12, s)
	})
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(checkpoint.Path(root, 12))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := "config.json manifest.json model-00001-of-00006.safetensors model-00002-of-00006.safetensors model-00003-of-00006.safetensors " +
		"model-00004-of-00006.safetensors model-00005-of-00006.safetensors model-00006-of-00006.safetensors optimizer.safetensors"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	text, err := os.ReadFile(filepath.Join(checkpoint.Path(root, 12), checkpoint.ManifestName))
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	if m["version"] != 2.0 || m["ranks"] != 2.0 || fmt.Sprint(m["values"]) != "map[loader:map[position:41]]" || fmt.Sprint(m["rank_values"]) != "[map[generator:0] map[generator:1]]" {
		t.Errorf("%s", text)
	}
}

// TestOneRankFails has each of three ranks fail in turn: all get the error, and the rank's name.
func TestOneRankFails(t *testing.T) {
	for bad := range 3 {
		root := t.TempDir()
		errs := make([]error, 3)
		err := dist.Spawn(t.Context(), 3, func(ctx context.Context, g *dist.Group) error {
			s, err := job(ctx, g, 3, 1)
			if err != nil {
				return err
			}
			if g.Rank() == bad {
				s.RankValues["bad"] = func() {}
			}
			errs[g.Rank()] = checkpoint.Save(ctx, g, storage.Dir(root), 1, s)
			if errs[g.Rank()] == nil {
				return errors.New("saved")
			}
			delete(s.RankValues, "bad")
			return checkpoint.Save(ctx, g, storage.Dir(root), 2, s)
		})
		if err != nil {
			t.Fatal(err)
		}
		for r, err := range errs {
			var other *checkpoint.RankError
			if r != bad && (!errors.As(err, &other) || other.Rank != bad) || !strings.Contains(err.Error(), `the value "bad" cannot be saved`) {
				t.Errorf("rank %d of bad %d: %v", r, bad, err)
			}
		}
		if _, err := os.Stat(checkpoint.Path(root, 1)); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
}

// TestDamagePassedOver damages bytes that only one rank reads: all ranks take the checkpoint
// before, and the damaged one is set aside when that is loaded, not before.
func TestDamagePassedOver(t *testing.T) {
	root := t.TempDir()
	run := func(do func(ctx context.Context, g *dist.Group, s checkpoint.State) error) {
		t.Helper()
		err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
			s, err := job(ctx, g, 2, 1)
			if err != nil {
				return err
			}
			return do(ctx, g, s)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	run(func(ctx context.Context, g *dist.Group, s checkpoint.State) error {
		return errors.Join(checkpoint.Save(ctx, g, storage.Dir(root), 1, s), checkpoint.Save(ctx, g, storage.Dir(root), 2, s))
	})
	flip := func(step int) {
		c, err := checkpoint.Open(t.Context(), storage.Dir(root), checkpoint.StepName(step))
		if err != nil {
			t.Fatal(err)
		}
		boxes := c.Manifest().Section(checkpoint.Model).Tensors[1].Boxes // of t1, cut over dp
		path := filepath.Join(c.Path, boxes[1].File)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[boxes[1].At] ^= 1
		if err := os.WriteFile(path, b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	flip(2)
	run(func(ctx context.Context, g *dist.Group, s checkpoint.State) error {
		var notices []string
		var loaded checkpoint.Loaded
		s.Values, s.RankValues = nil, nil
		step, err := checkpoint.Load(ctx, g, storage.Dir(root), s, checkpoint.WithLoaded(&loaded), checkpoint.WithNotice(func(text string) { notices = append(notices, text) }))
		if err != nil || step != 1 {
			return fmt.Errorf("step %d, %w", step, err)
		}
		if g.Rank() == 0 && (len(notices) != 1 || !strings.Contains(notices[0], `in the tensor "t1"`) || len(loaded.PassedOver) != 1) {
			return fmt.Errorf("%q, %+v", notices, loaded)
		}
		return nil
	})
	if steps, err := checkpoint.Steps(t.Context(), storage.Dir(root)); err != nil || !slices.Equal(steps, []int{1}) {
		t.Error(steps, err)
	}
	flip(1)
	run(func(ctx context.Context, g *dist.Group, s checkpoint.State) error {
		s.Values, s.RankValues = nil, nil
		_, err := checkpoint.Load(ctx, g, storage.Dir(root), s)
		var damaged *checkpoint.DamagedError
		if g.Rank() == 0 && !errors.As(err, &damaged) || err == nil || !strings.Contains(err.Error(), "is damaged") {
			return fmt.Errorf("rank %d: %v", g.Rank(), err)
		}
		return nil
	})
	if steps, err := checkpoint.Steps(t.Context(), storage.Dir(root)); err != nil || !slices.Equal(steps, []int{1}) {
		t.Error(steps, err)
	}
}

// TestNewerVersion: what a newer program has saved is whole. It is refused by name, and nobody
// sets it aside, replaces it or removes it.
func TestNewerVersion(t *testing.T) {
	root := t.TempDir()
	to := storage.Dir(root)
	for step := range 3 {
		if err := checkpoint.Save(t.Context(), nil, to, step+1, checkpoint.State{}); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(checkpoint.Path(root, 2), checkpoint.ManifestName)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.Replace(string(text), `"version": 2`, `"version": 9`, 1))
	changed := slices.Clone(text) // without the checksum of what it says now: a bit may have flipped
	end := strings.LastIndex(string(text), ",\n  \"crc32c\"")
	sum := crc32.Checksum(text[:end], crc32.MakeTable(crc32.Castagnoli))
	text = fmt.Appendf(text[:end:end], ",\n  \"crc32c\": \"%08x\"\n}\n", sum)
	if err := os.WriteFile(path, text, 0o666); err != nil {
		t.Fatal(err)
	}
	keep := checkpoint.Retention{Last: 1, Best: 1}
	err = checkpoint.Save(t.Context(), nil, to, 2, checkpoint.State{})
	if err == nil || !strings.Contains(err.Error(), "step-00000002: manifest.json has version 9") {
		t.Errorf("saved over it: %v", err)
	}
	if err := keep.Prune(t.Context(), to); err != nil {
		t.Error(err)
	}
	if list, err := checkpoint.List(t.Context(), to); err != nil || len(list) != 2 || list[1].Kind != checkpoint.Damaged {
		t.Errorf("%+v, %v", list, err)
	}
	if err := to.Remove(t.Context(), checkpoint.StepName(3)); err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.Save(t.Context(), nil, to, 1, checkpoint.State{}); err != nil {
		t.Fatal(err)
	}
	_, err = checkpoint.Load(t.Context(), nil, to, checkpoint.State{})
	if err == nil || !strings.Contains(err.Error(), "step-00000002: manifest.json has version 9") {
		t.Errorf("loaded: %v", err)
	}
	if steps, err := checkpoint.Steps(t.Context(), to); err != nil || !slices.Equal(steps, []int{2, 1}) {
		t.Errorf("%v, %v", steps, err)
	}
	if err := os.WriteFile(path, changed, 0o666); err != nil {
		t.Fatal(err)
	}
	if step, err := checkpoint.Load(t.Context(), nil, to, checkpoint.State{}); err != nil || step != 1 {
		t.Errorf("step %d, %v", step, err)
	}
}

// TestDamageOfOneMachine: a checkpoint that one rank cannot read is passed over by all. It stays
// under its name if rank 0 reads all of it, and a save of its step replaces it if it is told to.
func TestDamageOfOneMachine(t *testing.T) {
	root := t.TempDir()
	to := storage.Dir(root)
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		s, err := job(ctx, g, 2, 1)
		if err != nil {
			return err
		}
		if err := errors.Join(checkpoint.Save(ctx, g, to, 1, s), checkpoint.Save(ctx, g, to, 2, s)); err != nil {
			return err
		}
		from := to
		if g.Rank() == 1 {
			from = storage.Dir(root, storage.WithHook(func(op storage.Op, do func() error) error {
				if op.Kind == storage.OpRead && strings.Contains(op.Path, "step-00000002") && strings.HasSuffix(op.Path, ".safetensors") {
					return syscall.EIO
				}
				return do()
			}))
		}
		var notices []string
		s.Values, s.RankValues = nil, nil
		var loaded checkpoint.Loaded
		step, err := checkpoint.Load(ctx, g, from, s, checkpoint.WithLoaded(&loaded), checkpoint.WithNotice(func(text string) { notices = append(notices, text) }))
		if err != nil || step != 1 {
			return fmt.Errorf("step %d, %w", step, err)
		}
		if g.Rank() == 0 && (len(notices) != 1 || !strings.Contains(notices[0], "rank 0 reads it as it was saved")) {
			return fmt.Errorf("%q", notices)
		}
		if want := []int{2}; g.Rank() == 0 && !slices.Equal(loaded.Stays, want) {
			return fmt.Errorf("stay: %v, want %v", loaded.Stays, want)
		}
		s.Values = map[string]any{"again": true}
		if err := checkpoint.Save(ctx, g, to, 2, s); !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("a save of the step that stays: %w", err)
		}
		if err := checkpoint.Save(ctx, g, to, 2, s, checkpoint.WithReplace(loaded.Stays...)); err != nil {
			return err
		}
		ck, err := checkpoint.Open(ctx, to, "")
		if err != nil || ck.Step != 2 || !ck.HasValue("again") {
			return fmt.Errorf("the step was not replaced: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if steps, err := checkpoint.Steps(t.Context(), to); err != nil || !slices.Equal(steps, []int{2, 1}) {
		t.Error(steps, err)
	}
}
