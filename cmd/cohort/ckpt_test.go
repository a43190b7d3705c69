// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// ckpt runs cohort ckpt.
func ckpt(args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	code = run(append([]string{"ckpt"}, args...), &out, &errs)
	return out.String(), errs.String(), code
}

// writeWeights writes a safetensors file of float32 tensors with shapes; value gives the elements.
func writeWeights(t *testing.T, path string, shapes map[string][]int, value func(name string, i int) float32) {
	t.Helper()
	var tensors []safetensors.Tensor
	for name, shape := range shapes {
		n := 1
		for _, s := range shape {
			n *= s
		}
		var data []byte
		for i := range n {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(value(name, i)))
		}
		tensors = append(tensors, safetensors.Tensor{Info: safetensors.Info{Name: name, DType: safetensors.F32, Shape: shape}, Data: data})
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := safetensors.Write(f, tensors, map[string]string{"format": "pt"}); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// layered are the shapes of a model with layers that are alike, but for the last one.
func layered(numLayers int) map[string][]int {
	shapes := map[string][]int{"model.embed_tokens.weight": {32, 8}, "lm_head.weight": {32, 8}}
	for i := range numLayers {
		shapes[fmt.Sprintf("model.layers.%d.mlp.up_proj.weight", i)] = []int{16, 8}
		shapes[fmt.Sprintf("model.layers.%d.self_attn.rotary_embedding_with_a_very_long_name.and_another.weight", i)] = []int{8}
	}
	shapes[fmt.Sprintf("model.layers.%d.mlp.up_proj.weight", numLayers)] = []int{24, 8}
	return shapes
}

func TestCkptShow(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.safetensors")
	writeWeights(t, file, layered(12), func(string, int) float32 { return 1 })
	out, errs, code := ckpt("show", file)
	want := `safetensors file, 12.5 kB in 1 file

model: 27 tensors, 2336 elements, 9.34 kB
  lm_head.weight                F32  [32, 8]       1.02 kB
  model                                            8.32 kB
    embed_tokens.weight         F32  [32, 8]       1.02 kB
    layers                                         7.30 kB
      0 … 11 (12 alike)                         each 544 B
        mlp.up_proj.weight      F32  [16, 8]         512 B
        self_attn.rotary_embedding_with_a_very_long_name.and_another.weight
                                F32  [8]              32 B
      12.mlp.up_proj.weight     F32  [24, 8]         768 B
`
	if code != 0 || errs != "" || !strings.HasPrefix(out, file) {
		t.Fatalf("exit code %d, %s\n%s", code, errs, out)
	}
	_, got, _ := strings.Cut(out, ": ")
	if !sameWords(got, want) {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	for i, line := range strings.Split(got, "\n") {
		if n := utf8.RuneCountInString(line); n > 80 && !strings.Contains(line, "very_long") {
			t.Errorf("line %d has %d columns: %s", i, n, line)
		}
	}
	all, _, _ := ckpt("show", "--all", file)
	if strings.Contains(all, "alike") || strings.Count(all, "up_proj") != 13 {
		t.Errorf("--all prints\n%s", all)
	}
	shallow, _, _ := ckpt("show", "--depth", "1", file)
	if !strings.Contains(shallow, "model (26 tensors)") || strings.Contains(shallow, "layers") {
		t.Errorf("--depth 1 prints\n%s", shallow)
	}
	asJSON, _, _ := ckpt("show", "--json", file)
	var object shownInput
	if err := json.Unmarshal([]byte(asJSON), &object); err != nil || len(object.Sections) != 1 || len(object.Sections[0].Tensors) != 27 || object.Sections[0].Elements != 2336 {
		t.Errorf("--json prints %s, %v", asJSON, err)
	}
}

// sameWords compares texts without the spaces between words.
func sameWords(a, b string) bool {
	clean := func(s string) string {
		var lines []string
		for line := range strings.Lines(s) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return strings.Join(lines, "\n")
	}
	return clean(a) == clean(b)
}

func TestCkptDiff(t *testing.T) {
	dir := t.TempDir()
	a, b, c := filepath.Join(dir, "a"), filepath.Join(dir, "b", "model.safetensors"), filepath.Join(dir, "c")
	value := func(_ string, i int) float32 { return float32(i + 1) }
	writeWeights(t, a, map[string][]int{"x": {2, 3}, "y": {4}, "gone": {1}, "z": {2}}, value)
	writeWeights(t, b, map[string][]int{"x": {2, 3}, "y": {4}, "new": {1}, "z": {3}}, func(name string, i int) float32 {
		if name == "x" && i == 4 {
			return 5.5
		}
		return value(name, i)
	})
	writeWeights(t, c, map[string][]int{"x": {2, 3}, "y": {4}, "gone": {1}, "z": {2}}, value)
	if out, errs, code := ckpt("diff", a, c); code != 0 || errs != "" || !strings.Contains(out, "4 equal tensors, 0 differ, 0 only in A, 0 only in B") {
		t.Errorf("equal files: exit code %d\n%s%s", code, out, errs)
	}
	out, errs, code := ckpt("diff", a, filepath.Dir(b))
	want := `model: 1 equal tensor, 2 differ, 1 only in A, 1 only in B
 largest relative changed at
 z: [2] in A, [3] in B
 x 0.5 0.052 16.7 % [1, 1]
 only in A: gone
 only in B: new
`
	if code != exitDiffers || !strings.Contains(errs, "differ") || !sameWords(out, want) {
		t.Errorf("exit code %d\n%s%s\nwant\n%s", code, out, errs, want)
	}
	out, _, code = ckpt("diff", "--json", a, b)
	var object struct{ Sections []sectionDifference }
	if err := json.Unmarshal([]byte(out), &object); err != nil || code != exitDiffers || len(object.Sections) != 1 || object.Sections[0].OnlyB[0] != "new" {
		t.Errorf("--json: exit code %d, %v\n%s", code, err, out)
	}
	only := filepath.Join(dir, "only")
	writeWeights(t, only, map[string][]int{"x": {2, 3}}, value)
	near := filepath.Join(dir, "near")
	writeWeights(t, near, map[string][]int{"x": {2, 3}}, func(name string, i int) float32 { return value(name, i) * 1.001 })
	if _, _, code := ckpt("diff", only, near); code != exitDiffers {
		t.Errorf("without a tolerance the exit code is %d", code)
	}
	if out, errs, code := ckpt("diff", "--tolerance", "1e-2", only, near); code != 0 || !strings.Contains(out, "1 within the tolerance") {
		t.Errorf("with a tolerance the exit code is %d\n%s%s", code, out, errs)
	}
}

func TestBadCkptCommandLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "w")
	writeWeights(t, file, map[string][]int{"x": {1}}, func(string, int) float32 { return 1 })
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"shwo", "did you mean show?", exitUsage},
		{"show", "ckpt show needs a checkpoint, got 0 arguments", exitUsage},
		{"diff " + file, "ckpt diff needs two checkpoints, got 1 arguments", exitUsage},
		{"show " + file + "x", "w" + "x does not exist\n", exitFailed},
		{"show --section best " + file, `has no section "best": it has ["model"]`, exitUsage},
		{"show --depth 0 " + file, "--depth 0: want 1 or more", exitUsage},
		{"diff --tolerance -1 " + file + " " + file, "--tolerance -1", exitUsage},
		{"diff --tolerance nan " + file + " " + file, "--tolerance NaN", exitUsage},
		{"show " + filepath.Dir(file), "has no checkpoint", exitFailed},
	} {
		_, errs, code := ckpt(strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("ckpt %s: exit code %d, %q; want %d, %q", c.args, code, errs, c.code, c.want)
		}
	}
}

