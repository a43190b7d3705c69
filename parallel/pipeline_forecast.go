// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/schedule"
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
				sum += m.bytes()
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
func (q *pipeline) planFor(ctx context.Context, o PredictOptions) (plan *pipePlan, err error) {
	if o.Loss == nil {
		return nil, errors.New("no loss was given to run there")
	}
	q.probe = &pipeProbe{dry: true}
	defer func() { q.probe = nil }()
	c := o.carrier(ctx)
	defer c.Close()
	defer c.Recover(&err)
	c.UntilStop(func() { o.Loss(q.p.within(o.inside(c)), q.p) })
	if q.probe.plan == nil {
		return nil, errors.New("the loss has not called the model")
	}
	return q.probe.plan, nil
}

// carrier makes that of a pass without data.
func (o *PredictOptions) carrier(ctx context.Context) *nn.Ctx {
	generator := o.Generator
	if generator == nil {
		generator = tensor.NewGenerator(0)
	}
	return nn.Training(ctx, nn.WithDevice(tensor.Meta), nn.WithAutocast(o.Autocast), nn.WithGenerator(generator))
}

// inside adds what steps in on the passes.
func (o *PredictOptions) inside(c *nn.Ctx) *nn.Ctx {
	for _, i := range o.Around {
		c = c.With(i)
	}
	return c
}

// rehearsal is what the passes of a stage hold for one microbatch, in bytes.
type rehearsal struct {
	received, seeds, sent int64 // from other stages; the gradients that come, and that go
	forward, kept         int64 // the most in the forward pass, and after it
	backward, between     int64 // the most in the backward pass, and after its first part
	weights               int64 // the most in the second part
}

// predictPeak returns the most that the passes of this rank hold at once, and what they have
// received: the actions of its schedule one after the other, each with the most that it holds.
// p is the strategy, with an engine that has shapes alone.
func (q *pipeline) predictPeak(ctx context.Context, p *Parallel, o PredictOptions) (int64, error) {
	plan, err := q.planFor(ctx, o)
	if err != nil {
		return 0, fmt.Errorf("predict: the model cannot be run on device meta, so the peak is not known: %w", err)
	}
	s, err := q.scheduleOf(max(1, o.Microbatches))
	if err != nil {
		return 0, fmt.Errorf("predict: %w", err)
	}
	splits := slices.ContainsFunc(s.Ranks[q.rank], func(a schedule.Action) bool { return a.Kind == schedule.BackwardInput })
	stages := map[int]*rehearsal{}
	for stage := range s.NumStages {
		if !q.isMine(stage) {
			continue
		}
		if stages[stage], err = q.rehearse(ctx, p, plan, stage, o, splits); err != nil {
			return 0, fmt.Errorf("predict: stage %d cannot be run on device meta, so the peak is not known: %w", stage, err)
		}
	}
	mail := q.newMail(s, plan)
	live, peak := int64(0), int64(0)
	at := func(most int64) { peak = max(peak, live+mail.bytes+most) }
	for _, a := range s.Ranks[q.rank] {
		r := stages[a.Stage]
		mail.take(a)
		switch a.Kind {
		case schedule.Forward:
			at(r.received + r.forward)
			live += r.received + r.kept
		case schedule.Backward:
			at(r.seeds + r.sent + r.backward - r.kept)
			live += r.sent - r.received - r.kept // what was sent waits for the collector
		case schedule.BackwardInput:
			at(r.seeds + r.sent + r.backward - r.kept)
			live += r.seeds + r.sent + r.between - r.kept
		case schedule.BackwardWeight:
			at(r.weights - r.between)
			live -= r.received + r.seeds + r.between
		}
		mail.leave(a)
	}
	return peak, nil
}

// mail is the memory of the messages that are to come to a rank, or have come and have not been
// taken, as an inbox has it.
type mail struct {
	q      *pipeline
	plan   *pipePlan
	bytes  int64
	from   [][]int64 // by rank: the sizes of its messages, in their order
	posted []int
	places map[messageKey]int
}

