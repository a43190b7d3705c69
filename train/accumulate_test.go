// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestAccumulate: the passes of a step give what one pass over all of their
// sequences gives, on one rank and on two.
func TestAccumulate(t *testing.T) {
	c := tiny(t, writeText(t, 40_000))
	c.Steps, c.SaveEvery, c.EvalEvery, c.Batch, c.LR = 16, 16, 8, 16, 1e-3
	whole, err := run(t, 1, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range []struct{ ranks, batch, passes int }{{1, 4, 4}, {2, 4, 2}, {2, 1, 8}} {
		cfg := c
		cfg.Out += fmt.Sprint(way)
		cfg.Batch, cfg.Accumulate = way.batch, way.passes
		l, err := run(t, way.ranks, cfg)
		if err != nil {
			t.Fatal(err)
		}
		worst := 0.0
		for step, want := range whole.losses {
			worst = max(worst, math.Abs(l.losses[step]-want)/want)
		}
		for step, want := range whole.evaluations {
			worst = max(worst, math.Abs(l.evaluations[step]-want)/want)
		}
		if !(worst < 1e-5) || len(l.losses) != c.Steps || len(l.evaluations) != 2 {
			t.Errorf("%+v: losses differ by %.1e from those of one pass", way, worst)
		}
		t.Logf("%+v: largest relative difference of a loss: %.1e", way, worst)
	}
}

// TestResumeAccumulated: a run goes on exactly, and with the same sequences a
// step in another number of passes.
func TestResumeAccumulated(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	c.Batch, c.Accumulate, c.Keep = 2, 3, 10
	whole, err := run(t, 2, c)
	if err != nil {
		t.Fatal(err)
	}
	again := func(numRanks int, cfg LMConfig, explicit ...string) *log {
		t.Helper()
		if err := os.RemoveAll(checkpoint.Path(c.Out, 12)); err != nil {
			t.Fatal(err)
		}
		l, err := run(t, numRanks, cfg, explicit...)
		if err != nil {
			t.Fatal(err)
		}
		if len(l.losses) != 2 {
			t.Fatalf("losses %v", l.losses)
		}
		return l
	}
	same := again(2, c)
	rest := maps.Clone(whole.losses)
	maps.DeleteFunc(rest, func(step int, _ float64) bool { return step <= 10 })
	if !maps.Equal(same.losses, rest) {
		t.Errorf("losses %v after a resume, %v without", same.losses, rest)
	}
	passes, batch := c, c
	passes.Accumulate = 1 // the batch becomes 6
	batch.Batch = 1       // the passes become 6
	for what, l := range map[string]*log{"one rank": again(1, c), "passes": again(2, passes, "accumulate"), "batch": again(2, batch, "batch")} {
		for step, want := range rest {
			if got := l.losses[step]; !(math.Abs(got-want)/want < 1e-5) {
				t.Errorf("%s, step %d: loss %v, want %v", what, step, got, want)
			}
		}
	}
	c.Batch, c.Accumulate = 5, 2
	_, err = run(t, 2, c, "batch", "accumulate")
	for _, part := range []string{"ranks × sequences: 2 × 5 × 2 passes = 20 a step, the checkpoint's run has ", " = 12 (set --batch)"} {
		if !strings.Contains(fmt.Sprint(err), part) {
			t.Errorf("no %q in %v", part, err)
		}
	}
}

// gauge reads how much memory a pass holds between forward and backward.
type gauge struct{ bytes int64 }

func (g *gauge) InterceptCall(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	if _, ok := module.(*models.GPT); ok {
		tape := c.Tape()
		tape.BeforeBackward(func(context.Context) error { g.bytes = tape.LiveBytes(); return nil })
	}
	return next(c, x)
}

func (*gauge) InterceptParam(c *nn.Ctx, _ *nn.Parameter, next func(*nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}

// TestRecompute: recomputation changes no bit of a run, and holds less memory.
func TestRecompute(t *testing.T) {
	text := writeText(t, 20_000)
	for _, dtype := range []string{"float32", "bfloat16"} {
		c := tiny(t, text)
		c.Layers, c.DType = 4, dtype
		measured := func(c LMConfig) (*log, int64) {
			t.Helper()
			l, g := newLog(), &gauge{}
			if _, _, err := runAround(t, c, []nn.Interceptor{g, nil}, l); err != nil {
				t.Fatal(err)
			}
			return l, g.bytes
		}
		plain, held := measured(c)
		weights := modelFile(t, c.Out, c.Steps)
		c.Recompute = true
		c.Out += "-recompute"
		l, less := measured(c)
		if !maps.Equal(l.losses, plain.losses) || !maps.Equal(l.evaluations, plain.evaluations) || modelFile(t, c.Out, c.Steps) != weights {
			t.Errorf("%s: losses\n%v, without recomputation\n%v", dtype, l.losses, plain.losses)
		}
		if less <= 0 || less > held/2 {
			t.Errorf("%s: %d bytes are held, without recomputation %d", dtype, less, held)
		}
		t.Logf("%s: %d KiB held before the backward pass, without recomputation %d", dtype, less>>10, held>>10)
		saved, err := FindRun(t.Context(), "lm", storage.Dir(c.Out), func(text string) { t.Log(text) })
		if err != nil {
			t.Fatal(err)
		}
		if recipe, err := savedRecipe(saved); err != nil || !recipe.Recompute || recipe.NaN != nanStop || !recipe.Best {
			t.Errorf("the recipe that was saved is %+v, error %v", recipe, err)
		}
	}
}
