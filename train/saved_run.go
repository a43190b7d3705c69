// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/nn"
)

// bestDir is where in a run's directory the best weights are.
const bestDir = "best"

// BestDir returns the directory of a run's best weights: a directory with one
// checkpoint, of the step with the best evaluation, without the optimizer's
// state.
func BestDir(out string) string { return filepath.Join(out, bestDir) }

// SavedRun is a checkpoint of a run, opened to resume it.
type SavedRun struct {
	Checkpoint *checkpoint.Checkpoint
	Progress   checkpoint.Progress

	task     string
	loader   data.LoaderState
	standing standing
}

// FindRun opens the newest good checkpoint in a run's directory; nil if there is
// none, for a run that has not begun. It calls notice for each newer one that is
// damaged and was passed over; where all are damaged, the error tells. task is
// for errors.
func FindRun(ctx context.Context, task, out string, notice func(text string)) (*SavedRun, error) {
	if again := replayOf(ctx); again != nil {
		out = again.path
	}
	ck, err := latest(ctx, out, notice)
	if errors.Is(err, checkpoint.ErrNone) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; move the directory away, or give another --out", trainOf(task), err)
	}
	s := &SavedRun{Checkpoint: ck, task: task}
	if s.Progress, err = ck.ReadProgress(); err != nil {
		return nil, fmt.Errorf("%s: resume: %w", trainOf(task), err)
	}
	if was := s.Progress.Task; was != "" && was != task {
		return nil, fmt.Errorf("%s: %s is of a train %s; give another --out", trainOf(task), ck.Path, was)
	}
	if err := json.Unmarshal(s.Progress.Loader, &s.loader); err != nil {
		return nil, fmt.Errorf("%s: resume: the loader's state in %s: %w; give another --out", trainOf(task), ck.Path, err)
	}
	if s.Progress.Trainer != nil {
		if err := json.Unmarshal(s.Progress.Trainer, &s.standing); err != nil {
			return nil, fmt.Errorf("%s: resume: the evaluations in %s: %w; give another --out", trainOf(task), ck.Path, err)
		}
	}
	return s, nil
}

// adoptRun opens the newest checkpoint of a recipe's run, nil if there is none, and
// has adopt take the settings that it was saved with. was has what a checkpoint means
// that does not say it.
func adoptRun[C any](ctx context.Context, task, out, data, initFrom string, settings *config.Settings, report Reporter,
	was C, adopt func(was C, settings *config.Settings, path string) error) (*SavedRun, error) {
	if err := checkApart(task, out, data, initFrom); err != nil {
		return nil, err
	}
	s, err := FindRun(ctx, task, out, report.Notice)
	if s == nil || err != nil {
		return nil, err
	}
	if err := s.Recipe(&was); err != nil {
		return nil, err
	}
	return s, adopt(was, settings, s.Checkpoint.Path)
}

// isOf says whether a run was saved with these samples.
func (s *SavedRun) isOf(samples interface{ Fingerprint() string }) bool {
	return strings.Contains(s.loader.Order, samples.Fingerprint())
}

// Recipe puts the run's settings, which were [Options].Recipe, into v.
func (s *SavedRun) Recipe(v any) error {
	if err := json.Unmarshal(s.Progress.Recipe, v); err != nil {
		return fmt.Errorf("%s: resume: the recipe in %s: %w; give another --out", trainOf(s.task), s.Checkpoint.Path, err)
	}
	return nil
}

// latest returns the newest good checkpoint in a directory and tells of damaged
// ones that it passed over. Where all are damaged, the error tells.
func latest(ctx context.Context, dir string, notice func(text string)) (*checkpoint.Checkpoint, error) {
	ck, damaged, err := checkpoint.Latest(ctx, storage.Dir(dir))
	if err == nil {
		for _, d := range damaged {
			notice("passing over a damaged checkpoint: " + d.Error())
		}
	}
	return ck, err
}

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
	ck, err := latest(ctx, BestDir(r.o.Out), r.report.Notice)
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

// load puts the saved weights and optimizer state into the run.
func (r *trainer[B]) load(s *SavedRun) error {
	if err := s.Checkpoint.LoadParts(r.weightsSection(), r.weightParts()); err != nil {
		return r.errorf("resume: %w", err)
	}
	if err := s.Checkpoint.LoadParts(checkpoint.Optimizer, r.optimizerParts()); err != nil {
		return r.errorf("resume: %w", err)
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

// save writes a checkpoint: all ranks together where they hold shards, else rank 0 alone, and
// the others go on meanwhile.
func (r *trainer[B]) save(ctx context.Context) error {
	if err := r.sound(ctx); err != nil {
		return err
	}
	if err := r.order.sync(); err != nil {
		return r.errorf("%w", err)
	}
	if err := r.saveTo(ctx, r.o.Out, checkpoint.KeepLast(r.o.Keep), checkpoint.Optimizer); err != nil {
		return err
	}
	if r.axes.World.Rank() == 0 {
		r.report.Saved(Saved{Step: r.step, Path: checkpoint.Path(r.o.Out, r.step)})
	}
	return nil
}

// saveBest puts the weights of this step in the place of those that were the
// best so far.
func (r *trainer[B]) saveBest(ctx context.Context) error {
	return r.saveTo(ctx, BestDir(r.o.Out), checkpoint.Retention{Only: true})
}

// saveTo writes the weights, and further sections, into a directory.
func (r *trainer[B]) saveTo(ctx context.Context, dir string, keep checkpoint.Retention, further ...string) error {
	savers := r.axes.World
	if !r.sharded {
		if savers.Rank() != 0 {
			return nil
		}
		savers = nil
	}
	if err := checkpoint.Save(ctx, savers, storage.Dir(dir), r.step, r.state(further), checkpoint.WithRetention(keep)); err != nil {
		return r.errorf("%w", err)
	}
	return nil
}

// state returns what is saved of the weights and of further sections. An error of rank 0 is one
// of the save, so that no rank waits for another.
func (r *trainer[B]) state(further []string) checkpoint.State {
	s := checkpoint.State{Sections: map[string][]checkpoint.Part{r.weightsSection(): r.weightParts()}}
	for _, section := range further {
		s.Sections[section] = r.optimizerParts()
	}
	if r.axes.World.Rank() != 0 {
		return s
	}
	progress, err := r.progress()
	s.Values = map[string]any{checkpoint.ProgressValue: progress}
	s.Files = func(w *checkpoint.Writer) error {
		if err != nil || r.task.Files == nil {
			return err
		}
		return r.task.Files(w)
	}
	return s
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
