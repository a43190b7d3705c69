// SPDX-License-Identifier: Apache-2.0

package storage_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/storage/storagetest"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// The saver of these tests is the least that can be made of a Directory: two ranks
// write a file each, a frozen file is linked from the step before, one rank commits,
// and the step two before is removed. A manifest has a line for each file.

func data(step int, file string) []byte {
	return []byte(strings.Repeat(fmt.Sprintf("%s of step %d\n", file, step), 1000))
}

func stepName(step int) string { return "step-" + strconv.Itoa(step) }

// save makes a checkpoint and says whether it was committed.
func save(ctx context.Context, d *storage.Directory, step int) (committed bool, err error) {
	stage, _ := d.Stage(stepName(step), "id")
	defer func() {
		if !committed {
			d.Remove(ctx, stage)
		}
	}()
	files := []string{"rank-0", "rank-1"}
	for _, file := range files {
		if err := storage.WriteFile(ctx, d, stage+"/"+file, data(step, file)); err != nil {
			return false, err
		}
	}
	if step == 1 {
		err = storage.WriteFile(ctx, d, stage+"/frozen", data(1, "frozen"))
	} else {
		err = d.Link(ctx, stepName(step-1)+"/frozen", stage+"/frozen")
	}
	if err != nil {
		return false, err
	}
	manifest := fmt.Sprintf("step %d\n", step)
	for _, file := range files {
		manifest += fmt.Sprintf("%s %08x\n", file, crc32.ChecksumIEEE(data(step, file)))
	}
	manifest += fmt.Sprintf("frozen %08x\n", crc32.ChecksumIEEE(data(1, "frozen")))
	err = d.Commit(ctx, stage, stepName(step), []byte(manifest))
	if err != nil {
		return errors.As(err, new(*storage.CommittedError)), err
	}
	return true, d.Remove(ctx, stepName(step-2))
}

// checkpoints returns the steps of the checkpoints that are there, and fails the
// test for each that is not whole.
func checkpoints(t *testing.T, what string, d *storage.Directory) (steps []int) {
	t.Helper()
	entries, err := d.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		step, err := strconv.Atoi(strings.TrimPrefix(e.Name, "step-"))
		if err != nil {
			continue // a stage
		}
		steps = append(steps, step)
		text, err := storage.ReadFile(t.Context(), d, e.Name+"/"+storage.ManifestName, 1000)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
			file, sum, _ := strings.Cut(line, " ")
			b, err := storage.ReadFile(t.Context(), d, e.Name+"/"+file, 1<<20)
			if err != nil || fmt.Sprintf("%08x", crc32.ChecksumIEEE(b)) != sum {
				t.Errorf("%s: %s/%s has %d bytes, not those written; %v", what, e.Name, file, len(b), err)
			}
		}
	}
	slices.Sort(steps)
	return steps
}

// TestDiskFaults: any operation of a save fails, or the machine stops before it,
// with the power on or off. The newest checkpoint is then the old one, or the new
// one if it was committed, no checkpoint is damaged, and the next save works.
func TestDiskFaults(t *testing.T) {
	numDraws, stride := 2, 1
	if testing.Short() {
		numDraws, stride = 1, 3
	}
	first := seeded.Of(t)
	sum := storagetest.Numbers{}
	for draw := range numDraws {
		numOps := numOps(t)
		for at := draw; at < numOps; at += stride {
			for _, kind := range []string{"fails", "killed", "power lost"} {
				seed := first + uint64(draw*1000+at)
				what := fmt.Sprintf("seed %d, operation %d, %s", seed, at, kind)
				dir := t.TempDir()
				for step := 1; step <= 2; step++ {
					if _, err := save(t.Context(), storage.Dir(dir, storage.WithoutSync()), step); err != nil {
						t.Fatal(err)
					}
				}
				m := storagetest.NewMachine(t, seed)
				if kind == "fails" {
					m.FailAt(at, syscall.ENOSPC)
				} else {
					m.StopAt(at)
				}
				committed, err := save(t.Context(), m.Dir(dir), 3)
				if err == nil && kind != "fails" && at < numOps {
					t.Errorf("%s: the save says that it succeeded", what)
				}
				if err != nil && kind == "fails" && !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("%s: %v", what, err)
				}
				lost := m.Restart(kind == "power lost")
				sum.TornFiles += lost.TornFiles
				sum.UndoneChanges += lost.UndoneChanges
				d := storage.Dir(dir, storage.WithoutSync())
				steps := checkpoints(t, what, d)
				newest := steps[len(steps)-1]
				if newest != 3 && (newest != 2 || committed && err == nil) || newest == 3 && !committed && err != nil && kind == "fails" {
					t.Errorf("%s: the steps are %v, committed %v, %v", what, steps, committed, err)
				}
				if err := clear(t.Context(), d); err != nil {
					t.Fatal(err)
				}
				if _, err := save(t.Context(), d, newest+1); err != nil {
					t.Errorf("%s: the next save: %v", what, err)
				}
			}
		}
		t.Logf("draw %d: %d operations", draw, numOps)
	}
	t.Logf("%d files were torn, %d changes undone", sum.TornFiles, sum.UndoneChanges)
	if !testing.Short() && (sum.TornFiles < 8 || sum.UndoneChanges < 30) {
		t.Errorf("the machine loses too little for a test")
	}
}

// numOps counts the operations of a save that nothing disturbs.
func numOps(t *testing.T) int {
	t.Helper()
	dir := t.TempDir()
	m := storagetest.NewMachine(t, 1)
	for step := 1; step <= 3; step++ {
		m.StopAt(-1)
		if _, err := save(t.Context(), m.Dir(dir), step); err != nil {
			t.Fatal(err)
		}
	}
	return len(m.Ops())
}

// clear removes what dead saves have left.
func clear(ctx context.Context, d *storage.Directory) error {
	entries, err := d.List(ctx, "")
	for _, e := range entries {
		if strings.Contains(e.Name, ".tmp-") {
			err = errors.Join(err, d.Remove(ctx, e.Name))
		}
	}
	return err
}

// TestMutants: a directory that leaves out the fsync of a file, or of a folder, is
// caught by the machine. Else TestDiskFaults would prove nothing.
func TestMutants(t *testing.T) {
	for _, kind := range []string{storage.OpSync, storage.OpSyncDir} {
		numDamaged := 0
		for seed := range uint64(40) {
			dir := t.TempDir()
			m := storagetest.NewMachine(t, seed)
			forgets := func(path string) *storage.Directory {
				return storage.Dir(path, storage.WithHook(func(op storage.Op, do func() error) error {
					if op.Kind == kind {
						return nil
					}
					return m.Do(op, do)
				}))
			}
			for step := 1; step <= 3; step++ {
				if _, err := save(t.Context(), forgets(dir), step); err != nil {
					t.Fatal(err)
				}
			}
			m.Restart(true)
			b, err := os.ReadFile(filepath.Join(dir, "step-3", "rank-1"))
			if err != nil || string(b) != string(data(3, "rank-1")) {
				numDamaged++
			}
		}
		t.Logf("without %s, %d of 40 power failures damaged what was committed", kind, numDamaged)
		if numDamaged < 5 {
			t.Errorf("the machine does not notice that there is no %s", kind)
		}
	}
}
