// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
)

func TestTrainAndGenerate(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	args := tiny(writeText(t), out, "--steps", "12", "--eval-every", "6", "--save-every", "5")
	j := start(t, nil, append(args, "--json")...)
	if code := j.wait(t); code != 0 {
		_, stderr := j.output()
		t.Fatalf("code %d:\n%s", code, stderr)
	}
	stdout, stderr := j.output()
	var keys []string
	for line := range strings.Lines(stdout) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		keys = append(keys, strings.Join(slices.Sorted(maps.Keys(v)), " "))
	}
	count := func(want string) int {
		return len(slices.Collect(func(yield func(int) bool) {
			for i, k := range keys {
				if k == want && !yield(i) {
					return
				}
			}
		}))
	}
	if count("loss step tokens_per_s") != 12 || count("step val_bits_per_byte") != 2 || stderr != "" {
		t.Errorf("objects %q, standard error %q", keys, stderr)
	}
	for _, file := range []string{"model.safetensors", "optimizer.safetensors", "config.json", "tokenizer.json", "manifest.json"} {
		if _, err := os.Stat(filepath.Join(checkpoint.Path(out, 12), file)); err != nil {
			t.Error(err)
		}
	}

	// The same command again has nothing to do, and says so to people.
	j = start(t, nil, args...)
	code := j.wait(t)
	stdout, stderr = j.output()
	for _, want := range []string{"resumed at step 12", "is complete at step 12", "the model writes:", "cohort generate --from " + out} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if code != 0 || strings.ContainsAny(stdout, "\r\x1b") || !strings.Contains(stderr, "starting 2 ranks") || strings.Contains(stdout+stderr, "[rank1]") {
		t.Errorf("code %d, standard output\n%s\nstandard error\n%s", code, stdout, stderr)
	}

	generate := func(more ...string) string {
		t.Helper()
		j := start(t, nil, append([]string{"generate", "--from", out, "--prompt", "abc", "--tokens", "9"}, more...)...)
		code := j.wait(t)
		stdout, stderr := j.output()
		if code != 0 || !strings.HasPrefix(stdout, "abc") || len(stdout) < 10 || stderr != "" {
			t.Errorf("generate: code %d, %q, %q", code, stdout, stderr)
		}
		return stdout
	}
	if a, b := generate("--seed", "5"), generate("--seed", "5"); a != b {
		t.Errorf("one seed gives %q and %q", a, b)
	}
	generate("--temperature", "0")
}

// whole runs a job to its end and returns its losses.
func whole(t *testing.T, args []string) map[int]float64 {
	t.Helper()
	j := start(t, nil, args...)
	if code := j.wait(t); code != 0 {
		_, stderr := j.output()
		t.Fatalf("code %d:\n%s", code, stderr)
	}
	stdout, _ := j.output()
	return steps(t, stdout)
}

// TestKilledRank: after kill -9 of one rank the other ends soon and
// names it, the launcher reports it, nothing is left, and the job goes on after
// the last step, which the survivor has saved, as if nothing had happened.
func TestKilledRank(t *testing.T) {
	text := writeText(t)
	flags := []string{"--json", "--steps", "300", "--save-every", "25"}
	want := whole(t, tiny(text, filepath.Join(t.TempDir(), "whole"), flags...))
	if len(want) != 300 {
		t.Fatalf("%d losses", len(want))
	}
	segments := sharedMemory(t)
	for victim := range 2 {
		t.Run(fmt.Sprint("rank", victim), func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "run")
			j := start(t, nil, tiny(text, out, flags...)...)
			j.await(t, "a step", func(s string) bool { return strings.Contains(s, `"loss"`) })
			pids := j.processes(victim)
			if len(pids) != 1 {
				t.Fatalf("rank %d is the processes %v", victim, pids)
			}
			j.await(t, "step 60", func(s string) bool { return strings.Contains(s, `{"step":60,`) })
			killed := time.Now()
			if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			code := j.wait(t)
			took := time.Since(killed)
			j.gone(t)
			stdout, stderr := j.output()
			if code != exitFailed || took > 15*time.Second {
				t.Errorf("code %d, %v after the kill", code, took)
			}
			for _, part := range []string{
				fmt.Sprintf("rank %d (host ", victim), fmt.Sprintf("pid %d) died: signal killed", pids[0]), // by the survivor
				fmt.Sprintf("failed: rank %d was killed by SIGKILL", victim), // by the launcher
			} {
				if !strings.Contains(stderr, part) {
					t.Errorf("no %q in standard error:\n%s", part, stderr)
				}
			}
			if left := newSharedMemory(t, segments); len(left) > 0 {
				t.Errorf("shared memory %v is left", left)
			}
			ck, damaged, err := checkpoint.Latest(t.Context(), storage.Dir(out))
			// That of step 50 may have been under way, beside the steps after it.
			if err != nil || len(damaged) > 0 || ck.Step < 25 {
				t.Fatalf("the last checkpoint: %+v, %v, %v", ck, damaged, err)
			}
			goesOn(t, steps(t, stdout), whole(t, tiny(text, out, flags...)), want)
			report, err := checkRun(t.Context(), out, io.Discard)
			if err != nil || report.Err() != nil || report.Steps != 300 || len(report.Attempts) != 2 || !report.Ended {
				t.Errorf("the order logs: %v\n%v", err, report)
			}
		})
	}
}

