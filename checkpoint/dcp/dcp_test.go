// SPDX-License-Identifier: Apache-2.0

package dcp

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/internal/boxes"
	"github.com/cohort-ml/cohort/checkpoint/internal/torchtest"
	"github.com/cohort-ml/cohort/checkpoint/pickle"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/torchsave"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// unpack puts the checkpoint of testdata into a directory: it was saved by
// "python mlp.py 4 save fsdp+tp mlp" with PyTorch 2.15, with its whole tensors in mlp.pt.
func unpack(t testing.TB) string {
	t.Helper()
	f, err := os.Open("testdata/mlp.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir, r := t.TempDir(), tar.NewReader(z)
	if err := os.Mkdir(filepath.Join(dir, "mlp"), 0o777); err != nil {
		t.Fatal(err)
	}
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		var data []byte
		if err == nil {
			data, err = io.ReadAll(r)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, h.Name), data, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func open(t testing.TB, dir, folder string) *Checkpoint {
	t.Helper()
	c, err := Open(t.Context(), storage.Dir(dir), folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// compare compares a checkpoint with the file of its whole tensors.
func compare(t *testing.T, c *Checkpoint, path string) {
	t.Helper()
	whole, err := torchsave.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	numTensors := 0
	for _, leaf := range whole.Leaves() {
		if _, ok := leaf.Value.(*torchsave.Tensor); !ok {
			// PyTorch stores a list of names as one object, and others item by item.
			if name, _, ok := strings.Cut(leaf.Name, ".params."); ok {
				v, err := c.Object(name + ".params")
				if err != nil || !slices.Contains(v.(*pickle.List).Items, leaf.Value) {
					t.Errorf("%s: %v, %v", leaf.Name, v, err)
				}
				continue
			}
			name := leaf.Name
			if i := strings.Index(name, ".betas."); i > 0 {
				name = name[:i+len(".betas")]
			}
			if v, err := c.Object(name); err != nil || name == leaf.Name && !reflect.DeepEqual(v, leaf.Value) {
				t.Errorf("%s is %v, want %v (%v)", leaf.Name, v, leaf.Value, err)
			}
			continue
		}
		numTensors++
		x, _ := whole.Tensor(leaf.Name)
		want, got := make([]byte, x.NumBytes()), make([]byte, x.NumBytes())
		if err := whole.ReadTensor(leaf.Name, want); err != nil {
			t.Fatal(err)
		}
		if err := c.ReadTensor(leaf.Name, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is otherwise than PyTorch has it (%v)", leaf.Name, err)
		}
	}
	if got := len(c.Infos()); got != numTensors || numTensors == 0 {
		t.Errorf("%d tensors, want %d", got, numTensors)
	}
}

func TestCheckpointOfPyTorch(t *testing.T) {
	dir := unpack(t)
	c := open(t, dir, "mlp")
	compare(t, c, filepath.Join(dir, "mlp.pt"))
	if got := len(c.Files()); got != 4 {
		t.Errorf("%d files: %v", got, c.Files())
	}
	if v, err := c.Object("extra.tuple"); err != nil || !reflect.DeepEqual(v, pickle.Tuple{int64(1), 2.5}) {
		t.Errorf("extra.tuple is %v (%v)", v, err)
	}
	if got, want := c.Path("optim.state.0.weight.exp_avg"), []any{"optim", "state", "0.weight", "exp_avg"}; !slices.Equal(got, want) {
		t.Errorf("the path is %v, want %v", got, want)
	}
	if got := len(c.Boxes("model.0.weight")); got < 2 {
		t.Errorf("%d boxes of a sharded tensor", got)
	}
	again := filepath.Join(dir, "again")
	rewrite(t, c, again)
	compare(t, open(t, again, ""), filepath.Join(dir, "mlp.pt"))
}

// rewrite writes all of a checkpoint again, as two ranks.
func rewrite(t *testing.T, c *Checkpoint, dir string) {
	t.Helper()
	items := Items(c, c.Path)
	for _, name := range c.Objects() {
		v, err := c.Object(name)
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, Item{Path: c.Path(name), Value: v})
	}
	to := storage.Dir(dir)
	var ranks []*Written
	for rank := range 2 {
		var mine []Item
		for i, item := range items {
			if i%2 == rank {
				mine = append(mine, item)
			}
		}
		w, err := WriteFile(t.Context(), to, "", rank, mine)
		if err != nil {
			t.Fatal(err)
		}
		// What a rank has written goes to another one as JSON.
		text, err := json.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		sent := new(Written)
		if err := json.Unmarshal(text, sent); err != nil {
			t.Fatal(err)
		}
		ranks = append(ranks, sent)
	}
	if _, err := Open(t.Context(), to, ""); err == nil {
		t.Error("a checkpoint opens before it is committed")
	}
	if err := Commit(t.Context(), to, "", ranks); err != nil {
		t.Fatal(err)
	}
}

// PyTorch loads what this package has written, to the bit, into plain targets and into targets
// that are sharded in each way, on 1, 2 and 4 ranks.
func TestPyTorchLoads(t *testing.T) {
	python := torchtest.Python(t, os.Getenv("COHORT_TEST_PYTHONS"), "import torch.distributed.checkpoint.state_dict; from torch.distributed.fsdp import fully_shard")
	dir := unpack(t)
	again := filepath.Join(dir, "again")
	rewrite(t, open(t, dir, "mlp"), again)
	if err := os.Rename(filepath.Join(dir, "mlp.pt"), again+".pt"); err != nil {
		t.Fatal(err)
	}
	out := torchtest.Run(t, python, "mlp.py", "1", "compare", "plain", again, "--", "2", "compare", "fsdp", again, "--", "2", "compare", "tp", again, "--", "4", "compare", "fsdp+tp", again)
	if got, want := strings.Fields(out), []string{"52", "52", "52", "52"}; !slices.Equal(got, want) {
		t.Errorf("PyTorch has compared %v values, want %v", got, want)
	}
}

// memory is a source of boxes.
type memory struct {
	infos []safetensors.Info
	data  map[string][]byte
	boxes map[string][]mesh.Box
}

func (m *memory) Name() string                 { return "memory" }
func (m *memory) Infos() []safetensors.Info    { return m.infos }
func (m *memory) Boxes(name string) []mesh.Box { return m.boxes[name] }
func (m *memory) info(name string) (i safetensors.Info) {
	for _, i = range m.infos {
		if i.Name == name {
			break
		}
	}
	return i
}

func (m *memory) ReadTensor(name string, dst []byte) error { return m.ReadRange(name, dst, 0) }

func (m *memory) ReadRange(name string, dst []byte, offset int64) error {
	copy(dst, m.data[name][offset:])
	return nil
}

func (m *memory) ReadBox(name string, start, shape []int, dst []byte) error {
	i := m.info(name)
	size := i.DType.NumBits() / 8
	from := boxes.Strides(i.Shape, size)
	c := boxes.Copy{Shape: shape, Size: size, From: boxes.Offset(start, from), FromStrides: from, ToStrides: boxes.Strides(shape, size)}
	return c.Read(bytes.NewReader(m.data[name]), dst)
}

// drawn returns a source of tensors of random dtypes, shapes and placements.
func drawn(r *rand.Rand) *memory {
	m := &memory{data: map[string][]byte{}, boxes: map[string][]mesh.Box{}}
	dtypes := []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.I64, safetensors.Bool, safetensors.F8E4M3, safetensors.C64, safetensors.U16, safetensors.F64}
	for i := range 12 {
		info := safetensors.Info{Name: fmt.Sprintf("t%d.w", i), DType: dtypes[r.IntN(len(dtypes))], Shape: make([]int, r.IntN(4))}
		for d := range info.Shape {
			info.Shape[d] = r.IntN(9)
		}
		data := make([]byte, info.NumBytes())
		for i := range data {
			data[i] = byte(r.IntN(2))
		}
		m.infos, m.data[info.Name] = append(m.infos, info), data
		if len(info.Shape) == 0 || r.IntN(4) == 0 {
			continue
		}
		// The boxes of all ranks of a mesh, also strided ones and ones without elements.
		meshShape := []int{1 + r.IntN(3), 1 + r.IntN(3)}
		place := []mesh.Placement{mesh.Shard(r.IntN(len(info.Shape))), mesh.Shard(r.IntN(len(info.Shape)))}
		if r.IntN(3) == 0 {
			place = []mesh.Placement{mesh.StridedShard(0, meshShape[1]), mesh.Shard(0)}
		}
		for rank := range meshShape[0] * meshShape[1] {
			list, err := mesh.Boxes(info.Shape, meshShape, place, []int{rank / meshShape[1], rank % meshShape[1]})
			if err != nil {
				panic(err)
			}
			m.boxes[info.Name] = append(m.boxes[info.Name], list...)
		}
	}
	return m
}

// What is written is read, whole, in ranges and in boxes.
func TestWriteAndRead(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 1))
	for range 20 {
		m, dir := drawn(r), t.TempDir()
		items := Items(m, func(name string) []any { return []any{"model", name} })
		items = append(items, Item{Path: []any{"list", 0, "lr"}, Value: 0.5}, Item{Path: []any{"none"}, Value: nil})
		if err := Write(t.Context(), storage.Dir(dir), "sub/step-1", items); err != nil {
			t.Fatal(err)
		}
		c := open(t, dir, "sub/step-1")
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
		for _, info := range m.infos {
			name, want := "model."+info.Name, m.data[info.Name]
			got := make([]byte, len(want))
			if err := c.ReadTensor(name, got); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s of %v came back otherwise (%v)", name, info, err)
			}
			b := boxes.Whole(info.Shape)
			for d, n := range info.Shape {
				b.Start[d] = r.IntN(n + 1)
				b.Shape[d] = r.IntN(n - b.Start[d] + 1)
			}
			size := info.DType.NumBits() / 8
			part, wanted := make([]byte, boxes.NumElems(b.Shape)*size), make([]byte, boxes.NumElems(b.Shape)*size)
			if err := m.ReadBox(info.Name, b.Start, b.Shape, wanted); err != nil {
				t.Fatal(err)
			}
			if err := c.ReadBox(name, b.Start, b.Shape, part); err != nil || !bytes.Equal(part, wanted) {
				t.Fatalf("%s: the box %v came back otherwise (%v)", name, b, err)
			}
			first := r.IntN(len(want)/size+1) * size
			rest := make([]byte, len(want)-first)
			if err := c.ReadRange(name, rest, int64(first)); err != nil || !bytes.Equal(rest, want[first:]) {
				t.Fatalf("%s: the range from %d on came back otherwise (%v)", name, first, err)
			}
		}
		if v, err := c.Object("list.0.lr"); err != nil || v != 0.5 {
			t.Errorf("list.0.lr is %v (%v)", v, err)
		}
		if got, want := c.Path("list.0.lr"), []any{"list", int64(0), "lr"}; !slices.Equal(got, want) {
			t.Errorf("the path is %#v", got)
		}
	}
}

