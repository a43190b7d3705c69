// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// link carries the pieces of a plan between the ranks of a group: over connections ([Mesh]) or
// through shared memory ([Shm]). One goroutine sends and one receives; they may be the same.
type link interface {
	// prepare opens the ways to the peers of a plan, and bounds the waits on them until
	// release is called. fits reports whether all sends of the plan can be under way
	// before any rank receives one.
	prepare(ctx context.Context, c *operation.Call, p *collective.Plan) (release func(), fits bool, err error)
	// sendPiece returns when data may be changed again.
	sendPiece(ctx context.Context, c *operation.Call, to int, data []byte) error
	// recvPiece receives len(into) bytes, or reduces into it. culprit is the rank to name as
	// missing if nothing comes.
	recvPiece(ctx context.Context, c *operation.Call, from, culprit int, into []byte, reduce collective.Reducer) error
	// fail ends the group: what waits on the link returns.
	fail(err error) error
}

// executor runs a rank's plans, one at a time. It keeps the plans that it has run, so that a
// repeated call allocates nothing.
type executor struct {
	rank, numRanks int
	kept           map[planKey]*keptPlan

	work, input []byte // scratch: working memory, and the input where it is prepared
	run         planRun
}

// planKey is what a plan depends on, except for parts that only this rank knows.
type planKey struct {
	op          operation.Op
	reduce      operation.ReduceOp
	dtype       operation.DType
	root, count int
	layout      uint64
}

type keptPlan struct {
	collective.Plan
	parts, recvs []int
	planReduction
}

// maxKept is how many plans are kept.
const maxKept = 256

// planFor returns the plan of a call, which is valid until the next.
func (e *executor) planFor(cfg *Config, c *operation.Call) (*keptPlan, error) {
	key := planKey{c.Op, c.Reduce.Kind(), c.DType, c.Root, c.Count, c.Layout}
	if k := e.kept[key]; k != nil && slices.Equal(k.parts, c.Parts) && slices.Equal(k.recvs, c.Recvs) {
		return k, nil
	}
	p, err := collective.PlanFor(c, e.rank, cfg.Topology, cfg.Options)
	if err != nil {
		return nil, err
	}
	if err := p.Check(e.rank, e.numRanks, c.DType.Size()); err != nil {
		return nil, fmt.Errorf("dist: the plan of %v: %w", c, err)
	}
	cfg.Explain.say(c, p.Why)
	k := &keptPlan{Plan: p, parts: slices.Clone(c.Parts), recvs: slices.Clone(c.Recvs)}
	if e.kept == nil || len(e.kept) >= maxKept {
		e.kept = map[planKey]*keptPlan{}
	}
	e.kept[key] = k
	return k, nil
}

// execute chooses the plan of a call and runs it on a link.
func (e *executor) execute(ctx context.Context, l link, cfg *Config, c *operation.Call, in, out []byte) error {
	k, err := e.planFor(cfg, c)
	if err != nil {
		return err
	}
	return e.runPlan(ctx, l, c, &k.Plan, &k.planReduction, in, out)
}

// planReduction is what a plan reduces with.
type planReduction struct {
	op        operation.ReduceOp
	reduction collective.Reduction
	into      collective.Reducer // reduction's, nil until it has been made
}

// prepare makes the reduction of a call.
func (r *planReduction) prepare(c *operation.Call, numRanks int) error {
	if !c.Op.Reduces() || r.into != nil && r.op == c.Reduce {
		return nil
	}
	var err error
	if r.reduction, err = collective.ReductionFor(c.Reduce, c.DType, numRanks); err == nil && r.into == nil {
		r.into = r.reduction.Into
	}
	r.op = c.Reduce
	return err
}

