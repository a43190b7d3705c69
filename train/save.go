// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
)

// weights returns the tensors that are saved of the model.
func (r *trainer[B]) weights() nn.NamedTensors {
	if r.task.Weights != nil {
		return r.task.Weights()
	}
	return r.model.StateDict()
}

// weightsSection returns the section of the weights, by which their file is called.
func (r *trainer[B]) weightsSection() string {
	return strings.TrimSuffix(cmp.Or(r.task.WeightsFile, checkpoint.ModelFile), ".safetensors")
}

// keptBest takes over how good the weights in Out/best are, which may be of a
// step that the run lost with a crash, or not be there: what is said of the best
// is said of what is kept. Only rank 0, which keeps it, has to know: the
// others hear of it with the next evaluation.
func (r *trainer[B]) keptBest(ctx context.Context) {
	if !r.o.Best || r.axes.World.Rank() != 0 {
		return
	}
	var kept standing
	ck, err := findNewest(ctx, r.bestPlace(), false, r.report.Notice)
	if err == nil {
		var progress checkpoint.Progress
		if progress, err = ck.ReadProgress(); err == nil {
			err = json.Unmarshal(progress.Trainer, &kept)
		}
	}
	if err != nil && !errors.Is(err, checkpoint.ErrNone) {
		r.report.Notice(fmt.Sprintf("the best weights cannot be used, the next evaluation takes their place: %v", err))
		kept = standing{}
	}
	r.standing.Step, r.standing.Value, r.standing.Metric, r.standing.Unit = kept.Step, kept.Value, kept.Metric, kept.Unit
}

// bestPlace is where the weights of the best evaluation are.
func (r *trainer[B]) bestPlace() storage.Storage { return storage.Under(r.o.SaveTo, bestDir) }

// load puts the saved weights and optimizer state into the run. If a rank finds damage that
// showed in no manifest, all ranks go back to the checkpoint before.
func (r *trainer[B]) load(ctx context.Context, s *SavedRun) error {
	state := checkpoint.State{Sections: map[string][]checkpoint.Part{r.weightsSection(): r.weightParts(), checkpoint.Optimizer: r.optimizerParts()}}
	step, err := checkpoint.Load(ctx, r.axes.World, s.from, state, checkpoint.WithNotice(r.report.Notice))
	if err != nil {
		return r.errorf("resume: %w", err)
	}
	if step != s.Checkpoint.Step {
		ck, err := checkpoint.Open(ctx, s.from, checkpoint.StepName(step))
		if err != nil {
			return r.errorf("resume: %w", err)
		}
		older, err := openRun(r.task.Name, s.from, ck)
		if err != nil {
			return err
		}
		*s = *older
	}
	r.step, r.standing = s.Progress.Step, s.standing
	if p := r.plateau; p != nil && s.standing.Plateau != nil {
		if err := p.SetState(*s.standing.Plateau); err != nil {
			return r.errorf("resume: %w", err)
		}
	}
	r.opt.SetNumSteps(s.Progress.Step)
	return nil
}

// save writes a checkpoint: every rank what it holds.
func (r *trainer[B]) save(ctx context.Context) error {
	if err := r.sound(ctx); err != nil {
		return err
	}
	if err := r.order.sync(); err != nil {
		return r.errorf("%w", err)
	}
	state, err := r.state(ctx)
	if err != nil {
		return err
	}
	state.Sections[checkpoint.Optimizer] = r.optimizerParts()
	keep := checkpoint.Retention{Last: r.o.Keep, Every: r.o.KeepEvery, Best: r.o.KeepBest}
	if err := r.saveIn(ctx, r.o.SaveTo, state, keep); err != nil {
		return err
	}
	r.report.Saved(Saved{Step: r.step, Path: storage.At(r.o.SaveTo, checkpoint.StepName(r.step))})
	return nil
}

// saveBest puts the weights of this step in the place of those that were the
// best so far.
func (r *trainer[B]) saveBest(ctx context.Context) error {
	state, err := r.state(ctx)
	if err != nil {
		return err
	}
	return r.saveIn(ctx, r.bestPlace(), state, checkpoint.Retention{Only: true})
}

func (r *trainer[B]) saveIn(ctx context.Context, to storage.Storage, state checkpoint.State, keep checkpoint.Retention) error {
	together := checkpoint.WithTogether()
	if r.task.WeightsFile != "" { // a file of that name is what its readers ask for
		together = checkpoint.WithTogether(r.weightsSection())
	}
	if err := checkpoint.Save(ctx, r.axes.World, to, r.step, state, checkpoint.WithRetention(keep), together); err != nil {
		return r.errorf("%w", err)
	}
	return nil
}

// state returns what this rank saves, without the optimizer. The buffers, such as running
// statistics, become rank 0's.
func (r *trainer[B]) state(ctx context.Context) (checkpoint.State, error) {
	if r.hasBuffers {
		if err := r.model.SyncBuffers(ctx); err != nil {
			return checkpoint.State{}, r.errorf("save step %d: %w", r.step, err)
		}
	}
	progress, err := r.progress()
	if err != nil {
		return checkpoint.State{}, err
	}
	weights, err := r.gathered(ctx, r.weightParts())
	if err != nil {
		return checkpoint.State{}, r.errorf("save step %d: %w", r.step, err)
	}
	s := checkpoint.State{
		Sections: map[string][]checkpoint.Part{r.weightsSection(): weights},
		Values:   map[string]any{checkpoint.ProgressValue: progress}, Files: r.task.Files,
	}
	if groups := optim.ParamGroups(r.opt); groups != nil { // for PyTorch, which goes on with them
		s.Values["param_groups"] = groups
	}
	if m := r.evaluated; m != nil && m.step == r.step && isFinite(m.Value) {
		s.Metric = &checkpoint.Metric{Name: m.Name, Value: m.Value, Lower: !m.Higher}
	}
	return s, nil
}

// gathered makes the weights whole if they go into a file of their own name, which other
// programs open: an adapter, which is small.
func (r *trainer[B]) gathered(ctx context.Context, parts []checkpoint.Part) ([]checkpoint.Part, error) {
	if r.task.WeightsFile == "" || slices.ContainsFunc(parts, func(p checkpoint.Part) bool { return p.Away }) {
		return parts, nil
	}
	whole := slices.Clone(parts)
	for i, p := range parts {
		if p.Mesh == nil || !isShard(p.Layout) {
			continue
		}
		t, err := p.Tensor.Full(ctx)
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", p.Name, err)
		}
		whole[i].Tensor = mesh.Tensor{Local: t}
	}
	return whole, nil
}

func (r *trainer[B]) progress() (checkpoint.Progress, error) {
	state := r.feed.State()
	loader, err := json.Marshal(state)
	if err != nil {
		return checkpoint.Progress{}, r.errorf("save the loader's state: %w", err)
	}
	if p := r.plateau; p != nil {
		plateau := p.State()
		r.standing.Plateau = &plateau
	}
	standing, err := json.Marshal(r.standing)
	if err != nil {
		return checkpoint.Progress{}, r.errorf("save the evaluations: %w", err)
	}
	infos, err := checkpoint.DescribeParts(r.weightParts())
	if err != nil {
		return checkpoint.Progress{}, r.errorf("save: %w", err)
	}
	p := checkpoint.Progress{
		Task: r.task.Name, Step: r.step, Seed: r.o.Seed, Fingerprint: checkpoint.Fingerprint(infos), Loader: loader, Trainer: standing, Recipe: r.o.Recipe,
	}
	if r.task.Samples > 0 {
		p.Epoch = int(state.Position / int64(r.task.Samples))
	}
	return p, nil
}
