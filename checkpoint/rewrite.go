// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cohort-ml/cohort/checkpoint/internal/boxes"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist/mesh"
)

// Rewriting says how [Rewrite] lays tensors out.
type Rewriting struct {
	// Ranks is the number of ranks for which there is a file of each section. 0 is that of the
	// mesh, or 1.
	Ranks int
	// Mesh has the axes on which Place places tensors.
	Mesh []Axis
	// Place returns the placements of a tensor on the axes of the mesh. Without it, or where it
	// returns none, the tensor is whole, and one of the ranks has it.
	Place func(section string, tensor safetensors.Info) ([]mesh.Placement, error)
	// RankValues are values of the ranks, of a checkpoint that is rewritten. They are kept if
	// the number of ranks is theirs.
	RankValues []map[string]json.RawMessage
	// Progress is called with the bytes that have been written; it may be nil.
	Progress func(bytes int64)
}

// maxRewriteRanks bounds the files that one process writes.
const maxRewriteRanks = 1 << 16

// Rewrite makes a checkpoint of s.Sources in one process, without ranks, as ranks that hold the
// tensors as r says would save them. It reads and writes pieces of a few megabytes, so it needs
// no memory for tensors. s has no Sections and no RankValues; those of r are kept. The errors are those of [Save].
func Rewrite(ctx context.Context, to storage.Storage, step int, s State, r Rewriting, opts ...SaveOption) (err error) {
	v := &save{saveOptions: saveOptionsOf(opts), crew: crewOf(nil), to: to, step: step, state: s}
	if r.Progress != nil {
		done := int64(0)
		v.pace = func(n int) error { done += int64(n); r.Progress(done); return context.Cause(ctx) }
	}
	files, by, err := r.plan(s)
	if err == nil && step < 0 {
		err = errors.New("a step cannot be negative")
	}
	if err != nil {
		return v.fail("plan", err)
	}
	release, err := v.begin(ctx, files)
	if err != nil {
		return err
	}
	defer release()
	defer func() {
		if err != nil && !v.committed {
			v.giveUp(ctx, err)
		}
	}()
	own, err := v.write(ctx, files)
	if err == nil {
		err = r.describe(own, by)
	}
	if err != nil {
		return v.fail("write", err)
	}
	return v.commit(ctx, own, []bool{true})
}

// describe enters the ranks and the mesh.
func (r Rewriting) describe(own *Manifest, by []int) error {
	own.Mesh = r.Mesh
	own.Ranks = r.numRanks()
	if len(r.RankValues) == own.Ranks {
		own.RankValues = r.RankValues
	}
	for i, rank := range by {
		own.Files[i].Rank = rank // the files of tensors come first, in their order
	}
	for i := range own.Sections {
		section := &own.Sections[i]
		for j := range section.Tensors {
			t := &section.Tensors[j]
			placements, err := r.place(section.Name, t.Info())
			if err != nil {
				return err
			}
			for _, p := range placements {
				t.Placements = append(t.Placements, p.String())
			}
		}
	}
	return nil
}

func (r Rewriting) numRanks() int {
	if r.Ranks > 0 {
		return r.Ranks
	}
	n := 1
	for _, a := range r.Mesh {
		n *= a.Size
	}
	return n
}

func (r Rewriting) place(section string, info safetensors.Info) ([]mesh.Placement, error) {
	if r.Place == nil {
		return nil, nil
	}
	return r.Place(section, info)
}

// check reports a layout that cannot be.
func (r Rewriting) check(s State) error {
	if len(s.Sections) > 0 || len(s.RankValues) > 0 {
		return errors.New("only sources are rewritten, not tensors and values of ranks")
	}
	n := 1
	for _, a := range r.Mesh {
		if a.Size < 1 || a.Size > maxRewriteRanks || n > maxRewriteRanks/a.Size {
			return fmt.Errorf("the axis %s has %d ranks: want 1 or more, and at most %d of all axes", a.Name, a.Size, maxRewriteRanks)
		}
		n *= a.Size
	}
	if r.Ranks < 0 || r.Ranks > maxRewriteRanks || len(r.Mesh) > 0 && r.Ranks > 0 && r.Ranks != n {
		return fmt.Errorf("%d ranks: want 1 to %d, and those of the mesh if there is one", r.Ranks, maxRewriteRanks)
	}
	return s.check()
}

