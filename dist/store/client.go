// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/transport"
)

const (
	// A call whose context has ended asks the server to end its wait, and gives it
	// this long to say which keys are missing.
	cancelGrace = 250 * time.Millisecond
	// idleTime is how long a connection that callers read is left alone.
	idleTime = time.Millisecond
	// scratchSize is the size of replies that are read without taking memory.
	scratchSize = 256
)

// Client is a Store in another process. Close it when it is no longer needed.
//
// Calls of several goroutines share the connection, and the more of them are
// under way at once the fewer system calls each takes: a process needs one
// Client for a server.
type Client struct {
	methods
	conn *transport.Conn
	addr string

	mu      sync.Mutex
	lastID  uint64
	pending map[uint64]*pendingCall
	out     []byte // frames that are yet to be written
	spare   []byte // that out is exchanged for
	// Who sets writing writes: the caller itself, or a goroutine that lives as
	// long as there is something in out.
	writing bool
	free    chan struct{} // gets a token when writing has ended and waiters want it
	waiters int
	// Requests of which no answer has come, and the last one that wants none
	// with the last one known to have been read: with none the server has read everything.
	unanswered      int
	lastQuiet, read uint64
	// Who sets reading reads: a goroutine, or a caller that is alone and gets its
	// reply without a wake-up of that.
	reading bool
	polls   bool          // the connection can be asked without waiting for it
	numRead int           // replies that callers have read
	spins   spinner       // of who reads
	resume  chan struct{} // gives the reading back to the goroutine
	err     error         // why there will be no more replies
	gone    chan struct{} // closed with err
	ended   chan struct{} // closed when the reading goroutine has ended

	calls sync.Pool // of *pendingCall; the client's own, for they belong to its tests' bubble of time
}

// pendingCall is a call that waits for its reply. It is used again.
type pendingCall struct {
	answered chan reply
	timer    *time.Timer
	scratch  []byte
}

func newPendingCall() any {
	p := &pendingCall{make(chan reply, 1), time.NewTimer(time.Hour), make([]byte, scratchSize)}
	p.timer.Stop()
	return p
}

// Connect connects to the store served on the port at addr, waiting for it to be
// there as transport.Dial does. A connection that leaves this host is encrypted,
// unless policy is against it.
func Connect(ctx context.Context, addr string, token transport.Token, policy transport.Encrypt, options ...transport.DialOption) (*Client, error) {
	options = append(options, transport.WithTLS(policy.TLS(!transport.LeavesHost(ctx, addr), false)))
	conn, err := transport.Dial(ctx, addr, proto, token, options...)
	if err != nil {
		return nil, &Error{Op: "connect", Addr: addr, Err: err}
	}
	return newClient(conn, addr), nil
}

func newClient(conn *transport.Conn, addr string) *Client {
	c := &Client{
		conn: conn, addr: addr, pending: map[uint64]*pendingCall{},
		reading: true, polls: conn.CanPoll(), resume: make(chan struct{}, 1),
		free: make(chan struct{}, 1), gone: make(chan struct{}), ended: make(chan struct{}),
	}
	c.methods.do = c.do
	c.calls.New = newPendingCall
	go c.receive()
	return c
}

// Addr returns the server's address.
func (c *Client) Addr() string { return c.addr }

// LocalHost returns the IP address of this end of the connection: one that
// the server's host can reach.
func (c *Client) LocalHost() (string, error) { return c.conn.LocalHost() }

// LocalAddr returns the address of this end of the connection: what the server
// calls this client, unless addresses are translated on the way.
func (c *Client) LocalAddr() string { return c.conn.LocalAddr().String() }

// Lost returns a channel that is closed when the connection has ended.
func (c *Client) Lost() <-chan struct{} { return c.gone }

// Close closes the connection. Calls under way fail with ErrClosed.
func (c *Client) Close() error {
	c.lose(ErrClosed)
	<-c.ended
	return nil
}

// lose ends the connection for a reason; the first one counts.
func (c *Client) lose(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.gone)
		c.conn.Close()
	}
}

// receive is the goroutine that hands replies to their callers until the connection
// ends. When all have theirs it leaves the reading to callers, until they have had
// none for a while: somebody has to notice the connection's end.
func (c *Client) receive() {
	defer close(c.ended)
	scratch := make([]byte, scratchSize)
	for {
		if c.readOne(scratch) != nil {
			return
		}
		c.mu.Lock()
		c.reading = len(c.pending) > 0 || !c.polls || underWay.Load() > 1 || c.conn.FrameBuffered()
		reading, seen := c.reading, c.numRead
		c.mu.Unlock()
		if reading {
			continue
		}
		idle := time.NewTicker(idleTime)
		for !reading {
			select {
			case <-c.resume:
				reading = true
			case <-c.gone:
				idle.Stop()
				return
			case <-idle.C:
				c.mu.Lock()
				if !c.reading && c.numRead == seen {
					c.reading, reading = true, true
				}
				seen = c.numRead
				c.mu.Unlock()
			}
		}
		idle.Stop()
	}
}

