// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/ending"
	"github.com/cohort-ml/cohort/rpc/internal/hook"
)

// Peer is an agent as another one, or itself, calls it. The connection is made by
// the first call, and made again when it has been lost.
type Peer struct {
	agent *Agent
	name  string
	rank  int
	where record
	err   *Error // why it cannot be called, nil if it can

	link    atomic.Pointer[link]
	mu      sync.Mutex
	dialing *dialing // nil if nobody dials
}

// dialing is an attempt to connect.
type dialing struct {
	done chan struct{}
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

func (p *Peer) String() string { return fmt.Sprintf("%s (rank %d)", p.name, p.rank) }

func (p *Peer) hook() hook.Peer { return hook.Peer{Name: p.name, Rank: p.rank} }

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
	for {
		p.mu.Lock()
		if l := p.link.Load(); l != nil {
			p.mu.Unlock()
			return l, nil
		}
		d := p.dialing
		if d == nil {
			d = &dialing{done: make(chan struct{})}
			p.dialing = d
			p.mu.Unlock()
			l, err := p.connect(ctx)
			p.mu.Lock()
			if err == nil {
				p.link.Store(l)
			}
			d.err, p.dialing = err, nil
			p.mu.Unlock()
			close(d.done)
			return l, err
		}
		p.mu.Unlock()
		select {
		case <-d.done:
			// Who dialled may have had less time than this one has.
			if d.err != nil && !errors.Is(d.err, context.DeadlineExceeded) && !errors.Is(d.err, context.Canceled) {
				return nil, d.err
			}
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return nil, ending.Of(ctx)
		}
	}
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
