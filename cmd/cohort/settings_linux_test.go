// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
)

// TestConfigFile: a job by a file of settings, whose own config.toml does the
// same again, and goes on with another number of ranks; a typing error is
// answered with the nearest setting before anything is started.
func TestConfigFile(t *testing.T) {
	dir := t.TempDir()
	file, first, again := filepath.Join(dir, "my.toml"), filepath.Join(dir, "first"), filepath.Join(dir, "again")
	settings := fmt.Sprintf("data = %q\nout = %q\nvocab = 300\ncontext = 16\nwidth = 32\nheads = 2\nlayers = 1\nbatch = 3\nsteps = 8\n"+
		"eval-every = 4\nsave-every = 4\neval-tokens = 128\nsample-tokens = 0\n", writeText(t), first)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write(settings + "setps = 9\n")
	j := start(t, nil, "train", "lm", "--config", file)
	code := j.wait(t)
	if stdout, stderr := j.output(); code != 2 || stdout != "" || stderr != "cohort: "+file+":14:1: unknown setting setps: did you mean steps?\n" {
		t.Errorf("code %d, %q, %q", code, stdout, stderr)
	}
	write(settings)
	want := whole(t, []string{"train", "lm", "--config", file, "--json", "--lr", "0.01"})
	saved := filepath.Join(first, "config.toml")
	text, err := os.ReadFile(saved)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"steps = 8 ", "# " + file + ":9\n", "lr = 0.01 ", "# flag\n", "seed = 1 ", "# default\n"} {
		if !strings.Contains(string(text), line) {
			t.Errorf("no %q in\n%s", line, text)
		}
	}
	if got := whole(t, []string{"train", "lm", "--config", saved, "--out", again, "--json"}); !maps.Equal(got, want) || len(got) != 8 {
		t.Errorf("losses %v, before %v", got, want)
	}
	// Six sequences a step on two ranks, and then on four.
	if got := whole(t, []string{"train", "lm", "--config", saved, "--ranks", "4", "--steps", "10", "--json"}); len(got) != 2 {
		t.Errorf("losses %v", got)
	}
	report, err := data.CheckOrder(filepath.Join(first, "order"), data.CheckOptions{Steps: 10})
	if err != nil || report.Err() != nil || !report.Ended || len(report.Attempts) != 2 {
		t.Errorf("%v, %v", err, report)
	}
	if best, _, err := checkpoint.Latest(t.Context(), storage.Dir(filepath.Join(first, "best"))); err != nil || best.Step < 4 {
		t.Errorf("the best is %+v, %v", best, err)
	}
}
