// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/schedule"
	"github.com/cohort-ml/cohort/tensor"
)

// pipeStep is one step of a pipeline.
type pipeStep struct {
	q            *pipeline
	ctx          context.Context
	microbatches []Microbatch
	plans        []*pipePlan
	in           *inbox
	out          *outbox
	passes       map[passKey]*pipePass
	retired      []*pipePass    // whose received memory may still be sent
	losses       *tensor.Tensor // of the last stage
}

type passKey struct{ stage, microbatch int }

// step runs the microbatches of a step by the schedule. It returns the sum of the losses on all
// ranks of the axis.
func (q *pipeline) step(ctx context.Context, microbatches []Microbatch) (loss *tensor.Tensor, err error) {
	plans, err := q.prepare(ctx, microbatches)
	if err != nil {
		return nil, err
	}
	s, err := q.scheduleOf(len(microbatches))
	if err != nil {
		return nil, err
	}
	st := &pipeStep{q: q, ctx: ctx, microbatches: microbatches, plans: plans, passes: map[passKey]*pipePass{}, losses: tensor.New(tensor.CPU(), tensor.Float64)}
	st.in = q.newInbox(ctx, s, plans)
	st.out = &outbox{q: q, ctx: ctx, inbox: st.in}
	defer st.close()
	if err := st.in.begin(); err != nil {
		return nil, err
	}
	q.beginTied()
	syncs := q.syncs()
	if syncs { // as passes without a pipeline begin
		if err := q.p.engine.SyncBuffers(ctx); err != nil {
			return nil, err
		}
	}
	if err := q.p.NoSync(func() error { return st.runAll(s.Ranks[q.rank]) }); err != nil {
		return nil, err
	}
	q.stepped = true
	if types := q.types(); types != nil {
		types.done = true
	}
	if syncs {
		if err := q.p.reduce(ctx); err != nil {
			return nil, err
		}
		if err := q.finish(ctx); err != nil {
			return nil, err
		}
	}
	return st.total()
}

// runAll does the actions of this rank.
func (st *pipeStep) runAll(actions []schedule.Action) error {
	for _, a := range actions {
		if err := st.run(a); err != nil {
			return err
		}
	}
	if err := st.out.settle(func(pipeMessage, bool) bool { return true }); err != nil {
		return err
	}
	return st.sweep()
}

// syncs reports whether gradients are summed over the ranks with samples of their own: not inside
// of NoSync.
func (q *pipeline) syncs() bool {
	switch e := q.p.engine.(type) {
	case *FSDP:
		return e.sync
	case *DDP:
		return e.sync
	}
	return true
}

// prepare learns the shapes of the microbatches, and has all ranks of the axis agree on the step
// before any of them begins.
func (q *pipeline) prepare(ctx context.Context, microbatches []Microbatch) (plans []*pipePlan, err error) {
	var text strings.Builder
	if len(microbatches) == 0 {
		err = errors.New("a step has no microbatches: it needs one at least")
	} else {
		_, err = q.scheduleOf(len(microbatches))
	}
	fmt.Fprintf(&text, "%d microbatches\n", len(microbatches))
	for i := 0; i < len(microbatches) && err == nil; i++ {
		var probe *pipeProbe
		if probe, err = q.look(ctx, microbatches[i]); err == nil {
			plans = append(plans, probe.plan)
			name := fmt.Sprintf("microbatch %d: ", i)
			fmt.Fprintf(&text, "%s%s\n%s", name, strings.ReplaceAll(probe.text, ", ", "\n"+name), probe.plan.text())
		}
	}
	if err != nil {
		fmt.Fprintf(&text, "an error: %v\n", err)
	}
	rank, texts, compareErr := firstDifference(ctx, q.group, []byte(text.String()))
	switch {
	case compareErr != nil:
		return nil, fmt.Errorf("pipeline: compare the step of the ranks: %w", compareErr)
	case rank < 0:
		return plans, err
	case err != nil && rank == q.rank:
		return nil, err
	}
	has := firstOther(texts)
	return nil, stageError(-1, "the ranks begin different steps: rank 0 of the axis %s has %s where rank %d has %s; give ranks that differ on %s alone the same microbatches", pipelineAxis, has[0], rank, has[1], pipelineAxis)
}

// look runs a microbatch up to the call of the model.
func (q *pipeline) look(ctx context.Context, m Microbatch) (probe *pipeProbe, err error) {
	c := m.Carrier(ctx)
	defer c.Close()
	defer c.Recover(&err)
	q.probe = &pipeProbe{}
	defer func() { q.probe = nil }()
	c.UntilStop(func() { m.Loss(q.p.within(c)) })
	if q.probe.plan == nil {
		return nil, errors.New("pipeline: Microbatch.Loss has not called the model: it must call the strategy")
	}
	return q.probe, nil
}

