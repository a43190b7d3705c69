// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
)

var (
	crashes    = flag.Int("crashes", 3, "crashes that TestOrderThroughCrashes makes")
	crashesSee = flag.Uint64("crashes.seed", 1, "its seed; 0 draws one")
)

// TestOrderThroughCrashes: a job of which ranks are killed at random, and which
// goes on with 1 to 8 ranks and 0 to 8 loader workers each, has taken every
// sample in its turn when it is complete, and says so to data check.
//
//	go test ./cmd/cohort -run TestOrderThroughCrashes -crashes 40 -v
func TestOrderThroughCrashes(t *testing.T) {
	seed := *crashesSee
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	text, out := writeText(t), filepath.Join(t.TempDir(), "run")
	numSteps := 60 + 20**crashes
	// 8 sequences a step, however many ranks there are.
	args := tiny(text, out, "--json", "--steps", fmt.Sprint(numSteps), "--save-every", "7", "--eval-every", "1000")
	done := 0
	for range *crashes {
		if done == numSteps {
			break // a job was faster than its killer
		}
		j := start(t, nil, args...)
		last := fmt.Sprintf(`{"step":%d,`, min(done+1+r.IntN(25), numSteps))
		j.await(t, last, func(stdout string) bool { return strings.Contains(stdout, last) })
		if pids := j.processes(-1); len(pids) > 1 {
			if err := syscall.Kill(pids[r.IntN(len(pids))], syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				t.Fatal(err)
			}
		}
		j.wait(t)
		j.gone(t)
		stdout, _ := j.output()
		for step := range steps(t, stdout) {
			done = max(done, step)
		}
		// One that the crash has cut off in saving does not count.
		if _, _, err := checkpoint.Latest(t.Context(), storage.Dir(out)); errors.Is(err, checkpoint.ErrNone) {
			continue // nothing to go on from: the same job begins anew
		} else if err != nil {
			t.Fatal(err)
		}
		args = []string{"train", "lm", "--data", text, "--out", out, "--json", "--steps", fmt.Sprint(numSteps),
			"--ranks", fmt.Sprint(1 + r.IntN(8)), "--workers", fmt.Sprint(r.IntN(9))}
	}
	whole(t, args)
	report, err := checkRun(t.Context(), out, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if report.Err() != nil || report.Steps != numSteps || report.Samples != int64(8*numSteps) || !report.Once || report.Epochs == 0 {
		t.Errorf("seed %d: %v\n%s", seed, report.Err(), report)
	}
	t.Logf("\n%s", report)
}
