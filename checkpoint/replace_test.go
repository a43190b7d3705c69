// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// fillAlone makes a directory with good checkpoints of some steps.
func fillAlone(t *testing.T, steps ...int) string {
	t.Helper()
	dir := t.TempDir()
	for _, step := range steps {
		if err := (&save{dir: dir, step: step, noSync: true}).run(t.Context(), contents(step)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestReplace: one checkpoint is left, whatever was there.
func TestReplace(t *testing.T) {
	for _, c := range []struct {
		before []int
		step   int
	}{{nil, 3}, {[]int{3}, 5}, {[]int{9}, 5}, {[]int{5}, 5}, {[]int{2, 5, 9}, 5}} {
		dir := fillAlone(t, c.before...)
		if err := Replace(t.Context(), dir, c.step, contents(c.step)); err != nil {
			t.Fatal(err)
		}
		if got, want := names(t, dir), []string{filepath.Base(Path(dir, c.step))}; !slices.Equal(got, want) {
			t.Errorf("%+v: left are %q, want %q", c, got, want)
		}
		checkGood(t, dir, c.step)
	}
	// What is damaged is no reason to keep it.
	dir := fillAlone(t, 5)
	if err := os.Truncate(filepath.Join(Path(dir, 5), ModelFile), 1); err != nil {
		t.Fatal(err)
	}
	if err := Replace(t.Context(), dir, 5, contents(5)); err != nil {
		t.Fatal(err)
	}
	checkGood(t, dir, 5)
}

// TestReplaceFailsAtEveryOperation: a good one is left by any single failure,
// the old or the new.
func TestReplaceFailsAtEveryOperation(t *testing.T) {
	for _, step := range []int{5, 7} {
		run := func(dir string, w *world) error {
			w.unsaved, w.unnamed = map[string]bool{}, map[string]bool{}
			s := &save{dir: dir, step: step, keep: 1, alone: true, disk: disk{fault: w.fault}}
			return s.run(t.Context(), contents(step))
		}
		whole := &world{at: -1}
		if err := run(fillAlone(t, 5), whole); err != nil {
			t.Fatal(err)
		}
		for at, op := range whole.ops {
			dir := fillAlone(t, 5)
			if err := run(dir, &world{at: at, err: syscall.ENOSPC}); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("step %d, %s fails: got %v", step, op, err)
			}
			if c, _, err := Latest(t.Context(), dir); err != nil || c.Step != 5 && c.Step != 7 {
				t.Errorf("step %d, %s fails: left is %+v, %v", step, op, c, err)
			}
			if err := Replace(t.Context(), dir, 8, contents(8)); err != nil {
				t.Errorf("step %d, %s fails: the next one: %v", step, op, err)
			}
			if got := names(t, dir); len(got) != 1 {
				t.Errorf("step %d, %s fails: the next one leaves %q", step, op, got)
			}
		}
	}
}
