// SPDX-License-Identifier: Apache-2.0

package models

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cohort-ml/cohort/nn"
)

var (
	drawnModels = flag.Int("drawn", 0, "how many new folders TestDrawnModels and TestDrawnAdapters draw with -python")
	drawnSeed   = flag.Int("drawn-seed", 2, "what they draw from")
)

// drawnTolerance is of the largest logit. Of some of these models the reference's
// own float32 is 3e-5 away from its float64.
const drawnTolerance = 1e-4

// Models drawn at random, in settings, names, types and shards, compute what
// transformers computes once it has read the same folder.
//
//	go test ./models -run TestDrawnModels -python /path/to/python -drawn 1000
func TestDrawnModels(t *testing.T) { compareDrawn(t, golden("drawn"), matchesDrawn) }

// Adapters that PEFT saved with settings drawn at random compute what PEFT
// computes once it has read them.
//
//	go test ./models -run TestDrawnAdapters -python /path/to/python -drawn 1000
func TestDrawnAdapters(t *testing.T) {
	compareDrawn(t, golden("drawn-adapters"), matchesDrawnAdapter, "adapters")
}

// compareDrawn tries every folder of a sample or, where it is asked for, of new
// ones.
func compareDrawn(t *testing.T, dir string, matches func(t *testing.T, dir, saved string) error, kind ...string) {
	if *drawnModels > 0 && *python != "" {
		dir = t.TempDir()
		args := append([]string{golden("drawn.py"), dir, fmt.Sprint(*drawnModels), fmt.Sprint(*drawnSeed)}, kind...)
		if out, err := exec.CommandContext(t.Context(), *python, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		t.Fatalf("%v, %d folders", err, len(entries))
	}
	wrong, saved := 0, t.TempDir()
	for _, e := range entries {
		if err := matches(t, filepath.Join(dir, e.Name()), filepath.Join(saved, e.Name())); err != nil {
			wrong++
			t.Error(err)
		}
	}
	t.Logf("%d folders, %d wrong", len(entries), wrong)
	if *python == "" {
		return
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name(), "expected.safetensors"))
		if err == nil {
			err = os.WriteFile(filepath.Join(saved, e.Name(), "expected.safetensors"), text, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), *python, golden("drawn.py"), "check", saved).Output()
	if err != nil {
		t.Errorf("what is saved here is something else to Python: %v: %s", err, out)
	}
	t.Logf("%s", out)
}

// matchesDrawnAdapter compares an adapter with what is expected of it, merges it,
// and saves it and opens it again.
func matchesDrawnAdapter(t *testing.T, dir, saved string) error {
	base, err := filepath.Abs(filepath.Join(dir, "base"))
	if err != nil {
		return err
	}
	want := openExpected(t, filepath.Join(dir, "expected.safetensors"))
	compare := func(what string, m nn.Module) error {
		c := nn.Evaluation(t.Context())
		defer c.Close()
		if d := maxDiff(c.Call(m, want.read(t, "ids")).Float32s(), want.read(t, "logits").Float32s(), 1e-3); !(d <= drawnTolerance) {
			return fmt.Errorf("%s (%s): the logits differ by %.1e of the largest", dir, what, d)
		}
		return nil
	}
	adapter := filepath.Join(dir, "adapter")
	for _, what := range []string{"as it is", "saved here"} {
		m, err := LoadHuggingFace(base)
		if err != nil {
			return err
		}
		l, err := LoadAdapter(adapter, m)
		if err != nil {
			return err
		}
		if err := compare(what, l); err != nil {
			return err
		}
		if what == "as it is" {
			adapter = filepath.Join(saved, "adapter")
			if err := SaveAdapter(adapter, l, base, nil); err != nil {
				return err
			}
		}
		l.Merge()
		if err := compare(what+", merged", m); err != nil {
			return err
		}
	}
	return nil
}

// matchesDrawn compares a folder's model with what is expected of it, as it is
// and once more after it was saved here.
func matchesDrawn(t *testing.T, dir, saved string) error {
	want := openExpected(t, filepath.Join(dir, "expected.safetensors"))
	for _, again := range []bool{false, true} {
		m, err := LoadHuggingFace(dir)
		if err != nil {
			return err
		}
		c := nn.Evaluation(t.Context())
		d := maxDiff(c.Call(m, want.read(t, "ids")).Float32s(), want.read(t, "logits").Float32s(), 1e-3)
		c.Close()
		if !(d <= drawnTolerance) {
			return fmt.Errorf("%s (saved here: %t): the logits differ by %.1e of the largest", dir, again, d)
		}
		if again {
			break
		}
		if err := SaveHuggingFace(saved, m, 0, nil); err != nil {
			return err
		}
		dir = saved
	}
	return nil
}
