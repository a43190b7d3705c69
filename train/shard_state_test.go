// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// shardAll shards a task's model over all ranks.
func shardAll(task *Task[points]) {
	task.Strategy = func(ctx context.Context, model any, axes Axes) (parallel.Strategy, error) {
		m, err := mesh.New(ctx, axes.World, mesh.Axis{Name: axisFSDP})
		if err != nil {
			return nil, err
		}
		return parallel.FullyShard(ctx, model, m)
	}
}

// TestShardedRun: a task whose strategy shards has the losses, the checkpoints, the best
// weights and the evaluations of one with replicas, and goes on on other numbers of ranks.
func TestShardedRun(t *testing.T) {
	scores := metricsOf(map[int]float64{3: 0.5, 6: 0.9, 9: 0.7, 12: 0.8}, true)
	set := func(steps int, shard bool) func(rank int, task *Task[points], o *Options) {
		return func(rank int, task *Task[points], o *Options) {
			scores(rank, task, o)
			o.Steps, o.SaveEvery, o.Best = steps, 4, true
			if shard {
				shardAll(task)
			}
		}
	}
	ddp, sharded := newFitting(t), newFitting(t)
	ddp.set, sharded.set = set(12, false), set(12, true)
	for _, f := range []*fitting{ddp, sharded} {
		if _, err := f.run(t, 3); err != nil {
			t.Fatal(err)
		}
	}
	if len(ddp.log.losses) != 12 || !maps.Equal(sharded.log.losses, ddp.log.losses) {
		t.Errorf("losses %v, of replicas %v", sharded.log.losses, ddp.log.losses)
	}
	for _, dir := range []func(f *fitting) string{
		func(f *fitting) string { return checkpoint.Path(f.out, 8) }, func(f *fitting) string { return checkpoint.Path(f.out, 12) },
		func(f *fitting) string { return checkpoint.Path(BestDir(f.out), 6) },
	} {
		if a, b := sectionOf(t, dir(sharded), checkpoint.Model), sectionOf(t, dir(ddp), checkpoint.Model); a != b {
			t.Errorf("%s: the weights are not those of replicas", dir(sharded))
		}
	}
	if a, b := sectionOf(t, checkpoint.Path(sharded.out, 12), checkpoint.Optimizer), sectionOf(t, checkpoint.Path(ddp.out, 12), checkpoint.Optimizer); a != b {
		t.Error("the optimizer's state is not that of replicas")
	}
	// 25 parameters of 4 bytes, as much of gradients, twice as much of moments, 4 counts.
	if want := "of 0.4 kB of parameters"; !strings.Contains(sharded.log.start.Sharding, want) || sharded.log.start.NumParams != 25 || ddp.log.start.Sharding != "" {
		t.Errorf("begins with %+v", sharded.log.start)
	}
	// Other numbers of ranks, other strategies, one after the other.
	for i, c := range []struct {
		ranks int
		shard bool
	}{{2, true}, {1, false}, {4, true}, {2, false}} {
		for _, f := range []*fitting{ddp, sharded} {
			f.set = set(16+4*i, c.shard && f == sharded)
			if _, err := f.run(t, c.ranks); err != nil {
				t.Fatalf("%+v: %v", c, err)
			}
		}
		if len(ddp.log.losses) != 4 || !maps.Equal(sharded.log.losses, ddp.log.losses) {
			t.Errorf("%+v: losses %v, of replicas %v", c, sharded.log.losses, ddp.log.losses)
		}
	}
}

