// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
)

// must runs cohort ckpt, which must succeed.
func must(t *testing.T, args ...string) (stdout string) {
	t.Helper()
	out, errs, code := ckpt(args...)
	if code != 0 {
		t.Fatalf("ckpt %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// TestCkptTour takes a model through all formats and layouts, and compares it in the end.
func TestCkptTour(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	writeWeights(t, at("in/model.safetensors"), layered(3), func(name string, i int) float32 { return float32(len(name)*100 + i) })
	if err := os.WriteFile(at("in/config.json"), []byte(`{"model_type": "x"}`), 0o666); err != nil {
		t.Fatal(err)
	}
	must(t, "convert", at("in"), at("run"), "--to", "cohort", "--step", "7")
	must(t, "reshard", at("run"), at("sharded"), "--mesh", "replicate=2,fsdp=3")
	must(t, "reshard", at("sharded"), at("files"), "--files", "4")
	must(t, "reshard", at("sharded"), at("two"), "--ranks", "2")
	must(t, "convert", at("two"), at("dcp"), "--to", "dcp")
	must(t, "convert", at("dcp"), at("w.pt"), "--to", "torch")
	must(t, "convert", at("w.pt"), at("again"), "--to", "cohort")
	must(t, "merge", at("two"), at("hub"))
	must(t, "cp", at("two"), at("copy"))
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer server.Close()
	for _, name := range []string{"run", "sharded", "files", "two", "dcp", "w.pt", "again", "hub", "copy", server.URL + "/hub", server.URL + "/two/step-00000007", server.URL + "/w.pt", server.URL + "/dcp"} {
		if !strings.Contains(name, "://") {
			name = at(name)
		}
		if out := must(t, "diff", at("in"), name); !strings.Contains(out, "9 equal tensors, 0 differ, 0 only in A, 0 only in B") {
			t.Errorf("%s: %s", name, out)
		}
		must(t, "verify", name)
	}
	for _, name := range []string{"hub/config.json", "two/step-00000007/config.json", "copy/step-00000007/config.json"} {
		if _, err := os.Stat(at(name)); err != nil {
			t.Error(err)
		}
	}
	if out := must(t, "ls", at("sharded")); !strings.Contains(out, "replicate 2 × fsdp 3") || !strings.Contains(out, "good") {
		t.Errorf("ls prints\n%s", out)
	}
	if out := must(t, "show", at("sharded")); !strings.Contains(out, "3 × [11, 8] fsdp:0") || !strings.Contains(out, "on replicate 2 × fsdp 3") {
		t.Errorf("show prints\n%s", out)
	}
	var shown shownInput
	if err := json.Unmarshal([]byte(must(t, "show", "--json", at("two"))), &shown); err != nil || shown.Ranks != 2 || len(shown.Mesh) != 1 || shown.Sections[0].Tensors[0].Placements[0] != "Shard(0)" {
		t.Errorf("show --json has %+v, %v", shown, err)
	}
	for _, c := range []struct{ args, want string }{
		{"cp IN RUN", "convert it"},
		{"cp RUN copy", "this step is there already"},
		{"reshard two x --mesh tp=2", "was not saved on a mesh with the axis tp"},
		{"reshard two run --ranks 2", "this step is there already"},
		{"ls two/step-00000007", "is a Cohort checkpoint, not a run"},
		{"convert two hub --to huggingface", "is not empty"},
	} {
		var args []string
		for i, a := range strings.Fields(strings.NewReplacer("IN", "in", "RUN", "run").Replace(c.args)) {
			if i > 0 && !strings.HasPrefix(a, "-") && !strings.Contains(a, "=") && a != "huggingface" && a != "2" {
				a = at(a)
			}
			args = append(args, a)
		}
		if _, errs, code := ckpt(args...); code != exitFailed || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit code %d, %q, want %q", c.args, code, errs, c.want)
		}
	}
	for _, c := range []struct{ args, want string }{
		{"reshard a b", "want one of --files, --ranks and --mesh"},
		{"reshard a b --ranks 2 --files 2", "want one of"},
		{"reshard a b --mesh fsdp", "want axes with their sizes"},
		{"reshard a b --mesh fsdp=2,fsdp=2", "is there twice"},
		{"prune a", "want --keep 1 or more"},
		{"show ftp://a/b", "not at ftp://"},
		{"convert " + at("in") + " https://a/b --to cohort", "a web server is only read"},
	} {
		if _, errs, code := ckpt(strings.Fields(c.args)...); code != exitUsage || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit code %d, %q, want %q", c.args, code, errs, c.want)
		}
	}
}

// TestCkptDamage: ls and verify name what is damaged, and work on the rest.
func TestCkptDamage(t *testing.T) {
	dir := t.TempDir()
	weights, run := filepath.Join(dir, "w"), filepath.Join(dir, "run")
	writeWeights(t, weights, layered(3), func(string, int) float32 { return 1 })
	for _, step := range []string{"1", "2", "3"} {
		must(t, "convert", weights, run, "--to", "cohort", "--step", step)
	}
	flipped := filepath.Join(checkpoint.Path(run, 2), "model.safetensors")
	b, err := os.ReadFile(flipped)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-5] ^= 1
	if err := os.WriteFile(flipped, b, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(checkpoint.Path(run, 3), "model.safetensors"), int64(len(b)-40)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(run, "step-00000004.tmp-0123"), 0o777); err != nil {
		t.Fatal(err)
	}
	out := must(t, "ls", run)
	for _, want := range []string{"3 ", "damaged\n", "step-00000003: model.safetensors has", "unfinished"} {
		if !strings.Contains(out, want) {
			t.Errorf("ls prints\n%s\nwithout %q", out, want)
		}
	}
	out, errs, code := ckpt("verify", "--all", "--json", run)
	var verdicts []verdict
	if err := json.Unmarshal([]byte(out), &verdicts); err != nil || code != exitDiffers || len(verdicts) != 3 {
		t.Fatalf("verify: exit code %d, %s, %v\n%s", code, errs, err, out)
	}
	for i, want := range []string{"has " + fmt.Sprint(len(b)-40) + " bytes", "its bytes were changed"} {
		if d := verdicts[i].Damage; len(d) != 1 || d[0].File != "model.safetensors" || d[0].Tensor == "" || !strings.Contains(d[0].Problem, want) {
			t.Errorf("step %d: %+v, want %q", 3-i, d, want)
		}
	}
	if !verdicts[2].Good {
		t.Errorf("step 1: %+v", verdicts[2])
	}
	// The newest one that opens is taken; its damage shows when the bytes are read.
	if _, errs, code := ckpt("show", run); code != 0 || !strings.Contains(errs, "passed over: ") {
		t.Errorf("show: exit code %d, %s", code, errs)
	}
	if _, errs, code := ckpt("diff", weights, run); code != exitFailed || !strings.Contains(errs, "step-00000002 is damaged: model.safetensors") {
		t.Errorf("diff: exit code %d, %s", code, errs)
	}
	if _, errs, code := ckpt("merge", run, filepath.Join(dir, "hub")); code != exitFailed || !strings.Contains(errs, "its bytes were changed") {
		t.Errorf("merge: exit code %d, %s", code, errs)
	}
	out = must(t, "prune", run, "--keep", "1")
	if !strings.Contains(out, "nothing was removed") || !strings.Contains(out, "would remove 1 checkpoint: step 1") {
		t.Errorf("prune prints\n%s", out)
	}
	must(t, "prune", run, "--keep", "1", "--yes")
	if steps := must(t, "ls", "--json", run); strings.Contains(steps, "step-00000001") || !strings.Contains(steps, "step-00000002") {
		t.Errorf("after a prune: %s", steps)
	}
	shards := filepath.Join(dir, "shards")
	if err := errors.Join(os.Mkdir(shards, 0o777), os.WriteFile(filepath.Join(shards, "pytorch_model.bin.index.json"), []byte("{}"), 0o666)); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := ckpt("verify", shards); code != exitFailed || strings.Contains(out+errs, "damaged") {
		t.Errorf("a format that is not read: exit code %d, %s%s", code, out, errs)
	}
	if err := os.WriteFile(filepath.Join(dir, "cut"), b[:100], 0o666); err != nil {
		t.Fatal(err)
	}
	if out, _, code := ckpt("verify", filepath.Join(dir, "cut")); code != exitDiffers || !strings.Contains(out, "cut short") {
		t.Errorf("a file that was cut short: exit code %d, %s", code, out)
	}
}

