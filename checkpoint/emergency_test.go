// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
)

// alone has some ranks of a mesh dp × tp write their parts of a step.
func alone(t *testing.T, to storage.Storage, step, dp, tp int, ranks ...int) {
	t.Helper()
	aloneIn(t, "", 0, to, step, dp, tp, ranks...)
}

// aloneIn is alone in an attempt of the job in which each tensor has shift added to its elements.
func aloneIn(t *testing.T, attempt string, shift float64, to storage.Storage, step, dp, tp int, ranks ...int) {
	t.Helper()
	err := dist.Spawn(t.Context(), dp*tp, func(ctx context.Context, g *dist.Group) error {
		s, err := job(ctx, g, dp, tp)
		if err != nil || !slices.Contains(ranks, g.Rank()) {
			return err
		}
		for _, p := range s.Sections[checkpoint.Model] {
			if shift != 0 {
				p.Local.CopyFrom(p.Local.AddScalar(shift))
			}
		}
		return checkpoint.SavePart(ctx, g.Rank(), g.Size(), to, step, s, checkpoint.WithAttempt(attempt))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPartsOfAttempts: parts of two attempts of a job are never put together, in a directory and in
// a storage that cannot rename.
func TestPartsOfAttempts(t *testing.T) {
	for name, to := range map[string]storage.Storage{"directory": storage.Dir(t.TempDir()), "in place": inPlace{storage.Dir(t.TempDir())}} {
		t.Run(name, func(t *testing.T) {
			aloneIn(t, "a1", 0, to, 3, 2, 2, 0, 1)
			aloneIn(t, "b2", 1, to, 3, 2, 2, 2, 3)
			list, err := checkpoint.List(t.Context(), to)
			if err != nil || len(list) != 2 || list[0].Err == nil || list[1].Err == nil || len(list[0].Missing) != 2 || len(list[1].Missing) != 2 {
				t.Fatalf("%+v, %v", list, err)
			}
			for _, l := range list {
				if _, err := checkpoint.Complete(t.Context(), to, l.Name); err == nil {
					t.Errorf("%s was completed", l.Name)
				}
			}
			// The rest of one attempt comes: its parts are a checkpoint, and those of the other go.
			aloneIn(t, "b2", 1, to, 3, 2, 2, 0, 1)
			var notices []string
			checkpoint.CompleteNewest(t.Context(), to, func(text string) { notices = append(notices, text) })
			c, err := checkpoint.Open(t.Context(), to, checkpoint.StepName(3))
			if err == nil {
				err = c.Verify(t.Context(), nil)
			}
			if err != nil || len(notices) == 0 || !strings.Contains(notices[len(notices)-1], "was completed") {
				t.Fatalf("%v, %q", err, notices)
			}
			err = dist.Spawn(t.Context(), 1, func(ctx context.Context, g *dist.Group) error {
				got, err := job(ctx, g, 1, 1)
				if err != nil {
					return err
				}
				want, err := job(ctx, g, 1, 1)
				if err != nil {
					return err
				}
				if err := c.LoadParts(checkpoint.Model, got.Sections[checkpoint.Model]); err != nil {
					return err
				}
				for i, p := range got.Sections[checkpoint.Model] {
					if w := want.Sections[checkpoint.Model][i].Local.AddScalar(1); !slices.Equal(bytesOf(p.Local), bytesOf(w)) {
						return fmt.Errorf("%s: %v, want %v", p.Name, p.Local, w)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			if list, err := checkpoint.List(t.Context(), to); err != nil || len(list) != 1 || list[0].Kind != checkpoint.Good {
				t.Errorf("%+v, %v", list, err)
			}
			if err := checkpoint.SavePart(t.Context(), 0, 1, to, 4, checkpoint.State{}, checkpoint.WithAttempt("a/b")); err == nil {
				t.Error("an attempt named a/b")
			}
		})
	}
}

// inPlace is a directory that commits in place, as a bucket does.
type inPlace struct{ *storage.Directory }

func (p inPlace) Stage(name, id string) (stage, folder string) { return name + "/" + id, id }

func (p inPlace) Commit(ctx context.Context, stage, name string, manifest []byte) error {
	return storage.WriteFile(ctx, p, name+"/"+checkpoint.ManifestName, manifest)
}

// TestParts: ranks that write their parts alone make a checkpoint if each element is there, and
// what is missing is told.
func TestParts(t *testing.T) {
	to := storage.Dir(t.TempDir())
	load := func() (step int, notices []string) {
		t.Helper()
		err := dist.Spawn(t.Context(), 3, func(ctx context.Context, g *dist.Group) error {
			s, err := job(ctx, g, 3, 1)
			if err != nil {
				return err
			}
			s.RankValues = nil
			var loader map[string]int
			s.Values = map[string]any{"loader": &loader}
			for _, p := range s.Sections[checkpoint.Model] {
				p.Local.Fill(0)
			}
			at, err := checkpoint.Load(ctx, g, to, s, checkpoint.WithNotice(func(text string) { notices = append(notices, text) }))
			if err != nil || at == 0 {
				return err
			}
			want, err := job(ctx, g, 3, 1)
			if err != nil {
				return err
			}
			for i, p := range s.Sections[checkpoint.Model] {
				if w := want.Sections[checkpoint.Model][i]; !slices.Equal(bytesOf(p.Local), bytesOf(w.Local)) {
					return fmt.Errorf("%s: %v, want %v", p.Name, p.Local, w.Local)
				}
			}
			if g.Rank() == 0 {
				step = at
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return step, notices
	}
	alone(t, to, 7, 2, 2, 0, 3)
	list, err := checkpoint.List(t.Context(), to)
	if err != nil || len(list) != 1 || list[0].Kind != checkpoint.Parts || list[0].Step != 7 || !slices.Equal(list[0].Missing, []int{1, 2}) || list[0].Err == nil || !strings.Contains(list[0].Err.Error(), `the tensor "t3"`) {
		t.Fatalf("%+v, %v", list, err)
	}
	if step, notices := load(); step != 0 || len(notices) != 1 || !strings.Contains(notices[0], `the tensor "t3"`) {
		t.Errorf("loaded %d, %q", step, notices)
	}
	// A save of an earlier step, in which others had been set back, leaves them.
	err = dist.Spawn(t.Context(), 1, func(ctx context.Context, g *dist.Group) error {
		s, err := job(ctx, g, 1, 1)
		if err != nil {
			return err
		}
		return checkpoint.Save(ctx, g, to, 5, s)
	})
	if err != nil {
		t.Fatal(err)
	}
	alone(t, to, 7, 2, 2, 1)
	alone(t, to, 7, 2, 2, 2)
	list, err = checkpoint.List(t.Context(), to)
	if err != nil || len(list) != 2 || list[0].Kind != checkpoint.Parts || list[0].Err != nil || list[1].Kind != checkpoint.Good {
		t.Fatalf("%+v, %v", list, err)
	}
	if step, notices := load(); step != 7 || len(notices) != 1 || !strings.Contains(notices[0], "was completed") {
		t.Errorf("loaded %d, %q", step, notices)
	}
	c, err := checkpoint.Open(t.Context(), to, "")
	if err != nil || c.Step != 7 || c.Verify(t.Context(), nil) != nil || !c.Has("config.json") {
		t.Errorf("%+v, %v", c, err)
	}
	entries, err := os.ReadDir(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "part-") {
			t.Errorf("%s is left", e.Name())
		}
	}
	// What a replica has written already is not written again: the ranks hold boxes of 2 kinds.
	seen := map[string]bool{}
	for _, tensor := range c.Manifest().Section(checkpoint.Model).Tensors {
		for _, b := range tensor.Boxes {
			key := fmt.Sprint(tensor.Name, b.Start, b.Shape)
			if seen[key] {
				t.Errorf("%s is there twice", key)
			}
			seen[key] = true
		}
	}
}

// TestPartsOfOneRank: one rank of several that holds everything saves all; the next save removes
// parts of steps before.
func TestPartsOfOneRank(t *testing.T) {
	to := storage.Dir(t.TempDir())
	alone(t, to, 3, 1, 1, 0)
	s := checkpoint.State{Sections: map[string][]checkpoint.Part{}}
	if err := checkpoint.SavePart(t.Context(), 1, 2, to, 4, s); err != nil {
		t.Fatal(err)
	}
	name, err := checkpoint.Complete(t.Context(), to, checkpoint.StepName(3)+".tmp-emergency")
	if err != nil || name != checkpoint.StepName(3) {
		t.Fatal(name, err)
	}
	if err := checkpoint.Save(t.Context(), nil, to, 4, s); err != nil {
		t.Fatal(err)
	}
	entries, err := to.List(t.Context(), "")
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
	for _, bad := range []error{
		checkpoint.SavePart(t.Context(), 2, 2, to, 4, s), checkpoint.SavePart(t.Context(), 0, 1, to, -1, s),
		checkpoint.SavePart(t.Context(), 0, 1, to, 9, checkpoint.State{Sections: map[string][]checkpoint.Part{"a": {{Tensor: mesh.Tensor{}}}}}),
	} {
		if bad == nil {
			t.Error("saved")
		}
	}
}

// TestPartTwice: a second part of a rank takes the place of its first one, files and all.
func TestPartTwice(t *testing.T) {
	to := storage.Dir(t.TempDir())
	stage := checkpoint.StepName(3) + ".tmp-emergency"
	for range 2 {
		alone(t, to, 3, 2, 1, 0, 1)
	}
	if _, err := checkpoint.Complete(t.Context(), to, stage); err != nil {
		t.Fatal(err)
	}
	c, err := checkpoint.Open(t.Context(), to, "")
	if err == nil {
		err = c.Verify(t.Context(), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	entries, err := to.List(t.Context(), c.Name)
	if err != nil || len(entries) != len(c.Files)+1 { // and the manifest
		t.Errorf("%v, want %v, %v", entries, c.Files, err)
	}
}

// TestList: all that may lie in a directory.
func TestList(t *testing.T) {
	root := t.TempDir()
	to := storage.Dir(root)
	for step := 1; step <= 3; step++ {
		if err := checkpoint.Save(t.Context(), nil, to, step, checkpoint.State{Files: func(w *checkpoint.Writer) error { return w.WriteFile("a", []byte("abc")) }}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(filepath.Join(checkpoint.Path(root, 2), "a"), 1); err != nil {
		t.Fatal(err)
	}
	if err := to.SetAside(t.Context(), checkpoint.StepName(1)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"step-00000009.tmp-0123", "best", "notes"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	list, err := checkpoint.List(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range list {
		got = append(got, fmt.Sprintf("%d %s %d", l.Step, l.Kind, l.Bytes))
	}
	if want := []string{"9 stage 0", "3 good 3", "2 damaged 0", "1 set aside 0"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
