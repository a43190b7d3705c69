// SPDX-License-Identifier: Apache-2.0

package train

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// TestRunsAreTiedToTextNotPlace: a run goes on with its text by another path, and
// not with another text.
func TestRunsAreTiedToTextNotPlace(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	if _, err := run(t, 1, c, "data"); err != nil {
		t.Fatal(err)
	}
	moved := filepath.Join(t.TempDir(), filepath.Base(c.Data))
	if err := os.Rename(c.Data, moved); err != nil {
		t.Fatal(err)
	}
	was := c.Data
	c.Data, c.Steps = moved, 13
	if _, err := CheckLM(t.Context(), c, flags([]string{"data", "steps"})); err != nil {
		t.Error(err)
	}
	if l, err := run(t, 1, c, "data", "steps"); err != nil || len(l.losses) != 1 {
		t.Errorf("with the text elsewhere: %v, losses %v", err, l.losses)
	}
	// From now on it is there.
	fresh := DefaultLM()
	fresh.Out = c.Out
	if _, err := CheckLM(t.Context(), fresh, nil); err != nil {
		t.Error(err)
	}
	c.Data = writeText(t, 30_000)
	for what, err := range map[string]error{"check": check(t, c, "data"), "run": runWith(t, 1, c, newLog(), "data")} {
		if err == nil || !strings.Contains(err.Error(), "the text in "+c.Data+" is not that which") || !strings.Contains(err.Error(), moved) || strings.Contains(err.Error(), was) {
			t.Errorf("%s of another text: %v", what, err)
		}
	}
}

func check(t *testing.T, c LMConfig, explicit ...string) error {
	_, err := CheckLM(t.Context(), c, flags(explicit))
	return err
}

// TestSaveToForgotten: a run that saved elsewhere is not begun anew because --save-to was left out,
// and goes on in another place to which its checkpoints were moved.
func TestSaveToForgotten(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	c.SaveTo = filepath.Join(t.TempDir(), "saved")
	if _, err := run(t, 1, c); err != nil {
		t.Fatal(err)
	}
	place := c.SaveTo
	c.SaveTo, c.Steps = "", 13
	if err := runWith(t, 1, c, newLog(), "steps"); err == nil || !strings.Contains(err.Error(), "give --save-to "+place+" to go on") {
		t.Errorf("without --save-to: %v", err)
	}
	moved := place + "-moved"
	if err := os.Rename(place, moved); err != nil {
		t.Fatal(err)
	}
	c.SaveTo = moved
	if l, err := run(t, 1, c, "steps"); err != nil || len(l.losses) != 1 {
		t.Errorf("in another place: %v, losses %v", err, l.losses)
	}
	c.SaveTo = place
	if err := runWith(t, 1, c, newLog(), "steps"); err == nil || !strings.Contains(err.Error(), moved) {
		t.Errorf("in the place of before: %v", err)
	}
}

// TestOutApart: what a run saves is neither its data nor the model that it begins
// with.
func TestOutApart(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile(writeText(t, 20_000))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "a.txt"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for out, want := range map[string]string{dir: "lies in --data", filepath.Join(dir, "x", "y"): "lies in --data", filepath.Join(dir, ".run"): "", dir + "-run": ""} {
		c := tiny(t, dir)
		c.Out = out
		v, r := DefaultVision(), DefaultRec()
		v.Data, v.Out, r.Data, r.Out = dir, out, dir, out
		_, vision := CheckVision(t.Context(), v, nil)
		_, rec := CheckRec(t.Context(), r, nil)
		for what, err := range map[string]error{"lm": check(t, c, "data"), "vision": vision, "rec": rec} {
			if got := err != nil && strings.Contains(err.Error(), "lies in --data"); got != (want != "") {
				t.Errorf("%s, --out %s: %v", what, out, err)
			}
		}
		if err := runWith(t, 1, c, newLog(), "data"); want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("a run with --out %s: %v", out, err)
		}
	}
	c, given := tuneCases[0].config(t)
	c.InitFrom, c.Out = dir, dir
	if _, err := CheckLM(t.Context(), c, given); err == nil || !strings.Contains(err.Error(), "--out and --init-from are both") {
		t.Errorf("a model as its own run: %v", err)
	}
}

