// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/parallel/schedule"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// pipeMessage is a value that goes from the stage that makes it to one that reads it, or its
// gradient that comes back, for one microbatch.
type pipeMessage struct {
	value      *pipeValue
	stage      int // that reads the value
	microbatch int
	isGrad     bool
	isType     bool // the sharding type of the value, which comes before it in the first step
}

// key tells messages of a step apart.
type messageKey struct {
	value, stage, microbatch int
	isGrad, isType           bool
}

func (m pipeMessage) key() messageKey {
	return messageKey{m.value.index, m.stage, m.microbatch, m.isGrad, m.isType}
}

func (m pipeMessage) String() string {
	if m.isGrad {
		return fmt.Sprintf("the gradient of %s for microbatch %d from stage %d", m.value.what, m.microbatch, m.stage)
	}
	return fmt.Sprintf("%s for microbatch %d from stage %d", m.value.what, m.microbatch, m.value.born)
}

// ends returns the ranks that send and receive the message.
func (q *pipeline) ends(m pipeMessage) (from, to int) {
	from, to = q.rankOf(m.value.born), q.rankOf(m.stage)
	if m.isGrad {
		return to, from
	}
	return from, to
}

// arrival is a message that comes, or has come.
type arrival struct {
	pipeMessage
	t    *tensor.Tensor
	work *dist.Work // nil while the receive is not posted, and for a message of this rank to itself
}

// inbox has the messages that the other ranks send to this rank in a step, in the order in which
// each of them sends. Messages between two ranks have no names: they are what their order says.
// So receives are posted in that order, some of them ahead of their use.
type inbox struct {
	q      *pipeline
	ctx    context.Context
	from   []*inboxOf
	at     map[messageKey]*arrival
	places map[messageKey]int
	waited time.Duration // for messages
}

// inboxOf has the messages of one rank.
type inboxOf struct {
	all    []*arrival
	posted int
}

// postedAhead is how many receives are posted before the first of them is needed.
const postedAhead = 2

// newInbox follows from the schedule and the plans of the microbatches.
func (q *pipeline) newInbox(ctx context.Context, s *schedule.Schedule, plans []*pipePlan) *inbox {
	b := &inbox{q: q, ctx: ctx, at: map[messageKey]*arrival{}, places: map[messageKey]int{}}
	for rank := range q.ranks {
		of := &inboxOf{}
		b.from = append(b.from, of)
		for _, a := range s.Ranks[rank] {
			for _, m := range q.messagesOf(plans[a.Microbatch], a) {
				if from, to := q.ends(m); from != rank || to != q.rank {
					continue
				}
				in := &arrival{pipeMessage: m}
				b.at[m.key()] = in
				if rank != q.rank {
					b.places[m.key()] = len(of.all)
					of.all = append(of.all, in)
				}
			}
		}
	}
	return b
}

// messagesOf returns what an action sends, in the order in which it does.
func (q *pipeline) messagesOf(plan *pipePlan, a schedule.Action) []pipeMessage {
	return messagesOf(plan, a, !q.stepped)
}

// messagesOf also says which types are sent, in the first step.
func messagesOf(plan *pipePlan, a schedule.Action, withTypes bool) []pipeMessage {
	var out []pipeMessage
	for _, v := range plan.values {
		switch {
		case a.Kind == schedule.Forward && v.born == a.Stage:
			for _, stage := range v.uses {
				m := pipeMessage{value: v, stage: stage, microbatch: a.Microbatch}
				if withTypes {
					m.isType = true
					out = append(out, m)
					m.isType = false
				}
				out = append(out, m)
			}
		case (a.Kind == schedule.Backward || a.Kind == schedule.BackwardInput) && v.grad && slices.Contains(v.uses, a.Stage):
			out = append(out, pipeMessage{value: v, stage: a.Stage, microbatch: a.Microbatch, isGrad: true})
		}
	}
	return out
}

