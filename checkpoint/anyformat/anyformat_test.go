// SPDX-License-Identifier: Apache-2.0

package anyformat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// at returns the location of a path on this machine.
func at(path string) Location {
	l := Location{Text: path, Parent: storage.Dir(filepath.Dir(path)), Name: filepath.Base(path)}
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		l.Inside = storage.Dir(path)
	}
	return l
}

// write makes a file and the folders above it.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// encode returns a safetensors file of one tensor for each name, whose bytes count up.
func encode(t *testing.T, names ...string) string {
	t.Helper()
	var tensors []safetensors.Tensor
	for i, name := range names {
		data := make([]byte, 24)
		for j := range data {
			data[j] = byte(i + j)
		}
		tensors = append(tensors, safetensors.Tensor{Info: safetensors.Info{Name: name, DType: safetensors.F32, Shape: []int{2, 3}}, Data: data})
	}
	var b strings.Builder
	if err := safetensors.Write(&b, tensors, nil); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestRecognize: the content of a file or folder says what it is, whatever its name is.
func TestRecognize(t *testing.T) {
	weights := encode(t, "a", "b")
	manifest := `{"format": "cohort-checkpoint", "version": 1, "step": 3, "files": []}`
	for _, c := range []struct {
		name  string
		files map[string]string
		open  string // relative to the folder; "" is the folder
		want  Kind
		fault string // part of the error
	}{
		{"safetensors", map[string]string{"x.bin": weights}, "x.bin", Safetensors, ""},
		{"torch", map[string]string{"x.safetensors": "PK\x03\x04 and more"}, "x.safetensors", Torch, ""},
		{"old torch", map[string]string{"x.pt": "\x80\x02\x8a\nl\xfc"}, "x.pt", Torch, ""},
		{"folder", map[string]string{"model.safetensors": weights, "config.json": "{}"}, "", HuggingFace, ""},
		{"index", map[string]string{"model.safetensors.index.json": "{}"}, "", HuggingFace, ""},
		{"adapter", map[string]string{"adapter_model.safetensors": weights}, "", HuggingFace, ""},
		{"unindexed shards", map[string]string{"part1.safetensors": weights}, "", HuggingFace, ""},
		{"torch folder", map[string]string{"pytorch_model.bin": "PK\x03\x04"}, "", Torch, ""},
		{"dcp", map[string]string{".metadata": "\x80\x04", "__0_0.distcp": ""}, "", DCP, ""},
		{"checkpoint", map[string]string{"manifest.json": manifest, "model.safetensors": weights}, "", Checkpoint, ""},
		{"damaged manifest", map[string]string{"manifest.json": "\x00\x01", "model.safetensors": weights}, "", Checkpoint, ""},
		{"manifest of another tool", map[string]string{"manifest.json": `{"name": "app"}`, "model.safetensors": weights}, "", HuggingFace, ""},
		{"run", map[string]string{"step-00000003/manifest.json": manifest}, "", Run, ""},
		{"run with only a stage", map[string]string{"step-00000003.tmp-1/x": ""}, "", Run, ""},
		{"stage", map[string]string{"step-00000003.tmp-1/model.safetensors": weights}, "step-00000003.tmp-1", "", "a save has written that did not end"},
		{"another tool's name", map[string]string{"my.tmp-1/model.safetensors": weights}, "my.tmp-1", HuggingFace, ""},
		{"absent", nil, "x", "", "x does not exist"},
		{"empty folder", map[string]string{"x/y": ""}, "x/../e", "", "e is empty"},
		{"empty file", map[string]string{"x": ""}, "x", "", "is an empty file"},
		{"short", map[string]string{"x": "abc"}, "x", "", "has only 3 bytes"},
		{"other folder", map[string]string{"a.txt": "", "b/c": ""}, "", "", `it has ["a.txt" "b"]`},
		{"gguf", map[string]string{"model.safetensors": "GGUF\x03\x00\x00\x00\x00\x00"}, "model.safetensors", "", "is a GGUF file"},
		{"pointer", map[string]string{"x": "version https://git-lfs.github.com/spec/v1\n"}, "x", "", "git lfs pull"},
		{"json", map[string]string{"x": `{"weight_map": {}}`}, "x", "", "give the folder that it lies in"},
		{"text", map[string]string{"x": "some text of somebody"}, "x", "", "is in no format that Cohort reads"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "e"), 0o777); err == nil && c.open == "" {
				os.Remove(filepath.Join(dir, "e"))
			}
			for name, text := range c.files {
				write(t, filepath.Join(dir, name), text)
			}
			got, err := Recognize(context.Background(), at(filepath.Join(dir, c.open)))
			if got != c.want || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
				t.Errorf("it is %q, error %v; want %q, %q", got, err, c.want, c.fault)
			}
		})
	}
}

func TestOpenWithoutPermission(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may read everything")
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "m", "model.safetensors"), encode(t, "a"))
	if err := os.Chmod(filepath.Join(dir, "m"), 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(filepath.Join(dir, "m"), 0o777)
	_, err := Open(context.Background(), at(filepath.Join(dir, "m")))
	if !errors.Is(err, fs.ErrPermission) {
		t.Errorf("the error is %v", err)
	}
}

