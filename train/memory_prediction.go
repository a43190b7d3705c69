// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// memory says how much the tensors of a rank will hold in a step; "" where the task has no
// blank batch. Where a model cannot be run without data it says so, and has the state alone.
func (r *trainer[B]) memory() string {
	if r.task.Blank == nil {
		return ""
	}
	batch := r.task.Blank()
	p := parallel.Predict(context.Background(), r.model, parallel.PredictOptions{
		Optimizer: r.opt, Around: r.task.Around, Autocast: autocasts[r.o.DType],
		Loss: func(c *nn.Ctx, model any) *tensor.Tensor { return r.task.Loss(c, model, batch) },
	})
	if p.NoPeak != nil || r.isPipeline() {
		why := "the model cannot be run on device meta"
		if r.isPipeline() {
			why = "several passes of a pipeline are under way"
		}
		return fmt.Sprintf("%s holds %s of parameters, gradients and optimizer state; what a step takes besides is not predicted: %s", r.whoHolds(), data.ByteSize(p.StateBytes), why)
	}
	return fmt.Sprintf("at most %s in a step, predicted for the tensors of a rank", data.ByteSize(p.PeakBytes))
}

// isPipeline reports whether ranks have different stages of the model.
func (r *trainer[B]) isPipeline() bool {
	s, ok := r.model.(staged)
	return ok && s.Mesh().Has(axisPP)
}

// whoHolds names the rank of which sizes are told. Ranks of different stages do not hold as much.
func (r *trainer[B]) whoHolds() string {
	if r.isPipeline() {
		return fmt.Sprintf("rank %d", r.axes.World.Rank())
	}
	return "a rank"
}
