// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

type rawJSON = json.RawMessage

// partName returns the name of the file in which a rank says what it has written.
func partName(rank, size int) string { return fmt.Sprintf("part-%05d-of-%05d.json", rank, size) }

// isWorthAPart says whether a rank has anything to tell.
func (m *Manifest) isWorthAPart() bool { return len(m.Files)+len(m.RankValues) > 0 }

// outline returns the sections with all tensors and without boxes.
func (v *save) outline() []Section {
	var sections []Section
	for _, name := range v.state.sectionNames() {
		s := Section{Name: name}
		for _, p := range v.state.Sections[name] {
			s.Tensors = append(s.Tensors, StoredTensor{Name: p.Name, DType: fileDTypes[p.Local.DType()], Shape: p.shape(), Placements: p.placements()})
		}
		sections = append(sections, s)
	}
	return sections
}

// add enters the boxes of a file.
func (m *Manifest) add(f filePlan, boxes []StoredBox) {
	s := m.Section(f.section)
	if s == nil {
		m.Sections = append(m.Sections, Section{Name: f.section})
		s = &m.Sections[len(m.Sections)-1]
	}
	number := make(map[string]int, len(s.Tensors))
	for i, t := range s.Tensors {
		number[t.Name] = i
	}
	for i, b := range boxes {
		p := f.boxes[i]
		at, ok := number[p.info.Name]
		if !ok {
			at = len(s.Tensors)
			number[p.info.Name] = at
			s.Tensors = append(s.Tensors, StoredTensor{Name: p.info.Name, DType: p.info.DType, Shape: p.shape(), Placements: p.part.placements()})
		}
		s.Tensors[at].Boxes = append(s.Tensors[at].Boxes, b)
	}
}

// commit merges, on rank 0, what all ranks say, and makes the checkpoint.
func (v *save) commit(ctx context.Context, own *Manifest, hasPart []bool) error {
	if err := v.merge(ctx, own, hasPart); err != nil {
		return v.fail("merge", err)
	}
	return v.finish(ctx, own)
}

// finish makes the checkpoint, whose files are in the stage.
func (v *save) finish(ctx context.Context, own *Manifest) error {
	if err := v.writeIndexes(ctx, own); err != nil {
		return v.fail("write", err)
	}
	sortFiles(own.Files)
	text, err := own.encode()
	if err != nil {
		return v.fail("merge", err)
	}
	if v.damaged {
		if err := v.to.SetAside(ctx, v.name()); err != nil {
			return v.fail("make room", err)
		}
	}
	commit, removeOld := v.to.Commit, func(context.Context) error { return nil }
	if v.replaces(v.step) { // one of this step may be there
		commit = v.to.Replace
		if removeOld, err = v.remover(ctx); err != nil {
			return v.fail("make room", err)
		}
	}
	err = commit(ctx, v.stage, v.name(), text)
	var late *storage.CommittedError
	v.committed = err == nil || errors.As(err, &late)
	if err != nil {
		v.doubt = errors.As(err, new(*storage.DoubtError))
		return v.fail("commit", err)
	}
	ctx = context.WithoutCancel(ctx)
	return v.fail("prune", errors.Join(removeOld(ctx), v.keep.prune(ctx, v.to, v.step), removeParted(ctx, v.to, v.step)))
}

// merge puts the parts of the other ranks into rank 0's.
func (v *save) merge(ctx context.Context, own *Manifest, hasPart []bool) error {
	parts := make([]*Manifest, v.size)
	work := newWorkers(ctx, numReaders)
	for r := 1; r < v.size; r++ {
		if !hasPart[r] {
			continue
		}
		work.Go(func() error {
			name := v.stage + "/" + partName(r, v.size)
			text, err := storage.ReadFile(work.ctx, v.to, name, maxManifestBytes)
			if err == nil {
				parts[r], err = parsePart(text)
			}
			if err == nil {
				err = v.to.Remove(work.ctx, name)
			}
			if err != nil {
				return fmt.Errorf("what rank %d has written (%s): %w", r, partName(r, v.size), err)
			}
			return nil
		})
	}
	if err := work.Wait(); err != nil {
		return err
	}
	m := &merger{into: own}
	for r, p := range parts {
		if p == nil {
			continue
		}
		if err := m.add(p); err != nil {
			return fmt.Errorf("what rank %d has written: %w", r, err)
		}
	}
	return own.complete()
}

