// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// copyBytes is what a save beside training copies of parts: what only this rank holds, and a
// share of what all ranks hold.
func copyBytes(parts []checkpoint.Part, ranks int) (n int64) {
	for _, p := range parts {
		if p.Away {
			continue
		}
		size := int64(p.Local.NumElems() * p.Local.DType().Size())
		if !isShard(p.Layout) {
			size /= int64(ranks)
		}
		n += size
	}
	return n
}

// canCopy reports whether all ranks have the memory to save beside training: for the copies, and
// for as much again, which the gradients and the values of a step take. All ranks call it.
func (r *trainer[B]) canCopy(ctx context.Context) (bool, error) {
	group := r.axes.World
	weights := copyBytes(r.heldWeights(), group.Size())
	holders := group.Size() // of each part of the optimizer's state
	if _, ok := r.opt.(divided); ok {
		holders = 1
	}
	need := copyBytes(r.optimizerParts(), holders) + copyBytes(r.hookParts(), group.Size()) + weights
	if r.o.Best {
		need += weights
	}
	bounds, err := rankBounds(ctx, group)
	if err != nil {
		return false, r.errorf("%w", err)
	}
	lacks := tensor.FromInt64([]int64{0})
	for _, b := range bounds {
		if 2*need*int64(b.ranks) > int64(min(b.Room(), 1<<62)) {
			lacks.Fill(1)
			r.report.Notice(fmt.Sprintf("a step waits until its checkpoint is written: a copy of the state (%s) beside a step does not fit into the memory that is left (%s of %s, %s)",
				byteText(float64(need*int64(b.ranks))), byteText(float64(b.Room())), byteText(float64(b.Bytes)), b.Source))
			break
		}
	}
	if err := group.AllReduce(ctx, lacks, dist.Max); err != nil {
		return false, r.errorf("compare the memory of the ranks: %w", err)
	}
	return lacks.Int64s()[0] == 0, nil
}