// readOne reads a reply for whom it may concern. An error is the connection's end.
func (c *Client) readOne(scratch []byte) error {
	kind, payload, err := c.conn.ReadFrame(scratch[:0], maxFrame)
	if err == nil {
		var id uint64
		var r reply
		if id, r, err = parseReply(kind, payload); err == nil {
			if len(payload) <= cap(scratch) {
				r = r.clone() // scratch is used again
			}
			c.deliver(id, r)
			return nil
		}
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the server closed it")
	}
	c.lose(fmt.Errorf("%w: %w", ErrLost, err))
	return err
}

func (c *Client) deliver(id uint64, r reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unanswered--
	c.read = max(c.read, id)
	if p := c.pending[id]; p != nil {
		delete(c.pending, id)
		p.answered <- r // has room
	}
}

// readMine reads replies, as the one who reads, until the call has its own or
// nothing has come for a while.
func (c *Client) readMine(p *pendingCall) {
	for len(p.answered) == 0 {
		if !c.spins.wait(c.conn, nil) || !c.conn.FrameBuffered() || c.readOne(p.scratch) != nil {
			break
		}
	}
	c.mu.Lock()
	c.numRead++
	alone := len(c.pending) == 0 && !c.conn.FrameBuffered()
	if alone {
		c.reading = false
	}
	c.mu.Unlock()
	if !alone {
		c.resume <- struct{}{} // has room: who reads gives it back once
	}
}

// do runs a request.
func (c *Client) do(ctx context.Context, q request) (reply, error) {
	fail := func(keys []string, err error) (reply, error) {
		return reply{}, &Error{Op: q.op.String(), Keys: keys, Addr: c.addr, Err: err}
	}
	if keys, err := q.check(); err != nil {
		return fail(keys, err)
	}
	if ctx.Err() != nil {
		return fail(q.keys, ctxerr.Of(ctx))
	}
	underWay.Add(1)
	defer underWay.Add(-1)
	p := c.calls.Get().(*pendingCall)
	limit := limit{ctx: ctx}
	if _, ok := ctx.Deadline(); !ok {
		p.timer.Reset(DefaultTimeout)
		limit.expired = p.timer.C
	}
	id, mine, err := c.send(limit, &q, p)
	if err != nil {
		c.forget(id, p)
		return fail(q.keys, err)
	}
	if mine {
		c.readMine(p)
	}
	var r reply
	select {
	case r = <-p.answered:
		c.done(p)
	case <-c.gone:
		if r = c.forget(id, p); r.status == 0 {
			return fail(q.keys, c.reason())
		}
	case <-ctx.Done():
		r = c.giveUp(id, &q, p)
	case <-limit.expired:
		r = c.giveUp(id, &q, p)
	}
	switch r.status {
	case 0:
		return fail(q.keys, fmt.Errorf("no answer before the call ended: %w", limit.cause()))
	case statusCancelled:
		return fail(r.missing, missingError(limit.cause(), q.op))
	}
	if err := r.err(); err != nil {
		return fail(q.keys, err)
	}
	return r, nil
}

// SetAsync is Set that does not wait for the server's answer: what this Client
// is asked for later comes after it, but other clients may not see the value
// for a while after SetAsync has returned. Flush waits until they do. A
// connection that is lost takes values along that were not flushed.
func (c *Client) SetAsync(ctx context.Context, key string, value []byte) error {
	q := request{op: opSetQuiet, keys: []string{key}, value: value}
	fail := func(keys []string, err error) error {
		return &Error{Op: q.op.String(), Keys: keys, Addr: c.addr, Err: err}
	}
	if keys, err := q.check(); err != nil {
		return fail(keys, err)
	}
	if ctx.Err() != nil {
		return fail(q.keys, ctxerr.Of(ctx))
	}
	if _, _, err := c.send(limit{ctx: ctx}, &q, nil); err != nil {
		return fail(q.keys, err)
	}
	return nil
}

// Flush waits until the server has done everything that this Client was asked
// for, SetAsync included, other than calls that wait.
func (c *Client) Flush(ctx context.Context) error {
	_, err := c.do(ctx, request{op: opWait}) // for nothing
	var e *Error
	if errors.As(err, &e) {
		e.Op = "flush"
	}
	return err
}

// reason returns why the connection has ended.
func (c *Client) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// forget takes a call that has ended out of the list, and returns a reply that came just before.
func (c *Client) forget(id uint64, p *pendingCall) (r reply) {
	c.mu.Lock()
	delete(c.pending, id)
	c.mu.Unlock()
	select {
	case r = <-p.answered:
	default:
	}
	c.done(p)
	return r
}

// done takes back a call that is in no list.
func (c *Client) done(p *pendingCall) {
	p.timer.Stop() // nothing is left in its channel
	c.calls.Put(p)
}

// giveUp asks the server to end a wait. It returns the call's reply, which
// may have been on its way, or the zero reply when none came in time.
func (c *Client) giveUp(id uint64, q *request, p *pendingCall) (r reply) {
	if q.op.waits() {
		c.cancel(id)
	}
	grace := time.NewTimer(cancelGrace)
	defer grace.Stop()
	select {
	case r = <-p.answered:
		c.done(p)
		return r
	case <-c.gone:
	case <-grace.C:
	}
	return c.forget(id, p)
}