// merger adds the parts of ranks to a manifest.
type merger struct {
	into    *Manifest
	numbers []map[string]int // of tensors, by section
}

func (m *merger) add(p *Manifest) error {
	m.into.Files = append(m.into.Files, p.Files...)
	for r, values := range p.RankValues {
		if len(values) == 0 {
			continue
		}
		if m.into.RankValues == nil {
			m.into.RankValues = make([]map[string]rawJSON, m.into.Ranks)
		}
		if r >= len(m.into.RankValues) {
			return fmt.Errorf("has values of rank %d of %d", r, len(m.into.RankValues))
		}
		m.into.RankValues[r] = values
	}
	for _, s := range p.Sections {
		at := slices.IndexFunc(m.into.Sections, func(o Section) bool { return o.Name == s.Name })
		if at < 0 {
			at = len(m.into.Sections)
			m.into.Sections = append(m.into.Sections, Section{Name: s.Name})
		}
		into := &m.into.Sections[at]
		for len(m.numbers) <= at {
			m.numbers = append(m.numbers, nil)
		}
		if m.numbers[at] == nil {
			m.numbers[at] = make(map[string]int, len(into.Tensors))
			for i, t := range into.Tensors {
				m.numbers[at][t.Name] = i
			}
		}
		for _, t := range s.Tensors {
			i, ok := m.numbers[at][t.Name]
			if !ok {
				i = len(into.Tensors)
				m.numbers[at][t.Name] = i
				into.Tensors = append(into.Tensors, StoredTensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Placements: t.Placements})
			}
			same := &into.Tensors[i]
			if same.DType != t.DType || !slices.Equal(same.Shape, t.Shape) {
				return fmt.Errorf("the tensor %q of %s is %v %v, and on another rank %v %v", t.Name, s.Name, t.Shape, t.DType, same.Shape, same.DType)
			}
			same.Boxes = append(same.Boxes, t.Boxes...)
		}
	}
	return nil
}

// complete reports a tensor of which a part is missing. It leaves out a box that is there twice.
func (m *Manifest) complete() error {
	files := make(map[string]int64, len(m.Files))
	for _, f := range m.Files {
		if _, twice := files[f.Name]; twice {
			return fmt.Errorf("the file %q is written by two ranks", f.Name)
		}
		files[f.Name] = f.Bytes
	}
	for _, s := range m.Sections {
		for i := range s.Tensors {
			t := &s.Tensors[i]
			if err := t.check(files); err == nil {
				continue
			}
			t.Boxes = withoutCopies(t.Boxes)
			if err := t.check(files); err != nil {
				return fmt.Errorf("the tensor %q of %s %w", t.Name, s.Name, err)
			}
		}
	}
	return nil
}

// withoutCopies leaves out boxes that are there already. Ranks write the same box if their
// layouts are on meshes that do not know each other.
func withoutCopies(boxes []StoredBox) []StoredBox {
	seen := make(map[string]bool, len(boxes))
	return slices.DeleteFunc(boxes, func(b StoredBox) bool {
		key := fmt.Sprint(b.Start, b.Shape)
		twice := seen[key]
		seen[key] = true
		return twice
	})
}

// writeIndexes writes for each section of several files with whole tensors the index that
// Hugging Face's tools read.
func (v *save) writeIndexes(ctx context.Context, m *Manifest) error {
	for _, s := range m.Sections {
		where, size := make(map[string]string, len(s.Tensors)), int64(0)
		files := map[string]bool{}
		for _, t := range s.Tensors {
			if len(t.Boxes) != 1 || !slices.Equal(t.Boxes[0].Shape, t.Shape) {
				where = nil
				break
			}
			where[t.Name] = t.Boxes[0].File
			files[t.Boxes[0].File] = true
			size += t.Info().NumBytes()
		}
		if where == nil || len(files) < 2 {
			continue
		}
		w := &Writer{ctx: ctx, to: v.to, folder: v.stage, step: v.step, taken: map[string]bool{}, open: map[*File]bool{}}
		for _, f := range m.Files {
			w.taken[f.Name] = true
		}
		err := w.WriteJSON(s.Name+".safetensors.index.json", map[string]any{
			"metadata": map[string]any{"total_size": size}, "weight_map": where,
		})
		written, ferr := w.finish()
		if err == nil {
			err = ferr
		}
		if err != nil {
			return err
		}
		m.Files = append(m.Files, written...)
	}
	return nil
}
