// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

// StallTime is how long a peer may stand still in the middle of a message, in either
// direction, once a call is late. Then the connection ends.
const StallTime = 5 * time.Second

// Call is a call that waits for its answer.
type Call struct {
	ID       uint64
	Method   string
	Conn     *ClientConn
	Ctx      context.Context
	Began    time.Time
	Deadline time.Time     // zero: none
	Answered chan struct{} // of a synchronous call; has room for one
	Sink     Sink          // of an asynchronous call, nil for others
	Stop     func() bool   // stops what watches Ctx, or nil
	Sent     chan struct{} // closed when its tensors are no longer read, nil if it has none
	// The answer, set before anybody is told: a message, or why there is none.
	Reply *wire.Received
	Err   error
}

// Sink is told that an asynchronous call has its answer.
type Sink interface{ Arrive() }

// NextID returns the number of a new call.
func (c *ClientConn) NextID() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastID++
	return c.lastID
}

// Start sends a call. mine says that the caller has become the one who reads and must call
// [ClientConn.ReadFor]: its call is the only one.
func (c *ClientConn) Start(ctx context.Context, call *Call, m *wire.Outgoing) (mine bool, err error) {
	call.Sent = m.Watch()
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		err := c.lostError()
		m.Release(err)
		return false, err
	}
	c.pending[call.ID] = call
	alone := len(c.pending) == 1
	if !call.Deadline.IsZero() && (c.deadline == nil || call.Deadline.Before(c.expires)) {
		c.expireAt(call.Deadline)
	}
	mine = call.Sink == nil && alone && !c.reading && c.end.Calling.Load() == 1
	if mine {
		c.reading = true
	} else {
		c.wantReader()
	}
	c.mu.Unlock()
	if call.Sent != nil && call.Sink == nil && ctx.Done() != nil {
		// This goroutine may write the message, and then does not look at its context.
		defer context.AfterFunc(ctx, c.suspect)()
	}
	if err := c.Send(ctx, m, alone && (call.Sink == nil || m.Small()) || call.Sink == nil && !m.Small()); err != nil {
		if c.claim(call.ID, call) {
			if mine {
				c.giveReading()
			}
			return false, c.sendError(err)
		}
	}
	return mine, nil
}

// sendError is the error of a call that could not be sent.
func (c *ClientConn) sendError(err error) error {
	c.mu.Lock()
	lost := c.err != nil
	c.mu.Unlock()
	if lost {
		return c.lostError()
	}
	return wire.Errorf(wire.KindTimeout, "the connection was taken up by other calls: %w", err)
}

// Complete gives a call its answer. The call is in no list any more.
func (c *ClientConn) Complete(call *Call, r *wire.Received, err error) {
	call.Reply, call.Err = r, err
	if call.Sink == nil {
		call.Answered <- struct{}{} // has room
		return
	}
	if call.Stop != nil {
		call.Stop()
	}
	if call.Sent != nil {
		select {
		case <-call.Sent:
		default:
			go func() {
				c.Settle(call.Sent)
				call.Sink.Arrive()
			}()
			return
		}
	}
	call.Sink.Arrive()
}

// claim takes the call of a number off the list and says whether it was there. A call that
// has ended may have another number by now.
func (c *ClientConn) claim(id uint64, call *Call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending[id] != call {
		return false
	}
	delete(c.pending, id)
	return true
}

// GiveUp ends a call before its answer has come, and tells the peer. It returns false if
// the answer was quicker.
func (c *ClientConn) GiveUp(call *Call) bool {
	if !c.claim(call.ID, call) {
		return false
	}
	c.Tell(wire.FrameCancel, call.ID)
	return true
}

// expireAt makes the deadlines of calls be looked at at a time, with the lock held.
func (c *ClientConn) expireAt(t time.Time) {
	c.expires = t
	if c.deadline == nil {
		c.deadline = time.AfterFunc(time.Until(t), c.expire)
		return
	}
	c.deadline.Reset(time.Until(t))
}

// expire ends the calls whose deadline has passed. There is one timer for all of them:
// most are answered long before.
func (c *ClientConn) expire() {
	now := time.Now()
	var late []*Call
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	var next time.Time
	for id, call := range c.pending {
		switch {
		case call.Deadline.IsZero():
		case !now.Before(call.Deadline):
			delete(c.pending, id)
			late = append(late, call)
		case next.IsZero() || call.Deadline.Before(next):
			next = call.Deadline
		}
	}
	if next.IsZero() {
		c.deadline = nil
	} else {
		c.expireAt(next)
	}
	c.mu.Unlock()
	if len(late) > 0 && (c.within.Load() || c.Busy()) {
		c.suspect()
	}
	for _, call := range late {
		c.Tell(wire.FrameCancel, call.ID)
		c.Complete(call, nil, Late(call.Ctx, now.Sub(call.Began)))
	}
}

// suspect ends the connection if nothing moves on it for a while: a message that has begun
// and does not end keeps all calls waiting.
func (c *ClientConn) suspect() {
	if within, moved := c.within.Load(), c.moved.Load(); within {
		time.AfterFunc(StallTime, func() {
			if c.within.Load() && c.moved.Load() == moved {
				c.lose(fmt.Errorf("the peer stopped in the middle of a message, for %v", StallTime))
			}
		})
	}
	c.Sender.Suspect()
}

// Late is the error of a call that was not answered in its time, or whose context has been
// canceled.
func Late(ctx context.Context, after time.Duration) *wire.Error {
	cause := error(context.DeadlineExceeded)
	if ctx.Err() != nil {
		cause = ctxerr.Of(ctx)
	}
	if errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return wire.Errorf(wire.KindCanceled, "canceled after %v: %w", after.Round(time.Microsecond), cause)
	}
	return wire.Errorf(wire.KindTimeout, "no answer within %v: %w", after.Round(time.Millisecond), cause)
}
