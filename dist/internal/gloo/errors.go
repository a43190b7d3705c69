// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/ctxerr"
)

// sizeError is that a peer takes its group for one of another size.
type sizeError struct{ its, ours int }

func (e *sizeError) Error() string {
	return fmt.Sprintf("the world sizes differ: it has published how %d ranks meet, and this rank's group has %d", e.its, e.ours)
}

// lostError is that a connection has ended, and why.
type lostError struct {
	peer string // its address; of its host the error about the rank speaks
	err  error
}

func (e *lostError) Error() string {
	if e.err == io.EOF {
		return fmt.Sprintf("%v (%s)", fault.ErrGone, e.peer)
	}
	return fmt.Sprintf("%v (%s: %v)", fault.ErrGone, e.peer, e.err)
}

func (e *lostError) Unwrap() error { return fault.ErrGone }

// lossOf is the cause of an error about a peer whose connection has ended with err: that
// it has ended it, or that nothing comes from its host any more.
func lossOf(p *pair, err error) error {
	var silent *fault.SilentError
	switch {
	case errors.As(err, &silent):
		return fmt.Errorf("%w (%s)", err, p.from())
	case noAnswer(err):
		return fmt.Errorf("%w (%s: %v)", &fault.SilentError{Text: "for long: its host does not answer"}, p.from(), err)
	}
	return &lostError{peer: p.from(), err: err}
}

// noAnswer says that the system has given up a connection, not the peer.
func noAnswer(err error) bool {
	return errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

// blame returns the error about a peer; c is nil when no call is under way.
func (b *Communicator) blame(c *operation.Call, rank int, cause error) *fault.RankError {
	e := fault.NewRankError(b.cfg.Group, b.Member(rank), cause)
	if c != nil {
		e.Op, e.Seq = c.Op.String(), c.Seq
		e.Cause = inCall(e.Cause, c)
	}
	return e
}

// inCall is the cause of an error of a call: what a peer has sent beside the call's own
// elements, for bytes of a part alone tell nobody what differs.
func inCall(cause error, c *operation.Call) error {
	wire, ok := cause.(*fault.WireError)
	if !ok || !wire.Other || wire.Call != "" {
		return cause
	}
	told := *wire
	told.Call = c.String()
	return &told
}

// closedError returns the error of a call on a group that this rank has closed.
func (b *Communicator) closedError(c *operation.Call) error {
	return fmt.Errorf("dist: %s of group %q on rank %d: %w", fault.Numbered(c.Op.String(), c.Seq), b.cfg.Group, b.cfg.Rank, fault.ErrClosed)
}

// again returns the error that has ended the group as that of a call.
func (b *Communicator) again(c *operation.Call, err error) error {
	if errors.Is(err, fault.ErrClosed) {
		return b.closedError(c)
	}
	if e, ok := err.(*fault.RankError); ok {
		later := *e
		later.Op, later.Seq = c.Op.String(), c.Seq
		later.Cause = inCall(later.Cause, c)
		return &later
	}
	return fmt.Errorf("dist: %s: the group has failed before: %w", fault.Numbered(c.Op.String(), c.Seq), err)
}

// late returns the error of a call that has run out of time, or whose context has
// ended.
func (b *Communicator) late(ctx context.Context, c *operation.Call, missing []int) error {
	cause := ctxerr.Of(ctx)
	if cause == nil {
		cause = fmt.Errorf("the group's limit of %v: %w", b.cfg.Timeout, context.DeadlineExceeded)
	}
	e := &fault.TimeoutError{Group: b.cfg.Group, Op: c.Op.String(), Seq: c.Seq, Cause: cause}
	for _, r := range missing {
		e.Missing = append(e.Missing, b.Member(r))
	}
	return e
}