// plan returns the files, and the rank of each.
func (r Rewriting) plan(s State) (files []filePlan, by []int, err error) {
	if err := r.check(s); err != nil {
		return nil, nil, err
	}
	for _, section := range slices.Sorted(maps.Keys(s.Sources)) {
		byRank := make([][]filePlan, r.numRanks())
		loads := make([]int64, len(byRank))
		for _, b := range r.order(s.Sources[section].Infos()) {
			if err := r.deal(section, s.Sources[section], b, byRank, loads); err != nil {
				return nil, nil, err
			}
		}
		for rank, list := range byRank {
			files = append(files, list...)
			by = append(by, slices.Repeat([]int{rank}, len(list))...)
		}
	}
	return files, by, nil
}

// order returns tensors in the order in which they are dealt out: if ranks share whole tensors,
// the largest first.
func (r Rewriting) order(infos []safetensors.Info) []safetensors.Info {
	if r.numRanks() == 1 {
		return infos
	}
	infos = slices.Clone(infos)
	slices.SortStableFunc(infos, func(a, b safetensors.Info) int { return -compareSize(a, b) })
	return infos
}

func compareSize(a, b safetensors.Info) int {
	switch x, y := a.NumBytes(), b.NumBytes(); {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// deal gives the boxes of a tensor to ranks that hold them.
func (r Rewriting) deal(section string, src Source, info safetensors.Info, byRank [][]filePlan, loads []int64) error {
	fail := func(err error) error { return fmt.Errorf("%s: tensor %q: %w", section, info.Name, err) }
	placements, err := r.place(section, info)
	if err != nil {
		return fail(err)
	}
	zeros := make([]int, len(info.Shape))
	whole := mesh.Box{Start: zeros, Shape: info.Shape, LocalStart: zeros}
	type held struct {
		box mesh.Box
		by  []int
	}
	var list []*held
	if len(placements) == 0 || isEmpty(info.Shape) {
		list = []*held{{box: whole, by: allRanks(len(byRank))}}
	} else {
		if info.DType.NumBits()%8 != 0 {
			return fail(fmt.Errorf("elements of %v are no whole bytes, and cannot be cut", info.DType))
		}
		known := map[string]*held{}
		shape := make([]int, len(r.Mesh))
		for i, a := range r.Mesh {
			shape[i] = a.Size
		}
		for rank := range byRank {
			found, err := mesh.Boxes(info.Shape, shape, placements, coordinateOf(shape, rank))
			if err != nil {
				return fail(err)
			}
			for _, b := range found {
				if isEmpty(b.Shape) {
					continue
				}
				key := fmt.Sprint(b.Start)
				if known[key] == nil {
					known[key] = &held{box: b}
					list = append(list, known[key])
				}
				known[key].by = append(known[key].by, rank)
			}
		}
	}
	numOf := make(map[int]int) // boxes of the tensor, by rank
	for _, h := range list {
		rank := h.by[0]
		for _, other := range h.by {
			if loads[other] < loads[rank] {
				rank = other
			}
		}
		b := boxPlan{info: info, src: src, of: info.Shape, box: h.box}
		if b.info.Shape = h.box.Shape; !b.isWhole() {
			b.src = &boxOf{src, info, h.box}
		}
		n := numOf[rank]
		numOf[rank]++
		if n == len(byRank[rank]) { // a file has one box of a tensor at most
			byRank[rank] = append(byRank[rank], filePlan{section: section})
		}
		byRank[rank][n].boxes = append(byRank[rank][n].boxes, b)
		loads[rank] += b.info.NumBytes()
	}
	return nil
}

func allRanks(n int) []int {
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = i
	}
	return ranks
}

// coordinateOf returns the coordinate of a rank in a mesh, the last axis first.
func coordinateOf(shape []int, rank int) []int {
	at := make([]int, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		at[i] = rank % shape[i]
		rank /= shape[i]
	}
	return at
}

// boxOf is a box of a tensor of a source, as a source of a tensor of its own.
type boxOf struct {
	Source
	info safetensors.Info // of the whole tensor
	box  mesh.Box
}

// ReadRange reads bytes of the dense box.
func (b *boxOf) ReadRange(_ string, dst []byte, offset int64) error {
	return boxes.ReadRange(b.box.Shape, b.info.DType.NumBits()/8, dst, offset, func(part boxes.Box, dst []byte) error {
		start := slices.Clone(part.Start)
		for d, n := range b.box.Start {
			start[d] += n
		}
		return ReadBox(b.Source, b.info, start, part.Shape, dst)
	})
}
