// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
)

var (
	kills     = flag.Int("kills", 4, "kills that TestSavesThroughKills makes")
	killsSeed = flag.Uint64("kills.seed", 1, "its seed; 0 draws one")
)

// TestSavesThroughKills: a job that saves beside training is killed at random moments: a rank, or
// all processes. Each time the newest checkpoint verifies, and the next job goes on from it with the
// losses of an undisturbed run. The last checkpoints of both are equal.
//
//	go test ./cmd/cohort -run TestSavesThroughKills -kills 100 -v
func TestSavesThroughKills(t *testing.T) {
	seed := *killsSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 7))
	text, undisturbed := writeText(t), filepath.Join(t.TempDir(), "whole")
	numSteps := 20 + 15**kills
	flags := []string{"--json", "--steps", fmt.Sprint(numSteps), "--save-every", "2", "--eval-every", "10"}
	if r.IntN(2) == 0 {
		flags = append(flags, "--fsdp", "2")
	}
	want := whole(t, tiny(text, undisturbed, flags...))
	out := filepath.Join(t.TempDir(), "run")
	args := tiny(text, out, flags...)
	done, staged := 0, 0
	for range *kills {
		j := start(t, nil, args...)
		last := fmt.Sprintf(`{"step":%d,`, min(done+2+r.IntN(14), numSteps))
		j.await(t, last, func(stdout string) bool { return strings.Contains(stdout, last) })
		for range r.IntN(300) { // a moment of the save, too
			_, _ = os.ReadDir(out)
		}
		pids := j.processes(-1)
		if r.IntN(2) == 0 {
			if pids = j.processes(r.IntN(2)); len(pids) == 0 {
				t.Log("the job was faster than its killer")
			}
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				t.Fatal(err)
			}
		}
		j.wait(t)
		j.gone(t)
		if left, _ := filepath.Glob(filepath.Join(out, "*.tmp-*")); len(left) > 0 {
			staged++
		}
		stdout, stderr := j.output()
		seen := steps(t, stdout)
		for step, loss := range seen {
			if loss != want[step] {
				t.Fatalf("seed %d: after %d steps, step %d has the loss %v, undisturbed %v", seed, done, step, loss, want[step])
			}
		}
		ck, damaged, err := checkpoint.Latest(t.Context(), storage.Dir(out))
		switch {
		case errors.Is(err, checkpoint.ErrNone) && done == 0:
			continue
		case err != nil || len(damaged) > 0 || ck.Step < done:
			t.Fatalf("seed %d: after step %d: %v, %v, %v\n%s", seed, done, ck, damaged, err, stderr)
		}
		done = ck.Step
	}
	t.Logf("%d kills, %d of them within a save; step %d", *kills, staged, done)
	for step, loss := range whole(t, args) {
		if step <= done || loss != want[step] {
			t.Errorf("seed %d: step %d after step %d has the loss %v, undisturbed %v", seed, step, done, loss, want[step])
		}
	}
	sameCheckpoints(t, checkpoint.Path(undisturbed, numSteps), checkpoint.Path(out, numSteps))
}

// sameCheckpoints compares all tensors of two checkpoints.
func sameCheckpoints(t *testing.T, a, b string) {
	t.Helper()
	if code, stdout, stderr := cohort("ckpt", "diff", a, b); code != 0 {
		t.Errorf("%s and %s differ (code %d): %s%s", a, b, code, stdout, stderr)
	}
}

// TestFullDisk: a disk that is full before a save, or that becomes full while it is written, ends
// the run with the name of the place. The checkpoints before it are whole, and once there is
// space the run goes on bit for bit.
func TestFullDisk(t *testing.T) {
	text, undisturbed := writeText(t), filepath.Join(t.TempDir(), "whole")
	flags := []string{"--json", "--steps", "40", "--save-every", "4", "--eval-every", "0"}
	want := whole(t, tiny(text, undisturbed, flags...))
	for name, isFull := range map[string]func(disk, out string) bool{
		"before a save": func(_, out string) bool {
			_, err := os.Stat(filepath.Join(checkpoint.Path(out, 8), checkpoint.ManifestName))
			return err == nil
		},
		"during a save": func(_, out string) bool {
			stages, _ := filepath.Glob(filepath.Join(out, "step-*.tmp-*", "optimizer*"))
			good, _ := filepath.Glob(filepath.Join(out, "step-*", checkpoint.ManifestName))
			return len(stages) > 0 && len(good) > 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			disk := t.TempDir()
			if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=8m"); err != nil {
				t.Skipf("no file system can be mounted here: %v", err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(disk, 0); err != nil {
					t.Error(err)
				}
			})
			out := filepath.Join(disk, "run")
			args := tiny(text, out, flags...)
			j := start(t, nil, args...)
			var filler sync.WaitGroup
			filler.Go(func() {
				for over := false; !over && !isFull(disk, out); {
					select {
					case <-j.ended:
						over = true
					default:
					}
				}
				fill(filepath.Join(disk, "filler"))
			})
			code := j.wait(t)
			filler.Wait()
			stdout, stderr := j.output()
			if code == 0 {
				t.Fatalf("the run has ended well, before the disk was full:\n%s", stderr)
			}
			if !strings.Contains(stderr, out) || !strings.Contains(stderr, "space") {
				t.Errorf("the run does not say what is full: %s", stderr)
			}
			ck, damaged, err := checkpoint.Latest(t.Context(), storage.Dir(out))
			if err != nil || len(damaged) > 0 {
				t.Fatalf("%v, %v", damaged, err)
			}
			t.Logf("after step %d: %s", ck.Step, stderr[:min(len(stderr), 300)])
			if err := os.Remove(filepath.Join(disk, "filler")); err != nil {
				t.Fatal(err)
			}
			after := whole(t, args)
			if len(after) != 40-ck.Step {
				t.Errorf("%d steps after step %d", len(after), ck.Step)
			}
			for step, loss := range steps(t, stdout) {
				after[step] = loss
			}
			for step, loss := range after {
				if loss != want[step] {
					t.Errorf("step %d: loss %v, undisturbed %v", step, loss, want[step])
				}
			}
			sameCheckpoints(t, checkpoint.Path(undisturbed, 40), checkpoint.Path(out, 40))
		})
	}
}

// fill writes a file until the disk is full.
func fill(path string) {
	f, err := os.Create(path)
	if err != nil {
		return // full already
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
}
