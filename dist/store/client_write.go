// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/transport"
)

const (
	// Requests up to this size are gathered, so that one system call sends many.
	gatherLimit = 16 << 10
	// A caller with more than this before it waits until it is written.
	maxOut = 256 << 10
	// A request up to this size is taken by a connection whose peer has read
	// everything before it, whatever the peer does.
	inlineLimit = 4 << 10
	// A write that is under way when its context ends is let finish for this
	// long; then the connection, which has half a frame, is given up.
	writeGrace = time.Second
)

// limit is what ends a call: its context, and a timer when that has no deadline.
type limit struct {
	ctx     context.Context
	expired <-chan time.Time // nil if the context has a deadline
}

// cause says why the call has ended.
func (l limit) cause() error {
	if l.ctx.Err() != nil {
		return ctxerr.Of(l.ctx)
	}
	return errDefaultTimeout
}

// send hands a request to the connection, or fails; when p is not nil the reply
// goes there. What was handed over may be written after send has returned, but
// the slices of q may be used again. When mine is true the caller has become the one
// who reads.
func (c *Client) send(l limit, q *request, p *pendingCall) (id uint64, mine bool, err error) {
	size := q.size()
	if size > gatherLimit {
		id, err = c.sendLarge(l, q, p)
		return id, false, err
	}
	c.mu.Lock()
	for c.err == nil && len(c.out) > maxOut {
		c.mu.Unlock()
		if err := c.acquire(l); err != nil {
			return 0, false, err
		}
		go c.flush()
		c.mu.Lock()
	}
	if c.err != nil {
		defer c.mu.Unlock()
		return 0, false, c.err
	}
	id = c.register(q, p)
	c.out = appendRequestFrame(c.out, id, q)
	if c.writing {
		c.wantReader(p)
		c.mu.Unlock() // the one who writes looks again
		return id, false, nil
	}
	c.writing = true
	// The system takes a small request at once when the server has read all
	// before it, so the caller can write it, whatever ends its context.
	if p == nil || c.unanswered > 1 || c.lastQuiet > c.read || len(c.out) > inlineLimit {
		c.wantReader(p)
		c.mu.Unlock()
		go c.flush()
		return id, false, nil
	}
	err = c.writeOut()
	c.endTurn()
	if mine = !c.reading && c.err == nil && underWay.Load() == 1; mine {
		c.reading = true
	} else {
		c.wantReader(p)
	}
	c.mu.Unlock()
	return id, mine, err
}

// wantReader sees to it that somebody reads the reply of a call, with the lock held.
func (c *Client) wantReader(p *pendingCall) {
	if p != nil && !c.reading {
		c.reading = true
		c.resume <- struct{}{} // has room: nobody else gives the reading away
	}
}

// register gives a request its id, with the lock held.
func (c *Client) register(q *request, p *pendingCall) (id uint64) {
	c.lastID++
	id = c.lastID
	if p != nil {
		c.pending[id] = p
		c.unanswered++
	} else if q.op == opSetQuiet {
		c.lastQuiet = id
	}
	return id
}

// cancel asks the server to end a wait.
func (c *Client) cancel(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.out = appendRequestFrame(c.out, id, &request{op: opCancel})
	if !c.writing {
		c.writing = true
		go c.flush()
	}
}

// writeOut writes what is in out, for the one who writes. The lock is held when
// it is called and when it returns, but not in between.
func (c *Client) writeOut() error {
	b := c.out
	c.out, c.spare = c.spare, nil
	c.mu.Unlock()
	_, err := c.conn.Write(b)
	if err != nil {
		c.lose(fmt.Errorf("%w: %w", ErrLost, err))
	}
	c.mu.Lock()
	if cap(b) <= 2*maxOut {
		c.spare = b[:0]
	}
	if err != nil {
		return c.err
	}
	return nil
}

// endTurn ends the turn of the one who writes, with the lock held. A goroutine
// takes it when there is more to write.
func (c *Client) endTurn() {
	if len(c.out) > 0 && c.err == nil {
		go c.flush()
		return
	}
	c.writing = false
	if c.waiters > 0 {
		select {
		case c.free <- struct{}{}:
		default:
		}
	}
}

// flush is a goroutine that has the turn, and writes while there is something to be written.
func (c *Client) flush() {
	for {
		// Those who are about to send something join in.
		runtime.Gosched()
		c.mu.Lock()
		if len(c.out) == 0 || c.err != nil {
			c.endTurn()
			c.mu.Unlock()
			return
		}
		_ = c.writeOut() // the connection remembers why it is lost
		c.mu.Unlock()
	}
}

// acquire waits until it can make its caller the one who writes.
func (c *Client) acquire(l limit) error {
	if _, ok := l.ctx.Deadline(); !ok && l.expired == nil {
		timer := time.NewTimer(DefaultTimeout)
		defer timer.Stop()
		l.expired = timer.C
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.writing {
		c.waiters++
		c.mu.Unlock()
		var err error
		select {
		case <-c.free:
		case <-c.gone:
			err = c.reason()
		case <-l.ctx.Done():
			err = fmt.Errorf("the connection was busy with other calls: %w", l.cause())
		case <-l.expired:
			err = fmt.Errorf("the connection was busy with other calls: %w", l.cause())
		}
		c.mu.Lock()
		c.waiters--
		if err != nil {
			return err
		}
	}
	if c.err != nil {
		return c.err
	}
	c.writing = true
	return nil
}

// sendLarge writes a request from the caller's memory. When the call's context
// ends in the middle of it the connection is lost.
func (c *Client) sendLarge(l limit, q *request, p *pendingCall) (id uint64, err error) {
	if err := c.acquire(l); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancelCause(l.ctx)
	defer cancel(nil)
	if _, ok := ctx.Deadline(); !ok {
		timer := time.AfterFunc(DefaultTimeout, func() { cancel(errDefaultTimeout) })
		defer timer.Stop()
	}
	ended := make(chan struct{})
	defer close(ended)
	stop := context.AfterFunc(ctx, func() {
		grace := time.NewTimer(writeGrace)
		defer grace.Stop()
		select {
		case <-grace.C:
			c.lose(fmt.Errorf("%w: the server took no data for longer than a call's context: %w", ErrLost, ctxerr.Of(ctx)))
		case <-ended:
		}
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.endTurn()
	if len(c.out) > 0 { // what was sent before comes first
		if err := c.writeOut(); err != nil {
			return 0, err
		}
	}
	if c.err != nil {
		return 0, c.err
	}
	id = c.register(q, p)
	c.wantReader(p)
	c.mu.Unlock()
	head, tail := appendRequest(nil, id, q)
	err = c.conn.WriteFrame(byte(q.op), head, tail)
	if err != nil {
		c.lose(fmt.Errorf("%w: %w", ErrLost, err))
	}
	c.mu.Lock()
	if err != nil {
		return id, c.err
	}
	return id, nil
}

// size returns about how many bytes a request takes.
func (q *request) size() int {
	n := len(q.value) + len(q.expected)
	for _, k := range q.keys {
		n += len(k) + 2
	}
	for _, v := range q.values {
		n += len(v) + 2
	}
	return n
}

// appendRequestFrame appends a request's frame.
func appendRequestFrame(b []byte, id uint64, q *request) []byte {
	begin := len(b)
	b = append(b, make([]byte, transport.HeaderSize)...)
	b, tail := appendRequest(b, id, q)
	b = append(b, tail...)
	transport.PutHeader(b[begin:], byte(q.op), len(b)-begin-transport.HeaderSize)
	return b
}