// runPlan runs one rank's plan of a call: it prepares the link and what the plan reduces,
// then moves the pieces.
func (e *executor) runPlan(ctx context.Context, l link, c *operation.Call, p *collective.Plan, r *planReduction, in, out []byte) error {
	if err := r.prepare(c, e.numRanks); err != nil {
		return err
	}
	release, fits, err := l.prepare(ctx, c, p)
	if err != nil {
		return err
	}
	defer release()
	size := c.DType.Size()
	work := grown(&e.work, p.Work*size)
	if c.Op.Reduces() && r.reduction.NeedsPrepare() {
		if p.NumIn > 0 {
			own := grown(&e.input, len(in))
			r.reduction.Prepare(own, in)
			in = own
		} else {
			r.reduction.Prepare(out, out)
		}
	}
	s := &e.run
	s.ctx, s.link, s.c, s.p, s.r, s.stepped = ctx, l, c, p, r, 0
	p.Map(&s.mem, in, out, work, size)
	if fits {
		err = s.inTurn()
	} else {
		err = s.atOnce()
	}
	s.ctx, s.link, s.c, s.p, s.r = nil, nil, nil, nil, nil
	s.mem.Drop()
	return err
}

// grown returns scratch memory of a size.
func grown(scratch *[]byte, size int) []byte {
	if len(*scratch) < size {
		*scratch = aligned(size)
	}
	return (*scratch)[:size]
}

// planRun is one run of a plan.
type planRun struct {
	ctx     context.Context
	link    link
	c       *operation.Call
	p       *collective.Plan
	r       *planReduction
	mem     collective.PlanMemory
	stepped int // how many of the plan's steps have been done
}

// doSteps does the copies and reductions that come after so many receives.
func (s *planRun) doSteps(received int) {
	for ; s.stepped < len(s.p.Steps) && s.p.Steps[s.stepped].After <= received; s.stepped++ {
		s.mem.Do(&s.p.Steps[s.stepped], &s.r.reduction)
	}
}

// inTurn sends what can be sent, receives one piece, and repeats. No send waits, for all sends
// fit the link.
func (s *planRun) inTurn() error {
	sends, next := s.p.Sends, 0
	for received := 0; ; received++ {
		s.doSteps(received)
		for next < len(sends) && sends[next].After <= received {
			if err := s.send(&sends[next]); err != nil {
				return err
			}
			next++
		}
		if received == len(s.p.Recvs) {
			return nil
		}
		if err := s.recv(&s.p.Recvs[received]); err != nil {
			return err
		}
	}
}

// atOnce sends on a goroutine of its own, so that the rank receives while its sends wait for
// room.
func (s *planRun) atOnce() error {
	s.doSteps(0)
	progress := make(chan struct{}, len(s.p.Recvs)) // a token for each receive
	sent := make(chan error, 1)
	stop := make(chan struct{})
	var broken atomic.Pointer[firstError] // why the sender gave up
	go func() {
		err := s.sendAll(progress, stop)
		if err != nil {
			broken.Store(&firstError{err})
			_ = s.link.fail(err) // ends the receiver's wait
		}
		sent <- err
	}()
	for i := range s.p.Recvs {
		if err := s.recv(&s.p.Recvs[i]); err != nil {
			if f := broken.Load(); f != nil {
				err = f.err
			}
			close(stop)
			_ = s.link.fail(err) // ends the sender's wait
			<-sent
			return err
		}
		s.doSteps(i + 1)
		progress <- struct{}{}
	}
	return <-sent
}

func (s *planRun) sendAll(progress, stop <-chan struct{}) error {
	received := 0
	for i := range s.p.Sends {
		for received < s.p.Sends[i].After {
			select {
			case <-progress:
				received++
			case <-stop:
				return nil
			}
		}
		if err := s.send(&s.p.Sends[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *planRun) send(v *collective.Send) error {
	return s.link.sendPiece(s.ctx, s.c, v.To, s.mem.At(v.Range))
}

func (s *planRun) recv(v *collective.Recv) error {
	var reduce collective.Reducer
	if v.Reduce {
		reduce = s.r.into
	}
	data := s.mem.At(v.Range)
	if err := s.link.recvPiece(s.ctx, s.c, v.From, v.Culprit, data, reduce); err != nil {
		return err
	}
	if v.Finish {
		s.r.reduction.Finish(data)
	}
	return nil
}
