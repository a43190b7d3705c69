// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// cutOf returns what a layout gives this rank of a whole tensor.
func cutOf(whole *tensor.Tensor, l mesh.Layout) (*tensor.Tensor, error) {
	shape, err := l.LocalShape()
	if err != nil {
		return nil, err
	}
	boxes, err := l.Boxes()
	if err != nil {
		return nil, err
	}
	local := tensor.Empty(whole.DType(), shape...)
	for _, b := range boxes {
		into, from := local, whole
		for d := range b.Shape {
			into, from = into.Narrow(d, b.LocalStart[d], b.Shape[d]), from.Narrow(d, b.Start[d], b.Shape[d])
		}
		into.CopyFrom(from)
	}
	return local, nil
}

// counted is a source that counts the bytes that are read.
type counted struct {
	Source
	n int
}

func (c *counted) ReadTensor(name string, dst []byte) error {
	c.n += len(dst)
	return c.Source.ReadTensor(name, dst)
}

func (c *counted) ReadRange(name string, dst []byte, offset int64) error {
	c.n += len(dst)
	return c.Source.ReadRange(name, dst, offset)
}

// TestParts: tensors that lie in any way on the ranks of a mesh give the file that one
// rank writes, byte for byte, and each rank reads back what it holds.
func TestParts(t *testing.T) {
	t.Logf("seed %d", *seed)
	r := rand.New(rand.NewPCG(*seed, 1))
	shard, strided, replicate := mesh.Shard, mesh.StridedShard, mesh.Replicate()
	axes := []mesh.Axis{{Name: "replicate", Size: 2}, {Name: "fsdp", Size: 3}}
	type spec struct {
		shape      []int
		dtype      tensor.DType
		placements []mesh.Placement // nil: no mesh
	}
	specs := []spec{
		{[]int{7, 4}, tensor.Float32, []mesh.Placement{replicate, shard(0)}},
		{[]int{6}, tensor.BFloat16, []mesh.Placement{replicate, shard(0)}},
		{[]int{2, 3}, tensor.Float32, []mesh.Placement{replicate, shard(0)}}, // a rank has none
		{[]int{1}, tensor.Int64, []mesh.Placement{replicate, shard(0)}},
		{[]int{3, 7, 2}, tensor.Float32, []mesh.Placement{replicate, shard(1)}},
		{[]int{3, 2, 9}, tensor.Float64, []mesh.Placement{shard(0), shard(2)}},
		{[]int{13, 3}, tensor.Float32, []mesh.Placement{shard(0), shard(0)}},
		{[]int{14}, tensor.Float32, []mesh.Placement{strided(0, 3), shard(0)}},
		{[]int{3, 12}, tensor.Float32, []mesh.Placement{strided(1, 2), replicate}}, // two boxes a rank
		{[]int{5, 2}, tensor.Float32, []mesh.Placement{replicate, replicate}},
		{nil, tensor.Float32, []mesh.Placement{replicate, replicate}},
		{[]int{0, 4}, tensor.Float32, []mesh.Placement{replicate, shard(0)}},
		{[]int{4}, tensor.Float32, nil},
	}
	names := make([]string, len(specs))
	values := make([]*tensor.Tensor, len(specs))
	var all Tensors = func(yield func(string, *tensor.Tensor) bool) {
		for i, name := range names {
			if !yield(name, values[i]) {
				return
			}
		}
	}
	for i, s := range specs {
		names[i] = fmt.Sprintf("t%d", i)
		values[i] = tensor.Empty(s.dtype, s.shape...)
		data := values[i].Buffer().Data
		for j := range data {
			data[j] = byte(r.Uint32())
		}
	}
	dirs := [2]string{filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "six")}
	if err := Save(t.Context(), dirs[0], 1, func(w *Writer) error { return w.WriteTensors(ModelFile, all, nil) }, 0); err != nil {
		t.Fatal(err)
	}
	err := dist.Spawn(t.Context(), 6, func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, axes...)
		if err != nil {
			return err
		}
		defer m.Close()
		var parts, loaded []Part
		held := 0
		for i, s := range specs {
			l := mesh.Layout{}
			if s.placements != nil {
				l = mesh.Layout{Mesh: m, Shape: s.shape, Placements: s.placements}
			}
			local := values[i]
			if l.Mesh != nil {
				if local, err = cutOf(values[i], l); err != nil {
					return err
				}
			}
			parts = append(parts, Part{Name: names[i], Tensor: mesh.Tensor{Local: local, Layout: l}})
			loaded = append(loaded, Part{Name: names[i], Tensor: mesh.Tensor{Local: tensor.Empty(s.dtype, local.Shape()...), Layout: l}})
			held += len(local.Buffer().Data)
		}
		if g.Rank() == 0 {
			err = Save(ctx, dirs[1], 1, func(w *Writer) error { return WriteParts(ctx, w, ModelFile, parts, nil) }, 0)
		} else {
			err = WriteParts(ctx, nil, ModelFile, parts, nil)
		}
		if err != nil {
			return err
		}
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		ck, err := Open(ctx, Path(dirs[1], 1))
		if err != nil {
			return err
		}
		f, err := ck.OpenSafetensors(ModelFile)
		if err != nil {
			return err
		}
		defer f.Close()
		source := &counted{Source: f}
		if err := LoadParts(source, loaded); err != nil {
			return err
		}
		for i := range parts {
			if !bytes.Equal(loaded[i].Local.Buffer().Data, parts[i].Local.Buffer().Data) {
				t.Errorf("rank %d: %s of %v, %v is not what was saved", g.Rank(), names[i], specs[i].shape, specs[i].placements)
			}
		}
		if source.n > 3*held { // scattered boxes that are small are read with what lies between
			t.Errorf("rank %d holds %d bytes and has read %d", g.Rank(), held, source.n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var files [2][]byte
	for i, dir := range dirs {
		if files[i], err = os.ReadFile(filepath.Join(Path(dir, 1), ModelFile)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Error("the file of six ranks is not that of one")
	}
}

// TestPartsMemory: rank 0 needs the memory of one tensor besides its own, the others
// none, and a rank reads what it holds.
func TestPartsMemory(t *testing.T) {
	const numRanks, numTensors, rows, width = 4, 6, 256, 1024 // 1 MiB a tensor
	dir := t.TempDir()
	var now, peak int64
	err := dist.Spawn(t.Context(), numRanks, func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, mesh.Axis{Name: "fsdp", Size: numRanks})
		if err != nil {
			return err
		}
		defer m.Close()
		var parts []Part
		for i := range numTensors {
			l := mesh.Layout{Mesh: m, Shape: []int{rows, width}, Placements: []mesh.Placement{mesh.Shard(i % 2)}}
			shape, err := l.LocalShape()
			if err != nil {
				return err
			}
			parts = append(parts, Part{Name: fmt.Sprintf("t%d", i), Tensor: mesh.Tensor{Local: tensor.Full(float64(i), shape...), Layout: l}})
		}
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		if g.Rank() != 0 {
			return WriteParts(ctx, nil, ModelFile, parts, nil)
		}
		tensor.ResetMemoryPeak()
		now, _ = tensor.MemoryInUse()
		err = Save(ctx, dir, 1, func(w *Writer) error { return WriteParts(ctx, w, ModelFile, parts, nil) }, 0)
		_, peak = tensor.MemoryInUse()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("writing takes %d bytes besides the parts", peak-now)
	if most := int64(1.5 * 4 * rows * width); peak-now > most {
		t.Errorf("writing takes %d bytes besides the parts, want at most %d", peak-now, most)
	}
	ck, err := Open(t.Context(), Path(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	f, err := ck.OpenSafetensors(ModelFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := mesh.Sketch(1, mesh.Axis{Name: "fsdp", Size: numRanks})
	if err != nil {
		t.Fatal(err)
	}
	var parts []Part
	for i := range numTensors {
		parts = append(parts, Part{Name: fmt.Sprintf("t%d", i), Tensor: mesh.Tensor{
			Local:  tensor.Zeros(rows/numRanks, width),
			Layout: mesh.Layout{Mesh: m, Shape: []int{rows, width}, Placements: []mesh.Placement{mesh.Shard(0)}},
		}})
	}
	source := &counted{Source: f}
	if err := LoadParts(source, parts); err != nil {
		t.Fatal(err)
	}
	if want := numTensors * rows * width; source.n != want { // a quarter of 4 bytes an element
		t.Errorf("read %d bytes, want %d", source.n, want)
	}
	for i, p := range parts {
		if v := p.Local.Float32s(); v[0] != float32(i) || v[len(v)-1] != float32(i) {
			t.Errorf("%s is %v … %v", p.Name, v[0], v[len(v)-1])
		}
	}
}

// TestPartsOfStages: a tensor that only the ranks of one stage of a pipeline have is in the
// file, whichever stage it is; one that two stages have is there once. Each rank reads its own.
func TestPartsOfStages(t *testing.T) {
	axes := []mesh.Axis{{Name: "pp", Size: 3}, {Name: "fsdp", Size: 2}}
	values := make([]*tensor.Tensor, 6)
	for i := range values {
		v := make([]float32, 15)
		for j := range v {
			v[j] = float32(100*i + j)
		}
		values[i] = tensor.FromFloat32(v, 5, 3)
	}
	// Of each tensor the stages that have it, and its placement on fsdp.
	stages := [][]int{{0}, {1}, {2}, {0, 2}, {1, 2}, {0, 1, 2}}
	placements := []mesh.Placement{mesh.Shard(0), mesh.Shard(1), mesh.Replicate(), mesh.Shard(0), mesh.Replicate(), mesh.Replicate()}
	dirs := [2]string{filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "six")}
	var all Tensors = func(yield func(string, *tensor.Tensor) bool) {
		for i, v := range values {
			if !yield(fmt.Sprintf("t%d", i), v) {
				return
			}
		}
	}
	if err := Save(t.Context(), dirs[0], 1, func(w *Writer) error { return w.WriteTensors(ModelFile, all, nil) }, 0); err != nil {
		t.Fatal(err)
	}
	partsOf := func(m *mesh.Mesh, value func(i int, l mesh.Layout) (*tensor.Tensor, error)) (parts []Part, err error) {
		for i := range values {
			p := Part{Name: fmt.Sprintf("t%d", i), Away: !slices.Contains(stages[i], m.Coordinate()[0])}
			p.Layout = mesh.Layout{Mesh: m, Shape: values[i].Shape(), Placements: []mesh.Placement{mesh.Replicate(), placements[i]}}
			if p.Local, err = value(i, p.Layout); err != nil {
				return nil, err
			}
			if p.Away {
				p.Local = tensor.New(tensor.Meta, tensor.Float32, p.Local.Shape()...)
			}
			parts = append(parts, p)
		}
		return parts, nil
	}
	err := dist.Spawn(t.Context(), 6, func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, axes...)
		if err != nil {
			return err
		}
		defer m.Close()
		parts, err := partsOf(m, func(i int, l mesh.Layout) (*tensor.Tensor, error) { return cutOf(values[i], l) })
		if err != nil {
			return err
		}
		if g.Rank() == 0 {
			err = Save(ctx, dirs[1], 1, func(w *Writer) error { return WriteParts(ctx, w, ModelFile, parts, nil) }, 0)
		} else {
			err = WriteParts(ctx, nil, ModelFile, parts, nil)
		}
		if err == nil {
			err = g.Barrier(ctx)
		}
		if err != nil {
			return err
		}
		ck, err := Open(ctx, Path(dirs[1], 1))
		if err != nil {
			return err
		}
		loaded, err := partsOf(m, func(_ int, l mesh.Layout) (*tensor.Tensor, error) {
			shape, err := l.LocalShape()
			return tensor.Zeros(shape...), err
		})
		if err != nil {
			return err
		}
		if err := ck.LoadParts(ModelFile, loaded); err != nil {
			return err
		}
		for i, p := range loaded {
			if !p.Away && !bytes.Equal(p.Local.Buffer().Data, parts[i].Local.Buffer().Data) {
				t.Errorf("rank %d: %s is not what was saved", g.Rank(), p.Name)
			}
		}
		// A tensor that nobody has.
		parts[1].Away = true
		if g.Rank() == 0 {
			err = Save(ctx, dirs[1], 2, func(w *Writer) error { return WriteParts(ctx, w, ModelFile, parts, nil) }, 0)
		} else {
			err = WriteParts(ctx, nil, ModelFile, parts, nil)
		}
		if err == nil || !strings.Contains(err.Error(), `tensor "t1" is away on all ranks`) {
			t.Errorf("rank %d: %v", g.Rank(), err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var files [2][]byte
	for i, dir := range dirs {
		if files[i], err = os.ReadFile(filepath.Join(Path(dir, 1), ModelFile)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Error("the file of six ranks is not that of one")
	}
}

// TestBadParts: what cannot be put together is named, with its tensor.
func TestBadParts(t *testing.T) {
	m, err := mesh.Sketch(0, mesh.Axis{Name: "fsdp", Size: 2})
	if err != nil {
		t.Fatal(err)
	}
	on := func(local *tensor.Tensor, p mesh.Placement) []Part {
		return []Part{{Name: "w", Tensor: mesh.Tensor{Local: local, Layout: mesh.Layout{Mesh: m, Shape: []int{3, 2}, Placements: []mesh.Placement{p}}}}}
	}
	for want, parts := range map[string][]Part{
		`tensor "w" is Partial(sum) on the axis fsdp: reduce it first`:                        on(tensor.Zeros(3, 2), mesh.Partial(dist.Sum)),
		`tensor "w" has the shape [1 2] on this rank, and of [3 2] its layout gives it [2 2]`: on(tensor.Zeros(1, 2), mesh.Shard(0)),
		`tensor "w" is there twice`: append(on(tensor.Zeros(2, 2), mesh.Shard(0)), on(tensor.Zeros(2, 2), mesh.Shard(0))...),
		`tensor "w" is nil`:         on(nil, mesh.Shard(0)),
	} {
		err := WriteParts(t.Context(), nil, ModelFile, parts, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestPartsThatDiffer: a rank that saves another file, or other tensors of the same shapes, is
// an error on every rank, and nothing is saved.
func TestPartsThatDiffer(t *testing.T) {
	for _, c := range []struct{ file, tensor string }{{OptimizerFile, "w"}, {ModelFile, "v"}} {
		dir := t.TempDir()
		errs := make([]error, 2)
		_ = dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
			m, err := mesh.New(ctx, g, mesh.Axis{Name: "fsdp"})
			if err != nil {
				return err
			}
			part := func(name string) []Part {
				return []Part{{Name: name, Tensor: mesh.Tensor{Local: tensor.Zeros(2, 2), Layout: mesh.Layout{Mesh: m, Shape: []int{4, 2}, Placements: []mesh.Placement{mesh.Shard(0)}}}}}
			}
			if g.Rank() == 1 {
				errs[1] = WriteParts(ctx, nil, c.file, part(c.tensor), nil)
				return nil
			}
			errs[0] = Save(ctx, dir, 1, func(w *Writer) error { return WriteParts(ctx, w, ModelFile, part("w"), nil) }, 1)
			return nil
		})
		for rank, err := range errs {
			if err == nil || !strings.Contains(err.Error(), "rank 1 saves another file or other tensors (1 of them) than rank 0 (1): save the same on all ranks") {
				t.Errorf("%v: rank %d: %v", c, rank, err)
			}
		}
		if _, _, err := Latest(t.Context(), dir); err == nil {
			t.Errorf("%v: a checkpoint was saved", c)
		}
	}
}