// types returns the check of sharding types of the engine.
func (q *pipeline) types() *typeCheck {
	switch e := q.p.engine.(type) {
	case *FSDP:
		return &e.types
	case *DDP:
		if r, ok := e.reducer.(*nativeReducer); ok {
			return &r.types
		}
	}
	return nil
}

// run does one action of the schedule.
func (st *pipeStep) run(a schedule.Action) error {
	if err := context.Cause(st.ctx); err != nil {
		return fmt.Errorf("pipeline: the step ended before %v: %w", a, err)
	}
	if types := st.q.types(); types != nil && !st.q.stepped {
		types.done = false // until each stage has been checked
	}
	if st.q.watch != nil {
		ended, waited := st.q.watch(a), st.in.waited
		defer func() { ended(st.in.waited - waited) }()
	}
	var err error
	switch a.Kind {
	case schedule.Forward:
		err = st.forward(a)
	case schedule.Backward:
		err = st.backward(a, false)
	case schedule.BackwardInput:
		err = st.backward(a, true)
	case schedule.BackwardWeight:
		err = st.weights(a)
	}
	return err
}

// forward runs the forward pass of a stage.
func (st *pipeStep) forward(a schedule.Action) (err error) {
	q, m := st.q, st.microbatches[a.Microbatch]
	c := m.Carrier(st.ctx)
	s := &pipePass{q: q, plan: st.plans[a.Microbatch], c: c, stage: a.Stage, number: a.Microbatch, in: st.in, out: st.out}
	st.passes[passKey{a.Stage, a.Microbatch}] = s
	s.close = c.Close
	q.pass = s
	defer func() { q.pass = nil }()
	defer c.Recover(&err)
	var loss *tensor.Tensor
	if c.UntilStop(func() { loss = m.Loss(q.p.within(c)) }) {
		return nil
	}
	if err := s.lossOf(loss); err != nil {
		return err
	}
	if !s.ended {
		return stageError(a.Stage, "Microbatch.Loss has returned before the stage was at its end: let the panic through by which a pipeline ends it")
	}
	s.loss = loss
	st.losses.Axpy(1, loss.Detach().Reshape().To(tensor.Float64))
	return nil
}

// backward runs the backward pass of a stage, or the first part of it.
func (st *pipeStep) backward(a schedule.Action, split bool) (err error) {
	s := st.passes[passKey{a.Stage, a.Microbatch}]
	if s == nil {
		return fmt.Errorf("pipeline: %v comes before the forward pass", a)
	}
	defer s.c.Recover(&err)
	values, grads, err := st.seeds(s)
	if err != nil {
		return err
	}
	if len(values) > 0 {
		var opts []tensor.BackwardOption
		if split {
			opts = append(opts, tensor.DeferWeights())
		}
		if err := s.c.Tape().BackwardFrom(st.ctx, values, grads, opts...); err != nil {
			return err
		}
	}
	for _, g := range grads {
		if g != nil { // which the second part may read
			s.owned = append(s.owned, g)
		}
	}
	for _, m := range st.q.messagesOf(s.plan, a) {
		g := s.grads[m.value.index]
		if g == nil { // the stage does not make use of it
			g = tensor.New(tensor.CPU(), m.value.dtype, m.value.shape...)
		}
		st.out.send(m, g)
		s.grads[m.value.index] = nil
	}
	if split {
		return nil
	}
	return st.finish(a, s)
}

// seeds returns from which values a backward pass starts, and their gradients that have come from
// later stages. Those of the last stages come first, as in a pass over the whole model.
func (st *pipeStep) seeds(s *pipePass) (values, grads []*tensor.Tensor, err error) {
	if s.loss != nil {
		values, grads = append(values, s.loss), append(grads, nil)
	}
	if added := s.c.AddedLoss(); added != nil && added.NeedsGrad() {
		values, grads = append(values, added.MulScalar(1/float64(len(st.microbatches)))), append(grads, nil)
	}
	for _, v := range slices.Backward(s.plan.values) {
		if v.born != s.stage || !v.grad {
			continue
		}
		for _, stage := range slices.Backward(v.uses) {
			g, err := st.in.take(pipeMessage{value: v, stage: stage, microbatch: s.number, isGrad: true})
			if err != nil {
				return nil, nil, err
			}
			values, grads = append(values, s.values[v.index]), append(grads, g)
		}
	}
	return values, grads, nil
}

// weights runs the second part of a backward pass.
func (st *pipeStep) weights(a schedule.Action) (err error) {
	s := st.passes[passKey{a.Stage, a.Microbatch}]
	if s == nil { // the first part has done it all
		return nil
	}
	defer s.c.Recover(&err)
	if err := s.c.Tape().BackwardWeights(st.ctx); err != nil {
		return err
	}
	return st.finish(a, s)
}

