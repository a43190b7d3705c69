// SPDX-License-Identifier: Apache-2.0

package trials

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/tensor"
)

// The tests of this file are faults that other libraries have had.

// axesOf reads a mesh such as "fsdp2.tp2".
func axesOf(text string) (axes []mesh.Axis) {
	for part := range strings.SplitSeq(text, ".") {
		at := strings.IndexAny(part, "123456789")
		axis := mesh.Axis{Name: part[:at]}
		if _, err := fmt.Sscan(part[at:], &axis.Size); err != nil {
			panic(err)
		}
		axes = append(axes, axis)
	}
	return axes
}

// optimizerOf returns parameters with the state of Adam. No byte of them is zero.
func optimizerOf(seed uint64, shapes ...[]int) (draws []tensorDraw) {
	add := func(section, name string, shape []int) {
		d := tensorDraw{section: section, name: name, dtype: tensor.Float32, shape: shape, tied: -1, data: make([]byte, 4*numElems(shape))}
		r := random(seed, name)
		for i := range d.data {
			d.data[i] = byte(1 + r.IntN(255))
		}
		draws = append(draws, d)
	}
	for i, shape := range shapes {
		name := fmt.Sprintf("layers.%d.weight", i)
		add(checkpoint.Model, name, shape)
		add(checkpoint.Optimizer, "exp_avg."+name, shape)
		add(checkpoint.Optimizer, "exp_avg_sq."+name, shape)
		add(checkpoint.Optimizer, "step."+name, []int{})
	}
	return draws
}

// liesAs gives all tensors with dims the same placements. Those without are replicated.
func liesAs(draws []tensorDraw, placements ...mesh.Placement) []lie {
	out := make([]lie, len(draws))
	for i, d := range draws {
		out[i].placements = placements
		if len(d.shape) == 0 {
			out[i].placements = make([]mesh.Placement, len(placements))
		}
	}
	return out
}

