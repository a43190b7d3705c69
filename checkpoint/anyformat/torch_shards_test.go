// SPDX-License-Identifier: Apache-2.0

package anyformat

import (
	"encoding/binary"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// shardsOf copies the folder that "python shards.py DIR" has written with PyTorch 2.15.
func shardsOf(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "shards")
	if err := os.CopyFS(dir, os.DirFS("testdata/shards")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTorchShards: a folder of shards of torch.save gives all tensors, and is converted.
func TestTorchShards(t *testing.T) {
	in, err := Open(t.Context(), at(shardsOf(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if in.Kind != Torch || len(in.Sections) != 1 || len(in.Files) != 2 || len(in.Refused) > 0 {
		t.Fatalf("it is %+v", in)
	}
	src := in.Sections[0].Source
	if n := len(src.Infos()); n != 3 {
		t.Fatalf("it has %d tensors", n)
	}
	for n, info := range src.Infos() {
		b := make([]byte, 24)
		if err := src.ReadTensor(info.Name, b); err != nil {
			t.Fatal(err)
		}
		for i := range 6 {
			if got, want := math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])), float32(n)+float32(i)/8; got != want {
				t.Errorf("%s: the element %d is %v, want %v", info.Name, i, got, want)
			}
		}
	}
	bad := 0
	if has, err := in.CheckSums(t.Context(), func(string, error) { bad++ }); !has || err != nil || bad > 0 {
		t.Errorf("checksums: %v, %v, %d differ", has, err, bad)
	}
	to := Location{Text: "run", Inside: storage.Dir(filepath.Join(t.TempDir(), "run"))}
	if _, err := WriteCohort(t.Context(), to, in, in.Sections, CohortOptions{Step: 1}, nil); err != nil {
		t.Fatal(err)
	}
	again, err := Open(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	d, err := Compare(t.Context(), src, again.Sections[0].Source, nil)
	if err != nil || !d.Equal() {
		t.Errorf("the converted folder differs: %+v, %v", d, err)
	}
}

// TestBadTorchShards: what is wrong with a folder of shards is named.
func TestBadTorchShards(t *testing.T) {
	const first, second = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
	index := func(text string) func(dir string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, torchIndexFile), []byte(text), 0o666) }
	}
	for _, c := range []struct {
		name   string
		change func(dir string) error
		want   string
	}{
		{"missing", func(dir string) error { return os.Remove(filepath.Join(dir, second)) }, second + " does not exist, and " + torchIndexFile + " names it"},
		{"twice", func(dir string) error {
			b, err := fs.ReadFile(os.DirFS(dir), first)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, second), b, 0o666)
		}, `the tensor "a.weight" twice, in ` + first + " and in " + second},
		{"cut", func(dir string) error { return os.Truncate(filepath.Join(dir, second), 100) }, second},
		{"no map", index("{}"), "no weight_map"},
		{"no JSON", index("{"), "cannot be used"},
		{"outside", index(`{"weight_map": {"a": "../x.bin"}}`), `"a" is in "../x.bin"`},
		{"other file", index(`{"weight_map": {"a": "x.pkl"}}`), `"a" is in "x.pkl"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := shardsOf(t)
			if err := c.change(dir); err != nil {
				t.Fatal(err)
			}
			in, err := Open(t.Context(), at(dir))
			if err == nil {
				in.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
}