// TestAdaptersKeepTheirBase: a LoRA beside a run's model outlives the checkpoint
// that it was begun with, and moves with its directory.
func TestAdaptersKeepTheirBase(t *testing.T) {
	base := tiny(t, writeText(t, 20_000))
	base.Keep = 1
	if _, err := run(t, 1, base); err != nil {
		t.Fatal(err)
	}
	c := tiny(t, base.Data)
	c.InitFrom, c.LoRA, c.Steps = base.Out, 2, 5
	c.Vocab, c.Width, c.Heads, c.Layers, c.Context = 0, 0, 0, 0, 0
	given := []string{"data", "out", "init-from", "lora", "steps", "eval-every", "eval-tokens", "save-every"}
	if _, err := run(t, 1, c, given...); err != nil {
		t.Fatal(err)
	}
	want, err := Eval(t.Context(), storage.Dir(c.Out), EvalOptions{}, noNotice(t))
	if err != nil {
		t.Fatal(err)
	}
	base.Steps = 15
	if _, err := run(t, 1, base, "steps"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(checkpoint.Path(base.Out, 12)); err == nil {
		t.Fatal("the checkpoint that the LoRA was begun with is there still")
	}
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(c.Out, moved); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{moved, BestDir(moved)} {
		got, err := Eval(t.Context(), storage.Dir(at), EvalOptions{}, noNotice(t))
		if err != nil || got.Metrics[0] != want.Metrics[0] {
			t.Errorf("%s: %v, %v, want %v", at, err, got.Metrics, want.Metrics)
		}
	}
	c.Out, c.Steps = moved, 7
	if _, err := CheckLM(t.Context(), c, flags(given)); err != nil {
		t.Error(err)
	}
	if l, err := run(t, 1, c, given...); err != nil || len(l.losses) != 2 {
		t.Errorf("the LoRA does not go on: %v, losses %v", err, l.losses)
	}
}

// TestArgument: a path can be copied from what is printed.
func TestArgument(t *testing.T) {
	for path, want := range map[string]string{"out/lm": "out/lm", "a b/ü": "'a b/ü'", "/x/ü-1_2.3": "/x/ü-1_2.3", "it's": `'it'\''s'`, "": "''", "$x": "'$x'"} {
		if got := argument(path); got != want {
			t.Errorf("%q is printed as %s, want %s", path, got, want)
		}
	}
}

// TestWhatTheTextDecides: an empty prompt is one, a vocabulary that the text does
// not fill is told, and a small file can be evaluated whole.
func TestWhatTheTextDecides(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	c.Vocab, c.Steps, c.Clip = 50_000, 1, 0
	l, err := run(t, 1, c, "vocab", "prompt", "clip")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(l.finish.Next, "--prompt ''") {
		t.Errorf("go on with %s", l.finish.Next)
	}
	if len(l.notices) != 1 || !strings.Contains(l.notices[0], "--vocab asked for 50000") {
		t.Errorf("notices %q", l.notices)
	}
	small := filepath.Join(t.TempDir(), "small.txt")
	if err := os.WriteFile(small, []byte(strings.Repeat("some words\n", 50)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Eval(t.Context(), storage.Dir(c.Out), EvalOptions{Data: small}, noNotice(t)); err == nil || !strings.Contains(err.Error(), "--all") {
		t.Errorf("a small file: %v", err)
	}
}

// TestConfigDoesTheSameAgain: config.toml has the samples of a step also where
// the ranks share them out unevenly, and what a run that is complete was made
// with.
func TestConfigDoesTheSameAgain(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	c.Batch = 4
	if _, err := run(t, 2, c); err != nil {
		t.Fatal(err)
	}
	c.Steps = 14
	if _, err := run(t, 3, c, "steps"); err != nil {
		t.Fatal(err)
	}
	read := func() string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(c.Out, settingsFile))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	text := read()
	for _, want := range []string{"ranks = 2 ", "batch = 4 ", "accumulate = 1 ", "steps = 14 ", "# for 8 a step, which 3 ranks share out unevenly"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	c.Steps = 2
	if _, err := run(t, 2, c, "steps"); err != nil {
		t.Fatal(err)
	}
	if again := read(); again != text {
		t.Errorf("a run that had nothing to do wrote\n%s", again)
	}
}
