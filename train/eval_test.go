// SPDX-License-Identifier: Apache-2.0

package train

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// TestEvalIsTransformers: a model of Hugging Face's, on a whole text, has the
// figures that transformers computes.
func TestEvalIsTransformers(t *testing.T) {
	text, err := os.ReadFile(tuned("eval.json"))
	if err != nil {
		t.Fatal(err)
	}
	var figures map[string]map[string]float64
	if err := json.Unmarshal(text, &figures); err != nil {
		t.Fatal(err)
	}
	for base, want := range figures {
		r, err := Eval(t.Context(), storage.Dir(tuned(base)), EvalOptions{Data: tuned("text.txt"), All: true, Batch: 7}, noNotice(t))
		if err != nil {
			t.Fatal(err)
		}
		if r.Task != "lm" || float64(r.Samples) != want["tokens"] || len(r.Metrics) != 3 {
			t.Errorf("%s: %+v", base, r)
		}
		for _, m := range r.Metrics {
			if d := math.Abs(m.Value-want[m.Name]) / want[m.Name]; !(d <= 1e-5) {
				t.Errorf("%s: %s is %v, by transformers %v", base, m.Name, m.Value, want[m.Name])
			}
		}
	}
}

// TestEvalOfRuns: a run's newest checkpoint, on what training held out, has the
// figure that the run printed.
func TestEvalOfRuns(t *testing.T) {
	c := tiny(t, writeText(t, 40_000))
	l, err := run(t, 2, c)
	if err != nil {
		t.Fatal(err)
	}
	o := EvalOptions{Tokens: c.EvalTokens}
	bits := func(dir string, o EvalOptions) float64 {
		t.Helper()
		r, err := Eval(t.Context(), storage.Dir(dir), o, noNotice(t))
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Metrics) != 3 || r.Metrics[2].Name != "bits_per_byte" || r.Model == "" || r.Path == "" {
			t.Fatalf("%+v", r)
		}
		return r.Metrics[2].Value
	}
	if got, want := bits(c.Out, o), l.evaluations[12]; math.Abs(got-want) > 1e-5 {
		t.Errorf("%v bits per byte, the run printed %v", got, want)
	}
	if got, want := bits(checkpoint.Path(c.Out, 12), o), bits(c.Out, o); got != want {
		t.Errorf("of the checkpoint itself %v bits per byte, want %v", got, want)
	}
	if one, many := bits(c.Out, EvalOptions{Batch: 1}), bits(c.Out, EvalOptions{Batch: 50}); math.Abs(one-many) > 1e-5 {
		t.Errorf("one by one %v bits per byte, fifty at once %v", one, many)
	}
	all, err := Eval(t.Context(), storage.Dir(c.Out), EvalOptions{All: true}, noNotice(t))
	if err != nil {
		t.Fatal(err)
	}
	part, err := Eval(t.Context(), storage.Dir(c.Out), EvalOptions{}, noNotice(t))
	if err != nil {
		t.Fatal(err)
	}
	if all.Samples < 10*part.Samples || part.Samples == 0 || part.Step != 12 {
		t.Errorf("all of the text has %d tokens, the held-out part of step %d %d", all.Samples, part.Step, part.Samples)
	}

	small := filepath.Join(t.TempDir(), "small.txt")
	if err := os.WriteFile(small, []byte(strings.Repeat("what a small text ", 20)), 0o666); err != nil {
		t.Fatal(err)
	}
	bits(c.Out, EvalOptions{Data: small, All: true})
	binary := filepath.Join(t.TempDir(), "binary")
	if err := os.WriteFile(binary, []byte("\xff\xfe\x00"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		dir  string
		o    EvalOptions
		want string
	}{
		{c.Out, EvalOptions{Data: small}, "at least 1024 are needed"},
		{c.Out, EvalOptions{Data: binary, All: true}, "is not text"},
		{c.Out, EvalOptions{Data: filepath.Join(t.TempDir(), "no")}, "no"},
		{c.Out, EvalOptions{Context: 17}, "--context is 17"},
		{c.Out, EvalOptions{Batch: -1}, "negative"},
		{c.Out, EvalOptions{Tokens: 3}, "--tokens is 3, less than one sequence of 16"},
		{tuned("gpt2"), EvalOptions{}, "does not say what it was trained on"},
		{tuned("gpt2-full"), EvalOptions{}, "neither the directory of a run"},
		{filepath.Join("..", "models", "testdata", "golden", "bert"), EvalOptions{Data: small}, "tokenizer"},
	} {
		if _, err := Eval(t.Context(), storage.Dir(f.dir), f.o, noNotice(t)); err == nil || !strings.Contains(err.Error(), f.want) {
			t.Errorf("%s %+v: %v, want %q", f.dir, f.o, err, f.want)
		}
	}
}

// TestEvalOfOtherTasks: a checkpoint of a program's own task is none of ours.
func TestEvalOfOtherTasks(t *testing.T) {
	dir := t.TempDir()
	err := checkpoint.Save(t.Context(), nil, storage.Dir(dir), 3, checkpoint.State{
		Values: map[string]any{checkpoint.ProgressValue: checkpoint.Progress{Step: 3, Task: "protein"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Eval(t.Context(), storage.Dir(dir), EvalOptions{}, noNotice(t)); err == nil || !strings.Contains(err.Error(), `"protein"`) {
		t.Errorf("a task of somebody's: %v", err)
	}
	if _, _, err := LoadLM(t.Context(), storage.Dir(dir), noNotice(t)); err == nil || !strings.Contains(err.Error(), `"protein"`) {
		t.Errorf("as a language model: %v", err)
	}
	ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenClassifier(ck); err == nil || !strings.Contains(err.Error(), `the task "protein", not "vision"`) {
		t.Errorf("as a classifier: %v", err)
	}
	if _, err := OpenRecommender(ck); err == nil || !strings.Contains(err.Error(), `the task "protein", not "rec"`) {
		t.Errorf("as a recommender: %v", err)
	}
}

// TestEvalNotesChanges: figures of another text or another base than those of
// training come with a note.
func TestEvalNotesChanges(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(tuned("gpt2"))); err != nil {
		t.Fatal(err)
	}
	c := tiny(t, writeText(t, 40_000))
	c.InitFrom, c.LoRA, c.Steps, c.SampleTokens = dir, 2, 1, 0
	c.Vocab, c.Width, c.Heads, c.Layers = 0, 0, 0, 0
	if _, err := run(t, 1, c, "context", "out", "steps"); err != nil {
		t.Fatal(err)
	}
	notes := func() (all []string) {
		t.Helper()
		if _, err := Eval(t.Context(), storage.Dir(c.Out), EvalOptions{Tokens: 64}, func(text string) { all = append(all, text) }); err != nil {
			t.Fatal(err)
		}
		return all
	}
	if got := notes(); len(got) != 0 {
		t.Errorf("nothing has changed, but %q", got)
	}
	weights := filepath.Join(dir, checkpoint.ModelFile)
	text, err := os.ReadFile(weights)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)-4] ^= 1
	if err := os.WriteFile(weights, text, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(c.Data, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(strings.Repeat("and more\n", 100)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := notes(); len(got) != 2 || !strings.Contains(got[0], "was trained beside") || !strings.Contains(got[1], "the data have changed since") {
		t.Errorf("the notes are %q", got)
	}
}
