// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist/internal/collective"
)

// link carries the pieces of a plan between the ranks of a group: over
// connections ([Mesh]) or through shared memory ([Shm]). Sends come from one goroutine and
// receives from one, which may be another.
type link interface {
	// prepare opens the ways to the peers of a plan and bounds the waits on
	// them, until release is called. fits reports whether all of the plan's
	// sends can be under way before anybody receives one.
	prepare(ctx context.Context, c *collective.Call, p *collective.Plan) (release func(), fits bool, err error)
	// sendPiece returns when data may be changed again.
	sendPiece(ctx context.Context, c *collective.Call, to int, data []byte) error
	// recvPiece receives exactly into, or reduces into it. culprit is who is
	// missing if nothing comes.
	recvPiece(ctx context.Context, c *collective.Call, from, culprit int, into []byte, reduce collective.Reducer) error
	// fail ends the group: what waits on the link returns.
	fail(err error) error
}

// executor runs a rank's plans, one at a time.
type executor struct {
	rank, numRanks int

	work []byte // scratch: working memory, kept at the largest size so far
}

// run runs a rank's plan for a call on a link.
func (e *executor) run(ctx context.Context, l link, c *collective.Call, p *collective.Plan, in, out []byte) error {
	size := c.DType.Size()
	var reduce collective.Reducer
	if c.Op.Reduces() {
		var err error
		if reduce, err = collective.ReducerFor(c.Reduce, c.DType); err != nil {
			return err
		}
	}
	if err := p.Check(e.rank, e.numRanks, size); err != nil {
		return fmt.Errorf("dist: the plan of %v: %w", c, err)
	}
	release, fits, err := l.prepare(ctx, c, p)
	if err != nil {
		return err
	}
	defer release()
	if need := p.Work * size; len(e.work) < need {
		e.work = aligned(need)
	}
	s := steps{ctx, l, c, p, p.Start(in, out, e.work[:p.Work*size], size), size, reduce}
	if fits {
		err = s.inTurn()
	} else {
		err = s.atOnce()
	}
	if err == nil {
		p.Finish(out, s.data, size, reduce)
	}
	return err
}

// steps are the sends and receives of a plan, on data whose elements have size
// bytes.
type steps struct {
	ctx    context.Context
	link   link
	c      *collective.Call
	p      *collective.Plan
	data   []byte
	size   int
	reduce collective.Reducer
}

// inTurn sends what can be sent, receives once, and so on. Nobody waits to
// send, for all sends fit the link.
func (s *steps) inTurn() error {
	sends, next := s.p.Sends, 0
	for received := 0; ; received++ {
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

// atOnce sends on a goroutine of its own, so that a rank receives while its
// sends wait for room. It has its own copy of the steps: those of small calls
// need no memory of their own.
func (s steps) atOnce() error {
	progress := make(chan struct{}, len(s.p.Recvs)) // a token for each receive
	sent := make(chan error, 1)
	stop := make(chan struct{})
	go func() { sent <- s.sendAll(progress, stop) }()
	for i := range s.p.Recvs {
		if err := s.recv(&s.p.Recvs[i]); err != nil {
			close(stop)
			_ = s.link.fail(err) // ends the sender's wait
			<-sent
			return err
		}
		progress <- struct{}{}
	}
	return <-sent
}

func (s *steps) sendAll(progress, stop <-chan struct{}) error {
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

func (s *steps) send(v *collective.Send) error {
	return s.link.sendPiece(s.ctx, s.c, v.To, s.data[v.Lo*s.size:v.Hi*s.size])
}

func (s *steps) recv(v *collective.Recv) error {
	reduce := s.reduce
	if !v.Reduce {
		reduce = nil
	}
	return s.link.recvPiece(s.ctx, s.c, v.From, v.Culprit, s.data[v.Lo*s.size:v.Hi*s.size], reduce)
}
