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
	"sync"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/event"
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
	outer := r.savedOuter(s.Checkpoint)
	if outer != nil {
		state.Sections[outerSection] = outer
	}
	hook := r.savedHook(s.Checkpoint)
	if hook != nil {
		state.Sections[hookSection] = hook
	}
	step, err := s.Checkpoint.Step, error(nil)
	if replayOf(ctx) != nil { // this one, whatever lies beside it
		for name, parts := range state.Sections {
			err = errors.Join(err, s.Checkpoint.LoadParts(name, parts))
		}
	} else {
		step, err = checkpoint.Load(ctx, r.axes.World, s.from, state, checkpoint.WithNotice(r.report.Notice))
		if other := (*checkpoint.DamagedError)(nil); err != nil && (hook != nil || outer != nil) && !errors.As(err, &other) && ctx.Err() == nil {
			// The checkpoint is damaged, and the one before it may be of another hook, or of no island.
			delete(state.Sections, hookSection)
			delete(state.Sections, outerSection)
			if older, without := checkpoint.Load(ctx, r.axes.World, s.from, state, checkpoint.WithNotice(r.report.Notice)); without == nil {
				step, err = older, nil
				if hook != nil {
					r.tellHookAnew(step, "is older than the one that was to be loaded, and of another hook")
				}
				if outer != nil {
					r.tellOuterAnew(step, "is older than the one that was to be loaded, and has not what these islands keep")
				}
				hook, outer = nil, nil
			}
		}
	}
	if err != nil {
		return r.errorf("resume: %w", err)
	}
	if outer != nil {
		r.islands.Resumed()
	}
	if hook != nil {
		if err := r.resumeHook(); err != nil {
			return err
		}
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
	if e := r.task.Elsewhere; e != nil {
		if err := e.Restore(ctx); err != nil {
			return r.errorf("resume: %w", err)
		}
	}
	r.step, r.standing = s.Progress.Step, s.standing
	if p := r.plateau; p != nil && s.standing.Plateau != nil {
		if err := p.SetState(*s.standing.Plateau); err != nil {
			return r.errorf("resume: %w", err)
		}
	}
	r.opt.SetNumSteps(s.Progress.Step)
	r.saves.there = r.step
	return nil
}

// saves writes the checkpoints of a run, and those of its best weights.
type saves struct {
	last, best *checkpoint.Saver
	err        error // that a save has ended with, to be told to all ranks

	mu        sync.Mutex
	committed []int // steps whose checkpoints are there, to be reported
	there     int   // the newest of all steps that have a checkpoint; 0 for none
}

// openSaves makes the savers, together on all ranks.
func (r *trainer[B]) openSaves(ctx context.Context) (err error) {
	var together []string
	if r.task.WeightsFile != "" { // a file of that name is what its readers ask for
		together = []string{r.weightsSection()}
	}
	async := !r.o.SaveSync
	if async {
		if async, err = r.canCopy(ctx); err != nil {
			return err
		}
	}
	o := checkpoint.SaverOptions{
		Async: async, BytesPerSecond: r.o.SaveLimit, Together: together,
		Keep: checkpoint.Retention{Last: r.o.Keep, Every: r.o.KeepEvery, Best: r.o.KeepBest}, Committed: r.saves.note,
	}
	if r.saves.last, err = checkpoint.NewSaver(ctx, r.axes.World, r.o.SaveTo, o); err != nil {
		return r.errorf("%w", err)
	}
	o.Keep, o.Committed = checkpoint.Retention{Only: true}, nil
	if r.saves.best, err = checkpoint.NewSaver(ctx, r.axes.World, r.bestPlace(), o); err != nil {
		return r.errorf("%w", err)
	}
	return nil
}

// note is told that a checkpoint is there.
func (s *saves) note(step int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.committed = append(s.committed, step)
	s.there = max(s.there, step)
}

// newest returns the step of the newest checkpoint that this rank knows of.
func (s *saves) newest() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.there
}