// TestOpen: a run, a folder and a file give the tensors that were written.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"hub/model.safetensors":             encode(t, "a", "b"),
		"parts/one.safetensors":             encode(t, "a"),
		"parts/two.safetensors":             encode(t, "b"),
		"adapter/adapter_model.safetensors": encode(t, "a", "b"),
		"file":                              encode(t, "a", "b"),
	} {
		write(t, filepath.Join(dir, name), text)
	}
	file, err := Open(context.Background(), at(filepath.Join(dir, "file")))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	to := Location{Text: filepath.Join(dir, "run"), Inside: storage.Dir(filepath.Join(dir, "run"))}
	for _, step := range []int{3, 12} {
		if _, err := WriteCohort(context.Background(), to, file, file.Sections, CohortOptions{Step: step}, nil); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "run/step-00000040.tmp-1/model.safetensors"), encode(t, "unfinished"))
	write(t, filepath.Join(dir, "run/step-00000041/manifest.json"), "{")
	for _, name := range []string{"run", "run/step-00000012", "hub", "parts", "adapter", "file"} {
		in, err := Open(context.Background(), at(filepath.Join(dir, name)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		s, err := in.Section(ModelSection)
		if err != nil {
			t.Fatal(err)
		}
		names := ""
		for _, info := range s.Source.Infos() {
			names += info.Name
		}
		if names != "ab" {
			t.Errorf("%s has the tensors %s", name, names)
		}
		if name == "run" && (in.Step != 12 || len(in.Notices) != 1 || !strings.HasSuffix(in.Where, "run/step-00000012")) {
			t.Errorf("the newest checkpoint is %s, step %d", in.Where, in.Step)
		}
		if _, err := in.Section("x"); err == nil || !strings.Contains(err.Error(), `has no section "x"`) {
			t.Errorf("a section that is not there: %v", err)
		}
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestNumbersOfEightBits compares every value with PyTorch's.
func TestNumbersOfEightBits(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "float8.json"))
	if err != nil {
		t.Fatal(err)
	}
	var golden map[string][]string
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	for name, want := range golden {
		d, _ := safetensors.ParseDType(name)
		decode, size := decoder(d)
		if size != 1 || len(want) != 256 {
			t.Fatalf("%s: %d bytes, %d values", name, size, len(want))
		}
		for i, w := range want {
			var v [1]float64
			decode(v[:], []byte{byte(i)})
			var number float64
			fmt.Sscan(w, &number)
			if v[0] != number && !(v[0] != v[0] && w == "nan") {
				t.Errorf("%s: byte %d is %v, PyTorch has %s", name, i, v[0], w)
			}
		}
	}
}

// TestTorchSections: the dicts of a program are sections, names with dots are none.
func TestTorchSections(t *testing.T) {
	in, err := Open(context.Background(), at(filepath.Join("testdata", "nested.pt")))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	names := func(in *Input) (all []string) {
		for _, s := range in.Sections {
			for _, info := range s.Source.Infos() {
				all = append(all, s.Name+": "+info.Name)
			}
		}
		return all
	}
	want := []string{"model: bias", "model: weight", "optimizer: exp_avg.bias", "optimizer: exp_avg.weight", "optimizer: exp_avg_sq.bias", "optimizer: exp_avg_sq.weight",
		"optimizer: step.bias", "optimizer: step.weight"}
	if got := slices.Sorted(slices.Values(names(in))); !slices.Equal(got, want) || len(in.Groups) != 1 {
		t.Errorf("the sections are %q, want %q", got, want)
	}
	// A state dict that is written and read again has its names.
	dir := t.TempDir()
	write(t, filepath.Join(dir, "w"), encode(t, "model.a.weight", "model.b.weight"))
	weights, err := Open(context.Background(), at(filepath.Join(dir, "w")))
	if err != nil {
		t.Fatal(err)
	}
	defer weights.Close()
	var done, total int64
	if err := WriteTorch(context.Background(), at(filepath.Join(dir, "w.pt")), weights, weights.Sections, func(d, t int64) { done, total = d, t }); err != nil {
		t.Fatal(err)
	}
	if done != 48 || total != 48 {
		t.Errorf("%d of %d bytes were written, want 48", done, total)
	}
	again, err := Open(context.Background(), at(filepath.Join(dir, "w.pt")))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got := names(again); !slices.Equal(got, names(weights)) {
		t.Errorf("the sections are %q, want %q", got, names(weights))
	}
	d, err := Compare(context.Background(), weights.Sections[0].Source, again.Sections[0].Source, nil)
	if err != nil || !d.Equal() || d.NumEqual != 2 {
		t.Errorf("%+v, %v", d, err)
	}
	if err := WriteTorch(context.Background(), at(filepath.Join(dir, "w.pt")), weights, weights.Sections, nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file that is there: %v", err)
	}
}

// TestLargeFile: a file of the program is converted too, though it is larger than a companion may be.
func TestLargeFile(t *testing.T) {
	ctx, dir, size := context.Background(), t.TempDir(), maxCompanion+1
	s := checkpoint.State{Values: map[string]any{"n": 1}, Files: func(w *checkpoint.Writer) error {
		f, err := w.Create("index.bin")
		if err != nil {
			return err
		}
		_, err = f.Write(make([]byte, size))
		return errors.Join(err, f.Close())
	}}
	from := storage.Dir(filepath.Join(dir, "a"), storage.WithoutSync())
	if err := checkpoint.Save(ctx, nil, from, 3, s); err != nil {
		t.Fatal(err)
	}
	in, err := Open(ctx, at(from.Path(checkpoint.StepName(3))))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	to := Location{Text: "b", Inside: storage.Dir(filepath.Join(dir, "b"), storage.WithoutSync())}
	step, err := WriteCohort(ctx, to, in, in.Sections, CohortOptions{Step: -1}, nil)
	if err != nil || step != 3 {
		t.Fatalf("step %d, %v", step, err)
	}
	c, _, err := checkpoint.Latest(ctx, to.Inside)
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(c.Files, func(f checkpoint.FileInfo) bool { return f.Name == "index.bin" }); i < 0 || c.Files[i].Bytes != int64(size) {
		t.Errorf("the files are %v, want index.bin of %d bytes", c.Files, size)
	}
}