// finish gives up the memory of a pass.
func (st *pipeStep) finish(a schedule.Action, s *pipePass) error {
	if err := st.out.settle(func(m pipeMessage, _ bool) bool {
		return m.microbatch == a.Microbatch && !m.isGrad && m.value.born == a.Stage
	}); err != nil {
		return err
	}
	delete(st.passes, passKey{a.Stage, a.Microbatch})
	s.c.Close()
	st.retired = append(st.retired, s)
	return st.sweep()
}

// sweep gives up what was received for passes that have ended. A gradient that is still being sent
// may lie there: that of a value which a stage hands on as it is.
func (st *pipeStep) sweep() error {
	under := map[passKey]bool{}
	if err := st.out.settle(func(m pipeMessage, ended bool) bool {
		if m.isGrad && !ended {
			under[passKey{m.stage, m.microbatch}] = true
		}
		return ended
	}); err != nil {
		return err
	}
	st.retired = slices.DeleteFunc(st.retired, func(s *pipePass) bool {
		if under[passKey{s.stage, s.number}] {
			return false
		}
		for _, t := range s.owned {
			t.Free()
		}
		return true
	})
	return nil
}

// close gives up what a step that failed has left.
func (st *pipeStep) close() {
	for _, s := range st.passes {
		s.close()
	}
	clear(st.passes)
}

// total returns the sum of the losses of the last stage, on all ranks of the axis.
func (st *pipeStep) total() (*tensor.Tensor, error) {
	q := st.q
	if err := q.all.broadcastFrom(st.ctx, st.losses, q.rankOf(q.config.NumStages-1)); err != nil {
		return nil, fmt.Errorf("pipeline: tell the loss to all stages: %w", err)
	}
	return st.losses, nil
}

// tiedParameter is a parameter that stages of several ranks read. Each rank has it, and a gradient
// of its own stages' use.
type tiedParameter struct {
	param   *nn.Parameter
	holders []int // ranks of the axis, in the order of the stages
	summed  bool  // the gradient is the sum over the holders already
}

// beginTied has one rank alone keep the gradient of an earlier step, if nobody has dropped it: it
// is added to, once.
func (q *pipeline) beginTied() {
	for _, t := range q.tied {
		if t.summed && t.holders[0] != q.rank && slices.Contains(t.holders, q.rank) {
			t.param.ZeroGrad()
		}
		t.summed = false
	}
}

// finish sums the gradients of tied parameters over the ranks that have them, after those of the
// samples have been summed. All come to the same bits: they add in the order of the stages.
func (q *pipeline) finish(ctx context.Context) error {
	for _, t := range q.tied {
		if t.param.Frozen || !slices.Contains(t.holders, q.rank) {
			continue
		}
		if err := q.sumTied(ctx, t); err != nil {
			return fmt.Errorf("pipeline: sum the gradients of %s over the stages that read it: %w", t.param.Name(), err)
		}
		t.summed = true
	}
	return nil
}

// sumTied gives each holder the sum of the gradients of all. A holder whose stages have not reached
// the parameter has none, and brings zeros; if no holder has any, there is none afterwards either.
func (q *pipeline) sumTied(ctx context.Context, t *tiedParameter) error {
	if t.param.Data().NumElems() == 0 {
		return nil // of a shard that has none
	}
	has := t.param.Grad() != nil
	own, _ := t.param.GradBuffer() // that of a bucket stays the gradient's memory
	if !has {
		own.Fill(0)
	}
	reached := tensor.FromInt64([]int64{0})
	if has {
		reached.Fill(1)
	}
	parts, others := make([]*tensor.Tensor, len(t.holders)), []*tensor.Tensor{}
	var messages []dist.Message
	for i, r := range t.holders {
		if r == q.rank {
			parts[i] = own
			continue
		}
		parts[i] = tensor.New(tensor.CPU(), own.DType(), own.Shape()...)
		other := tensor.New(tensor.CPU(), tensor.Int64, 1)
		others = append(others, other)
		messages = append(messages, dist.Message{Tensor: own, Peer: r}, dist.Message{Tensor: reached, Peer: r},
			dist.Message{Recv: true, Tensor: parts[i], Peer: r}, dist.Message{Recv: true, Tensor: other, Peer: r})
	}
	if err := q.group.Batch(ctx, messages...); err != nil {
		return err
	}
	for _, o := range others {
		has = has || o.Int64s()[0] > 0
	}
	if !has {
		return nil
	}
	sum := parts[0]
	for _, p := range parts[1:] {
		sum = sum.Add(p)
	}
	own.CopyFrom(sum)
	t.param.SetGrad(own)
	return nil
}
