// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"context"
	"math"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestFaultsOfPrograms: what a program on Run got wrong is named by the field of
// the task or the options that it is in.
func TestFaultsOfPrograms(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(rank int, task *Task[points], o *Options)
		want string
	}{
		{"another batch than the feed's", func(_ int, _ *Task[points], o *Options) { o.Batch, o.Steps, o.Epochs = 48, 0, 3 },
			"Options.Batch is 48 samples a step, but Task.Feed takes 24 of all ranks in each of 1 passes"},
		{"a smaller batch than the feed's", func(_ int, _ *Task[points], o *Options) { o.Batch = 12 }, "Options.Batch is 12 samples a step"},
		{"a sampler of one rank", func(_ int, task *Task[points], _ *Options) {
			task.Feed = func(ctx context.Context, from data.LoaderState) (Feed[points], error) {
				order, err := data.NewStream(data.StreamConfig{Len: 100, Total: 24, World: 1})
				if err != nil {
					return nil, err
				}
				ds := data.FromFunc(100, func(context.Context, data.Key) (point, error) { return point{1, 2}, nil })
				return data.NewLoader(ctx, ds, order, collatePoints, data.LoaderConfig{}, from)
			}
		}, "gives this rank all 24 samples of a pass, though there are 2 ranks: give its sampler Rank: group.Rank() and World: group.Size()"},
		{"a loss of each sample", func(_ int, task *Task[points], _ *Options) {
			task.Loss = func(c *nn.Ctx, model any, p points) *tensor.Tensor { return c.Call(model.(nn.Module), p.x) }
		}, "Task.Loss returned a tensor of dims [12 1], want one number"},
		{"no loss", func(_ int, task *Task[points], _ *Options) {
			task.Loss = func(*nn.Ctx, any, points) *tensor.Tensor { return nil }
		}, "Task.Loss returned nil"},
		{"other options", func(rank int, _ *Task[points], o *Options) { o.Seed += int64(rank); o.Clip = float64(1 + rank) },
			"other data or flags than most ranks: option.Clip is 2, want 1 (and 1 more difference): give all ranks the same; set Options.Clip to 1 on these ranks"},
		{"no metric", func(_ int, task *Task[points], _ *Options) {
			task.Evaluate = func(context.Context, any) (Metrics, error) { return nil, nil }
		}, "train fit: evaluate after step 3: Task.Evaluate returned no metric"},
		{"not finite", func(_ int, task *Task[points], _ *Options) {
			task.Loss = func(c *nn.Ctx, model any, p points) *tensor.Tensor {
				return tensor.MSE(c.Call(model.(nn.Module), p.x), p.y).MulScalar(math.Inf(1))
			}
		}, `lower the learning rate (now 0.02) and run again to go on from the last checkpoint, or leave such steps out by NaN: "skip"`},
		{"no name", func(_ int, task *Task[points], o *Options) { task.Name, o.NaN = "", "off" }, `train: options: NaN is "off"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFitting(t)
			f.set = tt.set
			told, _ := f.run(t, 2)
			want := strings.ReplaceAll(tt.want, "RUN", f.out)
			if err := told[0]; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("told %v, want %q", err, want)
			}
		})
	}
}

// TestWordsForPrograms: a program has no flags, and what it leaves out is not
// shown as empty.
func TestWordsForPrograms(t *testing.T) {
	f := newFitting(t)
	f.run(t, 1)
	f.run(t, 1)
	if n := f.log.notices; len(n) != 1 || !strings.HasSuffix(n[0], "is complete at step 12: more Steps go on, another Out starts afresh") {
		t.Errorf("a run that is complete notices %q", n)
	}
	f.set = func(_ int, _ *Task[points], o *Options) { o.Epochs, o.Steps, o.Config = 1, 0, []byte("epochs = 1\n") }
	f.run(t, 1)
	if n := f.log.notices; len(n) != 1 || !strings.HasSuffix(n[0], "more epochs (--epochs) go on, another directory (--out) starts afresh") {
		t.Errorf("a recipe's run that is complete notices %q", n)
	}
	// What was saved with another batch says so.
	f.batch, f.set = 48, func(_ int, _ *Task[points], o *Options) { o.Steps = 13 }
	f.run(t, 1)
	if n := f.log.notices; len(n) != 1 || !strings.Contains(n[0], "a step takes 48 samples from here on, 24 before") {
		t.Errorf("a run with another batch notices %q", n)
	}

	var b bytes.Buffer
	NewConsole(&b, false, "cohort").Start(Start{DType: "float32", NumParams: 10, Ranks: 1, Threads: 1, Transport: "none"})
	if want := "model   10 parameters\nranks   1 of 1 thread, transport none\n"; b.String() != want {
		t.Errorf("a task that says nothing about itself begins with\n%swant\n%s", b.String(), want)
	}
}

// TestOnlyEvaluationWithoutMetric: the weights are saved all the same.
func TestOnlyEvaluationWithoutMetric(t *testing.T) {
	f := newFitting(t)
	f.set = func(_ int, task *Task[points], o *Options) {
		o.EvalEvery = 0
		task.Evaluate = func(context.Context, any) (Metrics, error) { return nil, nil }
	}
	if _, err := f.run(t, 2); err != nil {
		t.Fatal(err)
	}
	if n := f.log.notices; len(n) != 1 || !strings.Contains(n[0], "returned no metric") {
		t.Errorf("notices %q", n)
	}
	if s, err := FindRun(t.Context(), "fit", storage.Dir(f.out), func(string) {}); err != nil || s == nil || s.Progress.Step != 12 {
		t.Errorf("saved is %+v: %v", s, err)
	}
}

// TestNoReporter: nil reports nothing.
func TestNoReporter(t *testing.T) {
	f := newFitting(t)
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		task, o := f.task(g, dataParallel(g))
		o.Steps = 2
		return Run(ctx, g, task, o, nil)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestEarlyEndNamesItsStep: with MinDelta, patience counts from the last
// evaluation that was better by it, which need not be the best.
func TestEarlyEndNamesItsStep(t *testing.T) {
	f := newFitting(t)
	f.set = func(rank int, task *Task[points], o *Options) {
		metricsOf(map[int]float64{3: 10, 6: 5, 9: 4.9, 12: 4.8}, false)(rank, task, o)
		o.Steps, o.Patience, o.MinDelta = 30, 2, 1
	}
	if _, err := f.run(t, 1); err != nil {
		t.Fatal(err)
	}
	want := "step 12 of 30 is the last: 2 evaluations were not better by more than 1 than that of step 6, score 5"
	if n := f.log.notices; len(n) != 1 || n[0] != want {
		t.Errorf("notices %q, want %q", n, want)
	}
}
