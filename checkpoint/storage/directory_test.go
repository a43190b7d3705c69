// SPDX-License-Identifier: Apache-2.0

package storage_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/storage/storagetest"
)

// TestConformance: directories do what every storage does, with and without the hook.
func TestConformance(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storagetest.Place {
		dir := t.TempDir()
		return func() storage.Storage { return storage.Dir(dir) }
	})
	t.Run("Under", func(t *testing.T) {
		storagetest.Run(t, func(t *testing.T) storagetest.Place {
			dir := t.TempDir()
			return func() storage.Storage { return storage.Under(storage.Dir(dir, storage.WithoutSync()), "a/best") }
		})
	})
	t.Run("Under any", func(t *testing.T) {
		storagetest.Run(t, func(t *testing.T) storagetest.Place {
			dir := t.TempDir()
			return func() storage.Storage {
				return storage.Under(struct{ storage.Storage }{storage.Dir(dir, storage.WithoutSync())}, "a/best")
			}
		})
	})
	t.Run("Machine", func(t *testing.T) {
		storagetest.Run(t, func(t *testing.T) storagetest.Place {
			dir := t.TempDir()
			m := storagetest.NewMachine(t, 1)
			return func() storage.Storage { return m.Dir(dir) }
		})
	})
}

// TestCommit: a stage becomes a checkpoint, once.
func TestCommit(t *testing.T) {
	ctx := t.Context()
	dir := filepath.Join(t.TempDir(), "new", "run")
	d := storage.Dir(dir)
	if entries, err := d.List(ctx, ""); err != nil || len(entries) != 0 {
		t.Fatalf("a directory that is not there has %v, %v", entries, err)
	}
	if free, known, err := d.Free(ctx); err != nil || known && free <= 0 {
		t.Errorf("%d bytes are free, known %v, %v", free, known, err)
	}
	release, _, err := d.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var busy *storage.BusyError
	if _, held, err := storage.Dir(dir).Lock(ctx); held || err != nil && !errors.As(err, &busy) {
		t.Errorf("a second lock: held %v, %v", held, err)
	}
	release()
	stages := make([]string, 2)
	for i, id := range []string{"a", "b"} {
		stages[i], _ = d.Stage("step-00000001", id)
		if err := storage.WriteFile(ctx, d, stages[i]+"/data", []byte("bytes of "+id)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Commit(ctx, stages[1], "step-00000001", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := d.Commit(ctx, stages[0], "step-00000001", []byte("{}")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second commit: %v", err)
	}
	if b, err := storage.ReadFile(ctx, d, "step-00000001/data", 100); err != nil || string(b) != "bytes of b" {
		t.Errorf("the checkpoint has %q, %v", b, err)
	}
	for _, name := range append(stages, "step-00000001") {
		if err := d.Remove(ctx, name); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// TestLinks: symbolic links are listed as such, wherever they lead, and opened if
// they lead to a file.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	d := storage.Dir(dir)
	if err := storage.WriteFile(t.Context(), d, "there/file", []byte("1234")); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"file": "there/file", "folder": "there", "nowhere": "none", "circle": "circle"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Skip(err)
		}
	}
	entries, err := d.List(t.Context(), "")
	if err != nil || len(entries) != 5 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if e.IsLink != (e.Name != "there") || e.IsFolder != (e.Name == "there" || e.Name == "folder") || (e.Size == 4) != (e.Name == "file") {
			t.Errorf("%+v", e)
		}
	}
	if b, err := storage.ReadFile(t.Context(), d, "file", 10); err != nil || string(b) != "1234" {
		t.Errorf("%q, %v", b, err)
	}
	for _, name := range []string{"folder", "nowhere", "circle"} {
		if _, err := d.Open(t.Context(), name); err == nil {
			t.Errorf("%s opens", name)
		}
	}
}
