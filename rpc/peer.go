// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/rpc/internal/hook"
)

// Peer is an agent as another one, or itself, calls it. The connection is made by
// the first call, and made again when it has been lost.
type Peer struct {
	agent *Agent
	name  string
	rank  int
	where record
	there bool   // it says that it listens: who refuses a connection is not yet to come
	err   *Error // why it cannot be called, nil if it can

	parked  parking     // its calls that are answered later
	seen    atomic.Bool // there has been a connection
	link    atomic.Pointer[link]
	mu      sync.Mutex
	dialing *dialing              // nil if nobody dials
	notes   waitingNotes          // for the connection
	failed  atomic.Pointer[error] // of the last try of this dialling, nil if there was none

	// Which process it is, "" if that is not known yet, and how many there have been:
	// see succeed. They change with both succeeding and agent.mu held.
	succeeding sync.Mutex
	life       string
	lives      int
}

// dialing is an attempt to connect.
type dialing struct {
	done chan struct{}
	link *link
	err  error
}

// Name returns the peer's name.
func (p *Peer) Name() string { return p.name }

// Rank returns the peer's number among the agents, -1 for a client that is none.
func (p *Peer) Rank() int { return p.rank }

// Agent returns the agent that calls the peer.
func (p *Peer) Agent() *Agent { return p.agent }

// Transport returns how calls travel: "shm", "unix", "tcp", "tls" or "pipe"; empty
// while there is no connection.
func (p *Peer) Transport() string {
	if l := p.link.Load(); l != nil {
		return l.how
	}
	return ""
}

func (p *Peer) String() string {
	if p == nil {
		return "no peer"
	}
	return fmt.Sprintf("%s (rank %d)", p.name, p.rank)
}

// hook returns the peer as a hook sees it, in one of its lives.
func (p *Peer) hook(life uint64) hook.Peer { return hook.Peer{Name: p.name, Rank: p.rank, Life: life} }

// ready says whether a call needs no new connection.
func (p *Peer) ready() bool { return p.link.Load() != nil || p.err != nil }

// connection returns the connection to the peer, which it makes if there is none.
func (p *Peer) connection(ctx context.Context, by time.Time) (*link, error) {
	if l := p.link.Load(); l != nil {
		return l, nil
	}
	if p.err != nil {
		return nil, p.err
	}
	if !by.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, by)
		defer cancel()
	}
	p.mu.Lock()
	if l := p.link.Load(); l != nil {
		p.mu.Unlock()
		return l, nil
	}
	d := p.dialing
	if d == nil {
		d = &dialing{done: make(chan struct{})}
		p.failed.Store(nil)
		if !p.agent.inBackground(func() { p.dial(d) }) {
			p.mu.Unlock()
			return nil, errClosed
		}
		p.dialing = d
	}
	p.mu.Unlock()
	select {
	case <-d.done:
		return d.link, d.err
	case <-ctx.Done():
		if last := p.failed.Load(); last != nil {
			return nil, fmt.Errorf("still connecting to %s, where the last try found: %v: %w", p.where.addresses(), *last, ctxerr.Of(ctx))
		}
		return nil, fmt.Errorf("still connecting to %s: %w", p.where.addresses(), ctxerr.Of(ctx))
	}
}

// dial connects for all who wait for that, whose patience differs. Where it failed with
// a life of the peer's after which there is another, or was connected to such a one, one
// may wait who called the later one.
func (p *Peer) dial(d *dialing) {
	for again := true; again; {
		before := p.numLives()
		d.link, d.err = p.connect(p.agent.ctx)
		p.mu.Lock()
		if d.err == nil {
			again = !d.link.current()
		} else {
			again = p.numLives() != before
		}
		if again {
			p.mu.Unlock()
		}
	}
	defer p.mu.Unlock()
	if d.err == nil {
		p.link.Store(d.link)
		p.seen.Store(true)
		select {
		case <-d.link.gone: // already
			p.link.CompareAndSwap(d.link, nil)
		default:
		}
	}
	p.dialing = nil
	close(d.done)
}

// unreachable is what a call gets that found no connection.
func (p *Peer) unreachable(method string, err error) error {
	var e *Error
	if errors.As(err, &e) {
		out := *e
		out.Method = method
		return &out
	}
	kind := KindUnreachable
	if errors.Is(err, errClosed) {
		kind = KindClosed
	} else if errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		kind = KindCanceled
	}
	return errorf(kind, method, p, "no connection: %w", err)
}