// take waits for a message.
func (b *inbox) take(m pipeMessage) (*tensor.Tensor, error) {
	in := b.at[m.key()]
	if in == nil {
		return nil, fmt.Errorf("pipeline: %v is not sent in this step", m)
	}
	if from, _ := b.q.ends(m); from != b.q.rank {
		if err := b.post(from, b.places[m.key()]+1+postedAhead); err != nil {
			return nil, err
		}
		begun := time.Now()
		err := in.work.Wait(b.ctx)
		if b.waited += time.Since(begun); err != nil {
			return nil, fmt.Errorf("pipeline: receive %v: %w", m, err)
		}
	}
	t := in.t
	if t == nil {
		return nil, fmt.Errorf("pipeline: %v has not been made: the schedule is in a wrong order", m)
	}
	in.t, in.work = nil, nil
	return t, nil
}

// post posts the receives of a rank up to the n-th.
func (b *inbox) post(rank, n int) error {
	of := b.from[rank]
	for ; of.posted < min(n, len(of.all)); of.posted++ {
		in := of.all[of.posted]
		if in.isType {
			in.t = tensor.New(tensor.CPU(), tensor.Int64, b.q.lenType())
		} else {
			in.t = tensor.New(tensor.CPU(), in.value.dtype, in.value.shape...)
		}
		in.work = b.q.group.RecvAsync(b.ctx, in.t, rank)
	}
	return nil
}

// begin posts the first receives from each rank.
func (b *inbox) begin() error {
	for rank := range b.from {
		if err := b.post(rank, postedAhead); err != nil {
			return err
		}
	}
	return nil
}

// outbox sends messages, and keeps what is under way.
type outbox struct {
	q     *pipeline
	ctx   context.Context
	inbox *inbox
	under []outgoing
}

type outgoing struct {
	pipeMessage
	t    *tensor.Tensor // what is sent keeps its memory
	work *dist.Work
}

// send starts a message. One of this rank to itself arrives at once.
func (o *outbox) send(m pipeMessage, t *tensor.Tensor) {
	_, to := o.q.ends(m)
	if to == o.q.rank {
		o.inbox.at[m.key()].t = t.Keep() // the pass that made it may end before that which reads it
		return
	}
	o.under = append(o.under, outgoing{m, t, o.q.group.SendAsync(o.ctx, t, to)})
}

// settle waits for the messages for which wait is true, which is also told whether they have ended,
// and forgets them.
func (o *outbox) settle(wait func(m pipeMessage, ended bool) bool) error {
	kept := o.under[:0]
	var first error
	for _, m := range o.under {
		ended := false
		select {
		case <-m.work.Done():
			ended = true
		default:
		}
		if !wait(m.pipeMessage, ended) {
			kept = append(kept, m)
			continue
		}
		if err := m.work.Wait(o.ctx); err != nil && first == nil {
			_, to := o.q.ends(m.pipeMessage)
			first = fmt.Errorf("pipeline: send %v to rank %d of the axis: %w", m.pipeMessage, to, err)
		}
	}
	clear(o.under[len(kept):])
	o.under = kept
	return first
}

// send sends a value that a stage of this pass has made to those that read it.
func (s *pipePass) send(v *pipeValue, t *tensor.Tensor) {
	if s.standIns != nil {
		return
	}
	if s.stage >= 0 {
		dense := t.Contiguous()
		for _, stage := range v.uses {
			m := pipeMessage{value: v, stage: stage, microbatch: s.number}
			if !s.q.stepped {
				m.isType = true
				s.out.send(m, s.q.encodeType(sharding.Of(s.c.Tape()), t))
				m.isType = false
			}
			s.out.send(m, dense)
		}
		if v.grad {
			sharding.Of(s.c.Tape()).Went(t)
		}
		return
	}
	// In an evaluation a rank receives a value once, and has what it has made.
	t = t.Contiguous().Keep()
	for _, rank := range s.readers(v) {
		s.works = append(s.works, s.q.group.SendAsync(s.c, t, rank))
	}
}

