// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

const (
	// A call whose context has ended asks the server to end its wait, and
	// gives it this long to say which keys are missing.
	cancelGrace = 250 * time.Millisecond
	// A write that is under way when its context ends is let finish for this
	// long; then the connection, which has half a frame, is given up.
	writeGrace = time.Second
)

// Client is a Store in another process. Close it when it is no longer needed.
type Client struct {
	verbs
	conn *transport.Conn
	addr string

	// A semaphore and not a mutex: callers wait for it only as long as their contexts last.
	writer  chan struct{}
	head    []byte        // the writer's
	writing atomic.Uint64 // id of the call being written, 0 for none

	mu      sync.Mutex
	lastID  uint64
	pending map[uint64]chan reply
	err     error         // why there will be no more replies
	gone    chan struct{} // closed with err
	ended   chan struct{} // closed when the reading goroutine has ended
}

// Connect connects to the store served on the port at addr, waiting for it to be
// there as transport.Dial does.
func Connect(ctx context.Context, addr string, token transport.Token) (*Client, error) {
	conn, err := transport.Dial(ctx, addr, proto, token)
	if err != nil {
		return nil, &Error{Op: "connect", Addr: addr, Err: err}
	}
	return newClient(conn, addr), nil
}

func newClient(conn *transport.Conn, addr string) *Client {
	c := &Client{
		conn: conn, addr: addr, writer: make(chan struct{}, 1),
		pending: map[uint64]chan reply{}, gone: make(chan struct{}), ended: make(chan struct{}),
	}
	c.verbs.do = c.do
	go c.read()
	return c
}

// Addr returns the server's address.
func (c *Client) Addr() string { return c.addr }

// LocalHost returns the IP address of this end of the connection: one that
// the server's host can reach.
func (c *Client) LocalHost() (string, error) { return c.conn.LocalHost() }

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

// read hands replies to their callers until the connection ends.
func (c *Client) read() {
	defer close(c.ended)
	for {
		kind, payload, err := c.conn.ReadFrame(nil, maxFrame)
		if err == nil {
			var id uint64
			var r reply
			if id, r, err = parseReply(kind, payload); err == nil {
				c.mu.Lock()
				answered := c.pending[id]
				delete(c.pending, id)
				c.mu.Unlock()
				if answered != nil {
					answered <- r
				}
				continue
			}
		}
		if errors.Is(err, io.EOF) {
			err = errors.New("the server closed it")
		}
		c.lose(fmt.Errorf("%w: %w", ErrLost, err))
		return
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
		return fail(q.keys, context.Cause(ctx))
	}
	ctx, release := deadline(ctx)
	defer release()

	answered := make(chan reply, 1)
	c.mu.Lock()
	if err := c.err; err != nil {
		c.mu.Unlock()
		return fail(q.keys, err)
	}
	c.lastID++
	id := c.lastID
	c.pending[id] = answered
	c.mu.Unlock()
	defer c.forget(id)

	if err := c.write(ctx, id, &q); err != nil {
		return fail(q.keys, err)
	}
	var r reply
	select {
	case r = <-answered:
	case <-c.gone:
		select {
		case r = <-answered: // just before
		default:
			return fail(q.keys, c.reason())
		}
	case <-ctx.Done():
		r = c.giveUp(id, &q, answered)
		if r.status == 0 {
			return fail(q.keys, fmt.Errorf("no answer before the call ended: %w", context.Cause(ctx)))
		}
		if r.status == statusCancelled {
			return fail(r.missing, missingError(ctx, q.op))
		}
	}
	if err := r.err(); err != nil {
		return fail(q.keys, err)
	}
	return r, nil
}

// reason returns why the connection has ended.
func (c *Client) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// forget takes a call that has ended out of the list.
func (c *Client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

// write sends a request, or fails: when nothing of it has been sent as soon as
// ctx is done, and otherwise only with the connection.
func (c *Client) write(ctx context.Context, id uint64, q *request) error {
	select {
	case c.writer <- struct{}{}:
	default:
		select {
		case c.writer <- struct{}{}:
		case <-c.gone:
			return c.reason()
		case <-ctx.Done():
			return fmt.Errorf("the connection was taken up by other calls: %w", context.Cause(ctx))
		}
	}
	defer func() { <-c.writer }()
	c.writing.Store(id)
	defer c.writing.Store(0)
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(writeGrace, func() {
			if c.writing.Load() == id {
				c.lose(fmt.Errorf("%w: the server took no data for longer than a call's context: %w", ErrLost, context.Cause(ctx)))
			}
		})
	})
	defer stop()
	var tail []byte
	c.head, tail = appendRequest(c.head[:0], id, q)
	if err := c.conn.WriteFrame(byte(q.op), c.head, tail); err != nil {
		c.lose(fmt.Errorf("%w: %w", ErrLost, err))
		return c.reason()
	}
	return nil
}

// giveUp asks the server to end a wait. It returns the call's reply, which
// may have been on its way, or the zero reply when none came in time.
func (c *Client) giveUp(id uint64, q *request, answered <-chan reply) (r reply) {
	grace, release := context.WithTimeout(context.Background(), cancelGrace)
	defer release()
	if q.op.waits() {
		if c.write(grace, id, &request{op: opCancel}) != nil {
			return reply{}
		}
	}
	select {
	case r = <-answered:
	case <-c.gone:
	case <-grace.Done():
	}
	return r
}
