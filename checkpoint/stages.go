// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// LeftStage is what a save that was killed has left in a storage, or a save that is under way
// still writes.
type LeftStage struct {
	Name     string // in the storage
	Step     int
	Bytes    int64
	Modified time.Time // of its newest file; zero if it has none and the storage does not know
}

// LeftStages returns the stages of saves in a storage, but for the parts that ranks have written
// alone ([SavePart]), which may become a checkpoint. A directory is cleaned by the next save. A bucket
// has no locks, so a save cannot know whether another one still writes, and leaves its stage.
func LeftStages(ctx context.Context, from storage.Storage) ([]LeftStage, error) {
	fail := func(err error) ([]LeftStage, error) { return nil, fmt.Errorf("checkpoint: %w", err) }
	entries, err := from.List(ctx, "")
	if err != nil {
		return fail(err)
	}
	var left []LeftStage
	add := func(step int, e storage.Entry, name string) error {
		l := LeftStage{Name: name, Step: step, Modified: e.Modified}
		files, err := from.List(ctx, name)
		if err != nil {
			return err
		}
		for _, f := range files {
			if l.Bytes += f.Size; f.Modified.After(l.Modified) {
				l.Modified = f.Modified
			}
		}
		left = append(left, l)
		return nil
	}
	inPlace := commitsInPlace(from)
	for _, e := range entries {
		step, isStep := ParseStep(e.Name)
		switch {
		case !e.IsFolder:
		case isStage(e.Name):
			base, _, _ := strings.Cut(e.Name, stageInfix)
			step, _ := ParseStep(base)
			if err := add(step, e, e.Name); err != nil {
				return fail(err)
			}
		case isStep && inPlace:
			inside, err := stagesInside(ctx, from, e.Name)
			if err != nil {
				return fail(err)
			}
			for _, s := range inside {
				if err := add(step, s, e.Name+"/"+s.Name); err != nil {
					return fail(err)
				}
			}
		}
	}
	return left, nil
}

// stagesInside returns the stages in the folder of a checkpoint, or of what might become one.
func stagesInside(ctx context.Context, from storage.Storage, name string) ([]storage.Entry, error) {
	files := ""
	switch c, err := openManifest(ctx, from, name); {
	case err == nil:
		files = c.manifest.Folder
	case errors.Is(err, ErrNone):
	case errors.As(err, new(*DamagedError)), errors.As(err, new(*versionError)):
		return nil, nil // which of the folders is its own is not known
	default:
		return nil, err
	}
	entries, err := from.List(ctx, name)
	if err != nil {
		return nil, err
	}
	var stages []storage.Entry
	for _, e := range entries {
		if e.IsFolder && e.Name != files && !isEmergency(e.Name) {
			stages = append(stages, e)
		}
	}
	return stages, nil
}

// RemoveStages removes the stages to which nothing was written since before, and returns what it has
// removed. Where the storage has locks, it is a [*storage.BusyError] if a save is under way. Elsewhere
// before must be long ago: a save whose stage is removed fails.
func RemoveStages(ctx context.Context, from storage.Storage, before time.Time) (removed []LeftStage, err error) {
	release, _, err := from.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	left, err := LeftStages(ctx, from)
	if err != nil {
		return nil, err
	}
	for _, l := range left {
		if !l.IsOlder(before) {
			continue
		}
		if err := from.Remove(ctx, l.Name); err != nil {
			return removed, fmt.Errorf("checkpoint: %s: %w", l.Name, err)
		}
		removed = append(removed, l)
	}
	return removed, nil
}

// IsOlder says whether nothing was written to the stage since before. Of a stage without a time it is
// false.
func (l LeftStage) IsOlder(before time.Time) bool {
	return !l.Modified.IsZero() && l.Modified.Before(before)
}
