// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// isDense is the number of rows of a gradient that is no gradient by rows.
const isDense = -1

// rowSync sums the gradients of sparse parameters, which every rank of a group has whole.
type rowSync struct {
	by      string // the strategy, as errors name it
	ranks   ranks
	sparse  []*nn.Parameter `name:"-"`
	whole   bool            // gradients are not divided by the ranks before they are summed
	reduced bool            // the rows are the same on every rank
}

// begin prepares the sparse parameters for a backward pass, of whose sum this rank brings a share.
func (r *rowSync) begin(share float64) error {
	for _, p := range r.sparse {
		if !p.Sparse {
			return fmt.Errorf("%s: %s was sparse when the model was wrapped and is not any more, so its gradient would differ between ranks: wrap a model again", r.by, p.Name())
		}
		// As with buckets, averages that nobody has dropped are added to, and each
		// rank brings its share of them.
		if g := p.RowGrad(); g != nil && r.reduced {
			g.Rows.Scale(share)
		}
	}
	r.reduced = false
	return nil
}

// sum replaces the gradient of every sparse parameter by the sum over the
// ranks. What travels is what the ranks have used: its size grows with the
// batch and the number of ranks, not with the table.
func (r *rowSync) sum(ctx context.Context) error {
	if len(r.sparse) == 0 {
		return nil
	}
	// How many rows every rank has of every parameter.
	own := make([]int64, len(r.sparse))
	for i, p := range r.sparse {
		if g := p.RowGrad(); g != nil {
			own[i] = int64(g.IDs.NumElems())
		}
		if p.Grad() != nil {
			own[i] = isDense
		}
	}
	all := tensor.New(tensor.CPU(), tensor.Int64, r.ranks.group().Size(), len(own))
	if err := r.ranks.gather(ctx, all, tensor.FromInt64(own)); err != nil {
		return fmt.Errorf("%s: count the rows of sparse gradients: %w", r.by, err)
	}
	counts := all.Int64s()
	for i, p := range r.sparse {
		ofRanks := make([]int, r.ranks.group().Size())
		for rank := range ofRanks {
			ofRanks[rank] = int(counts[rank*len(own)+i])
			if ofRanks[rank] == isDense {
				return fmt.Errorf("%s: %s is sparse, but rank %d has used it whole, as a tied output layer does, so that its gradient is dense: do not mark it sparse", r.by, p.Name(), rank)
			}
		}
		if err := r.sumOf(ctx, p, ofRanks); err != nil {
			return fmt.Errorf("%s: gather the rows of the gradient of %s: %w", r.by, p.Name(), err)
		}
	}
	r.reduced = true
	return nil
}

// scale multiplies the gradients by a factor.
func (r *rowSync) scale(factor float64) {
	for _, p := range r.sparse {
		if g := p.RowGrad(); g != nil {
			g.Rows.Scale(factor)
		}
	}
}

// sumOf gathers the rows of one parameter, of which rank r has counts[r],
// and adds them up in the order of the ranks, as every rank does. That happens on
// the CPU, which knows how many rows there are.
func (r *rowSync) sumOf(ctx context.Context, p *nn.Parameter, counts []int) error {
	most := 0
	for _, n := range counts {
		most = max(most, n)
	}
	if most == 0 {
		return nil
	}
	numRows, width := p.Data().Dim(0), p.Data().Dim(1)
	// Every rank sends as much as the one that has most.
	ids, rows := tensor.New(tensor.CPU(), tensor.Int64, most), tensor.Zeros(most, width)
	if g := p.RowGrad(); g != nil {
		n := g.IDs.NumElems()
		ids.Narrow(0, 0, n).CopyFrom(g.IDs.ToDevice(tensor.CPU()))
		rows.Narrow(0, 0, n).CopyFrom(g.Rows.ToDevice(tensor.CPU()))
	}
	allIDs, allRows := tensor.New(tensor.CPU(), tensor.Int64, len(counts), most), tensor.Zeros(len(counts), most, width)
	if err := r.ranks.gather(ctx, allIDs, ids); err != nil {
		return err
	}
	if err := r.ranks.gather(ctx, allRows, rows); err != nil {
		return err
	}
	parts := make([]tensor.RowGrad, len(counts))
	for rank, n := range counts {
		parts[rank] = tensor.RowGrad{
			IDs: allIDs.Select(0, rank).Narrow(0, 0, n), Rows: allRows.Select(0, rank).Narrow(0, 0, n), NumRows: numRows,
		}
	}
	sum := tensor.SumRowGrads(parts...)
	if r.whole {
		sum.Rows.Scale(1 / float64(len(counts)))
	}
	dev := p.Data().Device()
	p.SetRowGrad(&tensor.RowGrad{IDs: sum.IDs.ToDevice(dev), Rows: sum.Rows.ToDevice(dev), NumRows: numRows})
	return nil
}
