// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// MismatchError says that the ranks of a group do not have the same model: the
// first entry of the state that differs between rank 0 and another rank.
type MismatchError struct {
	Rank           int // the lowest rank that differs from rank 0
	Have0, HasRank Entry

	by string // the strategy, as the error names it
}

// Entry describes an entry of a model's state. Its name is empty where the
// model has no more of them.
type Entry struct {
	Name  string
	Shape []int
	Kind  string // dtype and role: "float32", "frozen float32", "sparse float32", "int64 buffer"
}

func (e Entry) equal(o Entry) bool {
	return e.Name == o.Name && e.Kind == o.Kind && slices.Equal(e.Shape, o.Shape)
}

func (e *MismatchError) Error() string {
	describe := func(s Entry) string {
		switch {
		case s.Name == "":
			return "nothing more"
		case e.Have0.Name == e.HasRank.Name && e.Have0.Kind != e.HasRank.Kind:
			return fmt.Sprintf("%s %v (%s)", s.Name, s.Shape, s.Kind)
		}
		return fmt.Sprintf("%s %v", s.Name, s.Shape)
	}
	return fmt.Sprintf("%s: the ranks have different models: rank 0 has %s where rank %d has %s; build the same model on every rank",
		e.by, describe(e.Have0), e.Rank, describe(e.HasRank))
}

// layoutOf describes the state of a model for comparison.
func layoutOf(model any) []Entry {
	var out []Entry
	for _, p := range nn.Parameters(model) {
		kind := p.Data().DType().String()
		if p.Sparse {
			kind = "sparse " + kind
		}
		if p.Frozen {
			kind = "frozen " + kind
		}
		out = append(out, Entry{p.Name(), p.Data().Shape(), kind})
	}
	for _, b := range nn.Buffers(model) {
		out = append(out, Entry{b.Name(), b.Data.Shape(), b.Data.DType().String() + " buffer"})
	}
	return out
}

// OptionsError says that the ranks of a group have not wrapped their models with the same options.
type OptionsError struct {
	Rank           int    // the lowest rank that differs from rank 0
	Have0, HasRank string // the options of both

	by string // the strategy, as the error names it
}

func (e *OptionsError) Error() string {
	return fmt.Sprintf("%s: the ranks have different options: rank 0 has %s where rank %d has %s; give the same options on every rank",
		e.by, e.Have0, e.Rank, e.HasRank)
}

// verifySame returns the same error on every rank when the models differ, or the options. by is
// the strategy, as errors name it.
func verifySame(ctx context.Context, group *dist.Group, model any, by, options string) error {
	text, err := json.Marshal(layoutOf(model))
	if err != nil {
		return fmt.Errorf("%s: describe the model: %w", by, err)
	}
	text = append([]byte(options+"\n"), text...)
	differs, texts, err := firstDifference(ctx, group, text)
	if err != nil {
		return fmt.Errorf("%s: compare the models of the ranks: %w", by, err)
	}
	if differs < 0 {
		return nil
	}
	theirs, said := make([][]Entry, 2), make([]string, 2)
	for i, rank := range []int{0, differs} {
		first, rest, _ := bytes.Cut(texts[i], []byte("\n"))
		said[i] = string(first)
		if err := json.Unmarshal(rest, &theirs[i]); err != nil {
			return fmt.Errorf("%s: rank %d described its model as %q: %w", by, rank, rest, err)
		}
	}
	if said[0] != said[1] {
		return &OptionsError{Rank: differs, Have0: said[0], HasRank: said[1], by: by}
	}
	e := &MismatchError{Rank: differs, by: by}
	for i := 0; ; i++ {
		e.Have0, e.HasRank = Entry{}, Entry{}
		if i < len(theirs[0]) {
			e.Have0 = theirs[0][i]
		}
		if i < len(theirs[1]) {
			e.HasRank = theirs[1][i]
		}
		if !e.Have0.equal(e.HasRank) || e.Have0.Name == "" {
			return e
		}
	}
}

// numDigests is how many numbers firstDifference gathers of each rank where the texts are equal.
const numDigests = 2

// firstDifference compares a text of each rank. It returns the lowest rank whose text is not that
// of rank 0, and the texts of rank 0 and of that rank: the same on every rank. The rank is -1 if
// all texts are equal.
func firstDifference(ctx context.Context, group *dist.Group, text []byte) (rank int, texts [2][]byte, err error) {
	table := crc32.MakeTable(crc32.Castagnoli)
	own := [numDigests]int64{int64(crc32.Checksum(text, table)), int64(len(text))}
	digests, err := gather(ctx, group, own[:])
	if err != nil {
		return 0, texts, err
	}
	rank = slices.IndexFunc(digests, func(d []int64) bool { return !slices.Equal(d, digests[0]) })
	if rank < 0 {
		return rank, texts, nil
	}
	// Rank 0 and the first rank that differs tell everybody what they have.
	for i, from := range []int{0, rank} {
		buf := make([]int64, max(1, digests[from][1]))
		if group.Rank() == from {
			for j, c := range text {
				buf[j] = int64(c)
			}
		}
		t := tensor.FromInt64(buf)
		if err := group.Broadcast(ctx, t, from); err != nil {
			return 0, texts, err
		}
		for _, c := range t.Int64s()[:digests[from][1]] {
			texts[i] = append(texts[i], byte(c))
		}
	}
	return rank, texts, nil
}

// gather returns every rank's numbers.
func gather(ctx context.Context, group *dist.Group, mine []int64) ([][]int64, error) {
	all := tensor.New(tensor.CPU(), tensor.Int64, group.Size(), len(mine))
	if err := group.AllGather(ctx, all, tensor.FromInt64(mine)); err != nil {
		return nil, err
	}
	return slices.Collect(slices.Chunk(all.Int64s(), len(mine))), nil
}

// compareSamples returns the same error on all ranks of a group, which share the work on the same
// samples, if one of them has others than rank 0. The samples are the inputs of a model.
func compareSamples(ctx context.Context, group *dist.Group, x []*tensor.Tensor) error {
	digests, err := gather(ctx, group, []int64{int64(digestOf(x))})
	if err != nil {
		return fmt.Errorf("compare the samples of %s: %w", countRanks(group.Size()), err)
	}
	for r, d := range digests {
		if d[0] != digests[0][0] {
			return fmt.Errorf("rank %d has other samples than rank 0: these ranks share the work on the same samples; parallel.Sampler says which samples a rank takes", r)
		}
	}
	return nil
}

// digestOf returns a checksum of tensors, of which some may be nil.
func digestOf(x []*tensor.Tensor) uint32 {
	digest := crc32.NewIEEE()
	for _, t := range x {
		if t == nil {
			continue
		}
		_, _ = fmt.Fprint(digest, t.DType(), t.Shape())
		if t = t.Untracked(); t.DType() == tensor.Int64 {
			_ = binary.Write(digest, binary.LittleEndian, t.Int64s())
		} else {
			_ = binary.Write(digest, binary.LittleEndian, t.To(tensor.Float32).Float32s())
		}
	}
	return digest.Sum32()
}
