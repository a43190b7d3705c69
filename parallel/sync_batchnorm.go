// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// SyncBatchNorm adds up the statistics of batch norms over the ranks of a group,
// so that each normalises by the mean and variance of all ranks' batches: with
// any split of a batch, ranks compute what one would with the whole of it. Give
// it to nn.BatchNorm.Sync, or convert a model by [ConvertSyncBatchNorm].
//
// What is exchanged is, forward, the number of elements and for each channel
// their sum and the sum of their squares, and backward two sums a channel, all in
// float64 and added in the order of the ranks: every rank gets the same bits.
// Every rank must run the same norms in the same order, in training passes only;
// evaluation exchanges nothing. A rank whose batch is empty takes part. Under a
// [DDP] of the same group, every rank's pass must reach the same parameters too:
// one that is left out on some ranks moves a bucket's reduction behind the norms'
// exchanges there, and the ranks end with an error that names both calls.
//
// The gradients of gamma and beta are those of a rank's own share, for [DDP] to
// sum. There is no second derivative.
type SyncBatchNorm struct{ Group *dist.Group }

// ReduceStats implements nn.StatsReducer.
func (s *SyncBatchNorm) ReduceStats(ctx context.Context, sums []float64) error {
	// Collectives carry no float64: its bits travel as int64, and are added here.
	bits := make([]int64, len(sums))
	for i, v := range sums {
		bits[i] = int64(math.Float64bits(v))
	}
	ranks := s.Group.Size()
	all := tensor.New(tensor.CPU(), tensor.Int64, ranks, len(sums))
	if err := s.Group.AllGather(ctx, all, tensor.FromInt64(bits)); err != nil {
		return fmt.Errorf("sync batch norm: add up statistics over %d ranks: %w", ranks, err)
	}
	clear(sums)
	for i, b := range all.Int64s() {
		sums[i%len(sums)] += math.Float64frombits(uint64(b))
	}
	return nil
}

// ConvertSyncBatchNorm makes every batch norm of a model normalise over all ranks
// of group, and returns how many there are. Names and state stay as they are; a
// nil group makes them local again.
func ConvertSyncBatchNorm(model any, group *dist.Group) (numNorms int) {
	for _, m := range nn.Modules(model) {
		if n, ok := m.(*nn.BatchNorm); ok {
			n.Sync = nil
			if group != nil {
				n.Sync = &SyncBatchNorm{Group: group}
			}
			numNorms++
		}
	}
	return numNorms
}
