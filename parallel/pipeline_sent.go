// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// predictSent returns the bytes that this rank gives to the other stages in a step, from the second
// one on: the messages of its actions, what the ranks compare at the beginning, the loss at the end,
// and the gradients of tied parameters.
func (q *pipeline) predictSent(ctx context.Context, o PredictOptions) (int64, error) {
	plan, err := q.planFor(ctx, o)
	if err != nil {
		return 0, fmt.Errorf("predict: the model cannot be run on device meta, so what its stages send is not known: %w", err)
	}
	s, err := q.scheduleOf(max(1, o.Microbatches))
	if err != nil {
		return 0, fmt.Errorf("predict: %w", err)
	}
	sum := int64(0)
	for _, a := range s.Ranks[q.rank] {
		for _, m := range messagesOf(plan, a, false) {
			if _, to := q.ends(m); to != q.rank {
				sum += sizeOf(m.value.shape, m.value.dtype)
			}
		}
	}
	for _, c := range []operation.Call{
		{Op: operation.AllGather, DType: operation.Int64, Count: numDigests},
		{Op: operation.Broadcast, DType: operation.Float64, Count: 1, Root: q.rankOf(q.config.NumStages - 1)},
	} {
		n, err := q.group.PredictSent(c, false)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	const reached = 8 // whether there is a gradient
	for _, t := range q.tied {
		if p := t.param; !p.Frozen && slices.Contains(t.holders, q.rank) && p.Data().NumElems() > 0 {
			sum += int64(len(t.holders)-1) * (sizeOf(p.Data().Shape(), p.Data().DType()) + reached)
		}
	}
	return sum, nil
}

// planFor runs the loss on a batch up to the call of the model, and that for shapes alone.
func (q *pipeline) planFor(ctx context.Context, o PredictOptions) (*pipePlan, error) {
	if o.Loss == nil {
		return nil, errors.New("no loss was given to run there")
	}
	generator := o.Generator
	if generator == nil {
		generator = tensor.NewGenerator(0)
	}
	c := nn.Training(ctx, nn.WithDevice(tensor.Meta), nn.WithAutocast(o.Autocast), nn.WithGenerator(generator))
	defer c.Close()
	return q.planUnder(c, o)
}

// planUnder is planFor with a carrier.
func (q *pipeline) planUnder(c *nn.Ctx, o PredictOptions) (plan *pipePlan, err error) {
	defer c.Recover(&err)
	q.probe = &pipeProbe{dry: true}
	defer func() { q.probe = nil }()
	inner := c
	for _, i := range o.Around {
		inner = inner.With(i)
	}
	c.UntilStop(func() { o.Loss(q.p.within(inner), q.p) })
	if q.probe.plan == nil {
		return nil, errors.New("the loss has not called the model")
	}
	return q.probe.plan, nil
}
