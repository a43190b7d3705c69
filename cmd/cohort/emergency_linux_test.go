// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// goesOn compares the losses of a job that was killed, and of the one that went on from what the
// survivors had saved, with those of a job that was not killed. The survivors may have done one step
// more than rank 0 could tell.
func goesOn(t *testing.T, before, after, want map[int]float64) {
	t.Helper()
	if len(before) == 0 || len(after) == 0 {
		t.Fatalf("%d steps and then %d", len(before), len(after))
	}
	last, first := slices.Max(slices.Collect(maps.Keys(before))), slices.Min(slices.Collect(maps.Keys(after)))
	if first != last+1 && first != last+2 {
		t.Errorf("the job ended after step %d and went on with step %d", last, first)
	}
	if end := slices.Max(slices.Collect(maps.Keys(after))); len(after) != end-first+1 {
		t.Errorf("%d steps from %d to %d", len(after), first, end)
	}
	for _, got := range []map[int]float64{before, after} {
		for step, loss := range got {
			if w, ok := want[step]; !ok || w != loss {
				t.Errorf("step %d has the loss %v, want %v", step, loss, w)
				return
			}
		}
	}
}

// TestEmergencyOfJobs: a rank of a job of `cohort run` dies or is stopped, and no checkpoint was
// saved before. The ranks that are left, also the one that was stopped, save what they hold, and say
// so. The same command goes on after the last step, with the bits of a job that was left alone.
func TestEmergencyOfJobs(t *testing.T) {
	const numSteps = 120
	text := writeText(t)
	for _, c := range []struct {
		name, flags string
		ranks       int
		victim      int
		survivors   int
		signal      syscall.Signal
	}{
		{"a shard has a replica", "--fsdp 2 --replicate 2 --batch 2", 4, 1, 3, syscall.SIGKILL},
		{"a stopped shard", "--fsdp 2 --batch 4", 2, 1, 2, syscall.SIGSTOP},
	} {
		t.Run(c.name, func(t *testing.T) {
			command := func(out string) []string {
				args := []string{"run", "--nproc-per-node", fmt.Sprint(c.ranks), os.Args[0]}
				return append(append(args, strings.Fields(small+" --eval-every 1000 --save-every 1000 --steps "+fmt.Sprint(numSteps)+" "+c.flags)...), "--data", text, "--out", out)
			}
			losses := func(j *job) map[int]float64 {
				t.Helper()
				stdout, _ := j.output()
				return steps(t, strings.ReplaceAll(stdout, "[rank0] ", ""))
			}
			complete := func(out string) map[int]float64 {
				t.Helper()
				j := start(t, nil, command(out)...)
				if code := j.wait(t); code != 0 {
					_, stderr := j.output()
					t.Fatalf("code %d:\n%s", code, stderr)
				}
				return losses(j)
			}
			want := complete(filepath.Join(t.TempDir(), "whole"))
			out := filepath.Join(t.TempDir(), "run")
			j, goOn := startHeld(t, []string{envvar.Silence.Assign("1s")}, command(out)...)
			j.await(t, "a step", func(s string) bool { return strings.Contains(s, `"loss"`) })
			pids := j.processes(c.victim)
			if len(pids) != 1 {
				t.Fatalf("rank %d is the processes %v", c.victim, pids)
			}
			if err := syscall.Kill(pids[0], c.signal); err != nil {
				t.Fatal(err)
			}
			goOn()
			code := j.wait(t)
			j.gone(t)
			_, stderr := j.output()
			if code == 0 || strings.Count(stderr, " saved its part of the state after step ") < c.survivors {
				t.Errorf("code %d, standard error:\n%s", code, stderr)
			}
			goesOn(t, losses(j), complete(out), want)
			report, err := checkRun(t.Context(), out, io.Discard)
			if err != nil || report.Err() != nil || report.Steps != numSteps || len(report.Attempts) != 2 || !report.Ended {
				t.Errorf("the order logs: %v\n%v", err, report)
			}
		})
	}
}
