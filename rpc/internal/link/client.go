// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

// idleTime is how long a connection may be without callers before its goroutine reads it
// again.
const idleTime = time.Millisecond

// ClientConn is a connection on which this agent calls a peer.
type ClientConn struct {
	Peer  *Peer
	How   string // the transport: "shm", "unix", "tcp", "tls", "pipe"
	Life  uint64 // of the peer that was connected to
	Limit int    // of the peer's messages
	Sender
	Reader
	end  *Endpoint
	conn *transport.Conn

	mu       sync.Mutex
	lastID   uint64
	pending  map[uint64]*Call
	streams  map[uint64]Stream
	deadline *time.Timer // for the earliest deadline of the pending calls; nil: none
	expires  time.Time
	// reading says that somebody reads: the connection's goroutine, or a lone caller, which
	// then gets its answer without waking that goroutine.
	reading bool
	polls   bool // the connection can be polled
	numRead int  // times that a caller has read
	// within says that part of a frame has been read. A late call looks at it to find a
	// peer that has stopped in the middle of a frame.
	within atomic.Bool
	spins  spinner
	resume chan struct{} // gives the reading back to the goroutine
	err    error         // why there will be no more answers
	gone   chan struct{} // closed with err
}

// Stream is what a connection tells a stream. A stream's frames come in order.
type Stream interface {
	// Take reads the rest of a frame of the stream: an item, an end or a credit. An error
	// is the connection's end.
	Take(from *Reader, r *wire.Received) error
	// Finish gets the answer to the call that opened the stream.
	Finish(r *wire.Received)
	// Fail says that the connection has ended.
	Fail(err error)
}

func newClient(p *Peer, conn *transport.Conn, how, id string, limit int) *ClientConn {
	c := &ClientConn{Peer: p, How: how, Life: wire.Fingerprint(id), Limit: limit, end: p.end, conn: conn,
		pending: map[uint64]*Call{}, streams: map[uint64]Stream{}, reading: true, polls: conn.CanPoll(),
		resume: make(chan struct{}, 1), gone: make(chan struct{})}
	c.Reader.conn, c.Sender.conn, c.Sender.lost = conn, conn, c.lose
	return c
}

// lose ends the connection for a reason; the first one counts. Calls without an answer
// fail.
func (c *ClientConn) lose(err error) {
	c.Peer.conn.CompareAndSwap(c, nil) // a call after the error makes another connection
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	close(c.gone)
	c.Peer.conn.CompareAndSwap(c, nil) // it may have become the peer's only now
	pending, streams := c.pending, c.streams
	c.pending, c.streams = map[uint64]*Call{}, map[uint64]Stream{}
	if c.deadline != nil {
		c.deadline.Stop()
	}
	c.mu.Unlock()
	c.conn.Close()
	c.Sender.close(err)
	c.end.handler.Lost(c.Peer, c.Life, err)
	for _, call := range pending {
		c.Complete(call, nil, c.lostError())
	}
	for _, s := range streams {
		s.Fail(c.lostError())
	}
}

// lostError is the error of calls when the connection has ended.
func (c *ClientConn) lostError() error {
	c.mu.Lock()
	err := c.err
	c.mu.Unlock()
	if errors.Is(err, ErrClosed) {
		return wire.Errorf(wire.KindClosed, "%w", err)
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the peer closed it")
	}
	var e *wire.Error
	if errors.As(err, &e) && e.Kind == wire.KindProtocol {
		return wire.Errorf(wire.KindProtocol, "%s", e.Msg)
	}
	return wire.Errorf(wire.KindLost, "%w", err)
}