// failed reports whether a save before has ended with an error, as far as this rank knows.
func (s *saves) failed() bool {
	if s.err == nil {
		s.err = errors.Join(s.last.Err(), s.best.Err())
	}
	return s.err != nil
}

// wait waits until all saves are over, and returns the error of one that has failed.
func (s *saves) wait(ctx context.Context) error {
	err := errors.Join(s.err, s.last.Wait(ctx), s.best.Wait(ctx))
	s.err = nil
	return err
}

// tellSaved reports the checkpoints that have come to be since the last call.
func (r *trainer[B]) tellSaved() {
	r.saves.mu.Lock()
	steps := r.saves.committed
	r.saves.committed = nil
	r.saves.mu.Unlock()
	for _, step := range steps {
		r.axes.World.Events().Emit(event.Event{Kind: event.Checkpoint, Text: checkpoint.StepName(step)})
		r.report.Saved(Saved{Step: step, Path: storage.At(r.o.SaveTo, checkpoint.StepName(step))})
	}
}

// endSaves waits until all that was saved is there.
func (r *trainer[B]) endSaves(ctx context.Context) error {
	err := r.saves.wait(ctx)
	r.tellSaved()
	if err != nil {
		return r.errorf("%w", err)
	}
	return nil
}

// failedSave ends the run after a step in which a rank told that a save had failed. All ranks
// come here after the same step.
func (r *trainer[B]) failedSave(ctx context.Context) error {
	r.emergency.failed = true
	if err := r.endSaves(ctx); err != nil {
		return err
	}
	return r.errorf("step %d: a save has failed on another rank", r.step)
}

// closePatience is how long a run that ends with an error waits for a save that is under way.
const closePatience = 15 * time.Second

// closeSaves ends the savers. After an error, a save that is under way has some time: the other
// ranks may be well.
func (r *trainer[B]) closeSaves(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
	defer cancel()
	for _, s := range []*checkpoint.Saver{r.saves.last, r.saves.best} {
		if s != nil {
			if err := s.Close(ctx); err != nil {
				r.report.Notice(err.Error())
			}
		}
	}
	r.tellSaved()
}

// save begins a checkpoint: every rank writes what it holds, beside the next steps unless the
// options say otherwise.
func (r *trainer[B]) save(ctx context.Context) error {
	r.emergency.saving.Store(true)
	defer r.emergency.saving.Store(false)
	if err := r.sound(ctx); err != nil {
		return err
	}
	if err := r.settleIslands(ctx); err != nil {
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
	if parts := r.outerParts(); parts != nil {
		state.Sections[outerSection] = parts
	}
	if parts := r.hookParts(); parts != nil {
		state.Sections[hookSection] = parts
	}
	if _, err := r.saves.last.Save(ctx, r.step, state); err != nil {
		return r.errorf("%w", err)
	}
	r.tellSaved()
	return nil
}

// saveBest puts the weights of this step in the place of those that were the
// best so far.
func (r *trainer[B]) saveBest(ctx context.Context) error {
	state, err := r.state(ctx)
	if err != nil {
		return err
	}
	if _, err := r.saves.best.Save(ctx, r.step, state); err != nil {
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
	s, err := r.held(r.feed.State())
	if err != nil {
		return s, err
	}
	if e := r.task.Elsewhere; e != nil {
		if err := e.Fetch(ctx); err != nil {
			return s, r.errorf("save step %d: %w", r.step, err)
		}
	}
	section := r.weightsSection()
	if s.Sections[section], err = r.gathered(ctx, s.Sections[section]); err != nil {
		return s, r.errorf("save step %d: %w", r.step, err)
	}
	return s, nil
}

// held returns what this rank holds, without the optimizer, and where the run is if its feed is
// at loader.
func (r *trainer[B]) held(loader data.LoaderState) (checkpoint.State, error) {
	progress, err := r.progress(loader)
	if err != nil {
		return checkpoint.State{}, err
	}
	s := checkpoint.State{
		Sections: map[string][]checkpoint.Part{r.weightsSection(): r.weightParts()},
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

func (r *trainer[B]) progress(state data.LoaderState) (checkpoint.Progress, error) {
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
