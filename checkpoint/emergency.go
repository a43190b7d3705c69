// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist/mesh"
)

// emergencyID names the stage into which ranks write their parts alone. It depends on the step
// only, so that the parts of one step meet.
const emergencyID = "emergency"

// SavePart writes all that this rank holds into a stage, without talking to anyone: for a rank
// that cannot reach the others any more. Several ranks may do so at the same time; a box that
// another rank has written already is left out; an earlier part of this rank is replaced. [List] says which ranks are missing. If the
// parts together are all tensors, [Complete] makes a checkpoint of them, and [Load] does so by
// itself. The next save of a later step removes them.
//
// rank and size are those of the job. The error is a [*SaveError].
func SavePart(ctx context.Context, rank, size int, to storage.Storage, step int, s State) error {
	v := &save{saveOptions: saveOptionsOf(nil), crew: crew{rank: rank, size: size}, to: to, step: step, state: s, alone: true}
	err := s.check()
	switch {
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
	v.stage, v.folder = to.Stage(v.name(), emergencyID)
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
	if want, folder := to.Stage(v.name(), emergencyID); want != stage {
		return fail(fmt.Errorf("it is not the stage of step %d, which is %s", v.step, want))
	} else {
		v.folder, all.Folder = folder, folder
	}
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
	step  int
	stage string
}

// findParted returns the stages with parts, of the newest step first.
func findParted(ctx context.Context, from storage.Storage, entries []storage.Entry) []parted {
	var list []parted
	for _, e := range entries {
		base, _, _ := strings.Cut(e.Name, stageInfix)
		step, ok := ParseStep(base)
		if !ok || !e.IsFolder {
			continue
		}
		stage, folder := from.Stage(base, emergencyID)
		switch {
		case folder == "" && stage == e.Name:
		case folder != "" && base == e.Name:
			inside, err := from.List(ctx, e.Name)
			if err != nil || !slices.ContainsFunc(inside, func(f storage.Entry) bool { return f.Name == folder }) ||
				slices.ContainsFunc(inside, func(f storage.Entry) bool { return f.Name == ManifestName }) {
				continue
			}
		default:
			continue
		}
		list = append(list, parted{step, stage})
	}
	slices.SortFunc(list, func(a, b parted) int { return b.step - a.step })
	return list
}

// completeNewest makes a checkpoint of parts of a newer step than the newest checkpoint, if they
// are whole, and says what it has done.
func completeNewest(ctx context.Context, from storage.Storage, notice func(text string)) {
	entries, err := from.List(ctx, "")
	if err != nil {
		return
	}
	newest := -1
	for _, e := range entries {
		if step, ok := ParseStep(e.Name); ok && !commitsInPlace(from) {
			newest = max(newest, step)
		}
	}
	for _, p := range findParted(ctx, from, entries) {
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
