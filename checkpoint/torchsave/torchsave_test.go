// SPDX-License-Identifier: Apache-2.0

package torchsave

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/internal/boxes"
	"github.com/cohort-ml/cohort/checkpoint/internal/torchtest"
	"github.com/cohort-ml/cohort/checkpoint/pickle"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/internal/seeded"
)

var _ checkpoint.Source = (*File)(nil)

// wanted is a tensor as testdata/odd.py and check.py describe it.
type wanted struct {
	DType, Hex, Repr string
	Shape            []int
	Grad, Parameter  bool
	Storage          uint64
}

func open(t *testing.T, path string) *File {
	t.Helper()
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// Files of PyTorch 1.13 and 2.15 with tensors of all kinds.
func TestFilesOfPyTorch(t *testing.T) {
	for _, version := range []string{"1.13", "2.15"} {
		text, err := os.ReadFile("testdata/odd-" + version + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var want map[string]wanted
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		f := open(t, "testdata/odd-"+version+".pt")
		if got := len(f.Infos()); got != len(want) {
			t.Errorf("%s: %d tensors, want %d", version, got, len(want))
		}
		for name, w := range want {
			x, err := f.Tensor(name)
			if err != nil {
				t.Error(err)
				continue
			}
			dtype, _ := DTypeName(x.DType)
			if dtype != w.DType || !slices.Equal(x.Shape, w.Shape) {
				t.Errorf("%s: %s is of %s %v, want %s %v", version, name, dtype, x.Shape, w.DType, w.Shape)
				continue
			}
			got := make([]byte, x.NumBytes())
			if err := f.ReadTensor(name, got); err != nil {
				t.Error(err)
			}
			if hex.EncodeToString(got) != w.Hex {
				t.Errorf("%s: %s has the bytes %x, want %s", version, name, got, w.Hex)
			}
		}
		checkValues(t, f)
		one, _ := f.Tensor("tensors.tied")
		two, _ := f.Tensor("tensors.tied too")
		if one.Storage != two.Storage || !one.IsParameter || !one.RequiresGrad {
			t.Errorf("%s: the tied tensors are %+v and %+v", version, one, two)
		}
	}
}

// One value in each protocol of pickles that PyTorch takes.
func TestProtocols(t *testing.T) {
	for protocol := 2; protocol <= 5; protocol++ {
		f := open(t, fmt.Sprintf("testdata/protocol-%d.pt", protocol))
		for name, want := range map[string]string{
			// Rows of the transposed 0 to 5.
			"w": "00000000" + "00004040" + "0000803f" + "00008040" + "00000040" + "0000a040", "eight": "3cc0", "nested.0.1.x": "01",
		} {
			x, err := f.Tensor(name)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, x.NumBytes())
			if err := f.ReadTensor(name, got); err != nil {
				t.Fatal(err)
			}
			if hex.EncodeToString(got) != want {
				t.Errorf("protocol %d: %s is %x, want %s", protocol, name, got, want)
			}
		}
		values := map[string]any{}
		for _, leaf := range f.Leaves() {
			values[leaf.Name] = leaf.Value
		}
		for name, want := range map[string]any{"raw": []byte{0, 255}, "big": int64(1 << 40), "kinds": &pickle.Set{Items: []any{int64(1)}}, "nested.0.0": int64(1)} {
			if !reflect.DeepEqual(values[name], want) {
				t.Errorf("protocol %d: %s is %#v, want %#v", protocol, name, values[name], want)
			}
		}
	}
}

// checkValues looks at what is no tensor in a file of testdata/odd.py.
func checkValues(t *testing.T, f *File) {
	t.Helper()
	for name, says := range map[string]string{
		"refused.complex128": "complex128", "refused.sparse": "sparse", "refused.meta": "meta", "refused.conjugated": "s", "refused.quantized": "quantized",
	} {
		err := f.ReadTensor(name, nil)
		var e *RefusedError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), name) || f.Refused()[name] == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	values := map[string]any{}
	for _, leaf := range f.Leaves() {
		values[leaf.Name] = leaf.Value
	}
	for name, want := range map[string]any{
		"list.0": int64(1), "list.1": 2.5, "list.2": nil, "list.3": true, "list.4": "é", "size.1": int64(3),
		"dtype": pickle.Global{Module: "torch", Name: "bfloat16"}, "bytes": []byte{0, 255}, "complex": 1 + 2i, "set": &pickle.Set{Items: []any{int64(3)}},
		"big": new(big.Int).Lsh(big.NewInt(1), 70), "param_groups.0.lr": 1e-3, "param_groups.0.betas.1": 0.999, "param_groups.0.params.1": int64(1),
	} {
		if got, ok := values[name]; !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %s is %#v, want %#v", f.Name(), name, got, want)
		}
	}
}