// receive is the connection's goroutine: it gives answers to their callers until the
// connection ends. When no call is pending, it leaves the reading to callers. It takes the
// reading back when no caller has read for a while, because somebody has to notice the
// connection's end.
func (c *ClientConn) receive() {
	for {
		if c.readOne() != nil {
			return
		}
		c.mu.Lock()
		c.reading = len(c.pending)+len(c.streams) > 0 || !c.polls || c.end.Calling.Load() > 1 || c.conn.FrameBuffered()
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

// ReadFor lets the caller of a call read, which [ClientConn.Start] has made the one who
// reads, until the call has its answer or nothing has come for a while.
func (c *ClientConn) ReadFor(call *Call) {
	for len(call.Answered) == 0 {
		if !c.spins.wait(c.conn) || c.readOne() != nil {
			break
		}
	}
	c.mu.Lock()
	c.numRead++
	alone := len(c.pending)+len(c.streams) == 0 && !c.conn.FrameBuffered()
	if alone {
		c.reading = false
	}
	c.mu.Unlock()
	if !alone {
		c.giveReading()
	}
}

// giveReading gives the reading back to the goroutine.
func (c *ClientConn) giveReading() {
	c.resume <- struct{}{} // has room: the one who reads gives it back once
}

// wantReader makes the goroutine read if nobody reads, with the lock held.
func (c *ClientConn) wantReader() {
	if !c.reading {
		c.reading = true
		c.giveReading()
	}
}

// readOne reads a message and gives it to its call. An error is the connection's end.
func (c *ClientConn) readOne() error {
	kind, size, err := c.conn.ReadHeader(transport.MaxFrame)
	if err == nil {
		c.within.Store(true)
		var r *wire.Received
		if r, err = wire.ReadHead(c.conn, kind, size); err == nil {
			err = c.take(r)
		}
		c.within.Store(false)
	}
	if err != nil {
		c.lose(err)
	}
	return err
}

// take gives a message to the call or the stream that it is about.
func (c *ClientConn) take(r *wire.Received) error {
	id, err := r.Items()
	if err != nil {
		return err
	}
	switch r.Kind {
	case wire.FrameItem, wire.FrameEnd, wire.FrameCredit:
		c.mu.Lock()
		s := c.streams[id]
		c.mu.Unlock()
		if s == nil { // it has ended
			r.Release()
			return c.conn.Discard()
		}
		return s.Take(&c.Reader, r)
	case wire.FrameReply, wire.FrameFailure:
		return c.takeReply(id, r)
	}
	return wire.Protocolf("a frame of kind %d in answer to calls", r.Kind)
}

// takeReply gives an answer to its call.
func (c *ClientConn) takeReply(id uint64, r *wire.Received) error {
	c.mu.Lock()
	call, s := c.pending[id], c.streams[id]
	c.mu.Unlock()
	if call == nil && s == nil { // given up
		r.Release()
		return c.conn.Discard()
	}
	var bad error
	r.ReadExtras()
	if r.Kind == wire.FrameReply {
		if r.Size > c.end.MaxMessage {
			bad = wire.Errorf(wire.KindTooLarge, "%w: the answer has %d bytes, at most %d", wire.ErrTooLarge, r.Size, c.end.MaxMessage)
		} else {
			wrong, err := c.Tensors(r)
			if err != nil {
				return err
			}
			if wrong != nil {
				bad = wire.Errorf(wire.KindProtocol, "%w", wrong)
			}
		}
	}
	if err := c.conn.Discard(); err != nil {
		return err
	}
	if s != nil && c.ForgetStream(id, s) {
		s.Finish(r)
		return nil
	}
	// The call could be given up while the answer was being read.
	if call == nil || !c.claim(id, call) {
		r.Release()
		return nil
	}
	if bad != nil {
		r.Release()
		r = nil
	}
	c.Complete(call, r, bad)
	return nil
}

// Waiting calls the functions for the calls and streams that wait for their ends, with
// the connection locked.
func (c *ClientConn) Waiting(call func(*Call), stream func(Stream)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.pending {
		call(w)
	}
	for _, s := range c.streams {
		stream(s)
	}
}

// StartStream sends the call that opens a stream.
func (c *ClientConn) StartStream(ctx context.Context, id uint64, s Stream, m *wire.Outgoing) error {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		err := c.lostError()
		m.Release(err)
		return err
	}
	c.streams[id] = s
	c.wantReader()
	c.mu.Unlock()
	if err := c.Send(ctx, m, true); err != nil {
		c.ForgetStream(id, s)
		return c.sendError(err)
	}
	return nil
}

// ForgetStream takes a stream off the list and says whether it was there.
func (c *ClientConn) ForgetStream(id uint64, s Stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[id] != s {
		return false
	}
	delete(c.streams, id)
	return true
}

// Adopt makes a peer of which a connection is the other end, without a handshake: for
// tests, which say on it what they like. limit is that of the peer's messages.
func (e *Endpoint) Adopt(conn *transport.Conn, name string, rank, limit int) *Peer {
	p := &Peer{Name: name, Rank: rank, end: e}
	c := newClient(p, conn, "pipe", "", limit)
	p.conn.Store(c)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.serveClient(c)
	return p
}
