// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// Kind says what something in a storage is.
type Kind string

const (
	Good     Kind = "good"      // a checkpoint, with all files and their sizes
	Damaged  Kind = "damaged"   // a checkpoint that cannot be loaded
	SetAside Kind = "set aside" // a damaged checkpoint that was given another name
	Stage    Kind = "stage"     // of a save that is under way, or was killed
	Parts    Kind = "parts"     // what ranks have written alone, see [SavePart]
)

// Listed is a checkpoint, or what may become one.
type Listed struct {
	Name     string // in the storage
	Step     int
	Kind     Kind
	Bytes    int64     // of its files, as far as they are known
	Modified time.Time // of the manifest of a checkpoint, else of the folder; zero if not known
	Manifest *Manifest // of a checkpoint, or of all parts together; nil if it cannot be read
	Err      error     // why it cannot be loaded; nil for Good, and for Parts that are whole
	Missing  []int     // ranks of which there is no part; of Stage and Parts
}

// List returns what is in a storage, of the newest step first: also what is incomplete or damaged,
// with what is missing. It reads manifests and no tensors.
func List(ctx context.Context, from storage.Storage) ([]Listed, error) {
	entries, err := from.List(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	found := findParted(ctx, from, entries)
	var list []Listed
	for _, p := range found {
		l := Listed{Name: p.stage, Step: p.step, Kind: Parts}
		l.readParts(ctx, from)
		list = append(list, l)
	}
	for _, e := range entries {
		base, suffix, _ := strings.Cut(e.Name, ".")
		step, ok := ParseStep(base)
		if !ok || !e.IsFolder {
			continue
		}
		l := Listed{Name: e.Name, Step: step, Modified: e.Modified}
		switch {
		case suffix == "":
			c, err := open(ctx, from, e.Name)
			l.Kind, l.Err = Good, err
			switch {
			case err == nil:
				l.Manifest, l.Modified = c.manifest, c.manifest.Time
				for _, f := range c.Files {
					l.Bytes += f.Bytes
				}
			case errors.Is(err, ErrNone):
				if slices.ContainsFunc(found, func(p parted) bool { return p.step == step }) {
					continue
				}
				l.Kind = Stage
			case errors.As(err, new(*DamagedError)), errors.As(err, new(*versionError)):
				l.Kind = Damaged
			default:
				return nil, err
			}
		case strings.HasPrefix(suffix, "damaged-"):
			l.Kind, l.Err = SetAside, errors.New("it was damaged, and set aside")
		case isStage(e.Name):
			l.Kind = Stage
			l.readParts(ctx, from)
		default:
			continue
		}
		list = append(list, l)
	}
	slices.SortStableFunc(list, func(a, b Listed) int { return cmp.Or(cmp.Compare(b.Step, a.Step), cmp.Compare(a.Name, b.Name)) })
	return list, nil
}

// readParts finds out what the parts in a stage have together.
func (l *Listed) readParts(ctx context.Context, from storage.Storage) {
	parts, err := readParts(ctx, from, l.Name)
	if err == nil {
		l.Manifest, err = joinParts(parts)
	}
	if err != nil {
		l.Err = err
		return
	}
	for _, f := range l.Manifest.Files {
		l.Bytes += f.Bytes
	}
	l.Modified = l.Manifest.Time
	for rank := range l.Manifest.Ranks {
		if !slices.ContainsFunc(parts, func(p *Manifest) bool { return p.rank == rank }) {
			l.Missing = append(l.Missing, rank)
		}
	}
	if l.Err = l.Manifest.complete(); l.Err == nil && l.Kind == Stage {
		l.Err = errors.New("it was not committed")
	}
}