// drawnTensor returns a tensor of random bytes and the bytes.
func drawnTensor(r *rand.Rand, d safetensors.DType, shape ...int) (*Tensor, []byte) {
	info := safetensors.Info{DType: d, Shape: shape}
	data := make([]byte, info.NumBytes())
	for i := range data {
		data[i] = byte(r.IntN(256))
		if d == safetensors.Bool {
			data[i] &= 1
		}
	}
	return NewTensor(info, func(dst []byte, offset int64) error { copy(dst, data[offset:]); return nil }), data
}

// written returns a value of tensors and plain values, and its tensors by their names.
func written(r *rand.Rand) (any, map[string][]byte) {
	tensors, data := map[string]any{}, map[string][]byte{}
	for i, d := range dtypes {
		if !d.known {
			continue
		}
		for j, shape := range [][]int{{}, {3}, {2, 0}, {2, 3, 2}} {
			name := fmt.Sprintf("%s %d", d.name, j)
			tensors[name], data["model."+name] = drawnTensor(r, dtypes[i].st, shape...)
		}
	}
	large, bytes := drawnTensor(r, safetensors.F32, 270, 1000)
	tensors["large"], tensors["tied"] = large, large
	data["model.large"], data["model.tied"] = bytes, bytes
	param, bytes := drawnTensor(r, safetensors.F32, 2)
	param.IsParameter, param.RequiresGrad = true, true
	tensors["param"], data["model.param"] = param, bytes
	return map[string]any{"model": tensors, "step": 3, "lr": 0.5, "name": "é", "none": nil, "yes": true, "tuple": pickle.Tuple{int64(1), "b"}, "list": []any{1, 2},
		"bytes": []byte{0, 200}, "complex": 1 - 2i, "set": &pickle.Set{Items: []any{int64(4)}}, "dtype": pickle.Global{Module: "torch", Name: "float16"}}, data
}

func TestWriteAndRead(t *testing.T) {
	v, data := written(rand.New(rand.NewPCG(seeded.Of(t), 1)))
	path := filepath.Join(t.TempDir(), "x.pt")
	if err := Save(path, v); err != nil {
		t.Fatal(err)
	}
	f := open(t, path)
	if got := len(f.Infos()); got != len(data) {
		t.Errorf("%d tensors, want %d", got, len(data))
	}
	for name, want := range data {
		got := make([]byte, len(want))
		if err := f.ReadTensor(name, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s came back otherwise (%v)", name, err)
		}
	}
	// A file that was read is written again, with one storage for tied tensors.
	again := filepath.Join(filepath.Dir(path), "again.pt")
	if err := Save(again, f.Value()); err != nil {
		t.Fatal(err)
	}
	g := open(t, again)
	one, _ := g.Tensor("model.large")
	two, _ := g.Tensor("model.tied")
	if one.Storage != two.Storage {
		t.Error("tied tensors were written twice")
	}
	for name, want := range data {
		got := make([]byte, len(want))
		if err := g.ReadTensor(name, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s came back otherwise the second time (%v)", name, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("the save has left %v", left)
	}
}

// Boxes and ranges of views are those of the dense tensor.
func TestBoxesOfViews(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 2))
	f := open(t, "testdata/odd-2.15.pt")
	for _, info := range f.Infos() {
		whole := make([]byte, info.NumBytes())
		if err := f.ReadTensor(info.Name, whole); err != nil {
			t.Fatal(err)
		}
		size := info.DType.NumBits() / 8
		strides := boxes.Strides(info.Shape, size)
		for range 20 {
			b := boxes.Box{Start: make([]int, len(info.Shape)), Shape: make([]int, len(info.Shape))}
			for d, n := range info.Shape {
				b.Start[d] = r.IntN(n + 1)
				b.Shape[d] = r.IntN(n - b.Start[d] + 1)
			}
			want, got := make([]byte, boxes.NumElems(b.Shape)*size), make([]byte, boxes.NumElems(b.Shape)*size)
			c := boxes.Copy{Shape: b.Shape, Size: size, From: boxes.Offset(b.Start, strides), FromStrides: strides, ToStrides: boxes.Strides(b.Shape, size)}
			if err := c.Read(bytes.NewReader(whole), want); err != nil {
				t.Fatal(err)
			}
			if err := f.ReadBox(info.Name, b.Start, b.Shape, got); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s: the box %v is %x, want %x (%v)", info.Name, b, got, want, err)
			}
			if len(whole) == 0 {
				continue
			}
			first := r.IntN(len(whole)/size+1) * size
			part := make([]byte, r.IntN((len(whole)-first)/size+1)*size)
			if err := f.ReadRange(info.Name, part, int64(first)); err != nil || !bytes.Equal(part, whole[first:first+len(part)]) {
				t.Fatalf("%s: bytes %d to %d are %x (%v)", info.Name, first, first+len(part), part, err)
			}
		}
	}
	if err := f.ReadBox("tensors.view", []int{1, 0}, []int{2, 1}, make([]byte, 8)); err == nil {
		t.Error("a box beyond the tensor was read")
	}
	if err := f.ReadRange("tensors.view", make([]byte, 3), 1); err == nil {
		t.Error("a part of an element was read")
	}
	if err := f.ReadTensor("nobody", nil); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("a tensor that is not there: %v", err)
	}
}

