// SPDX-License-Identifier: Apache-2.0

package huggingface

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/internal/half"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// valuesOf decodes the elements of the tensors in testdata/sharded.
func valuesOf(t *testing.T, d safetensors.DType, b []byte) (v []float64) {
	t.Helper()
	size := d.NumBits() / 8
	for ; len(b) > 0; b = b[size:] {
		switch d {
		case safetensors.F32:
			v = append(v, float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
		case safetensors.BF16:
			v = append(v, float64(half.FromBFloat16(binary.LittleEndian.Uint16(b))))
		case safetensors.I64:
			v = append(v, float64(binary.LittleEndian.Uint64(b)))
		default:
			t.Fatalf("%v", d)
		}
	}
	return v
}

// TestShardedFolder reads what PyTorch's HuggingFaceStorageWriter saved from two ranks
// (testdata/sharded.py): element i of each tensor is i.
func TestShardedFolder(t *testing.T) {
	f, err := Open(filepath.Join("testdata", "sharded"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rng := rand.New(rand.NewPCG(seeded.Of(t), 0))
	want := map[string]string{"rows": "[5 3] F32 2", "columns": "[3 6] BF16 2", "everywhere": "[4] F32 1", "plain": "[2 2] I64 1"}
	for _, info := range f.Infos() {
		if got := fmt.Sprint(info.Shape, " ", info.DType, " ", len(f.Boxes(info.Name))); got != want[info.Name] {
			t.Errorf("%s is %s, want %s", info.Name, got, want[info.Name])
		}
		delete(want, info.Name)
		whole, size := make([]byte, info.NumBytes()), info.DType.NumBits()/8
		if err := f.ReadTensor(info.Name, whole); err != nil {
			t.Fatal(err)
		}
		for i, v := range valuesOf(t, info.DType, whole) {
			if v != float64(i) {
				t.Errorf("%s: element %d is %v", info.Name, i, v)
			}
		}
		for range 20 {
			first := rng.IntN(len(whole) / size)
			part := make([]byte, size*(1+rng.IntN(len(whole)/size-first)))
			if err := f.ReadRange(info.Name, part, int64(first*size)); err != nil {
				t.Fatal(err)
			}
			if string(part) != string(whole[first*size:][:len(part)]) {
				t.Errorf("%s: %d bytes from %d on differ", info.Name, len(part), first*size)
			}
			start, shape := make([]int, len(info.Shape)), make([]int, len(info.Shape))
			n := size
			for d, s := range info.Shape {
				start[d] = rng.IntN(s)
				shape[d] = 1 + rng.IntN(s-start[d])
				n *= shape[d]
			}
			box := make([]byte, n)
			if err := f.ReadBox(info.Name, start, shape, box); err != nil {
				t.Fatal(err)
			}
			for i, v := range valuesOf(t, info.DType, box) {
				at := 0
				for d, left := 0, i; d < len(shape); d++ {
					inner := 1
					for _, s := range shape[d+1:] {
						inner *= s
					}
					at = at*info.Shape[d] + start[d] + left/inner
					left %= inner
				}
				if v != float64(at) {
					t.Errorf("%s: element %d of the box %v at %v is %v, want %d", info.Name, i, shape, start, v, at)
				}
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("these are missing: %v", want)
	}
}

// encodeBox returns a file with one box of a tensor x that begins at a place.
func encodeBox(t testing.TB, shape []int, start string) string {
	t.Helper()
	info := safetensors.Info{Name: "x", DType: safetensors.U8, Shape: shape}
	metadata := map[string]string{shardingInfo: `{"x": {"saved_offsets": ` + start + `}}`}
	if start == "" {
		metadata = nil
	}
	var b strings.Builder
	if err := safetensors.Write(&b, []safetensors.Tensor{{Info: info, Data: make([]byte, info.NumBytes())}}, metadata); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestBadBoxes(t *testing.T) {
	for _, c := range []struct {
		name, want string
		files      []string
	}{
		{"a part is missing", "its 2 boxes have 6 of the 8 elements; is the file of a rank missing?",
			[]string{encodeBox(t, []int{2, 2}, "[0, 0]"), encodeBox(t, []int{2, 1}, "[0, 3]")}},
		{"an overlap", "both have", []string{encodeBox(t, []int{2, 2}, "[0, 0]"), encodeBox(t, []int{2, 2}, "[1, 0]")}},
		{"twice", "is in two shards, a0.safetensors and a1.safetensors", []string{encodeBox(t, []int{2}, ""), encodeBox(t, []int{2}, "")}},
		{"other dims", "is [2] U8 in a0.safetensors and [2 1] U8 in a1.safetensors", []string{encodeBox(t, []int{2}, "[0]"), encodeBox(t, []int{2, 1}, "[2, 0]")}},
		{"negative", "begins at [-1]", []string{encodeBox(t, []int{2}, "[-1]")}},
		{"huge", "begins at [9223372036854775807]", []string{encodeBox(t, []int{2}, "[9223372036854775807]")}},
		{"too large", "which is too large", []string{encodeBox(t, []int{1, 1, 1, 1}, "[281474976710655, 281474976710655, 281474976710655, 0]")}},
		{"other length", "begins at [0 0]", []string{encodeBox(t, []int{2}, "[0, 0]")}},
		{"no JSON", "is no such text", []string{encodeBox(t, []int{2}, "]")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for i, text := range c.files {
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("a%d.safetensors", i)), []byte(text), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
}

// FuzzBoxes: whatever a file says of boxes, opening it and reading its tensors ends.
func FuzzBoxes(f *testing.F) {
	f.Add([]byte(encodeBox(f, []int{2, 2}, "[0, 0]")), []byte(encodeBox(f, []int{2, 1}, "[0, 2]")))
	f.Add([]byte(encodeBox(f, []int{0}, "[7]")), []byte(encodeBox(f, []int{3}, "")))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		dir := t.TempDir()
		for name, text := range map[string][]byte{"a.safetensors": a, "b.safetensors": b} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		folder, err := Open(dir)
		if err != nil {
			return
		}
		defer folder.Close()
		for _, info := range folder.Infos() {
			n := info.NumBytes()
			if n > int64(len(a)+len(b)) {
				t.Fatalf("%v has more bytes than the files", info)
			}
			if err := folder.ReadTensor(info.Name, make([]byte, n)); err != nil {
				t.Errorf("%v: %v", info, err)
			}
		}
	})
}
