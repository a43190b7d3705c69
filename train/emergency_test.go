// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// hybrid spreads the tests' task over 2 replicas of shards.
func hybrid(_ int, task *Task[points], _ *Options) {
	task.Strategy = func(ctx context.Context, model any, axes Axes) (parallel.Strategy, error) {
		m, err := mesh.New(ctx, axes.World, mesh.Axis{Name: "replicate", Size: 2}, mesh.Axis{Name: "fsdp"})
		if err != nil {
			return nil, err
		}
		return parallel.FullyShard(ctx, model, m)
	}
}

func replicated(int, *Task[points], *Options) {}

// lost makes a rank one that saves nothing alone, as if it were dead.
func lost(f *fitting, o *Options) {
	o.SaveTo = storage.Dir(f.out, storage.WithHook(func(op storage.Op, do func() error) error {
		if strings.Contains(op.Path, ".tmp-emergency") {
			return errors.New("this rank is dead")
		}
		return do()
	}))
}

// failAt has the loss of a rank fail in the pass of a step.
func failAt(task *Task[points], step int, cause error) {
	loss, calls := task.Loss, 0
	task.Loss = func(c *nn.Ctx, model any, p points) *tensor.Tensor {
		if calls++; calls == step {
			c.Fail(cause)
		}
		return loss(c, model, p)
	}
}

// TestEmergency: a run of which a rank fails in the middle of step 8 goes on after step 7, with the
// bits of a run that was not disturbed, if the ranks that are left hold everything. Otherwise it
// goes on from the last checkpoint, and says what is missing.
func TestEmergency(t *testing.T) {
	torn := errors.New("the file torn.jpeg is cut off")
	for _, c := range []struct {
		name     string
		strategy func(int, *Task[points], *Options)
		ranks    int
		lost     []int
		from     int
	}{
		{"ddp", replicated, 2, nil, 7},
		{"ddp without a rank", replicated, 3, []int{0}, 7},
		{"fsdp", sharded, 2, nil, 7},
		{"fsdp without a rank", sharded, 2, []int{1}, 5},
		{"hsdp without a rank of each half", hybrid, 4, []int{0, 3}, 7},
		{"hsdp without both copies", hybrid, 4, []int{0, 2}, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			undisturbed, f := newFitting(t), newFitting(t)
			undisturbed.set = c.strategy
			if _, err := undisturbed.run(t, c.ranks); err != nil {
				t.Fatal(err)
			}
			f.quiet = true
			f.set = func(rank int, task *Task[points], o *Options) {
				c.strategy(rank, task, o)
				if rank == c.ranks-1 {
					failAt(task, 8, torn)
				}
				if slices.Contains(c.lost, rank) {
					lost(f, o)
				}
			}
			told, _ := f.run(t, c.ranks)
			for rank, err := range told {
				want := fmt.Sprintf("rank %d saved its part of the state after step 7 in %s", rank, f.out)
				if slices.Contains(c.lost, rank) {
					want = fmt.Sprintf("rank %d could not save the state after step 7: checkpoint: saving step 7 in %s: ", rank, f.out)
				}
				if err == nil || !strings.Contains(err.Error(), torn.Error()) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("rank %d is told %v, want %q", rank, err, want)
				}
			}
			f.set = c.strategy
			if _, err := f.run(t, c.ranks); err != nil {
				t.Fatal(err)
			}
			said := "step-00000007 was completed from the parts that ranks had written alone"
			if c.from == 5 {
				said = "passing over parts that ranks have written alone: "
			}
			if f.log.start.FirstStep != c.from || !strings.Contains(strings.Join(f.log.notices, "\n"), said) {
				t.Errorf("goes on from %d, want %d, and says %q", f.log.start.FirstStep, c.from, f.log.notices)
			}
			for step := c.from + 1; step <= 12; step++ {
				if got, want := f.log.losses[step], undisturbed.log.losses[step]; got != want {
					t.Errorf("step %d has the loss %v, want %v", step, got, want)
				}
			}
			sameState(t, f.out, undisturbed.out)
			if got := stepsIn(t, storage.Dir(f.out)); slices.Contains(got, 7) != (c.from == 7) {
				t.Errorf("checkpoints of %v", got)
			}
		})
	}
}

