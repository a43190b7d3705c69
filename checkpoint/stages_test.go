// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/storage/s3"
	"github.com/cohort-ml/cohort/checkpoint/storage/s3/s3test"
	"github.com/cohort-ml/cohort/tensor"
)

// TestStages: what killed saves left is found and removed, in the folders of checkpoints too. The
// checkpoints, parts that ranks have written alone and stages that are young stay.
func TestStages(t *testing.T) {
	s3test.Credentials(t)
	bucket, err := s3.Open(s3test.GoFake(t).Address("run"))
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]storage.Storage{"directory": storage.Dir(t.TempDir()), "bucket": bucket} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			state := checkpoint.State{Sections: map[string][]checkpoint.Part{checkpoint.Model: {{Name: "w"}}}}
			state.Sections[checkpoint.Model][0].Local = tensor.FromFloat32([]float32{1, 2})
			for _, step := range []int{1, 2} {
				if err := checkpoint.Save(ctx, nil, to, step, state); err != nil {
					t.Fatal(err)
				}
			}
			if err := checkpoint.SavePart(ctx, 0, 2, to, 3, state); err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, step := range []int{2, 4} { // two saves of step 4, one beside a checkpoint
				for _, id := range []string{"00", "11"} {
					stage, _ := to.Stage(checkpoint.StepName(step), id)
					if err := storage.WriteFile(ctx, to, stage+"/model.safetensors", []byte("half")); err != nil {
						t.Fatal(err)
					}
					want = append(want, stage)
				}
			}
			names := func(list []checkpoint.LeftStage, err error) (names []string) {
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range list {
					if l.Bytes != 4 || l.Modified.IsZero() {
						t.Errorf("%+v", l)
					}
					names = append(names, l.Name)
				}
				slices.Sort(names)
				return names
			}
			if got := names(checkpoint.LeftStages(ctx, to)); !slices.Equal(got, want) {
				t.Errorf("stages %q, want %q", got, want)
			}
			if got := names(checkpoint.RemoveStages(ctx, to, time.Now().Add(-time.Hour))); len(got) > 0 {
				t.Errorf("young stages are removed: %q", got)
			}
			if got := names(checkpoint.RemoveStages(ctx, to, time.Now().Add(time.Hour))); !slices.Equal(got, want) {
				t.Errorf("removed %q, want %q", got, want)
			}
			if got := names(checkpoint.LeftStages(ctx, to)); len(got) > 0 {
				t.Errorf("left %q", got)
			}
			list, err := checkpoint.List(ctx, to)
			if err != nil || len(list) != 3 || list[0].Kind != checkpoint.Parts || list[1].Kind != checkpoint.Good || list[2].Kind != checkpoint.Good {
				t.Errorf("%+v, %v", list, err)
			}
			for _, l := range list[1:] {
				ck, err := checkpoint.Open(ctx, to, l.Name)
				if err != nil {
					t.Fatal(err)
				}
				if err := ck.Verify(ctx, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	dir := storage.Dir(t.TempDir())
	release, _, err := dir.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := checkpoint.RemoveStages(t.Context(), dir, time.Now()); !errors.As(err, new(*storage.BusyError)) {
		t.Errorf("while another one saves: %v", err)
	}
}
