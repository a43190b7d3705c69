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

var drawnModels = flag.Int("drawn", 0, "how many models of another seed TestDrawnModels draws with -python")

// Models drawn at random, in settings, names, types and shards, compute what
// transformers computes once it has read the same folder.
//
//	go test ./models -run TestDrawnModels -python /path/to/python -drawn 1000
func TestDrawnModels(t *testing.T) {
	dir := golden("drawn")
	if *drawnModels > 0 && *python != "" {
		dir = t.TempDir()
		out, err := exec.CommandContext(t.Context(), *python, golden("drawn.py"), dir, fmt.Sprint(*drawnModels), "2").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		t.Fatalf("%v, %d models", err, len(entries))
	}
	wrong := 0
	for _, e := range entries {
		if err := matchesDrawn(t, filepath.Join(dir, e.Name())); err != nil {
			wrong++
			t.Error(err)
		}
	}
	t.Logf("%d models, %d wrong", len(entries), wrong)
}

// matchesDrawn compares a folder's model with what is expected of it, as it is
// and once more after it was saved here.
func matchesDrawn(t *testing.T, dir string) error {
	want := openExpected(t, filepath.Join(dir, "expected.safetensors"))
	for _, saved := range []bool{false, true} {
		m, err := LoadHuggingFace(dir)
		if err != nil {
			return err
		}
		c := nn.Evaluation(t.Context())
		d := maxDiff(c.Call(m, want.read(t, "ids")).Float32s(), want.read(t, "logits").Float32s(), 1e-3)
		c.Close()
		if !(d <= 3e-5) {
			return fmt.Errorf("%s (saved here: %t): the logits differ by %.1e of the largest", dir, saved, d)
		}
		dir = filepath.Join(t.TempDir(), "saved")
		if err := SaveHuggingFace(dir, m, 0, nil); err != nil {
			return err
		}
	}
	return nil
}
