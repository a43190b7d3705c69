// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/config"
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
	from     storage.Storage // of the run
	loader   data.LoaderState
	standing standing
}

// FindRun opens the newest good checkpoint of a run; nil if there is none, for a run that has
// not begun. It calls notice for each newer one that is damaged and was passed over; where all
// are damaged, the error tells. Of the tensors it reads nothing: their bytes are compared when
// they are loaded. task is for errors.
func FindRun(ctx context.Context, task string, from storage.Storage, notice func(text string)) (*SavedRun, error) {
	return findRun(ctx, nil, task, from, notice)
}

// findRun is FindRun on all ranks of a group, which take what rank 0 finds. Rank 0 sets aside
// what it passes over. Without a group nothing is changed.
func findRun(ctx context.Context, group *dist.Group, task string, from storage.Storage, notice func(text string)) (*SavedRun, error) {
	if again := replayOf(ctx); again != nil {
		return openRun(task, again.ck.Storage(), again.ck)
	}
	ck, err := findTogether(ctx, group, from, notice)
	if errors.Is(err, checkpoint.ErrNone) {
		return nil, nil
	}
	if lags := (*laggingError)(nil); errors.As(err, &lags) {
		return nil, fmt.Errorf("%s: %w", trainOf(task), err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; move the directory away, or give another --out", trainOf(task), err)
	}
	return openRun(task, from, ck)
}

// openRun reads where a run was.
func openRun(task string, from storage.Storage, ck *checkpoint.Checkpoint) (s *SavedRun, err error) {
	s = &SavedRun{Checkpoint: ck, task: task, from: from}
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

// findTogether opens the same checkpoint on all ranks: what rank 0 finds is the newest good one.
func findTogether(ctx context.Context, group *dist.Group, from storage.Storage, notice func(text string)) (*checkpoint.Checkpoint, error) {
	if group == nil || group.Size() == 1 {
		return findNewest(ctx, from, group != nil, notice)
	}
	var found struct {
		Name, Err string
		None      bool
		Step      int
	}
	var ck *checkpoint.Checkpoint
	var err error
	if group.Rank() == 0 {
		if ck, err = findNewest(ctx, from, true, notice); err != nil {
			found.Err, found.None = err.Error(), errors.Is(err, checkpoint.ErrNone)
		} else {
			found.Name, found.Step = ck.Name, ck.Step
		}
	}
	found, told := dist.BroadcastObject(ctx, group, found, 0)
	switch {
	case err != nil:
		return nil, err
	case told != nil:
		return nil, told
	case found.None:
		return nil, fmt.Errorf("rank 0: %s: %w", found.Err, checkpoint.ErrNone)
	case found.Err != "":
		return nil, fmt.Errorf("rank 0: %s", found.Err)
	case group.Rank() == 0:
		return ck, nil
	}
	ck, err = checkpoint.Open(ctx, from, found.Name)
	if errors.Is(err, checkpoint.ErrNone) {
		return nil, &laggingError{group.Rank(), found.Step, from}
	}
	return ck, err
}

// laggingError says that a rank does not see the checkpoint that rank 0 has found. A file system
// that lags behind has it the next time.
type laggingError struct {
	rank, step int
	from       storage.Storage
}

func (e *laggingError) Error() string {
	return fmt.Sprintf("rank %d found no checkpoint, rank 0 that of step %d (%v): the ranks of all hosts must see the same directory, on a file system that they share", e.rank, e.step, e.from)
}

// findNewest opens the newest checkpoint whose manifest and small files are good. It tells of
// those that it passes over and, where one is good and it may, sets them aside.
func findNewest(ctx context.Context, from storage.Storage, setAside bool, notice func(text string)) (*checkpoint.Checkpoint, error) {
	if setAside && replayOf(ctx) == nil {
		checkpoint.CompleteNewest(ctx, from, notice)
	}
	steps, err := checkpoint.Steps(ctx, from)
	if err != nil {
		return nil, err
	}
	if len(steps) == 0 { // unless it is the folder of one checkpoint
		return checkpoint.Open(ctx, from, "")
	}
	var damaged []*checkpoint.DamagedError
	var names []string
	for _, step := range steps {
		name := checkpoint.StepName(step)
		ck, err := checkpoint.Open(ctx, from, name)
		if err == nil {
			err = checkSmallFiles(ck)
		}
		d := (*checkpoint.DamagedError)(nil)
		switch {
		case errors.As(err, &d):
			damaged, names = append(damaged, d), append(names, name)
			continue
		case errors.Is(err, checkpoint.ErrNone): // a save is under way, or a prune
			continue
		case err != nil:
			return nil, err
		}
		for i, d := range damaged {
			text := "passing over a damaged checkpoint: " + d.Error()
			if setAside {
				if err := from.SetAside(ctx, names[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return nil, fmt.Errorf("%w (and it cannot be set aside: %w)", d, err)
				}
			}
			notice(text)
		}
		return ck, nil
	}
	switch len(damaged) {
	case 0:
		return nil, fmt.Errorf("in %s: %w", from, checkpoint.ErrNone)
	case 1:
		return nil, fmt.Errorf("%w (there is no other one in %s: restore it from a copy, or begin in another directory)", damaged[0], from)
	}
	return nil, fmt.Errorf("%w (and so are the other %d in %s: restore one from a copy, or begin in another directory)", damaged[0], len(damaged)-1, from)
}

// checkSmallFiles compares the files of a checkpoint that have no tensors with their checksums.
func checkSmallFiles(ck *checkpoint.Checkpoint) error {
	for _, f := range ck.Files {
		if !strings.HasSuffix(f.Name, ".safetensors") && f.Bytes <= maxCompanion {
			if _, err := ck.ReadFile(f.Name, maxCompanion); err != nil {
				return err
			}
		}
	}
	return nil
}

// adoptRun opens the newest checkpoint of a recipe's run, nil if there is none, and
// has adopt take the settings that it was saved with. was has what a checkpoint means
// that does not say it.
func adoptRun[C any](ctx context.Context, group *dist.Group, task string, c SharedConfig, data, initFrom string, settings *config.Settings, report Reporter,
	was C, adopt func(was C, settings *config.Settings, path string) error) (*SavedRun, error) {
	if err := checkApart(task, c.Out, data, initFrom); err != nil {
		return nil, err
	}
	s, err := findRun(ctx, group, task, c.place(), report.Notice)
	if s == nil || err != nil {
		return nil, err
	}
	if err := s.Recipe(&was); err != nil {
		return nil, err
	}
	return s, adopt(was, settings, s.Checkpoint.Path)
}

// tokenizer reads the tokenizer of a language model.
func (s *SavedRun) tokenizer(ctx context.Context) (*tokenizer.Tokenizer, error) {
	dir, done, err := placeOf(s.Checkpoint).local(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return readTokenizer(dir)
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

// latest returns the newest good checkpoint of a storage and tells of damaged
// ones that it passed over. Where all are damaged, the error tells. In a directory every byte
// was compared; elsewhere, where that would be to transfer all twice, only small files were, and the
// others are when they are read.
func latest(ctx context.Context, from storage.Storage, notice func(text string)) (*checkpoint.Checkpoint, error) {
	if _, ok := from.(*storage.Directory); !ok {
		switch has, err := hasFile(ctx, from, checkpoint.ManifestName); {
		case err != nil:
			return nil, err
		case has: // one checkpoint's own folder, which a web server has too
			return checkpoint.Open(ctx, from, "")
		}
		return findNewest(ctx, from, false, notice)
	}
	ck, damaged, err := checkpoint.Latest(ctx, from)
	if err == nil {
		for _, d := range damaged {
			notice("passing over a damaged checkpoint: " + d.Error())
		}
	}
	return ck, err
}