// TestShardedFaults: what a rank cannot save or load ends all ranks, with its words.
func TestShardedFaults(t *testing.T) {
	torn := errors.New("the disk is full")
	f := newFitting(t)
	f.set = func(_ int, task *Task[points], o *Options) {
		shardAll(task)
		task.Files = func(*checkpoint.Writer) error { return torn }
	}
	told, _ := f.run(t, 3)
	for rank, err := range told {
		if err == nil || !strings.Contains(err.Error(), torn.Error()) {
			t.Errorf("rank %d is told %v", rank, err)
		}
	}
	f = newFitting(t)
	f.set = func(_ int, task *Task[points], _ *Options) { shardAll(task) }
	if _, err := f.run(t, 2); err != nil {
		t.Fatal(err)
	}
	f.set = func(_ int, task *Task[points], o *Options) {
		b := &nn.Build{Generator: tensor.NewGenerator(3)}
		task.Model, o.Steps = &line{nn.NewLinear(b, 1, 9), nn.NewLinear(b, 9, 1)}, 20
		shardAll(task)
	}
	told, _ = f.run(t, 2)
	for rank, err := range told {
		if err == nil || !strings.Contains(err.Error(), "misshapen  in.weight: the file has [8 1] F32, the model [9 1] F32") {
			t.Errorf("rank %d is told %v", rank, err)
		}
	}
	f.set = func(_ int, task *Task[points], o *Options) {
		shardAll(task)
		task.Optimizer = func([]*nn.Parameter) optim.Optimizer { return nil }
		o.Steps = 20
	}
	if told, _ = f.run(t, 2); told[1] == nil || !strings.Contains(told[1].Error(), "Task.Optimizer returned nil") {
		t.Errorf("without an optimizer: %v", told[1])
	}
}

// TestShardedBest: where the best weights are of a step that the run lost, all ranks know
// that its evaluation is no better the second time. The others would give rank 0 the
// weights that it does not keep, which it takes for what it saves next.
func TestShardedBest(t *testing.T) {
	scores := metricsOf(map[int]float64{3: 0.5, 6: 0.9, 9: 0.7, 12: 0.8}, true)
	f := newFitting(t)
	f.set = func(rank int, task *Task[points], o *Options) {
		scores(rank, task, o)
		o.Steps, o.SaveEvery, o.Best, o.Keep = 12, 4, true, 9
		shardAll(task)
	}
	if _, err := f.run(t, 3); err != nil {
		t.Fatal(err)
	}
	saved := func(section string) string { return sectionOf(t, checkpoint.Path(f.out, 8), section) }
	weights, state := saved(checkpoint.Model), saved(checkpoint.Optimizer)
	for _, step := range []int{8, 12} {
		if err := os.RemoveAll(checkpoint.Path(f.out, step)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.run(t, 3); err != nil {
		t.Fatal(err)
	}
	if saved(checkpoint.Model) != weights || saved(checkpoint.Optimizer) != state {
		t.Error("the run that went on from step 4 saved something else in step 8")
	}
}

// TestTurns: ranks with other numbers of batches run as many passes of a sharded model, and
// all give up at the same one.
func TestTurns(t *testing.T) {
	batches := []int{0, 2, 5}
	for _, stopAt := range []int{0, 3} { // of rank 2; 0 for never
		passes := make([]int, len(batches))
		cut := make([]bool, len(batches))
		err := dist.Spawn(t.Context(), len(batches), func(ctx context.Context, g *dist.Group) error {
			stop, end := context.WithCancel(ctx)
			defer end()
			together := turns{g, true}
			ctx = context.WithValue(ctx, phasesKey{}, &phases{report: Discard, stop: stop})
			for n := 0; ; n++ {
				if stopAt > 0 && n == stopAt && g.Rank() == 2 {
					end()
				}
				pass, err := together.next(ctx, n < batches[g.Rank()])
				if cut[g.Rank()] = errors.Is(err, errCut); !pass {
					if !cut[g.Rank()] {
						return err
					}
					return nil
				}
				passes[g.Rank()]++
			}
		})
		want, wantCut := []int{5, 5, 5}, []bool{false, false, false}
		if stopAt > 0 {
			want, wantCut = []int{3, 3, 3}, []bool{true, true, true}
		}
		if err != nil || !slices.Equal(passes, want) || !slices.Equal(cut, wantCut) {
			t.Errorf("stop at %d: passes %v, cut %v, %v", stopAt, passes, cut, err)
		}
	}
	for _, more := range []bool{false, true} {
		if pass, err := (turns{}).next(t.Context(), more); pass != more || err != nil {
			t.Error(fmt.Sprint(more), pass, err)
		}
	}
}
