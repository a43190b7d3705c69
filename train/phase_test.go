// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestStopInTheFirstStep: a wish to stop that comes while the first step is done, however
// long it takes, ends Run on all ranks, which leaves nothing behind.
func TestStopInTheFirstStep(t *testing.T) {
	f := newFitting(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	release := make(chan struct{})
	ended := make(chan struct{}, 2)
	there := make(chan struct{}) // rank 1 is in the step, too
	var stopped time.Time
	f.set = func(rank int, task *Task[points], o *Options) {
		loss := task.Loss
		task.Loss = func(c *nn.Ctx, model any, b points) *tensor.Tensor {
			defer func() { ended <- struct{}{} }()
			if rank == 0 {
				<-there
				stopped = time.Now()
				cancel()
			} else {
				close(there)
			}
			<-release
			return loss(c, model, b)
		}
	}
	f.log = newLog()
	err := dist.Spawn(ctx, 2, func(ctx context.Context, g *dist.Group) error {
		task, o := f.task(g, dataParallel(g))
		return Run(ctx, g, task, o, f.log)
	})
	if took := time.Since(stopped); !errors.Is(err, ErrStopped) || took > loaded.Allow(2*time.Second) || !strings.Contains(err.Error(), "before the first step, doing the first step") {
		t.Errorf("after %v: %v", took, err)
	}
	close(release)
	<-ended
	<-ended
	if steps, err := checkpoint.Steps(t.Context(), storage.Dir(f.out)); err != nil || len(steps) > 0 {
		t.Errorf("checkpoints of %v, %v", steps, err)
	}
	if text := strings.Join(f.log.notices, "\n"); !strings.Contains(text, "there is nothing to save") {
		t.Errorf("it says %q", text)
	}
}

// TestStopInAnEvaluation: a wish to stop that comes while a recipe evaluates cuts that
// short on all ranks. The step is saved, and what goes on from there evaluates it first: the
// run is as if it had not been stopped, also in its last step.
func TestStopInAnEvaluation(t *testing.T) {
	recipes := map[string]func(out string) func(ctx context.Context, l *log) error{
		"lm": func(out string) func(ctx context.Context, l *log) error {
			c := tiny(t, writeText(t, 40_000))
			c.Out = out
			return func(ctx context.Context, l *log) error {
				return dist.Spawn(ctx, 2, func(ctx context.Context, g *dist.Group) error { return LM(ctx, g, c, nil, l) })
			}
		},
		"vision": func(out string) func(ctx context.Context, l *log) error {
			c := smallVision(t)
			c.EvalEvery, c.Out = 6, out
			return func(ctx context.Context, l *log) error { return trainVision(ctx, c, nil, 2, l) }
		},
		"rec": func(out string) func(ctx context.Context, l *log) error {
			c := smallRec(t)
			c.EvalEvery, c.Out = 6, out
			return func(ctx context.Context, l *log) error { return trainRec(ctx, c, nil, 2, l) }
		},
	}
	for name, recipe := range recipes {
		whole := newLog()
		if err := recipe(filepath.Join(t.TempDir(), "whole"))(t.Context(), whole); err != nil {
			t.Fatal(err)
		}
		steps, total := slices.Sorted(maps.Keys(whole.evaluations)), 0
		for step := range whole.losses {
			total = max(total, step)
		}
		if steps[0] != 6 || steps[len(steps)-1] != total {
			t.Fatalf("%s evaluates steps %v of %d", name, steps, total)
		}
		run, parts := recipe(filepath.Join(t.TempDir(), "parts")), newLog()
		for _, at := range []int{6, total} {
			ctx, cancel := context.WithCancel(t.Context())
			l := newLog()
			l.onStep = func(step int) {
				if step == at { // it is evaluated next
					cancel()
				}
			}
			err := run(ctx, l)
			cancel()
			_, evaluated := l.evaluations[at]
			if !errors.Is(err, ErrStopped) || evaluated || l.finish != nil || len(l.saved) == 0 || l.saved[len(l.saved)-1] != at {
				t.Errorf("%s: %v, evaluated %v, saved %v", name, err, l.evaluations, l.saved)
			}
			if text := strings.Join(l.notices, "\n"); !strings.Contains(text, fmt.Sprintf("step %d: the evaluation was cut short, to stop", at)) {
				t.Errorf("%s says %q", name, text)
			}
			maps.Copy(parts.evaluations, l.evaluations)
		}
		last := newLog()
		if err := run(t.Context(), last); err != nil || last.finish == nil {
			t.Errorf("%s: the last evaluation: %v", name, err)
		}
		if maps.Copy(parts.evaluations, last.evaluations); !maps.Equal(parts.evaluations, whole.evaluations) {
			t.Errorf("%s has the evaluations %v in parts, %v as a whole", name, parts.evaluations, whole.evaluations)
		}
	}
}

// TestNonsense: numbers that cannot be meant are refused before anything starts, with
// what would do.
func TestNonsense(t *testing.T) {
	small := writeText(t, 20_000)
	rec := func(change func(c *RecConfig), given ...string) func() error {
		return func() error {
			c := smallRec(t)
			c.Rows = 1000
			change(&c)
			_, err := CheckRec(t.Context(), c, flags(given))
			return err
		}
	}
	vision := func(change func(c *VisionConfig), given ...string) func() error {
		return func() error {
			c := smallVision(t)
			change(&c)
			_, err := CheckVision(t.Context(), c, flags(given))
			return err
		}
	}
	lm := func(change func(c *LMConfig), given ...string) func() error {
		return func() error {
			c := tiny(t, small)
			change(&c)
			_, err := CheckLM(t.Context(), c, flags(given))
			return err
		}
	}
	for want, check := range map[string]func() error{
		"a step takes 8000 images (2 × 4000 = 8000), and there are 1442 to train on: give a --batch of at most 721": vision(func(c *VisionConfig) { c.Batch = 4000 }, "batch"),
		"a step takes 19200 images (2 × 32 × 300 passes = 19200)":                                                   vision(func(c *VisionConfig) { c.Accumulate = 300 }, "accumulate", "batch"),
		"give at most --accumulate 721, with --batch":                                                               vision(func(c *VisionConfig) { c.Accumulate = 3000 }, "accumulate"),
		"the share of a weight":             vision(func(c *VisionConfig) { c.WeightDecay = 1e4 }, "weight-decay"),
		"without --eval-every there is one": vision(func(c *VisionConfig) { c.Patience, c.EvalEvery = 2, 0 }, "patience"),
		"(weights, gradients, optimizer)":   vision(func(c *VisionConfig) { c.Widths = []string{"65000", "65000", "65000", "65000"} }, "widths"),
		"and there are 899 to train on":     rec(func(c *RecConfig) { c.Batch = 1000 }, "batch"),
		"--buckets is about a file":         rec(func(c *RecConfig) { c.Buckets = 7 }, "buckets"),
		"--rows is about the generated":     rec(func(c *RecConfig) { c.Data = "x.csv" }, "rows", "data"),
		"evaluation, at the end":            rec(func(c *RecConfig) { c.Patience, c.EvalEvery = 2, 0 }, "patience"),
		"a step takes 200000 sequences of 16 tokens (2 × 100000 = 200000), and there are": lm(func(c *LMConfig) { c.Batch = 100_000 }, "batch"),
		"--lr 0.007 × --weight-decay 1000":                                                lm(func(c *LMConfig) { c.WeightDecay = 1000 }, "weight-decay"),
		"train lm: out of memory: the state of a model of":                                lm(func(c *LMConfig) { c.Width, c.Heads, c.Layers = 100_000, 1, 100 }, "width"),
	} {
		if err := check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	// What nobody gave is made to fit.
	c := smallRec(t)
	c.Data, c.Batch = writeClicks(t, 300), DefaultRec().Batch
	text, err := CheckRec(t.Context(), c, flags([]string{"data"}))
	if err != nil || !strings.Contains(string(text), "# the data") || strings.Contains(string(text), "batch = 512") {
		t.Errorf("%v\n%s", err, text)
	}
	if err := trainRec(t.Context(), c, flags([]string{"data"}), 2, newLog()); err != nil {
		t.Error(err)
	}
}
