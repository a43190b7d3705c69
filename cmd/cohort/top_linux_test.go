// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/monitor/report"
)

// askWaits stops a rank of a job of two. Recorder says, by itself and by the address, that the other one
// waits for it, in what, and that it is stopped.
func askWaits(t *testing.T, tmp, url string) {
	t.Helper()
	pid := 0
	ask(t, url, func(d report.Data) bool {
		if d.Job == nil || len(d.Job.Ranks) != 2 {
			return false
		}
		pid = d.Job.Ranks[1].PID
		return pid > 0
	})
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	for _, args := range [][]string{{"recorder"}, {"recorder", "--json", url}} {
		wants := []string{"its process is stopped", "rank 0"}
		if len(args) > 1 {
			wants = []string{`"why": "no dump"`, "its process is stopped", `"missing": "1"`, `"recent": [`}
		}
		for deadline := time.Now().Add(time.Minute); ; {
			r := start(t, []string{tmp}, args...)
			code := r.wait(t)
			stdout, stderr := r.output()
			if code == 0 && !slices.ContainsFunc(wants, func(w string) bool { return !strings.Contains(stdout, w) }) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%q: code %d\n%s\n%s", args, code, stdout, stderr)
			}
		}
	}
}

// TestTop: a job that runs is found by itself, by its directory, and by its address; frames fit
// 80 columns and 24 rows and have no control characters. Without a job, top says what to give.
func TestTop(t *testing.T) {
	tmp := "TMPDIR=" + t.TempDir()
	none := start(t, []string{tmp}, "top")
	if code := none.wait(t); code != 1 {
		t.Errorf("without a job top ends with %d", code)
	}
	if _, stderr := none.output(); !strings.Contains(stderr, "no job of this user runs on this machine: give the directory of a run") {
		t.Errorf("got %q", stderr)
	}
	out := filepath.Join(t.TempDir(), "lm")
	j := start(t, []string{tmp, "COHORT_SILENCE=5m"}, "train", "lm", "--ranks", "2", "--steps", "1000000", "--width", "16", "--heads", "2", "--layers", "1", "--batch", "2", "--context", "16", "--out", out, "--dashboard", "0")
	url := dashboardOf(t, j)
	ask(t, url, func(d report.Data) bool { return len(d.Runs) == 1 && len(d.Runs[0].Steps) > 20 })
	for _, args := range [][]string{{"top"}, {"top", url}, {"top", "--once", out}} {
		for deadline := time.Now().Add(time.Minute); ; {
			top := start(t, []string{tmp}, args...)
			code := top.wait(t)
			stdout, stderr := top.output()
			lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
			if code == 0 && len(lines) <= 24 && len(lines) > 5 && strings.Contains(stdout, "running  step ") && strings.Contains(stdout, "Is it learning?") && !strings.Contains(stdout, "\x1b") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%q: code %d\n%s\n%s", args, code, stdout, stderr)
			}
		}
	}
	for _, bad := range []string{"http://127.0.0.1:1/", filepath.Join(out, "config.toml"), filepath.Join(out, "none")} {
		top := start(t, []string{tmp}, "top", bad)
		if code := top.wait(t); code != 2 {
			t.Errorf("top %s ends with %d", bad, code)
		}
	}
	askWaits(t, tmp, url)
	interrupt(t, j)
	j.wait(t)
	again := start(t, []string{tmp}, "top")
	if code := again.wait(t); code != 1 {
		t.Errorf("after the end of the job top ends with %d", code)
	}
}
