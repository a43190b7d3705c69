// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
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

// TestTrainRecServers: a run with parameter servers, one of which is killed, ends with the
// evaluation of a run without servers, and leaves neither processes nor rows of servers.
func TestTrainRecServers(t *testing.T) {
	dir := t.TempDir()
	args := []string{"train", "rec", "--rows", "30000", "--epochs", "1", "--batch", "64", "--eval-every", "0", "--save-every", "0", "--json"}
	lastOf := func(j *job) (auc any) {
		t.Helper()
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
			if v["val_auc"] != nil {
				auc = v["val_auc"]
			}
		}
		return auc
	}
	want := lastOf(start(t, nil, append(slices.Clone(args), "--out", filepath.Join(dir, "alone"))...))
	out := filepath.Join(dir, "served")
	j := start(t, nil, append(slices.Clone(args), "--ps", "2", "--out", out)...)
	j.await(t, "some steps", func(stdout string) bool { return strings.Count(stdout, "\n") > 40 })
	killed := 0
	for _, pid := range j.processes(-1) {
		line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		if strings.Contains(string(line), "\x00serve\x00--index\x001\x00") {
			killed++
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	if killed != 1 {
		t.Fatalf("%d processes are server 1, want one", killed)
	}
	if got := lastOf(j); want == nil || got != want {
		t.Errorf("the AUC is %v with servers, %v without", got, want)
	}
	stdout, stderr := j.output()
	if text := stdout + stderr; !strings.Contains(text, "parameter server 1 of 2 has ended: signal: killed; it is started again") {
		t.Errorf("nothing says that the server was started again:\n%s", text)
	}
	j.gone(t)
	if _, err := os.Stat(filepath.Join(out, psDir)); !os.IsNotExist(err) {
		t.Errorf("the rows of the servers are still there: %v", err)
	}
	if code, stdout, stderr := cohort("eval", "--from", out, "--json"); code != 0 || !strings.Contains(stdout, "auc") {
		t.Errorf("eval of the run: code %d, %s%s", code, stdout, stderr)
	}
}
