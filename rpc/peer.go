// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/hook"
	"github.com/cohort-ml/cohort/rpc/internal/link"
)

// Peer is an agent as another one, or itself, calls it. The connection is made by
// the first call, and made again when it has been lost.
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

// Rank returns the peer's number among the agents, -1 for a client that is none.
func (p *Peer) Rank() int { return p.rank }

// Agent returns the agent that calls the peer.
func (p *Peer) Agent() *Agent { return p.agent }

// Transport returns how calls travel: "shm", "unix", "tcp", "tls" or "pipe"; empty
// while there is no connection.
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