// TestCkptOptimizer: the state of an optimizer goes through PyTorch's formats and back.
func TestCkptOptimizer(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	nested := filepath.Join("..", "..", "checkpoint", "anyformat", "testdata", "nested.pt")
	if out := must(t, "convert", nested, at("run"), "--to", "cohort", "--step", "1"); !strings.Contains(out, "values that are left out: step\n") {
		t.Errorf("a conversion that loses a value prints %q", out)
	}
	if out := must(t, "show", nested); !strings.Contains(out, "values that are no tensors\n") {
		t.Errorf("show prints %q", out)
	}
	if out := must(t, "convert", at("run"), at("dcp"), "--to", "dcp"); strings.Contains(out, "left out") {
		t.Errorf("a conversion that loses nothing prints %q", out)
	}
	must(t, "convert", at("dcp"), at("again.pt"), "--to", "torch")
	for _, name := range []string{at("run"), at("dcp"), at("again.pt")} {
		out := must(t, "diff", nested, name)
		if !strings.Contains(out, "model: 2 equal tensors, 0 differ") || !strings.Contains(out, "optimizer: 6 equal tensors, 0 differ") {
			t.Errorf("%s: %s", name, out)
		}
	}
	if out := must(t, "convert", at("dcp"), at("hub"), "--to", "huggingface"); !strings.Contains(out, "the format has no place for: optimizer") {
		t.Errorf("an export prints %q", out)
	}
}
