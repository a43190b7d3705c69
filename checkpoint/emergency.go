// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist/mesh"
)

// emergencyID is what names of stages begin with into which ranks write their parts alone. The
// rest depends on the step and on the attempt, so that parts of one state meet, and no others.
const emergencyID = "emergency"

// emergencyOf returns the id of the stage of an attempt.
func emergencyOf(attempt string) string {
	if attempt == "" {
		return emergencyID
	}
	return emergencyID + "-" + attempt
}

// isEmergency says whether an id is one that emergencyOf has made.
func isEmergency(id string) bool {
	attempt, ok := strings.CutPrefix(id, emergencyID)
	return ok && (attempt == "" || attempt[0] == '-' && isAttempt(attempt[1:]))
}

func isAttempt(name string) bool {
	return name != "" && len(name) <= 64 && !strings.ContainsFunc(name, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9')
	})
}

// A PartOption changes how a rank saves its part, see [SavePart].
type PartOption func(*partOptions)

type partOptions struct{ attempt string }

// WithAttempt names the attempt of the job, with at most 64 letters and digits: all ranks give the
// same name, and a job that is started again another one. Parts of different attempts are never
// put together: the states of two attempts may differ, although they are of the same step.
// Without it, all parts of a step are of one attempt.
func WithAttempt(name string) PartOption { return func(o *partOptions) { o.attempt = name } }

// SavePart writes all that this rank holds into a stage, without talking to anyone: for a rank
// that cannot reach the others any more. Several ranks may do so at the same time. A box that
// another rank has written already is left out. An earlier part of this rank is replaced. [List]
// says which ranks are missing. If the parts together are all tensors, [Complete] makes a
// checkpoint of them, and [Load] does so by itself. The next save of this step or a later one
// removes them.
//
// rank and size are those of the job. The error is a [*SaveError].
func SavePart(ctx context.Context, rank, size int, to storage.Storage, step int, s State, opts ...PartOption) error {
	var o partOptions
	for _, opt := range opts {
		opt(&o)
	}
	v := &save{saveOptions: saveOptionsOf(nil), crew: crew{rank: rank, size: size}, to: to, step: step, state: s, alone: true}
	err := s.check()
	switch {
	case err == nil && o.attempt != "" && !isAttempt(o.attempt):
		err = fmt.Errorf("%q is no name of an attempt: use 1 to 64 letters and digits", o.attempt)
	case err != nil:
	case step < 0:
		err = errors.New("a step cannot be negative")
	case rank < 0 || rank >= size || size > maxRanks:
		err = fmt.Errorf("there is no rank %d of %d", rank, size)
	case len(s.Sources) > 0:
		err = errors.New("a part has no sources")
	}
	if err != nil {
		return v.fail("begin", err)
	}
	v.stage, v.folder = to.Stage(v.name(), emergencyOf(o.attempt))
	others, err := readParts(ctx, to, v.stage)
	if err != nil {
		return v.fail("begin", err)
	}
	files, err := v.planPart(others)
	if err != nil {
		return v.fail("begin", err)
	}
	own, err := v.write(ctx, files)
	if err != nil {
		return v.fail("write", err)
	}
	return v.fail("remove", v.removeEarlier(ctx, others, own))
}

