// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strconv"
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

// TestAnotherNumberOfRanks: the command with its --batch goes on with the same samples
// a step on any number of ranks, and what would fail again is tried once.
func TestAnotherNumberOfRanks(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	job := func(ranks string, args ...string) (int, string, string) {
		t.Helper()
		all := []string{"run", "--max-restarts", "5", "--nproc-per-node", ranks, "--", os.Args[0], "train", "rec", "--rows", "4000", "--eval-every", "1000", "--out", out}
		j := start(t, nil, append(all, args...)...)
		code := j.wait(t)
		stdout, stderr := j.output()
		return code, stdout, stderr
	}
	epochs := 0
	for _, c := range []struct{ ranks, want string }{
		{"3", "step 12/12"},
		{"2", "a step stays 300 rows on 2 ranks: --batch 100 becomes 75 a rank in each of 2 passes"},
		{"4", "a step stays 300 rows on 4 ranks: --batch 100 becomes 75 a rank"},
		{"3", "step 48/48"},
	} {
		epochs++
		code, stdout, stderr := job(c.ranks, "--batch", "100", "--epochs", strconv.Itoa(epochs))
		if code != 0 || !strings.Contains(stdout, c.want) {
			t.Fatalf("%s ranks: code %d, want %q\n%s\n%s", c.ranks, code, c.want, stdout, stderr)
		}
	}
	report, err := data.CheckOrder(filepath.Join(out, data.OrderDir), data.CheckOptions{})
	if err != nil || report.Err() != nil || report.Steps != 48 || len(report.Attempts) != 4 || !report.Ended {
		t.Errorf("%v\n%v", err, report)
	}
	for args, want := range map[string]string{
		"--batch 200":          "the checkpoint in " + out + " is of another run: ranks × rows: 2 × 200 = 400 a step",
		"--seed 7":             "--seed is 7, the checkpoint's 1",
		"--batchh 200":         "unknown flag --batchh",
		"--batch many":         "invalid argument",
		"--data none.csv":      "--rows is about the generated table",
		"--out /dev/null/none": "not a directory",
		"--lr -1":              "--lr is -1, want a finite number above 0",
	} {
		code, stdout, stderr := job("2", strings.Fields(args)...)
		if code != 1 || !strings.Contains(stderr, want) || strings.Contains(stderr, "restart 1 of 5") || !strings.Contains(stderr, "the 5 restarts that are left are not used") {
			t.Errorf("%s: code %d, want one attempt and %q\n%s\n%s", args, code, want, stdout, stderr)
		}
	}
}

// TestRefusalOfAnother: a command that a rank runs beside its own work, and that ends with a
// usage error, is not how the rank ends. One that is the rank is not started again.
func TestRefusalOfAnother(t *testing.T) {
	for script, attempts := range map[string]int{
		`echo begun; "$0" tokenize encod; exit 5`: 3,
		`echo begun; exec "$0" tokenize encod`:    1,
	} {
		j := start(t, nil, "run", "--max-restarts", "2", "--nproc-per-node", "1", "--", "sh", "-c", script, os.Args[0])
		code := j.wait(t)
		stdout, stderr := j.output()
		if n := strings.Count(stdout, "begun"); n != attempts || strings.Contains(stderr, "| unknown command encod") != (attempts == 1) {
			t.Errorf("%s: %d attempts, want %d; code %d\n%s", script, n, attempts, code, stderr)
		}
	}
}
