// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
)

// TestFrozen: the files of frozen tensors are links while the tensors stay as they are, a change
// that nobody told of is written, and a checkpoint keeps its files when the one before goes.
func TestFrozen(t *testing.T) {
	root := t.TempDir()
	to := storage.Dir(root)
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		s, err := job(ctx, g, 2, 1)
		if err != nil {
			return err
		}
		parts := s.Sections[checkpoint.Model]
		for i := range parts {
			parts[i].Frozen = i%2 == 0
		}
		save := func(step int) error {
			parts[1].Local.Fill(float64(step)) // trained
			return checkpoint.Save(ctx, g, to, step, s, checkpoint.WithRetention(checkpoint.KeepLast(2)))
		}
		if err := errors.Join(save(1), save(2), save(3)); err != nil {
			return err
		}
		parts[0].Local.Fill(-5) // frozen, but changed
		return save(4)
	})
	if err != nil {
		t.Fatal(err)
	}
	files := func(step int) map[string]os.FileInfo {
		c, err := checkpoint.Open(t.Context(), to, checkpoint.StepName(step))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Verify(t.Context(), nil); err != nil {
			t.Error(err)
		}
		of := map[string]os.FileInfo{}
		for _, f := range c.Files {
			if of[f.Name], err = os.Stat(filepath.Join(c.Path, f.Name)); err != nil {
				t.Fatal(err)
			}
		}
		return of
	}
	third, fourth := files(3), files(4)
	same := map[string]bool{}
	for name, st := range third {
		same[name] = os.SameFile(st, fourth[name])
	}
	c, err := checkpoint.Open(t.Context(), to, checkpoint.StepName(4))
	if err != nil {
		t.Fatal(err)
	}
	// All of a frozen file is written again if one of its tensors has changed.
	numLinked := 0
	changed := c.Manifest().Section(checkpoint.Model).Tensors[0].Boxes[0].File
	for i, tensor := range c.Manifest().Section(checkpoint.Model).Tensors {
		for _, b := range tensor.Boxes {
			if same[b.File] != (i%2 == 0 && b.File != changed) {
				t.Errorf("%s in %s: linked is %t", tensor.Name, b.File, same[b.File])
			}
			if same[b.File] {
				numLinked++
			}
		}
	}
	if numLinked == 0 {
		t.Error(fmt.Sprint("nothing is linked: ", same))
	}
}
