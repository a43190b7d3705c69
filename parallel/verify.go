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
	Rank              int    // the lowest rank that differs from rank 0
	Name0, NameRank   string // the entry's name on rank 0 and on Rank, "" where the model has ended
	Shape0, ShapeRank []int
}

func (e *MismatchError) Error() string {
	describe := func(name string, shape []int) string {
		if name == "" {
			return "nothing more"
		}
		return fmt.Sprintf("%s %v", name, shape)
	}
	return fmt.Sprintf("ddp: the ranks have different models: rank 0 has %s where rank %d has %s; build the same model on every rank",
		describe(e.Name0, e.Shape0), e.Rank, describe(e.NameRank, e.ShapeRank))
}

// layout describes the state of a model for comparison.
type layout []struct {
	Name  string
	Shape []int
}

// verifySame returns the same error on every rank when the states differ.
func verifySame(ctx context.Context, group *dist.Group, state []nn.NamedTensor) error {
	mine := make(layout, len(state))
	for i, s := range state {
		mine[i].Name, mine[i].Shape = s.Name, s.Tensor.Shape()
	}
	text, err := json.Marshal(mine)
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
	theirs := make([]layout, 2)
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
		e.Name0, e.Shape0, e.NameRank, e.ShapeRank = "", nil, "", nil
		if i < len(theirs[0]) {
			e.Name0, e.Shape0 = theirs[0][i].Name, theirs[0][i].Shape
		}
		if i < len(theirs[1]) {
			e.NameRank, e.ShapeRank = theirs[1][i].Name, theirs[1][i].Shape
		}
		if e.Name0 != e.NameRank || !slices.Equal(e.Shape0, e.ShapeRank) || e.Name0 == "" {
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
