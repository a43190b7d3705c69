// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/hook"
	"github.com/cohort-ml/cohort/rpc/internal/link"
)

// Peer is another agent, or the agent itself, as the receiver of calls. The first call
// makes the connection; when the connection is lost, the next call makes another one.
type Peer struct {
	agent  *Agent
	name   string
	rank   int
	err    *Error     // why it cannot be called, nil if it can
	link   *link.Peer // nil with err
	parked parking    // its calls that are answered later
}

// Name returns the peer's name.
func (p *Peer) Name() string { return p.name }

// Rank returns the peer's rank, -1 for a client that is no agent of the job.
func (p *Peer) Rank() int { return p.rank }

// Agent returns the agent that calls the peer.
func (p *Peer) Agent() *Agent { return p.agent }

// Transport returns how messages to the peer travel: "shm", "unix", "tcp", "tls" or
// "pipe". It is empty while there is no connection.
func (p *Peer) Transport() string {
	if c := p.conn(); c != nil {
		return c.How
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

// conn returns the connection on which the peer is called, nil if there is none.
func (p *Peer) conn() *link.ClientConn {
	if p.link == nil {
		return nil
	}
	return p.link.Conn()
}

// ready says whether a call needs no new connection.
func (p *Peer) ready() bool { return p.err != nil || p.link.Conn() != nil }

// connect returns the connection to the peer, which it makes if there is none.
func (p *Peer) connect(ctx context.Context, by time.Time) (*link.ClientConn, error) {
	if p.err != nil {
		return nil, p.err
	}
	return p.link.Connect(ctx, by)
}

// unreachable is the error of a call that found no connection.
func (p *Peer) unreachable(method string, err error) error {
	err = ownError(err)
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

// Visit returns the agent at an address as a peer, which need not be an agent of this job.
// It knows the job's token. The address is what [Agent.VisitAddr] returns there: host:port,
// "unix:…", or "pipe:…" on a [Network]. Agents of one host use shared memory or a unix
// socket although the address is one of TCP. Visit does not wait for the agent; calls do.
// If another process takes the agent's place at the address, later calls go to that
// process.
func (a *Agent) Visit(ctx context.Context, addr string) (*Peer, error) {
	if a.ctx.Err() != nil {
		return nil, errorf(KindClosed, "", nil, "%w", errClosed)
	}
	l, err := a.end.Visit(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("rpc: visit %s: %w", addr, ownError(err))
	}
	return &Peer{agent: a, name: addr, rank: -1, link: l}, nil
}

// losses reports connections that have ended.
type losses struct {
	mu      sync.Mutex
	tell    []func(p *Peer, err error)
	parting bool   // all have called Shutdown: a peer whose connection ends may be leaving
	held    []loss // those that have ended since
}

// loss is a connection that has ended, with one life of the peer.
type loss struct {
	peer *Peer
	life uint64
	err  error
}

// OnPeerLost calls f when a connection with a peer has ended: the peer was closed, has
// died, or cannot be reached. f is not called when this agent ends, and not for peers that
// leave by [Agent.Shutdown], which all agents call together. f may be called more than
// once for a peer. It must not wait.
func (a *Agent) OnPeerLost(f func(p *Peer, err error)) {
	a.losses.mu.Lock()
	defer a.losses.mu.Unlock()
	a.losses.tell = append(a.losses.tell, f)
}

// linkHandler is an agent as its connections see it.
type linkHandler Agent

// Lost implements [link.Handler].
func (h *linkHandler) Lost(p *link.Peer, life uint64, err error) {
	a := (*Agent)(h)
	peer := &Peer{agent: a, name: p.Name, rank: p.Rank, link: p} // one that was visited
	if p.Rank >= 0 {
		peer = a.PeerRank(p.Rank)
	}
	a.lostPeer(peer, life, ownError(err))
}

// lostPeer reports a connection with one life of a peer that has ended.
func (a *Agent) lostPeer(p *Peer, life uint64, err error) {
	if p == a.self || a.ctx.Err() != nil {
		return
	}
	l := &a.losses
	l.mu.Lock()
	tell := l.tell
	if l.parting {
		l.held = append(l.held, loss{p, life, err})
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	if a.hook != nil {
		a.hook.Lost(p.hook(life), err)
	}
	for _, f := range tell {
		f(p, err)
	}
}

// part holds back what lostPeer gets from now on: all agents have called Shutdown.
func (a *Agent) part() {
	a.losses.mu.Lock()
	defer a.losses.mu.Unlock()
	a.losses.parting = true
}

// partFailed reports what part has held back: the shutdown has failed.
func (a *Agent) partFailed() {
	l := &a.losses
	l.mu.Lock()
	held := l.held
	l.parting, l.held = false, nil
	l.mu.Unlock()
	for _, h := range held {
		a.lostPeer(h.peer, h.life, h.err)
	}
}