// TestEmergencyElsewhere: the state is saved too if a run fails outside of a step, and in a panic.
// Running statistics, which the passes of a step change, are those of before the step. An evaluation
// that was not done is done first by the run that goes on.
func TestEmergencyElsewhere(t *testing.T) {
	torn := errors.New("the disk is gone")
	evaluations := func(_ int, task *Task[points], _ *Options) {
		b := &nn.Build{Generator: tensor.NewGenerator(3)}
		task.Model = nn.NewSequential(nn.NewLinear(b, 1, 4), nn.NewBatchNorm1d(b, 4, nn.BatchNormOptions{}), nn.NewLinear(b, 4, 1))
		m := task.Model
		task.Evaluate = func(context.Context, any) (Metrics, error) {
			return Metrics{{Name: "mean", Value: float64(nn.Buffers(m)[0].Data.Float32s()[0])}}, nil
		}
	}
	for name, c := range map[string]struct {
		set  func(task *Task[points])
		from int
	}{
		"evaluation": {func(task *Task[points]) {
			evaluate, calls := task.Evaluate, 0
			task.Evaluate = func(ctx context.Context, model any) (Metrics, error) {
				if calls++; calls == 3 {
					return nil, torn
				}
				return evaluate(ctx, model)
			}
		}, 9},
		"after the forward pass": {func(task *Task[points]) {
			loss, calls := task.Loss, 0
			task.Loss = func(c *nn.Ctx, model any, p points) *tensor.Tensor {
				l := loss(c, model, p)
				if calls++; calls == 9 {
					c.Fail(torn)
				}
				return l
			}
		}, 8},
		"panic": {func(task *Task[points]) {
			feed := task.Feed
			task.Feed = func(ctx context.Context, from data.LoaderState) (Feed[points], error) {
				f, err := feed(ctx, from)
				return &panicking{f, 8}, err
			}
		}, 8},
	} {
		t.Run(name, func(t *testing.T) {
			undisturbed, f := newFitting(t), newFitting(t)
			undisturbed.set = evaluations
			if _, err := undisturbed.run(t, 1); err != nil {
				t.Fatal(err)
			}
			f.set = func(rank int, task *Task[points], o *Options) {
				evaluations(rank, task, o)
				c.set(task)
			}
			if name == "panic" {
				f.runPanicking(t)
			} else if _, err := f.run(t, 1); err == nil {
				t.Fatal("no error")
			}
			f.set = evaluations
			if _, err := f.run(t, 1); err != nil {
				t.Fatal(err)
			}
			if f.log.start.FirstStep != c.from {
				t.Errorf("goes on from %d, want %d, and says %q", f.log.start.FirstStep, c.from, f.log.notices)
			}
			for step := c.from + 1; step <= 12; step++ {
				if got, want := f.log.losses[step], undisturbed.log.losses[step]; got != want {
					t.Errorf("step %d has the loss %v, want %v", step, got, want)
				}
			}
			for step := 9; step <= 12; step += 3 {
				if got, want := f.log.evaluations[step], undisturbed.log.evaluations[step]; got != want {
					t.Errorf("step %d is %v, want %v", step, got, want)
				}
			}
			sameState(t, f.out, undisturbed.out)
		})
	}
}

// runPanicking trains on one rank, outside of Run, whose panics end the process.
func (f *fitting) runPanicking(t *testing.T) {
	t.Helper()
	err := dist.Spawn(t.Context(), 1, func(ctx context.Context, g *dist.Group) (err error) {
		defer func() {
			if v := recover(); v != "out of luck" {
				err = fmt.Errorf("panicked with %v", v)
			}
		}()
		task, o := f.task(g, Axes{})
		return (&trainer[points]{task: task, o: o, report: Discard}).run(ctx, g)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// panicking is a feed that panics after so many batches.
type panicking struct {
	Feed[points]
	left int
}

func (p *panicking) Next(ctx context.Context) (points, error) {
	if p.left--; p.left < 0 {
		panic("out of luck")
	}
	return p.Feed.Next(ctx)
}

// sameState compares the tensors of the newest checkpoints of two runs.
func sameState(t *testing.T, a, b string) {
	t.Helper()
	for _, section := range []string{checkpoint.Model, checkpoint.Optimizer} {
		if sectionOf(t, a, section) != sectionOf(t, b, section) {
			t.Errorf("%s of %s and of %s differ", section, a, b)
		}
	}
}

// TestEmergencyAfterAStop: a rank hangs in step 8 when the run is asked to stop. The ranks give the
// step up after the deadline, and the run goes on after step 7.
func TestEmergencyAfterAStop(t *testing.T) {
	f := newFitting(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	deadline := loaded.Allow(500 * time.Millisecond)
	f.set = func(rank int, task *Task[points], o *Options) {
		sharded(rank, task, o)
		o.SaveDeadline = deadline
		feed, left := task.Feed, 100
		if rank == 1 {
			left = 7
		}
		task.Feed = func(ctx context.Context, from data.LoaderState) (Feed[points], error) {
			f, err := feed(ctx, from)
			return &hanging{f, left, stop}, err
		}
	}
	var errs [2]error
	_ = dist.Spawn(t.Context(), 2, func(_ context.Context, g *dist.Group) error {
		task, o := f.task(g, Axes{})
		errs[g.Rank()] = Run(ctx, g, task, o, Discard)
		return nil
	})
	for rank, err := range errs {
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("rank %d saved its part of the state after step 7", rank)) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	if !errors.Is(errs[1], errTooLong) {
		t.Errorf("the rank that hangs: %v", errs[1])
	}
	f.set = sharded
	if _, err := f.run(t, 2); err != nil || f.log.start.FirstStep != 7 {
		t.Errorf("goes on from %d: %v", f.log.start.FirstStep, err)
	}
}

// hanging is a feed that hangs after so many batches, and says so.
type hanging struct {
	Feed[points]
	left int
	told func()
}

func (h *hanging) Next(ctx context.Context) (points, error) {
	if h.left--; h.left < 0 {
		h.told()
		<-ctx.Done()
		return points{}, context.Cause(ctx)
	}
	return h.Feed.Next(ctx)
}
