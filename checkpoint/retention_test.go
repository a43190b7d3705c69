// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// TestRetention: which checkpoints stay after saves of steps 1, 2, ….
func TestRetention(t *testing.T) {
	losses := []float64{5, 1, 4, 2, 3, 9, 8, 7} // of steps 1 to 8
	for _, c := range []struct {
		keep  checkpoint.Retention
		lower bool
		want  []int
	}{
		{checkpoint.Retention{}, true, []int{8, 7, 6, 5, 4, 3, 2, 1}},
		{checkpoint.KeepLast(1), true, []int{8}},
		{checkpoint.KeepLast(3), true, []int{8, 7, 6}},
		{checkpoint.Retention{Last: 1, Every: 3}, true, []int{8, 6, 3}},
		{checkpoint.Retention{Last: 1, Best: 2}, true, []int{8, 4, 2}},
		{checkpoint.Retention{Last: 2, Best: 1}, false, []int{8, 7, 6}},
		{checkpoint.Retention{Last: 1, Best: 1, Every: 5}, true, []int{8, 5, 2}},
		{checkpoint.Retention{Only: true}, true, []int{8}},
	} {
		to := storage.Dir(t.TempDir())
		for i, loss := range losses {
			s := checkpoint.State{Metric: &checkpoint.Metric{Name: "loss", Value: loss, Lower: c.lower}}
			if err := checkpoint.Save(t.Context(), nil, to, i+1, s, checkpoint.WithRetention(c.keep)); err != nil {
				t.Fatal(err)
			}
		}
		if steps, err := checkpoint.Steps(t.Context(), to); err != nil || !slices.Equal(steps, c.want) {
			t.Errorf("%+v keeps %v, want %v (%v)", c.keep, steps, c.want, err)
		}
	}
}

// TestRetentionDiverged: a step whose loss is no number is saved, and is not among the best.
func TestRetentionDiverged(t *testing.T) {
	to := storage.Dir(t.TempDir())
	for i, loss := range []float64{2, math.NaN(), math.Inf(-1), 3} {
		s := checkpoint.State{Metric: &checkpoint.Metric{Name: "loss", Value: loss, Lower: true}}
		if err := checkpoint.Save(t.Context(), nil, to, i+1, s, checkpoint.WithRetention(checkpoint.Retention{Last: 1, Best: 1})); err != nil {
			t.Fatal(err)
		}
	}
	if steps, err := checkpoint.Steps(t.Context(), to); err != nil || !slices.Equal(steps, []int{4, 1}) {
		t.Error(steps, err)
	}
	s := checkpoint.State{Metric: &checkpoint.Metric{Name: "loss", Value: math.NaN()}}
	if err := checkpoint.SavePart(t.Context(), 0, 1, to, 5, s); err != nil {
		t.Error(err)
	}
}

