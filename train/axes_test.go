// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/parallel"
)

// TestAxes: four ranks, two of which take each sample, do what two ranks do, to the
// bit: the same losses, random numbers, counts, weights and order of samples.
func TestAxes(t *testing.T) {
	two, four := newFitting(t), newFitting(t)
	sizes := [2]map[int]int{{}, {}}
	two.onStep = func(s Step) { sizes[0][s.Step] = s.Size }
	four.onStep = func(s Step) { sizes[1][s.Step] = s.Size }
	if _, err := two.run(t, 2); err != nil {
		t.Fatal(err)
	}
	four.set = func(_ int, task *Task[points], _ *Options) {
		task.Strategy = func(ctx context.Context, model any, axes Axes) (parallel.Strategy, error) {
			if axes.World.Size() != 4 || axes.Data.Size() != 2 {
				return nil, errors.New("other axes than the task's")
			}
			return parallel.NewDDP(ctx, model, axes.Data)
		}
	}
	four.axes = func(ctx context.Context, g *dist.Group) (Axes, error) {
		data, err := g.Split(ctx, g.Rank()%2, g.Rank())
		return Axes{World: g, Data: data}, err
	}
	if _, err := four.run(t, 4); err != nil {
		t.Fatal(err)
	}
	if len(two.log.losses) != 12 || !maps.Equal(four.log.losses, two.log.losses) {
		t.Errorf("losses %v, two ranks have %v", four.log.losses, two.log.losses)
	}
	if !maps.Equal(sizes[0], sizes[1]) {
		t.Errorf("points of a step %v, two ranks have %v", sizes[1], sizes[0])
	}
	if modelFile(t, four.out, 12) != modelFile(t, two.out, 12) {
		t.Error("the weights are not those of two ranks")
	}
	if s := four.log.start; s.Ranks != 4 || s.Strategy != "DDP over 2 ranks" {
		t.Errorf("the run says that it has %d ranks, %s", s.Ranks, s.Strategy)
	}
	report, err := data.CheckOrder(filepath.Join(four.out, data.OrderDir), data.CheckOptions{Steps: 12})
	if err != nil || report.Err() != nil {
		t.Errorf("%v, %v", err, report.Err())
	}
}

// TestBadAxes: a description of ranks that makes no sense is an error of every
// rank, before the first step.
func TestBadAxes(t *testing.T) {
	part := func(ctx context.Context, g *dist.Group, ranks ...int) (*dist.Group, error) {
		color := 0
		for _, r := range ranks {
			if g.Rank() == r {
				color = 1
			}
		}
		return g.Split(ctx, color, g.Rank())
	}
	for want, axes := range map[string]func(context.Context, *dist.Group) (Axes, error){
		"2 ranks take each sample (Task.Axes): set Task.Strategy": func(ctx context.Context, g *dist.Group) (Axes, error) {
			data, err := part(ctx, g, 0, 1)
			return Axes{World: g, Data: data}, err
		},
		"which does not divide the 4 of the world": func(ctx context.Context, g *dist.Group) (Axes, error) {
			data, err := part(ctx, g, 0)
			if g.Rank() == 0 {
				return Axes{World: g}, err
			}
			return Axes{World: g, Data: data}, err
		},
		"wants World, which is the group that Run is given": func(_ context.Context, g *dist.Group) (Axes, error) {
			return Axes{Data: g}, nil
		},
	} {
		f := newFitting(t)
		f.axes = axes
		told, err := f.run(t, 4)
		if err == nil {
			t.Errorf("no error, want %q", want)
		}
		if told[3] == nil || !strings.Contains(told[3].Error(), want) {
			t.Errorf("%v, want %q", told[3], want)
		}
	}
}

// TestOneRankIsNotWrapped: one rank trains the model as it is, and a task's own
// strategy is what is trained by.
func TestOneRankIsNotWrapped(t *testing.T) {
	f := newFitting(t)
	if _, err := f.run(t, 1); err != nil {
		t.Fatal(err)
	}
	if got := f.log.start.Strategy; got != "one rank" {
		t.Errorf("the strategy of one rank is %q", got)
	}
	ddp := newFitting(t)
	ddp.set = func(_ int, task *Task[points], _ *Options) {
		task.Strategy = func(ctx context.Context, model any, axes Axes) (parallel.Strategy, error) {
			return parallel.NewDDP(ctx, model, axes.Data)
		}
	}
	if _, err := ddp.run(t, 1); err != nil {
		t.Fatal(err)
	}
	if got := ddp.log.start.Strategy; got != "DDP over 1 rank" {
		t.Errorf("the strategy is %q", got)
	}
	if len(f.log.losses) != 12 || !maps.Equal(f.log.losses, ddp.log.losses) {
		t.Errorf("losses %v, with buckets %v", f.log.losses, ddp.log.losses)
	}
	if modelFile(t, f.out, 12) != modelFile(t, ddp.out, 12) {
		t.Error("the weights are not those of a DDP of one rank")
	}
}