// TestCkptSecrets: a signature in an address is in no message.
func TestCkptSecrets(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	for _, args := range [][]string{
		{"show", server.URL + "/w.safetensors?signature=hidden7"}, {"show", server.URL + "/run?signature=hidden7"},
		{"ls", server.URL + "/run?signature=hidden7"}, {"verify", server.URL + "/w.pt?signature=hidden7"},
		{"show", "gs://bucket/w.pt?signature=hidden7"}, {"cp", "a", server.URL + "/w.pt?signature=hidden7"},
		{"show", "https://user:hidden7@localhost/w.pt"}, {"show", "s3://user:hidden7@bucket/w.pt"},
		{"show", "s3://bucket/w.pt?key=hidden7"}, {"cp", "a", "https://user:hidden7@localhost/a"},
		{"prune", "https://user:hidden7@localhost/a", "--keep", "1"}, {"show", "%zz://hidden7"},
	} {
		if out, errs, code := ckpt(args...); code == 0 || strings.Contains(out+errs, "hidden7") {
			t.Errorf("%s: exit code %d, %s%s", args, code, out, errs)
		}
	}
}

func TestInBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.00 kB", 9994: "9.99 kB", 9996: "10.0 kB", 99_960: "100 kB",
		999_499: "999 kB", 999_500: "1.00 MB", 988_097_824: "988 MB", 1_100_000_000: "1.10 GB", math.MaxInt64: "9.22 EB"} {
		if got := inBytes(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 elements", 1: "1 element", 2: "2 elements", 12_300: "12.3 thousand elements"} {
		if got := inElements(n); got != want {
			t.Errorf("%d elements are %q, want %q", n, got, want)
		}
	}
}

// TestCkptConvertToHuggingFace: the folder has the same tensors and the files of the model,
// and appears whole or not at all.
func TestCkptConvertToHuggingFace(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "deep", "out")
	writeWeights(t, filepath.Join(in, "model.safetensors"), layered(5), func(name string, i int) float32 { return float32(len(name) + i) })
	if err := os.WriteFile(filepath.Join(in, "config.json"), []byte(`{"model_type": "x"}`), 0o666); err != nil {
		t.Fatal(err)
	}
	text, errs, code := ckpt("convert", in, out, "--to", "huggingface", "--files", "3")
	if code != 0 || errs != "" || text != out+": 13 tensors\n" {
		t.Fatalf("exit code %d\n%s%s", code, text, errs)
	}
	if _, errs, code := ckpt("diff", in, out); code != 0 {
		t.Errorf("they differ: %s", errs)
	}
	for _, name := range []string{"config.json", "model.safetensors.index.json", "model-00003-of-00003.safetensors"} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Error(err)
		}
	}
	if _, errs, code := ckpt("convert", in, out, "--to", "huggingface"); code != exitFailed || !strings.Contains(errs, "is not empty") {
		t.Errorf("a full folder: exit code %d, %s", code, errs)
	}
	if _, errs, code := ckpt("convert", in, out+"2", "--to", "huggingface", "--files", "40"); code != exitFailed || !strings.Contains(errs, "40 files for 13 tensors") {
		t.Errorf("too many files: exit code %d, %s", code, errs)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "deep", "*")); len(left) != 1 {
		t.Errorf("a failure leaves %q", left)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "deep", ".*")); len(left) > 0 {
		t.Errorf("a failure leaves %q", left)
	}
	if _, errs, code := ckpt("convert", in, out+"2", "--to", "onnx"); code != exitUsage || !strings.Contains(errs, `--to "onnx": want one of`) {
		t.Errorf("another format: exit code %d, %s", code, errs)
	}
}