// TestRetentionOfOthers: checkpoints of higher steps stay, damaged ones do not count, and a
// checkpoint that is there alone replaces one of its step.
func TestRetentionOfOthers(t *testing.T) {
	root := t.TempDir()
	to := storage.Dir(root)
	save := func(step int, keep checkpoint.Retention, text string) {
		t.Helper()
		s := checkpoint.State{Files: func(w *checkpoint.Writer) error { return w.WriteFile("a", []byte(text)) }}
		if err := checkpoint.Save(t.Context(), nil, to, step, s, checkpoint.WithRetention(keep)); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []int{90, 1, 2, 3} {
		save(step, checkpoint.Retention{}, "abc")
	}
	if err := os.Truncate(filepath.Join(checkpoint.Path(root, 3), "a"), 1); err != nil {
		t.Fatal(err)
	}
	save(4, checkpoint.KeepLast(2), "abc")
	if steps, err := checkpoint.Steps(t.Context(), to); err != nil || !slices.Equal(steps, []int{90, 4, 3, 2}) {
		t.Error(steps, err)
	}
	save(4, checkpoint.Retention{Only: true}, "new")
	c, err := checkpoint.Open(t.Context(), to, "")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := c.ReadFile("a", 10); err != nil || string(text) != "new" {
		t.Errorf("%s, %v", text, err)
	}
	if steps, err := checkpoint.Steps(t.Context(), to); err != nil || !slices.Equal(steps, []int{4}) {
		t.Error(steps, err)
	}
}

// TestRetentionReplaces: a step that is there alone is saved again, and any one operation fails. The
// old one or the new one is there whole, and after a save that succeeds nothing else.
func TestRetentionReplaces(t *testing.T) {
	for _, canExchange := range []bool{true, false} {
		testReplaces(t, canExchange)
	}
}

// testReplaces does so on a file system that can exchange two names, or cannot.
func testReplaces(t *testing.T, canExchange bool) {
	for fails := 1; ; fails++ {
		root := t.TempDir()
		save := func(to storage.Storage, text string) error {
			s := checkpoint.State{Files: func(w *checkpoint.Writer) error { return w.WriteFile("a", []byte(text)) }}
			return checkpoint.Save(t.Context(), nil, to, 4, s, checkpoint.WithRetention(checkpoint.Retention{Only: true}))
		}
		if err := save(storage.Dir(root), "old"); err != nil {
			t.Fatal(err)
		}
		n, failed, unsupported := 0, storage.Op{}, false
		err := save(storage.Dir(root, storage.WithHook(func(op storage.Op, do func() error) error {
			if n++; n == fails {
				failed = op
				return syscall.ENOSPC
			}
			if strings.HasSuffix(op.To, checkpoint.StepName(4)) && !canExchange && !unsupported {
				unsupported = true
				return errors.ErrUnsupported
			}
			return do()
		})), "new")
		var saved *checkpoint.SaveError
		want := "old"
		if err == nil || errors.As(err, &saved) && saved.Committed {
			want = "new"
		}
		c, oerr := checkpoint.Open(t.Context(), storage.Dir(root), "")
		if oerr != nil {
			t.Fatalf("%v fails (%v): %v", failed, err, oerr)
		}
		if text, rerr := c.ReadFile("a", 10); rerr != nil || string(text) != want {
			t.Errorf("%v fails (%v): %s, want %s (%v)", failed, err, text, want, rerr)
		}
		if n >= fails {
			continue
		}
		if unsupported == canExchange {
			t.Errorf("exchanges %v, want %v", !unsupported, canExchange)
		}
		if entries, lerr := storage.Dir(root).List(t.Context(), ""); err != nil || len(entries) != 1 {
			t.Errorf("%v, %v, %v", err, entries, lerr)
		}
		return
	}
}

// TestSaveRefuses: a save that cannot be is an error of its own kind, and leaves nothing.
func TestSaveRefuses(t *testing.T) {
	root := t.TempDir()
	to := storage.Dir(root)
	full := func(op storage.Op, do func() error) error {
		if op.Kind == storage.OpWrite {
			return syscall.ENOSPC
		}
		return do()
	}
	file := func(w *checkpoint.Writer) error { return w.WriteFile("a", []byte("abc")) }
	if err := checkpoint.Save(t.Context(), nil, to, 1, checkpoint.State{Files: file}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		to   storage.Storage
		step int
		s    checkpoint.State
		is   error
		want string
	}{
		{to, 1, checkpoint.State{Files: file}, fs.ErrExist, "is there already"},
		{to, -1, checkpoint.State{}, nil, "negative"},
		{storage.Dir(root, storage.WithHook(full)), 2, checkpoint.State{Files: file}, syscall.ENOSPC, "free some space there"},
		{to, 2, checkpoint.State{Files: func(*checkpoint.Writer) error { panic("torn") }}, nil, "panic: torn"},
		{to, 2, checkpoint.State{Files: func(w *checkpoint.Writer) error { _, err := w.Create("a"); return err }}, nil, `"a" was not closed`},
		{to, 2, checkpoint.State{Files: func(w *checkpoint.Writer) error { w.WriteFile("../a", nil); return nil }}, nil, "no plain file name"},
		{to, 2, checkpoint.State{Values: map[string]any{"x": func() {}}}, nil, `the value "x" cannot be saved`},
		{to, 2, checkpoint.State{Sections: map[string][]checkpoint.Part{"a/b": nil}}, nil, "no name for a section"},
	} {
		err := checkpoint.Save(t.Context(), nil, c.to, c.step, c.s)
		var save *checkpoint.SaveError
		if !errors.As(err, &save) || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
		if entries, err := to.List(t.Context(), ""); err != nil || len(entries) != 1 {
			t.Errorf("%v, %v", entries, err)
		}
	}
	release, _, err := to.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	var busy *storage.BusyError
	if err := checkpoint.Save(t.Context(), nil, to, 2, checkpoint.State{}); !errors.As(err, &busy) {
		t.Error(err)
	}
}