func (q *pipeline) newMail(s *schedule.Schedule, plan *pipePlan) *mail {
	m := &mail{q: q, plan: plan, from: make([][]int64, q.ranks), posted: make([]int, q.ranks), places: map[messageKey]int{}}
	for rank := range q.ranks {
		for _, a := range s.Ranks[rank] {
			for _, b := range messagesOf(plan, a, false) {
				if from, to := q.ends(b); from == rank && to == q.rank && rank != q.rank {
					m.places[b.key()] = len(m.from[rank])
					m.from[rank] = append(m.from[rank], b.bytes())
				}
			}
		}
		m.post(rank, postedAhead)
	}
	return m
}

// bytes returns the size of a message.
func (m pipeMessage) bytes() int64 { return sizeOf(m.value.shape, m.value.dtype) }

// post posts the receives of a rank up to the n-th.
func (m *mail) post(rank, n int) {
	for ; m.posted[rank] < min(n, len(m.from[rank])); m.posted[rank]++ {
		m.bytes += m.from[rank][m.posted[rank]]
	}
}

// take gives an action what it waits for.
func (m *mail) take(a schedule.Action) {
	for _, v := range m.plan.values {
		switch {
		case a.Kind == schedule.Forward && slices.Contains(v.uses, a.Stage):
			m.open(pipeMessage{value: v, stage: a.Stage, microbatch: a.Microbatch})
		case (a.Kind == schedule.Backward || a.Kind == schedule.BackwardInput) && v.grad && v.born == a.Stage:
			for _, stage := range v.uses {
				m.open(pipeMessage{value: v, stage: stage, microbatch: a.Microbatch, isGrad: true})
			}
		}
	}
}

// open takes a message, whose memory belongs to the pass from then on. A value that a rank has for
// itself belongs to the pass that made it.
func (m *mail) open(b pipeMessage) {
	from, _ := m.q.ends(b)
	if from != m.q.rank {
		m.post(from, m.places[b.key()]+1+postedAhead)
	}
	if from != m.q.rank || b.isGrad {
		m.bytes -= b.bytes()
	}
}

// leave keeps the gradients that a rank sends to itself.
func (m *mail) leave(a schedule.Action) {
	for _, b := range messagesOf(m.plan, a, false) {
		if _, to := m.q.ends(b); to == m.q.rank && b.isGrad {
			m.bytes += b.bytes()
		}
	}
}

// rehearse runs the passes of a stage on tensor.Meta.
func (q *pipeline) rehearse(ctx context.Context, p *Parallel, plan *pipePlan, stage int, o PredictOptions, splits bool) (r *rehearsal, err error) {
	c := o.carrier(ctx)
	defer c.Close()
	defer c.Recover(&err)
	defer onMeta(nn.Buffers(q.p.Model))()
	tape := c.Tape()
	p.shapes.leaves = map[*nn.Parameter]*tensor.Tensor{}
	s := &pipePass{q: q, plan: plan, c: c, stage: stage, standIns: tape}
	q.pass = s
	defer func() { q.pass = nil }()
	var loss *tensor.Tensor
	stopped := c.UntilStop(func() { loss = o.Loss(p.within(o.inside(c)), p) })
	if !s.called {
		return nil, errors.New("the loss has not called the model")
	}
	r = &rehearsal{received: s.received, forward: tape.PeakBytes(), kept: tape.LiveBytes()}
	var values, grads []*tensor.Tensor
	if !stopped {
		values, grads = append(values, loss), append(grads, nil)
	}
	if added := s.c.AddedLoss(); added != nil && added.NeedsGrad() {
		values, grads = append(values, added), append(grads, nil)
	}
	for _, v := range plan.values {
		if v.grad && slices.Contains(v.uses, stage) && !q.isMine(v.born) {
			r.sent += sizeOf(v.shape, v.dtype)
		}
		if v.born != stage || !v.grad {
			continue
		}
		for range v.uses {
			values, grads = append(values, s.values[v.index]), append(grads, tensor.New(tensor.Meta, v.dtype, v.shape...))
			r.seeds += sizeOf(v.shape, v.dtype)
		}
	}
	var opts []tensor.BackwardOption
	if splits {
		opts = append(opts, tensor.DeferWeights())
	}
	if len(values) > 0 {
		if err := tape.BackwardFrom(ctx, values, grads, opts...); err != nil {
			return nil, err
		}
	}
	r.backward, r.between = tape.PeakBytes(), tape.LiveBytes()
	if splits && len(values) > 0 {
		if err := tape.BackwardWeights(ctx); err != nil {
			return nil, err
		}
	}
	r.weights = tape.PeakBytes()
	return r, nil
}
