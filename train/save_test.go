// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// sharded spreads the tests' task over an axis fsdp.
func sharded(_ int, task *Task[points], _ *Options) {
	task.Strategy = func(ctx context.Context, model any, axes Axes) (parallel.Strategy, error) {
		m, err := mesh.New(ctx, axes.World, mesh.Axis{Name: "fsdp"})
		if err != nil {
			return nil, err
		}
		return parallel.FullyShard(ctx, model, m)
	}
}

func stepsIn(t *testing.T, to storage.Storage) []int {
	t.Helper()
	steps, err := checkpoint.Steps(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(steps)
	return steps
}

// TestRetention: the last checkpoints stay, those of every so many steps, and those of the best
// evaluations, in a directory of their own too.
func TestRetention(t *testing.T) {
	f := newFitting(t)
	elsewhere := storage.Dir(filepath.Join(t.TempDir(), "elsewhere"))
	scores := metricsOf(map[int]float64{2: 1, 4: 9, 6: 2, 8: 3, 10: 8, 12: 4, 14: 5, 16: 6}, true)
	f.set = func(rank int, task *Task[points], o *Options) {
		scores(rank, task, o)
		o.Steps, o.SaveEvery, o.EvalEvery, o.Best = 16, 2, 2, true
		o.Keep, o.KeepEvery, o.KeepBest, o.SaveTo = 2, 6, 2, elsewhere
	}
	if _, err := f.run(t, 2); err != nil {
		t.Fatal(err)
	}
	if got := stepsIn(t, elsewhere); !slices.Equal(got, []int{4, 6, 10, 12, 14, 16}) {
		t.Errorf("the checkpoints of steps %v are there", got)
	}
	if got := stepsIn(t, storage.Under(elsewhere, bestDir)); !slices.Equal(got, []int{4}) {
		t.Errorf("the best are %v", got)
	}
	if got := stepsIn(t, storage.Dir(f.out)); len(got) > 0 {
		t.Errorf("the run's directory has checkpoints of %v", got)
	}
}

// TestRanksSaveTheirOwn: each rank of an axis fsdp writes its shards, and a run on another
// number of ranks goes on from them. Frozen weights are not written again.
func TestRanksSaveTheirOwn(t *testing.T) {
	f := newFitting(t)
	f.set = func(rank int, task *Task[points], o *Options) {
		sharded(rank, task, o)
		task.Model.(*line).In.Weight.Frozen = true
	}
	if _, err := f.run(t, 2); err != nil {
		t.Fatal(err)
	}
	ck, err := checkpoint.Open(t.Context(), storage.Dir(f.out), "")
	if err != nil || ck.Step != 12 || ck.Verify(t.Context(), nil) != nil {
		t.Fatalf("%+v, %v", ck, err)
	}
	ranks := map[int]bool{}
	for _, file := range ck.Files {
		ranks[file.Rank] = true
	}
	if len(ranks) != 2 {
		t.Errorf("files %+v are of the ranks %v", ck.Files, ranks)
	}
	f.set = func(_ int, task *Task[points], o *Options) { o.Steps = 15 }
	if _, err := f.run(t, 1); err != nil {
		t.Fatal(err)
	}
	if f.log.start.FirstStep != 12 {
		t.Errorf("goes on from %d", f.log.start.FirstStep)
	}
}

// TestDamageFoundByAnyRank: bytes that changed on disk without a trace in the manifest are found
// by the rank that reads them, and all ranks go on from the checkpoint before. Damaged small
// files too. The last one is not set aside.
func TestDamageFoundByAnyRank(t *testing.T) {
	f := newFitting(t)
	f.set = sharded
	if _, err := f.run(t, 2); err != nil {
		t.Fatal(err)
	}
	damage := func(step int, name string) {
		t.Helper()
		dir := checkpoint.Path(f.out, step)
		files, err := filepath.Glob(filepath.Join(dir, name))
		if err != nil || len(files) == 0 {
			t.Fatal(dir, name, files, err)
		}
		path := files[len(files)-1]
		b := fileOf(t, dir, filepath.Base(path))
		b[len(b)-1] ^= 1
		if err := os.WriteFile(path, b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	damage(12, "model-*.safetensors") // of the last rank
	if _, err := f.run(t, 2); err != nil {
		t.Fatal(err)
	}
	if f.log.start.FirstStep != 10 || !strings.HasSuffix(f.log.start.Resumed, "step-00000010") {
		t.Errorf("goes on from %d, %s", f.log.start.FirstStep, f.log.start.Resumed)
	}
	if text := fmt.Sprint(f.log.notices); !strings.Contains(text, "step-00000012 is damaged: model-") {
		t.Errorf("said %s", text)
	}
	if old, err := filepath.Glob(filepath.Join(f.out, "step-00000012.damaged-*")); err != nil || len(old) != 1 {
		t.Errorf("set aside are %v, %v", old, err)
	}
	for _, step := range []int{5, 10, 12} {
		damage(step, "model-*.safetensors")
	}
	for range 2 { // not silently from the start
		if _, err := f.run(t, 2); err == nil || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("all damaged: %v", err)
		}
	}
}

// TestFailedSave: where a save beside training fails on one rank, all ranks end after the same
// step, with an error that names the file or the rank. What was saved before is good, and the
// run goes on from it.
func TestFailedSave(t *testing.T) {
	for _, sync := range []bool{false, true} {
		for _, bad := range []int{0, 1} {
			f := newFitting(t)
			full := errors.New("no space left on the test's device")
			f.set = func(rank int, task *Task[points], o *Options) {
				sharded(rank, task, o)
				o.Steps, o.SaveSync, o.EvalEvery = 2000, sync, 0
				fail := func(op storage.Op, do func() error) error {
					if op.Kind == storage.OpWrite && strings.Contains(op.Path, "step-00000010.") {
						return full
					}
					return do()
				}
				if rank == bad {
					o.SaveTo = storage.Dir(f.out, storage.WithHook(fail))
				}
			}
			told, _ := f.run(t, 2)
			if !errors.Is(told[bad], full) || !strings.Contains(told[bad].Error(), "step-00000010") && !strings.Contains(told[bad].Error(), "saving step 10") {
				t.Errorf("sync %v: rank %d, which could not write: %v", sync, bad, told[bad])
			}
			if err := told[1-bad]; err == nil || !strings.Contains(err.Error(), fmt.Sprintf("rank %d", bad)) || !strings.Contains(err.Error(), full.Error()) {
				t.Errorf("sync %v: the other rank: %v", sync, err)
			}
			if len(f.log.losses) == 2000 {
				t.Error("the run has not ended")
			}
			if got := stepsIn(t, storage.Dir(f.out)); !slices.Equal(got, []int{5}) {
				t.Errorf("sync %v: checkpoints of %v", sync, got)
			}
			f.set = func(rank int, task *Task[points], o *Options) { sharded(rank, task, o) }
			if _, err := f.run(t, 2); err != nil || f.log.start.FirstStep != 5 {
				t.Errorf("goes on from %d: %v", f.log.start.FirstStep, err)
			}
		}
	}
}

// steady is the tests' model without dropout, whose numbers depend on how ranks share samples.
type steady struct{ In, Out *nn.Linear }

func (m *steady) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return c.Call(m.Out, c.Call(m.In, x).Tanh())
}

// TestSavedBesideTraining: a run that saves beside training, is stopped and resumed, comes to
// the bits of one that saves at the end only, on the same mesh; and near them on another.
func TestSavedBesideTraining(t *testing.T) {
	for _, ranks := range []int{2, 3} {
		set := func(steps, every int) func(int, *Task[points], *Options) {
			return func(rank int, task *Task[points], o *Options) {
				sharded(rank, task, o)
				if m := task.Model.(*line); ranks != 2 {
					task.Model = &steady{m.In, m.Out}
				}
				o.Steps, o.SaveEvery, o.SaveSync = steps, every, every == 0
			}
		}
		whole, f := newFitting(t), newFitting(t)
		whole.set = set(12, 0)
		if _, err := whole.run(t, 2); err != nil {
			t.Fatal(err)
		}
		f.set = set(7, 1)
		if _, err := f.run(t, 2); err != nil {
			t.Fatal(err)
		}
		f.set = set(12, 1)
		if _, err := f.run(t, ranks); err != nil {
			t.Fatal(err)
		}
		for step := 8; step <= 12; step++ {
			got, want := f.log.losses[step], whole.log.losses[step]
			if ranks == 2 && got != want || math.Abs(got-want) > 1e-6 {
				t.Errorf("%d ranks: step %d has the loss %v, want %v", ranks, step, got, want)
			}
		}
		if !slices.Contains(f.log.saved, 12) || !slices.IsSorted(f.log.saved) {
			t.Errorf("saved are %v", f.log.saved)
		}
	}
}
