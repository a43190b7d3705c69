// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/storage/s3/s3test"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// between calls a function before a commit.
type between struct {
	storage.Storage
	do func()
}

func (b between) Commit(ctx context.Context, stage, name string, manifest []byte) error {
	b.do()
	return b.Storage.Commit(ctx, stage, name, manifest)
}

// TestRetentionBesideASaver: a saver removes old steps while another one writes a step that is as
// old. What that one then commits is whole.
func TestRetentionBesideASaver(t *testing.T) {
	s3test.Credentials(t)
	b := mustOpen(t, s3test.GoFake(t).Address("run"))
	state := func(value float64) checkpoint.State {
		return checkpoint.State{Sections: map[string][]checkpoint.Part{
			checkpoint.Model: {{Name: "x", Tensor: mesh.Tensor{Local: tensor.Full(value, 100)}}},
		}}
	}
	save := func(to storage.Storage, step int, opts ...checkpoint.SaveOption) {
		t.Helper()
		if err := checkpoint.Save(t.Context(), nil, to, step, state(float64(step)), opts...); err != nil {
			t.Fatal(err)
		}
	}
	save(b, 1)
	save(b, 3)
	other := between{b, func() {
		save(b, 4, checkpoint.WithRetention(checkpoint.KeepLast(1)))
		if steps, err := checkpoint.Steps(t.Context(), b); err != nil || len(steps) != 2 {
			t.Errorf("beside the stage of step 2: %v, %v", steps, err)
		}
	}}
	save(other, 2)
	ck, err := checkpoint.Open(t.Context(), b, checkpoint.StepName(2))
	if err == nil {
		err = ck.Verify(t.Context(), nil)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestRetentionOfTheSameStep: a saver writes a step anew whose checkpoint is damaged, and another
// one removes that step.
func TestRetentionOfTheSameStep(t *testing.T) {
	s3test.Credentials(t)
	b := mustOpen(t, s3test.GoFake(t).Address("run"))
	file := func(w *checkpoint.Writer) error { return w.WriteFile("a", []byte("abc")) }
	save := func(to storage.Storage, step int, opts ...checkpoint.SaveOption) {
		t.Helper()
		if err := checkpoint.Save(t.Context(), nil, to, step, checkpoint.State{Files: file}, opts...); err != nil {
			t.Fatal(err)
		}
	}
	save(b, 1)
	ck, err := checkpoint.Open(t.Context(), b, checkpoint.StepName(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := storage.WriteFile(t.Context(), b, checkpoint.StepName(1)+"/"+ck.Manifest().Folder+"/a", []byte("xyz")); err != nil {
		t.Fatal(err)
	}
	save(between{b, func() { save(b, 2, checkpoint.WithRetention(checkpoint.KeepLast(1))) }}, 1)
	ck, err = checkpoint.Open(t.Context(), b, checkpoint.StepName(1))
	if err == nil {
		err = ck.Verify(t.Context(), nil)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestRetentionReplaces: a step that is there alone is saved again, and nothing of the old one stays.
func TestRetentionReplaces(t *testing.T) {
	s3test.Credentials(t)
	b := mustOpen(t, s3test.GoFake(t).Address("run"))
	name := checkpoint.StepName(1)
	for _, text := range []string{"old", "new"} {
		file := func(w *checkpoint.Writer) error { return w.WriteFile("a", []byte(text)) }
		if err := checkpoint.Save(t.Context(), nil, b, 1, checkpoint.State{Files: file}, checkpoint.WithRetention(checkpoint.Retention{Only: true})); err != nil {
			t.Fatal(err)
		}
		ck, err := checkpoint.Open(t.Context(), b, name)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ck.ReadFile("a", 10); err != nil || string(got) != text {
			t.Errorf("%q, want %q (%v)", got, text, err)
		}
		if entries, err := b.List(t.Context(), name); err != nil || len(entries) != 2 { // the manifest and a folder
			t.Errorf("after %s: %v, %v", text, entries, err)
		}
		if err := storage.WriteFile(t.Context(), b, name+"/proof.json", []byte("of "+text)); err != nil {
			t.Fatal(err)
		}
	}
}