// TestKilledLauncher: its ranks go with it.
func TestKilledLauncher(t *testing.T) {
	text, out := writeText(t), filepath.Join(t.TempDir(), "run")
	j := start(t, nil, tiny(text, out, "--json", "--steps", "100000", "--save-every", "10")...)
	j.await(t, "step 30", func(s string) bool { return strings.Contains(s, `{"step":30,`) })
	if err := j.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	j.wait(t)
	j.gone(t)
	// That of step 20 may have been under way, beside the steps after it.
	if ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(out)); err != nil || ck.Step < 10 {
		t.Errorf("the last checkpoint: %+v, %v", ck, err)
	}
}

// TestInterruptedJob: Ctrl-C saves, and the job goes on from there.
func TestInterruptedJob(t *testing.T) {
	text, out := writeText(t), filepath.Join(t.TempDir(), "run")
	args := tiny(text, out, "--json", "--steps", "500", "--save-every", "1000")
	j := start(t, nil, args...)
	j.await(t, "step 20", func(s string) bool { return strings.Contains(s, `{"step":20,`) })
	if err := j.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	code := j.wait(t)
	stdout, stderr := j.output()
	if code != exitFailed || !strings.Contains(stderr, "stopped at step") || !strings.Contains(stderr, "stopped by SIGINT") {
		t.Errorf("code %d, standard error\n%s", code, stderr)
	}
	got := steps(t, stdout)
	ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(out))
	if err != nil || ck.Step != len(got) {
		t.Fatalf("the checkpoint is %+v, %v, after %d steps", ck, err, len(got))
	}
	maps.Copy(got, whole(t, args))
	want := whole(t, tiny(text, filepath.Join(t.TempDir(), "whole"), args[len(args)-5:]...))
	if !maps.Equal(got, want) {
		t.Error("the losses are not those of a job that was not interrupted")
	}
}

// TestInterruptedRank: a signal that reaches one rank alone stops all of them,
// with a checkpoint, and the job does not count as complete.
func TestInterruptedRank(t *testing.T) {
	text, out := writeText(t), filepath.Join(t.TempDir(), "run")
	j := start(t, nil, tiny(text, out, "--json", "--steps", "100000", "--save-every", "100000")...)
	j.await(t, "step 20", func(s string) bool { return strings.Contains(s, `{"step":20,`) })
	for _, pid := range j.processes(1) {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	code := j.wait(t)
	stdout, stderr := j.output()
	ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(out))
	if err != nil || code != exitFailed || ck.Step != len(steps(t, stdout)) || !strings.Contains(stderr, fmt.Sprintf("stopped at step %d of 100000", ck.Step)) {
		t.Errorf("code %d, checkpoint %+v, %v, after %d steps:\n%s", code, ck, err, len(steps(t, stdout)), stderr)
	}
}

// TestReaderThatLeaves: the training does not end with whoever looks at it.
func TestReaderThatLeaves(t *testing.T) {
	text := writeText(t)
	for _, more := range []string{"--json", "--json=false"} {
		out := filepath.Join(t.TempDir(), "run")
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		j := startWith(t, nil, w, tiny(text, out, "--steps", "6", "--save-every", "3", more)...)
		w.Close()
		code := j.wait(t)
		_, stderr := j.output()
		ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(out))
		if code != 0 || err != nil || ck.Step != 6 {
			t.Errorf("%s: code %d, checkpoint %+v, %v; standard error:\n%s", more, code, ck, err, stderr)
		}
	}
}

