// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/data/table"
)

// TestTrainRec: `cohort train rec` on a file, by flags and again by the settings
// that it has saved.
func TestTrainRec(t *testing.T) {
	dir := t.TempDir()
	clicks, out := filepath.Join(dir, "clicks.csv"), filepath.Join(dir, "run")
	g := table.DefaultGenerated()
	g.Rows = 6000
	f, err := os.Create(clicks)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.WriteCSV(f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	args := []string{"train", "rec", "--data", clicks, "--categories", "user_id,item_id,hour,device", "--numbers", "age,price", "--epochs", "1", "--batch", "64", "--eval-every", "20", "--json"}
	last := func(more ...string) (figures map[string]any) {
		t.Helper()
		j := start(t, nil, append(slices.Clone(args), more...)...)
		if code := j.wait(t); code != 0 {
			_, stderr := j.output()
			t.Fatalf("code %d:\n%s", code, stderr)
		}
		stdout, _ := j.output()
		for line := range strings.Lines(stdout) {
			var v map[string]any
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if _, ok := v["val_auc"]; ok {
				figures = v
			}
		}
		return figures
	}
	first := last("--out", out)
	auc, ok := first["val_auc"].(float64)
	if !ok || auc < 0.55 || auc > 0.9 || first["val_log_loss"] == nil {
		t.Errorf("the last evaluation is %v", first)
	}
	for _, file := range []string{"config.toml", "best"} {
		if _, err := os.Stat(filepath.Join(out, file)); err != nil {
			t.Error(err)
		}
	}
	args = []string{"train", "rec", "--json", "--config", filepath.Join(out, "config.toml")}
	if again := last("--out", filepath.Join(dir, "again")); again["val_auc"] != first["val_auc"] {
		t.Errorf("its own settings make a run with %v, the first had %v", again, first)
	}
	if code, _, stderr := cohort("train", "rec", "--data", clicks, "--bukets", "5"); code != 2 || !strings.Contains(stderr, "did you mean --buckets?") {
		t.Errorf("a flag with a slip: code %d, %s", code, stderr)
	}
}
