// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// Retention says which checkpoints stay when a new one is there. The zero Retention keeps all.
// A checkpoint stays if any of the fields wants it. Checkpoints of higher steps than the new
// one, as a run that was set back leaves them, always stay, unless Only is set.
type Retention struct {
	Last  int  // the newest ones, the new one among them; 0 keeps all
	Every int  // those of steps that are multiples of this; 0 for none
	Best  int  // those with the best values of the new one's metric
	Only  bool // the new one alone, also instead of one of the same step
}

// KeepLast keeps the newest n checkpoints; 0 keeps all.
func KeepLast(n int) Retention { return Retention{Last: n} }

// prune removes checkpoints, once that of step is durable. Damaged ones do not count among
// those that stay; they go when they are older than the oldest of Last.
func (keep Retention) prune(ctx context.Context, from storage.Storage, step int) error {
	remove, err := keep.leave(ctx, from, func(s int) bool { return s > step && !keep.Only }, step)
	if err != nil {
		return err
	}
	return removeSteps(ctx, from, remove)
}

// Plan returns the steps, newest first, that [Retention.Prune] would remove.
func (keep Retention) Plan(ctx context.Context, from storage.Storage) ([]int, error) {
	steps, err := Steps(ctx, from)
	if err != nil || len(steps) == 0 {
		return nil, err
	}
	return keep.leave(ctx, from, func(int) bool { return false }, steps[0])
}

// Prune removes checkpoints that nobody wants to stay, as a save of the newest one would.
func (keep Retention) Prune(ctx context.Context, from storage.Storage) error {
	release, _, err := from.Lock(ctx)
	if err != nil {
		return err
	}
	defer release()
	remove, err := keep.Plan(ctx, from)
	if err != nil {
		return err
	}
	return removeSteps(ctx, from, remove)
}

// leave returns the steps that go, but for those that are spared. newest is the one that was
// saved last.
func (keep Retention) leave(ctx context.Context, from storage.Storage, spared func(step int) bool, newest int) (remove []int, err error) {
	if keep.Last <= 0 && !keep.Only {
		return nil, nil
	}
	steps, err := Steps(ctx, from)
	if err != nil {
		return nil, err
	}
	steps = slices.DeleteFunc(steps, spared)
	stay := map[int]bool{newest: true}
	if !keep.Only {
		if stay, err = keep.choose(ctx, from, steps); err != nil {
			return nil, err
		}
	}
	for _, s := range steps {
		if !stay[s] {
			remove = append(remove, s)
		}
	}
	return remove, nil
}

func removeSteps(ctx context.Context, from storage.Storage, steps []int) error {
	for _, s := range steps {
		if err := removeStep(ctx, from, StepName(s)); err != nil {
			return fmt.Errorf("%s: %w", StepName(s), err)
		}
	}
	return nil
}

// stageLife is how long a stage in a bucket counts as one that is being written.
const stageLife = 24 * time.Hour

// removeStep removes a checkpoint. In a store without renames its folder may have stages of other
// savers, which nobody can lock: those that were written to not long ago stay.
func removeStep(ctx context.Context, from storage.Storage, name string) error {
	if !commitsInPlace(from) {
		return from.Remove(ctx, name)
	}
	own := ""
	switch c, err := openManifest(ctx, from, name); {
	case err == nil:
		own = c.manifest.Folder
	case errors.Is(err, ErrNone), errors.As(err, new(*DamagedError)), errors.As(err, new(*versionError)):
	default:
		return err
	}
	entries, err := from.List(ctx, name)
	if err != nil {
		return err
	}
	now, stays := time.Now(), map[string]bool{}
	for _, e := range entries {
		if !e.IsFolder || e.Name == own {
			continue
		}
		modified, err := lastWrite(ctx, from, name+"/"+e.Name)
		if err != nil {
			return err
		}
		stays[e.Name] = modified.IsZero() || now.Sub(modified) < stageLife
	}
	if !slices.Contains(slices.Collect(maps.Values(stays)), true) {
		return from.Remove(ctx, name)
	}
	if err := from.Remove(ctx, name+"/"+ManifestName); err != nil { // it stops being a checkpoint first
		return err
	}
	for _, e := range entries {
		if e.Name == ManifestName || stays[e.Name] {
			continue
		}
		if err := from.Remove(ctx, name+"/"+e.Name); err != nil {
			return err
		}
	}
	return nil
}

// remover returns what removes the files of the checkpoint that is there now, once another one has
// taken its place, where a commit leaves them.
func (v *save) remover(ctx context.Context) (func(context.Context) error, error) {
	none := func(context.Context) error { return nil }
	if !commitsInPlace(v.to) {
		return none, nil
	}
	c, err := openManifest(ctx, v.to, v.name())
	switch {
	case errors.Is(err, ErrNone):
		return none, nil
	case errors.As(err, new(*DamagedError)), errors.As(err, new(*versionError)):
		c = nil // which folder is its own is not known: it stays as a stage does
	case err != nil:
		return nil, err
	}
	return func(ctx context.Context) error {
		entries, err := v.to.List(ctx, v.name())
		for _, e := range entries {
			isOld := !e.IsFolder || c != nil && e.Name == c.manifest.Folder
			if e.Name != ManifestName && isOld {
				err = errors.Join(err, v.to.Remove(ctx, join(v.name(), e.Name)))
			}
		}
		return err
	}, nil
}

// lastWrite returns when a file of a folder was last written; zero if none has a time.
func lastWrite(ctx context.Context, from storage.Storage, folder string) (last time.Time, err error) {
	files, err := from.List(ctx, folder)
	for _, f := range files {
		if f.Modified.After(last) {
			last = f.Modified
		}
	}
	return last, err
}

// choose returns which of steps, newest first, stay.
func (keep Retention) choose(ctx context.Context, from storage.Storage, steps []int) (map[int]bool, error) {
	stay := map[int]bool{}
	type rated struct {
		step  int
		value float64
	}
	var best []rated
	var metric *Metric
	numKept := 0
	for i, s := range steps {
		if numKept >= keep.Last && keep.Best == 0 && (keep.Every == 0 || s%keep.Every != 0) {
			continue
		}
		// Whether the files are there with their sizes is enough to count; their bytes are
		// read when one is loaded.
		c, err := Open(ctx, from, StepName(s))
		var damaged *DamagedError
		switch {
		case errors.As(err, &damaged):
			stay[s] = numKept < keep.Last
			continue
		case errors.Is(err, ErrNone):
			stay[s] = true // not a checkpoint: a stage, or removed meanwhile
			continue
		case errors.As(err, new(*versionError)):
			stay[s] = true // of a newer program, which knows what it is good for
			numKept++
			continue
		case err != nil:
			return nil, err
		}
		stay[s] = numKept < keep.Last || keep.Every > 0 && s%keep.Every == 0
		numKept++
		if m := c.Manifest().Metric; m != nil {
			if i == 0 || metric == nil {
				metric = m
			}
			if m.Name == metric.Name && m.Lower == metric.Lower {
				best = append(best, rated{s, m.Value})
			}
		}
	}
	slices.SortStableFunc(best, func(a, b rated) int {
		switch {
		case a.value == b.value:
			return 0
		case (a.value < b.value) == metric.Lower:
			return -1
		}
		return 1
	})
	for _, r := range best[:min(keep.Best, len(best))] {
		stay[r.step] = true
	}
	return stay, nil
}
