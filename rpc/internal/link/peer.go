// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/ctxerr"
)

// Peer is another agent, or this one: where it is, and the connection on which this agent
// calls it.
type Peer struct {
	Name    string
	Rank    int // -1 for a client, which is no agent of the job
	end     *Endpoint
	where   record
	listens bool // the agent says that it listens: a refused connection is an error at once
	visited bool // it is known by its address alone: see Visit

	conn    atomic.Pointer[ClientConn]
	seen    atomic.Bool // there has been a connection
	mu      sync.Mutex
	dialing *dialing              // nil if nobody dials
	notes   waitingNotes          // for the connection
	failed  atomic.Pointer[error] // of the last try of this dialling, nil if there was none

	// Which process the agent is, "" if that is not known yet, and how many there have
	// been: see succeed. They change with both succeeding and end.mu held.
	succeeding sync.Mutex
	life       string
	lives      int
}

// dialing is an attempt to connect.
type dialing struct {
	done chan struct{}
	conn *ClientConn
	err  error
}

// Conn returns the connection on which this agent calls the peer, nil if there is none.
func (p *Peer) Conn() *ClientConn { return p.conn.Load() }

// Known says that the agent has been there: the store named its process, or there has been
// a connection.
func (p *Peer) Known() bool { return p.where.ID != "" || p.seen.Load() }

// Addr returns the address at which the agent listens, empty if that is not known.
func (p *Peer) Addr() string {
	if p.where.TCP != "" {
		return p.where.TCP
	}
	return p.where.Unix
}

// Connect returns the connection to the peer, which it makes if there is none. by, if it
// is not zero, limits the wait.
func (p *Peer) Connect(ctx context.Context, by time.Time) (*ClientConn, error) {
	if c := p.conn.Load(); c != nil {
		return c, nil
	}
	if !by.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, by)
		defer cancel()
	}
	p.mu.Lock()
	if c := p.conn.Load(); c != nil {
		p.mu.Unlock()
		return c, nil
	}
	d := p.dialing
	if d == nil {
		d = &dialing{done: make(chan struct{})}
		p.failed.Store(nil)
		if !p.end.Go(func() { p.dial(d) }) {
			p.mu.Unlock()
			return nil, ErrClosed
		}
		p.dialing = d
	}
	p.mu.Unlock()
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
		if last := p.failed.Load(); last != nil {
			return nil, fmt.Errorf("still connecting to %s, where the last try found: %v: %w", p.where.addresses(), *last, ctxerr.Of(ctx))
		}
		return nil, fmt.Errorf("still connecting to %s: %w", p.where.addresses(), ctxerr.Of(ctx))
	}
}

// dial connects for all who wait for the connection; each waits as long as it likes. If
// another process has taken the agent's place meanwhile, dial tries again, because somebody
// who waits may have called the later process.
func (p *Peer) dial(d *dialing) {
	for again := true; again; {
		before := p.numLives()
		d.conn, d.err = p.connect(p.end.Context)
		p.mu.Lock()
		if d.err == nil {
			again = !d.conn.current()
		} else {
			again = p.numLives() != before
		}
		if again {
			p.mu.Unlock()
		}
	}
	defer p.mu.Unlock()
	if d.err == nil {
		p.conn.Store(d.conn)
		p.seen.Store(true)
		select {
		case <-d.conn.gone: // already
			p.conn.CompareAndSwap(d.conn, nil)
		default:
		}
	}
	p.dialing = nil
	close(d.done)
}

// connect makes a connection and says hello.
func (p *Peer) connect(ctx context.Context) (*ClientConn, error) {
	e := p.end
	if e.Context.Err() != nil {
		return nil, ErrClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.Context, func() { cancel(ErrClosed) })()
	where := &p.where
	if p.visited {
		var err error
		if where, err = e.locate(ctx, p); err != nil {
			return nil, err
		}
	}
	conn, how, err := e.dial(ctx, p, where)
	if err != nil {
		return nil, err
	}
	before := p.numLives()
	var w welcome
	err = conn.Do(ctx, func() (err error) {
		if err = e.sayHello(conn, p, e.Name, e.Rank); err == nil {
			w, err = p.readWelcome(conn)
		}
		return err
	})
	if err != nil {
		conn.Close()
		return nil, err
	}
	for !p.succeed(w.id, before) {
		// Of two processes the one that is at the address now is the later one. The end of
		// this connection would tell it that this agent has ended, so it is kept if it is.
		before = p.numLives()
		if there, err := e.ask(ctx, p); err != nil || there.id != w.id {
			conn.Close()
			return nil, errSucceeded
		}
	}
	conn.RetrySoon(time.Second)
	conn.GiveUpAfter(goneTime)
	c := newClient(p, conn, how, w.id, w.limit)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		conn.Close()
		return nil, ErrClosed
	}
	if p.life != w.id {
		conn.Close()
		return nil, errSucceeded
	}
	e.serveClient(c)
	return c, nil
}

// serveClient starts the goroutine of a connection, with the lock held.
func (e *Endpoint) serveClient(c *ClientConn) {
	e.clients[c] = struct{}{}
	e.running.Add(1)
	go func() {
		defer e.running.Done()
		c.receive()
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.clients, c)
	}()
}
