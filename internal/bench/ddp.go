// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// DDPBatch is the number of samples of a rank in a step of [DDP]. [Step] of the mlp
// with this batch is the same work without communication.
const DDPBatch = 128

// DDP measures training steps of the mlp under data parallelism. Every rank of group
// calls it. The work of a rank does not depend on the number of ranks (weak scaling).
// There is a barrier before each step. The times are those of this rank.
func DDP(ctx context.Context, group *dist.Group, numSteps int) (Result, error) {
	if err := CheckSteps(numSteps); err != nil {
		return Result{}, fmt.Errorf("bench ddp: %w", err)
	}
	before := residentBytes()
	w := newWorkload(StepOptions{Model: "mlp", Batch: DDPBatch})
	ddp, err := parallel.NewDDP(ctx, w.model, group)
	if err != nil {
		return Result{}, err
	}
	ts, _, err := w.measure(ctx, ddp, numSteps, func() error { return group.Barrier(ctx) })
	if err != nil {
		return Result{}, err
	}
	if err := group.Barrier(ctx); err != nil {
		return Result{}, err
	}
	peak := peakRSSBytes()
	return Result{
		Bench: "ddp", Case: "mlp", Backend: "native", Transport: group.Transport(), DType: "float32",
		Ranks: group.Size(), Threads: tensor.NumThreads(), Batch: w.batch, Params: nn.NumParams(w.model),
		MedianMicros: micros(ts.median()), MinMicros: micros(ts.quantile(0)),
		GFlopPerSec:  perSecond(w.flops*float64(group.Size()), ts.median()),
		PeakRSSBytes: peak, GrowthBytes: peak - before,
	}, nil
}
