// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Microbatch is one training pass of a step: the unit of gradient accumulation, and of a
// pipeline.
type Microbatch struct {
	// Carrier makes the carrier of the pass: an nn.Training with this microbatch's generator.
	// The strategy closes it. A pipeline calls Carrier and Loss once for each of its stages on this
	// rank, and once before, up to the call of the model, for the shapes of its inputs. Each time
	// the generator must be in the same state.
	Carrier func(ctx context.Context) *nn.Ctx
	// Loss calls the strategy and returns this microbatch's share of the loss of the step, a
	// tensor of one element: a mean over the samples of the microbatch, divided by the number of
	// microbatches. A pipeline may end the call early, by a panic that Loss lets through.
	Loss func(c *nn.Ctx) *tensor.Tensor
}

// runPasses runs microbatches one after the other: forward and backward. The gradients of all
// are averaged over the ranks with the last one if once is true, and else with each. It returns
// the sum of the losses, in float64.
//
// within returns the carrier under which the loss runs; nil is the one that the microbatch makes.
func runPasses(ctx context.Context, s Strategy, microbatches []Microbatch, once bool, within func(c *nn.Ctx) *nn.Ctx) (loss *tensor.Tensor, err error) {
	if len(microbatches) == 0 {
		return nil, errors.New("a step has no microbatches: it needs one at least")
	}
	share := 1 / float64(len(microbatches))
	for i, m := range microbatches {
		run := func() error { return m.run(ctx, within, share, &loss) }
		if once && i < len(microbatches)-1 {
			err = s.NoSync(run)
		} else {
			err = run()
		}
		if err != nil {
			return nil, err
		}
	}
	return loss, nil
}

// run runs the pass and adds its loss to sum. The losses that modules have added count by share: in
// a step, they are a mean over its microbatches.
func (m Microbatch) run(ctx context.Context, within func(c *nn.Ctx) *nn.Ctx, share float64, sum **tensor.Tensor) (err error) {
	c := m.Carrier(ctx)
	defer c.Close()
	defer c.Recover(&err)
	in := c
	if within != nil {
		in = within(c)
	}
	loss := m.Loss(in)
	if err := checkLoss(loss); err != nil {
		return err
	}
	if *sum == nil {
		*sum = tensor.New(loss.Device(), tensor.Float64)
	}
	(*sum).Axpy(1, loss.Untracked().Reshape().To(tensor.Float64))
	if added := c.AddedLoss(); added != nil {
		loss = loss.Reshape().Add(added.MulScalar(share))
	}
	return loss.Backward(ctx)
}

// checkLoss fails for what is no loss.
func checkLoss(loss *tensor.Tensor) error {
	switch {
	case loss == nil:
		return errors.New("Microbatch.Loss returned nil: it must return the loss of the microbatch, a tensor of one element")
	case loss.NumElems() != 1:
		return fmt.Errorf("Microbatch.Loss returned a tensor of dims %v: it must return the loss of the microbatch, one element", loss.Shape())
	}
	return nil
}

// balanceExperts moves the biases by which experts are chosen, by the counts of all ranks: the
// ranks agree, whichever axes they have. It communicates only if the model has such biases.
func balanceExperts(ctx context.Context, model any, group *dist.Group) error {
	return nn.BalanceExperts(model, func(counts *tensor.Tensor) error {
		if err := group.AllReduce(ctx, counts, dist.Sum); err != nil {
			return fmt.Errorf("sum how often each expert was chosen: %w", err)
		}
		return nil
	})
}