// torch.load with weights_only=True opens what Write has written, also mapped into memory.
func TestPyTorchLoads(t *testing.T) {
	python := torchtest.Python(t, os.Getenv("COHORT_TEST_PYTHONS"), "import torch; torch.uint16; torch.float8_e8m0fnu")
	v, data := written(rand.New(rand.NewPCG(seeded.Of(t), 3)))
	dir := t.TempDir()
	little, bigEndian := filepath.Join(dir, "x.pt"), filepath.Join(dir, "big.pt")
	if err := Save(little, v); err != nil {
		t.Fatal(err)
	}
	inBigEndian(t, little, bigEndian)
	f := open(t, bigEndian)
	for name, want := range data {
		got := make([]byte, len(want))
		if err := f.ReadTensor(name, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("big-endian: %s came back otherwise (%v)", name, err)
		}
	}
	files := []string{little, "mmap:" + little, bigEndian}
	lines := strings.Split(strings.TrimSpace(torchtest.Run(t, python, "check.py", files...)), "\n")
	for i, file := range files {
		var got map[string]wanted
		if err := json.Unmarshal([]byte(lines[i]), &got); err != nil {
			t.Fatal(err)
		}
		for name, want := range data {
			w, ok := got[name]
			if info, _ := f.Tensor(name); !ok || !slices.Equal(w.Shape, info.Shape) {
				t.Errorf("%v: %s is %+v", file, name, w)
			}
			// PyTorch does not swap the bytes of the dtypes that have no storage of their own, as uint16.
			if info, _ := f.Tensor(name); file == bigEndian && info.dtype.storage == "" && info.dtype.swap > 1 {
				continue
			}
			if w.Hex != hex.EncodeToString(want) {
				t.Errorf("%v: %s came back otherwise in PyTorch", file, name)
			}
		}
		if got["model.large"].Storage != got["model.tied"].Storage || !got["model.param"].Parameter || !got["model.param"].Grad {
			t.Errorf("%v: the tied tensors or the parameter came back otherwise", file)
		}
		for name, want := range map[string]string{
			"step": "3", "lr": "0.5", "name": "'é'", "none": "None", "yes": "True", "tuple.1": "'b'", "list.0": "1", "bytes": `b'\x00\xc8'`, "complex": "(1-2j)", "set": "{4}",
			"dtype": "torch.float16",
		} {
			if got[name].Repr != want {
				t.Errorf("%v: %s is %s, want %s", file, name, got[name].Repr, want)
			}
		}
	}
}
