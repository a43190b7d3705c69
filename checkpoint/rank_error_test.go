// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
)

// TestErrorKinds: what kind of error one rank has, the others can ask their own error.
func TestErrorKinds(t *testing.T) {
	save := func(to func(rank int) storage.Storage) (errs [3]error) {
		t.Helper()
		_ = dist.Spawn(t.Context(), len(errs), func(ctx context.Context, g *dist.Group) error {
			s, err := job(ctx, g, len(errs), 1)
			if err == nil {
				errs[g.Rank()] = checkpoint.Save(ctx, g, to(g.Rank()), 4, s)
			}
			return err
		})
		return errs
	}
	dir := storage.Dir(t.TempDir())
	same := func(int) storage.Storage { return dir }
	for rank, err := range save(same) {
		if err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
	for rank, err := range save(same) {
		if !errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOSPC) || strings.Count(err.Error(), "already") != 1 || strings.Contains(err.Error(), "file already exists") {
			t.Errorf("a step that is there: rank %d: %v", rank, err)
		}
	}
	release, _, err := dir.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for rank, err := range save(same) {
		var busy *storage.BusyError
		if !errors.As(err, &busy) || busy.Where != dir.String() || errors.Is(err, fs.ErrExist) {
			t.Errorf("while another save is under way: rank %d: %v", rank, err)
		}
	}
	release()
	root := t.TempDir()
	for _, kind := range []error{syscall.ENOSPC, fs.ErrPermission} {
		for rank, err := range save(func(rank int) storage.Storage {
			return storage.Dir(root, storage.WithHook(func(op storage.Op, do func() error) error {
				if rank == 2 && op.Kind == storage.OpWrite {
					return fmt.Errorf("the test's disk: %w", kind)
				}
				return do()
			}))
		}) {
			if !errors.Is(err, kind) || errors.Is(err, fs.ErrExist) {
				t.Errorf("%v on rank 2: rank %d: %v", kind, rank, err)
			}
		}
	}
}