// readers returns the other ranks with stages that read a value, in the order of the stages.
func (s *pipePass) readers(v *pipeValue) []int {
	var out []int
	for _, stage := range v.uses {
		if r := s.q.rankOf(stage); r != s.q.rankOf(v.born) && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// expect posts the receives of an evaluation. The results of the model are broadcast, so a value
// that is one of them alone does not come.
func (s *pipePass) expect(ctx context.Context) {
	for _, v := range s.plan.values {
		if slices.Contains(s.readers(v), s.q.rank) {
			t := tensor.New(tensor.CPU(), v.dtype, v.shape...)
			s.coming[v.index] = &arrival{pipeMessage: pipeMessage{value: v}, t: t, work: s.q.group.RecvAsync(ctx, t, s.q.rankOf(v.born))}
		}
	}
}

// receive returns a value that another stage has made, under the tape of the pass.
func (s *pipePass) receive(v *pipeValue) *tensor.Tensor {
	if s.standIns != nil {
		if !s.q.isMine(v.born) {
			s.received += sizeOf(v.shape, v.dtype)
		}
		return s.leaf(v, tensor.New(tensor.Meta, v.dtype, v.shape...), nil)
	}
	if s.stage < 0 {
		in := s.coming[v.index]
		if in == nil {
			s.c.Fail(fmt.Errorf("pipeline: no rank sends %s", v.what))
		}
		if err := in.work.Wait(s.c); err != nil {
			s.c.Fail(fmt.Errorf("pipeline: receive %s from stage %d: %w", v.what, v.born, err))
		}
		return s.leaf(v, in.t, nil)
	}
	m := pipeMessage{value: v, stage: s.stage, microbatch: s.number}
	var at *tensor.Tensor
	if !s.q.stepped {
		m.isType = true
		var err error
		if at, err = s.in.take(m); err != nil {
			s.c.Fail(err)
		}
		m.isType = false
	}
	t, err := s.in.take(m)
	if err != nil {
		s.c.Fail(err)
	}
	if s.q.rankOf(v.born) != s.q.rank {
		s.owned = append(s.owned, t)
	}
	return s.leaf(v, t, at)
}

// lenType is the number of elements of a sharding type that is sent: whether there is one, and three
// for each axis.
func (q *pipeline) lenType() int { return 1 + 3*len(q.p.pass.Axes()) }

// The first element of a placement that is sent.
const (
	sentReplicate = iota
	sentVarying
	sentShard   // along a dim, in pieces
	sentPartial // by an operation
)

// encodeType returns the sharding type of a value as it is sent.
func (q *pipeline) encodeType(pass *sharding.Pass, t *tensor.Tensor) *tensor.Tensor {
	out := make([]int64, q.lenType())
	at := pass.TypeOf(t)
	if len(at) != len(q.p.pass.Axes()) {
		return tensor.FromInt64(out)
	}
	out[0] = 1
	for i, p := range at {
		code := out[1+3*i : 4+3*i]
		dim, isShard := p.IsShard()
		op, isPartial := p.IsPartial()
		switch {
		case isShard:
			code[0], code[1], code[2] = sentShard, int64(dim), int64(p.NumPieces())
		case isPartial:
			code[0], code[1] = sentPartial, int64(op)
		case p.IsVarying():
			code[0] = sentVarying
		}
	}
	return tensor.FromInt64(out)
}

// came tells the check of the pass which type a value has that has come from another stage. Where
// the other rank does not check its pass, this one cannot.
func (s *pipePass) came(t, at *tensor.Tensor) {
	pass := sharding.Of(s.c.Tape())
	if pass == nil || at == nil {
		return
	}
	code := at.Int64s()
	if code[0] == 0 || len(pass.Axes()) != len(s.q.p.pass.Axes()) {
		s.c.Tape().Observe(nil)
		return
	}
	var placements sharding.Type
	for c := range slices.Chunk(code[1:], 3) {
		var p mesh.Placement
		switch c[0] {
		case sentVarying:
			p = mesh.Varying()
		case sentShard:
			if p = mesh.Shard(int(c[1])); c[2] > 1 {
				p = mesh.StridedShard(int(c[1]), int(c[2]))
			}
		case sentPartial:
			p = mesh.Partial(dist.ReduceOp(c[1]))
		}
		placements = append(placements, p)
	}
	pass.Came(t, placements)
}
