// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
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
	return fmt.Sprintf("ddp: the ranks have different models: rank 0 has %s where rank %d has %s; build the same model on every rank",
		describe(e.Have0), e.Rank, describe(e.HasRank))
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

// verifySame returns the same error on every rank when the models differ.
func verifySame(ctx context.Context, group *dist.Group, model any) error {
	text, err := json.Marshal(layoutOf(model))
	if err != nil {
		return fmt.Errorf("ddp: describe the model: %w", err)
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	digests, err := gather(ctx, group, []int64{int64(crc32.Checksum(text, table)), int64(len(text))})
	if err != nil {
		return err
	}
	differs := slices.IndexFunc(digests, func(d []int64) bool { return !slices.Equal(d, digests[0]) })
	if differs < 0 {
		return nil
	}
	// Rank 0 and the first rank that differs tell everybody what they have.
	theirs := make([][]Entry, 2)
	for i, rank := range []int{0, differs} {
		buf := make([]int64, digests[rank][1])
		if group.Rank() == rank {
			for j, c := range text {
				buf[j] = int64(c)
			}
		}
		t := tensor.FromInt64(buf)
		if err := group.Broadcast(ctx, t, rank); err != nil {
			return fmt.Errorf("ddp: compare the models of the ranks: %w", err)
		}
		got := make([]byte, len(buf))
		for j, c := range t.Int64s() {
			got[j] = byte(c)
		}
		if err := json.Unmarshal(got, &theirs[i]); err != nil {
			return fmt.Errorf("ddp: rank %d described its model as %q: %w", rank, got, err)
		}
	}
	e := &MismatchError{Rank: differs}
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

// gather returns every rank's numbers.
func gather(ctx context.Context, group *dist.Group, mine []int64) ([][]int64, error) {
	all := tensor.New(tensor.CPU(), tensor.Int64, group.Size(), len(mine))
	if err := group.AllGather(ctx, all, tensor.FromInt64(mine)); err != nil {
		return nil, fmt.Errorf("ddp: compare the models of the ranks: %w", err)
	}
	return slices.Collect(slices.Chunk(all.Int64s(), len(mine))), nil
}