// TestBadInput: one clear line, an exit code, and nothing left.
func TestBadInput(t *testing.T) {
	text, dir := writeText(t), t.TempDir()
	out := filepath.Join(dir, "out")
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	token := "COHORT_TOKEN=" + strings.Repeat("ab", 32)
	other := filepath.Join(dir, "other")
	whole(t, tiny(text, other, "--json", "--steps", "2"))
	kept, err := os.ReadDir(checkpoint.Path(other, 2))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		env  []string
		args []string
		code int
		want []string
	}{
		{"missing data", nil, tiny(filepath.Join(dir, "no"), out), 2, []string{filepath.Join(dir, "no") + " is missing", "--data"}},
		{"empty path", nil, tiny("", out), 2, []string{"--data is empty", "leave the flag out"}},
		{"empty directory", nil, tiny(empty, out), 2, []string{empty + " is empty", "--data"}},
		{"another model", nil, tiny(text, other, "--width", "64", "--seed", "3"), 2, []string{"--width is 64, the checkpoint's 32", "--seed is 3", other}},
		{"out is a file", nil, tiny(text, text), 2, []string{text, "not a directory", "--out"}},
		{"no ranks", nil, tiny(text, out, "--ranks", "0"), 2, []string{"--ranks is 0, want 1 to"}},
		{"ranks without number", nil, tiny(text, out, "--ranks", "many"), 2, []string{"--ranks", "many"}},
		{"too many ranks", nil, tiny(text, out, "--ranks", "5000"), 2, []string{"5000 ranks on a machine of", "at most"}},
		{"size without rank", []string{"WORLD_SIZE=2"}, tiny(text, out), 2, []string{"WORLD_SIZE is set and RANK is not"}},
		{"rank without size", []string{"RANK=1"}, tiny(text, out), 2, []string{"RANK is set and WORLD_SIZE is not"}},
		{"rank beyond size", []string{"RANK=2", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1", token}, tiny(text, out), 1, []string{"RANK", "WORLD_SIZE", "0 to 1"}},
		{"port in use", []string{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port, token}, tiny(text, out), 1, []string{port, "in use"}},
		{"no token", []string{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port}, tiny(text, out), 1, []string{"COHORT_TOKEN", "export"}},
		{"port in use for run", nil, []string{"run", "--nproc-per-node", "2", "--master-port", port, "true"}, 2, []string{"port " + port, "in use"}},
		{"nothing to generate from", nil, []string{"generate", "--from", out}, 1, []string{out}},
		{"negative tokens", nil, []string{"generate", "--from", other, "--tokens", "-1"}, 2, []string{"--tokens"}},
		{"unknown recipe", nil, []string{"train", "lmm"}, 2, []string{"lmm", "lm"}},
		{"unknown flag", nil, tiny(text, out, "--step", "3"), 2, []string{"unknown flag --step", "--steps"}},
	} {
		j := start(t, c.env, c.args...)
		code := j.wait(t)
		stdout, stderr := j.output()
		message := strings.TrimPrefix(stderr, "starting 5000 ranks on this machine; Ctrl-C saves and stops\n")
		message = strings.TrimPrefix(message, "starting 2 ranks on this machine; Ctrl-C saves and stops\n")
		if code != c.code || stdout != "" || strings.Count(message, "\n") != 1 && c.what != "no token" {
			t.Errorf("%s: code %d, want %d and one line; standard output %q, standard error\n%s", c.what, code, c.code, stdout, stderr)
		}
		for _, part := range c.want {
			if !strings.Contains(message, part) {
				t.Errorf("%s: no %q in %q", c.what, part, message)
			}
		}
	}
	if _, err := os.Stat(out); err == nil {
		t.Errorf("%s was left behind", out)
	}
	if now, err := os.ReadDir(checkpoint.Path(other, 2)); err != nil || len(now) != len(kept) {
		t.Errorf("the other model's checkpoint has %d files, had %d: %v", len(now), len(kept), err)
	}
}