// save saves tensors that lie on a mesh.
func save(t *testing.T, to storage.Storage, draws []tensorDraw, axes []mesh.Axis, lies []lie) {
	t.Helper()
	err := onMesh(t, axes, func(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int) error {
		h, err := hold(draws, lies, m, true)
		if err != nil {
			return err
		}
		return checkpoint.Save(ctx, g, to, 1, checkpoint.State{Sections: h.sections()})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// load loads them on another mesh, and compares them.
func load(t *testing.T, from storage.Storage, draws []tensorDraw, axes []mesh.Axis, lies []lie) {
	t.Helper()
	err := onMesh(t, axes, func(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int) error {
		h, err := hold(draws, lies, m, false)
		if err != nil {
			return err
		}
		if step, err := checkpoint.Load(ctx, g, from, checkpoint.State{Sections: h.sections()}); err != nil || step != 1 {
			return fmt.Errorf("step %d: %w", step, err)
		}
		return h.compare()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestNewAxis: the state of an optimizer moves to layouts that have another axis: behind the
// others, before them, and one that cuts what another one has cut.
func TestNewAxis(t *testing.T) {
	draws := optimizerOf(seeded.Of(t), []int{33, 12}, []int{1009}, []int{24, 8}, []int{5, 7, 6}, []int{1})
	shard, strided, whole := mesh.Shard, mesh.StridedShard, mesh.Replicate()
	places := []struct {
		axes       string
		placements []mesh.Placement
	}{
		{"fsdp4", []mesh.Placement{shard(0)}},
		{"fsdp2.tp2", []mesh.Placement{strided(0, 2), shard(0)}},
		{"replicate2.fsdp2", []mesh.Placement{whole, shard(0)}},
		{"pp2.fsdp2.tp2", []mesh.Placement{whole, shard(0), shard(0)}},
		{"replicate2.fsdp2.tp2", []mesh.Placement{whole, strided(0, 2), shard(0)}},
		{"tp3", []mesh.Placement{shard(0)}},
		{"fsdp2.ep3", []mesh.Placement{shard(0), shard(0)}},
	}
	for _, from := range places {
		dir := storage.Dir(t.TempDir())
		save(t, dir, draws, axesOf(from.axes), liesAs(draws, from.placements...))
		for _, to := range places {
			t.Run(from.axes+" to "+to.axes, func(t *testing.T) {
				load(t, dir, draws, axesOf(to.axes), liesAs(draws, to.placements...))
			})
		}
	}
}

// TestManyBuckets: what is resharded has no zeros where it was read in several pieces. There
// are tensors of many MiB, of less, and of a few bytes, and each byte that was saved is not zero.
func TestManyBuckets(t *testing.T) {
	draws := optimizerOf(seeded.Of(t), []int{1009, 700}, []int{300_000}, []int{33, 9}, []int{2}, []int{640, 512}, []int{3, 100_001})
	shard := mesh.Shard(0)
	dir := storage.Dir(t.TempDir())
	save(t, dir, draws, axesOf("fsdp4"), liesAs(draws, shard))
	for _, axes := range []string{"fsdp1", "fsdp2", "fsdp3", "fsdp5"} {
		t.Run(axes, func(t *testing.T) { load(t, dir, draws, axesOf(axes), liesAs(draws, shard)) })
	}
	t.Run("columns", func(t *testing.T) {
		lies := liesAs(draws, shard)
		for i, d := range draws {
			if len(d.shape) == 2 {
				lies[i].placements = []mesh.Placement{mesh.StridedShard(1, 3)}
			}
		}
		load(t, dir, draws, axesOf("fsdp3"), lies)
	})
}

// TestRankRefuses: where the state of one rank cannot be saved or loaded, all ranks get an
// error that names it, and none waits for the others. What is loaded does not change.
func TestRankRefuses(t *testing.T) {
	draws := optimizerOf(1, []int{8, 4}, []int{6})
	axes, lies := axesOf("fsdp3"), liesAs(optimizerOf(1, []int{8, 4}, []int{6}), mesh.Shard(0))
	const bad = 1
	spoilers := map[string]func(s *checkpoint.State){
		"a tensor more": func(s *checkpoint.State) {
			s.Sections[checkpoint.Model] = append(s.Sections[checkpoint.Model], checkpoint.Whole(tensorsOf("more"))...)
		},
		"a tensor less": func(s *checkpoint.State) { s.Sections[checkpoint.Model] = s.Sections[checkpoint.Model][1:] },
		"another name":  func(s *checkpoint.State) { s.Sections[checkpoint.Optimizer][0].Name = "exp_avg.other" },
		"another dtype": func(s *checkpoint.State) {
			p := &s.Sections[checkpoint.Model][0]
			p.Local = p.Local.To(tensor.BFloat16)
		},
		"a part too small": func(s *checkpoint.State) { p := &s.Sections[checkpoint.Model][0]; p.Local = p.Local.Narrow(0, 0, 1) },
		"a section less":   func(s *checkpoint.State) { delete(s.Sections, checkpoint.Optimizer) },
		"a sum that is owed": func(s *checkpoint.State) {
			s.Sections[checkpoint.Model][0].Placements = []mesh.Placement{mesh.Partial(dist.Sum)}
		},
	}
	dir := storage.Dir(t.TempDir())
	save(t, dir, draws, axes, lies)
	for what, spoil := range spoilers {
		for _, loads := range []bool{false, true} {
			if loads && what == "a section less" {
				continue // a run may load less than there is
			}
			t.Run(fmt.Sprintf("%s, loads %v", what, loads), func(t *testing.T) {
				errs := make([]error, 3)
				err := onMesh(t, axes, func(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int) error {
					h, err := hold(draws, lies, m, !loads)
					if err != nil {
						return err
					}
					s := checkpoint.State{Sections: h.sections()}
					if rank == bad {
						spoil(&s)
					}
					if loads {
						_, errs[rank] = checkpoint.Load(ctx, g, dir, s)
					} else {
						errs[rank] = checkpoint.Save(ctx, g, dir, 2, s)
					}
					return g.Barrier(ctx) // the group goes on
				})
				if err != nil {
					t.Fatal(err)
				}
				for rank, err := range errs {
					if err == nil || rank != bad && !strings.Contains(err.Error(), "rank 1") {
						t.Errorf("rank %d: %v", rank, err)
					}
				}
				if steps, err := checkpoint.Steps(t.Context(), dir); err != nil || len(steps) != 1 {
					t.Errorf("there are the steps %v, %v", steps, err)
				}
			})
		}
	}
	t.Run("a value that JSON has not", func(t *testing.T) {
		errs := make([]error, 3)
		err := onMesh(t, axes, func(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int) error {
			h, err := hold(draws, lies, m, true)
			if err != nil {
				return err
			}
			s := checkpoint.State{Sections: h.sections(), RankValues: map[string]any{"loss": float64(rank)}}
			if rank == bad {
				s.RankValues["loss"] = math.NaN()
			}
			errs[rank] = checkpoint.Save(ctx, g, dir, 2, s)
			return g.Barrier(ctx)
		})
		if err != nil {
			t.Fatal(err)
		}
		for rank, err := range errs {
			if err == nil || rank != bad && !strings.Contains(err.Error(), "rank 1") || !strings.Contains(err.Error(), "loss") {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
	})
}

func tensorsOf(names ...string) checkpoint.Tensors {
	return func(yield func(string, *tensor.Tensor) bool) {
		for _, name := range names {
			if !yield(name, tensor.Full(1, 2)) {
				return
			}
		}
	}
}

// TestMomentsAreNotDropped: a checkpoint without the moments of a parameter is refused by name,
// and so is a run that does not take them.
func TestMomentsAreNotDropped(t *testing.T) {
	draws := optimizerOf(seeded.Of(t), []int{8, 4}, []int{6})
	axes, lies := axesOf("fsdp2"), liesAs(draws, mesh.Shard(0))
	without := func(name string) ([]tensorDraw, []lie) {
		i := slices.IndexFunc(draws, func(d tensorDraw) bool { return d.name == name })
		return slices.Delete(slices.Clone(draws), i, i+1), slices.Delete(slices.Clone(lies), i, i+1)
	}
	const gone = "exp_avg_sq.layers.1.weight"
	fewer, fewerLies := without(gone)
	whole, lacking := storage.Dir(t.TempDir()), storage.Dir(t.TempDir())
	save(t, whole, draws, axes, lies)
	save(t, lacking, fewer, axes, fewerLies)
	for what, c := range map[string]struct {
		from  storage.Storage
		draws []tensorDraw
		lies  []lie
	}{"the checkpoint has them not": {lacking, draws, lies}, "the run has them not": {whole, fewer, fewerLies}} {
		t.Run(what, func(t *testing.T) {
			err := onMesh(t, axes, func(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int) error {
				h, err := hold(c.draws, c.lies, m, false)
				if err != nil {
					return err
				}
				_, err = checkpoint.Load(ctx, g, c.from, checkpoint.State{Sections: h.sections()})
				var differ *checkpoint.StateDictError
				if !errors.As(err, &differ) || !strings.Contains(err.Error(), gone) {
					return fmt.Errorf("rank %d: %w, want an error that names %s", rank, err, gone)
				}
				for _, p := range h.parts {
					for _, b := range p.Local.Contiguous().Buffer().Data {
						if b != 1 {
							return fmt.Errorf("rank %d: %s has changed", rank, p.Name)
						}
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDTypesAreKept: a tensor has the dtype in the checkpoint that it has in the run. Another
// one is loaded only where it is asked for, and rounds nothing then.
func TestDTypesAreKept(t *testing.T) {
	for _, dtype := range []tensor.DType{tensor.BFloat16, tensor.Float16, tensor.Float64} {
		dir := storage.Dir(t.TempDir())
		values := tensor.FromFloat32([]float32{1, -2.5, 0.125, 3, 65280, 0}, 6)
		w := values.To(dtype)
		saved := checkpoint.State{Sections: map[string][]checkpoint.Part{checkpoint.Model: {{Name: "w", Tensor: mesh.Tensor{Local: w}}}}}
		if err := checkpoint.Save(t.Context(), nil, dir, 1, saved); err != nil {
			t.Fatal(err)
		}
		ck, err := checkpoint.Open(t.Context(), dir, "")
		if err != nil {
			t.Fatal(err)
		}
		source, err := ck.Source(checkpoint.Model)
		if err != nil {
			t.Fatal(err)
		}
		if infos := source.Infos(); len(infos) != 1 || infos[0].DType.NumBits() != 8*dtype.Size() || infos[0].DType.String()[0] == 'I' {
			t.Errorf("%v is saved as %v", dtype, infos)
		}
		into := tensor.Full(7, 6)
		wide := checkpoint.State{Sections: map[string][]checkpoint.Part{checkpoint.Model: {{Name: "w", Tensor: mesh.Tensor{Local: into}}}}}
		var differ *checkpoint.StateDictError
		if _, err := checkpoint.Load(t.Context(), nil, dir, wide); !errors.As(err, &differ) || !strings.Contains(err.Error(), "w") {
			t.Errorf("%v into float32: %v", dtype, err)
		}
		if into.Float32s()[1] != 7 {
			t.Errorf("%v into float32: refused, and yet loaded", dtype)
		}
		if dtype == tensor.Float64 {
			continue
		}
		if _, err := checkpoint.Load(t.Context(), nil, dir, wide, checkpoint.WithWidening()); err != nil || !slices.Equal(into.Float32s(), w.To(tensor.Float32).Float32s()) {
			t.Errorf("%v into float32, widened: %v, %v", dtype, into, err)
		}
	}
}

// TestRanksShareTheReading: ranks that hold parts read the bytes of these parts. Together they
// read the tensors once: not each of them all files.
func TestRanksShareTheReading(t *testing.T) {
	draws := optimizerOf(seeded.Of(t), []int{1024, 1024}, []int{2048, 512}, []int{33, 9}, []int{1009})
	shard := mesh.Shard(0)
	dir := storage.Dir(t.TempDir())
	save(t, dir, draws, axesOf("fsdp4"), liesAs(draws, shard))
	var all int64
	for _, d := range draws {
		all += int64(len(d.data))
	}
	// A box is read by whole MiB, each of which has a checksum. The boxes of 3 ranks end within one.
	for axes, most := range map[string]float64{"fsdp4": 1.02, "fsdp2": 1.02, "fsdp1": 1.02, "fsdp3": 1.75} {
		t.Run(axes, func(t *testing.T) {
			counted := &counted{Storage: dir}
			load(t, counted, draws, axesOf(axes), liesAs(draws, shard))
			ratio := float64(counted.data.Load()) / float64(all)
			t.Logf("%d bytes of tensors, %d read of their files: %.3f; %d of manifests", all, counted.data.Load(), ratio, counted.manifests.Load())
			if ratio > most {
				t.Errorf("all ranks together read %.3f times the bytes, want at most %.2f", ratio, most)
			}
		})
	}
}

// TestRanksShareAFolder: the same of a folder of Hugging Face's, which this process really reads.
// Rows are read as they are. Of columns what lies between them is read too where they are narrow.
func TestRanksShareAFolder(t *testing.T) {
	if _, err := bytesRead(); err != nil {
		t.Skip(err)
	}
	draws := optimizerOf(seeded.Of(t), []int{1024, 1024}, []int{2048, 512}, []int{33, 9}, []int{1009})
	dir, all := filepath.Join(t.TempDir(), "model"), int64(0)
	tensors := func(yield func(string, *tensor.Tensor) bool) {
		for _, d := range draws {
			if !yield(d.name, memory(d.dtype, d.shape, d.data, 0)) {
				return
			}
		}
	}
	if err := huggingface.Save(dir, tensors, huggingface.SaveOptions{MaxShardBytes: 10 << 20}); err != nil {
		t.Fatal(err)
	}
	for _, d := range draws {
		all += int64(len(d.data))
	}
	for _, c := range []struct {
		axes string
		dim  int
		most float64
	}{{"fsdp4", 0, 1.02}, {"fsdp3", 0, 1.02}, {"fsdp8", 0, 1.02}, {"tp2", 1, 2.2}, {"tp4", 1, 4.2}} {
		before, err := bytesRead()
		if err != nil {
			t.Fatal(err)
		}
		lies := liesAs(draws, mesh.Shard(0))
		for i, d := range draws {
			if len(d.shape) > 1 {
				lies[i].placements = []mesh.Placement{mesh.Shard(c.dim)}
			}
		}
		err = onMesh(t, axesOf(c.axes), func(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int) error {
			h, err := hold(draws, lies, m, false)
			if err != nil {
				return err
			}
			f, err := huggingface.Open(dir)
			if err != nil {
				return err
			}
			defer f.Close()
			if err := checkpoint.LoadParts(f, h.parts); err != nil {
				return err
			}
			return h.compare()
		})
		if err != nil {
			t.Fatal(err)
		}
		after, err := bytesRead()
		if err != nil {
			t.Fatal(err)
		}
		ratio := float64(after-before) / float64(all)
		t.Logf("%s, dim %d: %.3f times the bytes of the folder are read", c.axes, c.dim, ratio)
		if ratio > c.most {
			t.Errorf("%s, dim %d: %.3f times the bytes of the folder are read, want at most %.2f", c.axes, c.dim, ratio, c.most)
		}
	}
}

// bytesRead is how many bytes this process has read so far.
func bytesRead() (n int64, err error) {
	text, err := os.ReadFile("/proc/self/io")
	if err == nil {
		_, err = fmt.Sscanf(string(text), "rchar: %d", &n)
	}
	return n, err
}

// counted counts the bytes that are read of files.
type counted struct {
	storage.Storage
	data, manifests atomic.Int64
}

func (c *counted) Open(ctx context.Context, name string) (storage.Object, error) {
	o, err := c.Storage.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	n := &c.data
	if strings.HasSuffix(name, ".json") {
		n = &c.manifests
	}
	return countedObject{o, n}, nil
}

type countedObject struct {
	storage.Object
	n *atomic.Int64
}

func (o countedObject) ReadAt(b []byte, at int64) (int, error) {
	n, err := o.Object.ReadAt(b, at)
	o.n.Add(int64(n))
	return n, err
}

// TestNoPermission: what may not be read is not damaged. It is an error on all ranks, and stays
// where it is.
func TestNoPermission(t *testing.T) {
	draws := optimizerOf(1, []int{8, 4})
	axes, lies := axesOf("fsdp2"), liesAs(draws, mesh.Shard(0))
	path := t.TempDir()
	dir := storage.Dir(path)
	save(t, dir, draws, axes, lies)
	for _, file := range []string{"manifest.json", ".safetensors"} {
		err := onMesh(t, axes, func(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int) error {
			h, err := hold(draws, lies, m, false)
			if err != nil {
				return err
			}
			from := storage.Storage(dir)
			if rank == 1 {
				from = forbidden{dir, file}
			}
			_, err = checkpoint.Load(ctx, g, from, checkpoint.State{Sections: h.sections()})
			var damaged *checkpoint.DamagedError
			if err == nil || errors.As(err, &damaged) || rank == 1 && !errors.Is(err, fs.ErrPermission) {
				return fmt.Errorf("rank %d: %w", rank, err)
			}
			return nil
		})
		if err != nil {
			t.Errorf("without permission for %s: %v", file, err)
		}
	}
	load(t, dir, draws, axes, lies) // it is still there
}

// forbidden is a storage of which some files may not be read.
type forbidden struct {
	storage.Storage
	file string
}

func (f forbidden) Open(ctx context.Context, name string) (storage.Object, error) {
	if strings.HasSuffix(name, f.file) {
		return nil, fmt.Errorf("storage: %s: %w", name, fs.ErrPermission)
	}
	return f.Storage.Open(ctx, name)
}