func TestWritesThatAreRefused(t *testing.T) {
	whole := func(name string, shape ...int) Item {
		b := boxes.Whole(shape)
		return Item{Path: []any{name}, Info: safetensors.Info{DType: safetensors.U8, Shape: shape}, Box: mesh.Box{Start: b.Start, Shape: b.Shape}, Read: func([]byte, int64) error { return nil }}
	}
	half := whole("w", 4)
	half.Box.Shape = []int{2}
	outside := whole("w", 4)
	outside.Box.Start = []int{2}
	failing := whole("w", 4)
	failing.Read = func([]byte, int64) error { return io.ErrClosedPipe }
	other := whole("w", 5)
	strange := whole("w", 4)
	strange.Info.DType = safetensors.F6E2M3
	for _, c := range []struct {
		says  string
		items []Item
	}{
		{"2 of the 4 elements", []Item{half}},
		{"both have", []Item{whole("w", 4), half}},
		{"not within", []Item{outside}},
		{"closed pipe", []Item{failing}},
		{"on another rank", []Item{half, other}},
		{"F6_E2M3", []Item{strange}},
		{"twice", []Item{whole("w", 4), {Path: []any{"w"}, Value: 1}}},
		{"channel|type chan", []Item{{Path: []any{"w"}, Value: make(chan int)}}},
	} {
		dir := t.TempDir()
		err := Write(t.Context(), storage.Dir(dir), "ck", c.items)
		if err == nil || !slices.ContainsFunc(strings.Split(c.says, "|"), func(s string) bool { return strings.Contains(err.Error(), s) }) || !strings.Contains(err.Error(), `"w"`) {
			t.Errorf("%v, want %q", err, c.says)
		}
		if _, err := Open(context.Background(), storage.Dir(dir), "ck"); err == nil {
			t.Errorf("%s: a checkpoint was made", c.says)
		}
	}
}
