// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cohort-ml/cohort/data"
)

// TestRestartsGoOn: a job that the launcher starts again after kill -9 goes on
// from its last checkpoint by itself, whichever rank it was, and its logs prove
// that each step had its samples.
func TestRestartsGoOn(t *testing.T) {
	text, out := writeText(t), filepath.Join(t.TempDir(), "run")
	args := []string{"run", "--nproc-per-node", "3", "--max-restarts", "2", "--", os.Args[0]}
	train := tiny(text, out, "--steps", "400", "--save-every", "20", "--eval-every", "1000")
	for i, a := range train {
		if a == "--ranks" { // the launcher's business here
			train = append(train[:i], train[i+2:]...)
			break
		}
	}
	j := start(t, nil, append(args, train...)...)
	for attempt, rank := range []int{1, 0} {
		saves := 2 + 3*attempt
		j.await(t, "checkpoint", func(s string) bool { return strings.Count(s, ": saved ") >= saves })
		for _, pid := range j.processes(rank) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				t.Fatal(err)
			}
		}
		resumed := attempt + 1
		j.await(t, "resumption", func(s string) bool { return strings.Count(s, "resumed at step ") >= resumed })
	}
	code := j.wait(t)
	stdout, stderr := j.output()
	if code != 0 || !strings.Contains(stdout, "step 400: saved "+out) {
		t.Fatalf("code %d:\n%s\n%s", code, stdout, stderr)
	}
	report, err := data.CheckOrder(filepath.Join(out, data.OrderDir), data.CheckOptions{Steps: 400})
	if err != nil || report.Err() != nil || report.Steps != 400 || len(report.Attempts) != 3 || !report.Ended {
		t.Errorf("%v\n%v", err, report)
	}
}