// removeEarlier removes files of an earlier part of this rank, whose place the new one has taken.
func (v *save) removeEarlier(ctx context.Context, parts []*Manifest, own *Manifest) error {
	for _, m := range parts {
		for _, f := range m.Files {
			isThere := func(now FileInfo) bool { return now.Name == f.Name }
			if m.rank != v.rank || !strings.HasSuffix(f.Name, ".safetensors") || slices.ContainsFunc(own.Files, isThere) {
				continue
			}
			if err := v.to.Remove(ctx, v.stage+"/"+f.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// planPart says what this rank writes beside the parts of others. What it has written in an
// earlier part it writes again, for others have left that out.
func (v *save) planPart(parts []*Manifest) ([]filePlan, error) {
	mine, theirs := map[string]bool{}, map[string]bool{}
	key := func(section, tensor string, start, shape []int) string {
		return fmt.Sprintf("%q %q %v %v", section, tensor, start, shape)
	}
	earlier := 0   // files of this rank, which stay until the new part is there
	again := false // whether it has written further files
	for _, m := range parts {
		if m.Step != v.step || m.Ranks != v.size {
			return nil, fmt.Errorf("%s has parts of step %d of %d ranks: remove them", v.stage, m.Step, m.Ranks)
		}
		has := theirs
		if m.rank == v.rank {
			has = mine
			for _, f := range m.Files {
				earlier = max(earlier, partFileNumber(f.Name))
				again = again || !strings.HasSuffix(f.Name, ".safetensors")
			}
		} else {
			v.there = append(v.there, m.Files...)
		}
		for _, s := range m.Sections {
			for _, t := range s.Tensors {
				for _, b := range t.Boxes {
					has[key(s.Name, t.Name, b.Start, b.Shape)] = true
				}
			}
		}
	}
	if again {
		v.there = nil
	}
	var files []filePlan
	for _, section := range v.state.sectionNames() {
		list, err := filesOf(section, false, v.state.Sections[section], nil, func(p Part, b mesh.Box) bool {
			k := key(section, p.Name, b.Start, b.Shape)
			return mine[k] || !theirs[k]
		})
		if err != nil {
			return nil, err
		}
		for i := range list {
			list[i].name = fmt.Sprintf("%s-rank-%05d-of-%05d-%d.safetensors", section, v.rank, v.size, earlier+i+1)
		}
		files = append(files, list...)
	}
	return files, nil
}

// partFileNumber returns the number at the end of the name of a file of a part, 0 for none.
func partFileNumber(name string) (n int) {
	stem, _ := strings.CutSuffix(name, ".safetensors")
	n, err := strconv.Atoi(stem[strings.LastIndexByte(stem, '-')+1:])
	if err != nil {
		return 0
	}
	return n
}

// readParts reads the parts of a manifest in a stage. A part that cannot be read is left out:
// its rank may be about to write it.
func readParts(ctx context.Context, from storage.Storage, stage string) ([]*Manifest, error) {
	entries, err := from.List(ctx, stage)
	if err != nil {
		return nil, err
	}
	var parts []*Manifest
	for _, e := range entries {
		rank, size, ok := parsePartName(e.Name)
		if !ok {
			continue
		}
		text, err := storage.ReadFile(ctx, from, stage+"/"+e.Name, maxManifestBytes)
		if err != nil {
			continue
		}
		if m, err := parsePart(text); err == nil && m.Version == manifestVersion && m.Ranks == size && rank < size {
			m.rank = rank
			parts = append(parts, m)
		}
	}
	return parts, nil
}

// parsePartName is the inverse of partName.
func parsePartName(name string) (rank, size int, ok bool) {
	_, err := fmt.Sscanf(name, "part-%d-of-%d.json", &rank, &size)
	return rank, size, err == nil && rank >= 0 && size <= maxRanks && partName(rank, size) == name
}

// joinParts puts the parts of ranks together. It does not say whether they are whole tensors.
func joinParts(parts []*Manifest) (*Manifest, error) {
	if len(parts) == 0 {
		return nil, errors.New("there are no parts of ranks that can be read")
	}
	all := *parts[0]
	m := &merger{into: &all}
	for _, p := range parts[1:] {
		if p.Step != all.Step || p.Ranks != all.Ranks {
			return nil, fmt.Errorf("rank %d has written step %d of %d ranks, and rank %d step %d of %d", p.rank, p.Step, p.Ranks, all.rank, all.Step, all.Ranks)
		}
		if all.Values == nil {
			all.Values = p.Values
		}
		if err := m.add(p); err != nil {
			return nil, fmt.Errorf("what rank %d has written: %w", p.rank, err)
		}
	}
	// Ranks that did not see each other have written the same further files.
	sortFiles(all.Files)
	all.Files = slices.CompactFunc(all.Files, func(a, b FileInfo) bool { return a.Name == b.Name && a.Bytes == b.Bytes && a.CRC == b.CRC })
	return &all, nil
}

// Complete makes a checkpoint of the parts that ranks have written alone into a stage, see
// [SavePart], and returns its name. [List] gives the stages. If the parts are not all tensors
// the error says which tensor is not whole, and nothing is changed.
func Complete(ctx context.Context, to storage.Storage, stage string) (name string, err error) {
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("checkpoint: completing %s: %w", storage.At(to, stage), err)
	}
	parts, err := readParts(ctx, to, stage)
	if err != nil {
		return fail(err)
	}
	all, err := joinParts(parts)
	if err == nil {
		err = all.complete()
	}
	if err != nil {
		return fail(err)
	}
	v := &save{saveOptions: saveOptionsOf(nil), crew: crew{size: 1}, to: to, step: all.Step, stage: stage}
	p, ok := partedOf(to, stage)
	if !ok || p.step != v.step {
		return fail(fmt.Errorf("it is no stage of parts of step %d", v.step))
	}
	v.folder, all.Folder = p.folder, p.folder
	release, _, err := to.Lock(ctx)
	if err != nil {
		return fail(err)
	}
	defer release()
	if v.damaged, err = v.isDamaged(ctx); err != nil {
		return fail(err)
	}
	if err := v.finish(ctx, all); err != nil {
		return fail(err)
	}
	for _, p := range parts { // which the manifest does not list any more
		to.Remove(ctx, join(join(v.name(), v.folder), partName(p.rank, p.Ranks)))
	}
	return v.name(), nil
}

// parted is a stage with parts that ranks have written alone.
type parted struct {
	step          int
	stage, folder string // see storage.Storage.Stage
	modified      time.Time
}

// partedOf says what a stage with parts is, by its name.
func partedOf(from storage.Storage, stage string) (p parted, ok bool) {
	base, id, ok := strings.Cut(stage, stageInfix)
	if commitsInPlace(from) {
		base, id, ok = strings.Cut(stage, "/")
	}
	step, isStep := ParseStep(base)
	if !ok || !isStep || !isEmergency(id) {
		return parted{}, false
	}
	p = parted{step: step}
	p.stage, p.folder = from.Stage(base, id)
	return p, p.stage == stage
}

// findParted returns the stages with parts, of the newest step and attempt first.
func findParted(ctx context.Context, from storage.Storage, entries []storage.Entry) []parted {
	var list []parted
	add := func(stage string, modified time.Time) {
		if p, ok := partedOf(from, stage); ok {
			p.modified = modified
			list = append(list, p)
		}
	}
	for _, e := range entries {
		switch _, isStep := ParseStep(e.Name); {
		case !e.IsFolder:
		case !commitsInPlace(from):
			add(e.Name, e.Modified)
		case isStep:
			inside, err := from.List(ctx, e.Name)
			if err != nil || slices.ContainsFunc(inside, func(f storage.Entry) bool { return f.Name == ManifestName }) {
				continue // a checkpoint: what is in it is its own
			}
			for _, f := range inside {
				add(e.Name+"/"+f.Name, f.Modified)
			}
		}
	}
	slices.SortFunc(list, func(a, b parted) int {
		return cmp.Or(b.step-a.step, b.modified.Compare(a.modified), cmp.Compare(a.stage, b.stage))
	})
	return list
}

// CompleteNewest makes a checkpoint of parts that ranks have written alone, if they are of a newer
// step than the newest checkpoint and whole, as [Load] does. It tells notice what it has done, or
// why parts are passed over. One rank calls it before the ranks look for a checkpoint.
func CompleteNewest(ctx context.Context, from storage.Storage, notice func(text string)) {
	entries, err := from.List(ctx, "")
	if err != nil {
		return
	}
	found := findParted(ctx, from, entries)
	if len(found) == 0 {
		return
	}
	newest := -1
	for _, e := range entries {
		step, ok := ParseStep(e.Name)
		if ok && step > newest && (!commitsInPlace(from) || hasManifest(ctx, from, e.Name)) {
			newest = step
		}
	}
	for _, p := range found {
		if p.step <= newest {
			return
		}
		name, err := Complete(ctx, from, p.stage)
		if err == nil {
			notice(fmt.Sprintf("%s was completed from the parts that ranks had written alone", storage.At(from, name)))
			return
		}
		notice("passing over parts that ranks have written alone: " + err.Error())
	}
}

func hasManifest(ctx context.Context, from storage.Storage, folder string) bool {
	inside, err := from.List(ctx, folder)
	return err == nil && slices.ContainsFunc(inside, func(f storage.Entry) bool { return f.Name == ManifestName })
}

// removeParted removes the parts of steps up to that of a new checkpoint.
func removeParted(ctx context.Context, from storage.Storage, step int) error {
	entries, err := from.List(ctx, "")
	if err != nil {
		return err
	}
	for _, p := range findParted(ctx, from, entries) {
		if p.step <= step {
			if err := from.Remove(ctx, p.stage); err != nil {
				return err
			}
		}
	}
	return nil
}
