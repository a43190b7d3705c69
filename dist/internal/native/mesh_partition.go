// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

// Heartbeats show that the hub can reach a rank. Two other ranks may still not reach each
// other: because of a cable, or a rule of a firewall. So the connections that carry data
// are watched too. Nothing more is sent over them, for a rank may read late for a good
// reason. Instead the system tells whether the peer's system answers what was sent.

// heldLine is a connection of a mesh that carries data.
type heldLine struct {
	peer int
	conn *transport.Conn
}

// checkLines looks for a connection on which the peer's system has answered nothing for the
// limit.
func (m *Mesh) checkLines(limit time.Duration) {
	m.mu.Lock()
	lines := m.lines[:0]
	for c, peer := range m.conns {
		lines = append(lines, heldLine{peer, c})
	}
	m.lines = lines
	m.mu.Unlock()
	// A rank that reaches no other one names the first, not one by chance.
	slices.SortFunc(lines, func(a, b heldLine) int { return a.peer - b.peer })
	for _, l := range lines {
		cut := l.conn.Unanswered() >= limit
		if l.peer != 0 && m.star.beats.misses(0) {
			continue // this rank may be cut from all: the heartbeat will tell
		}
		if cut {
			text := m.cutText(limit)
			m.Silent(l.peer, text)
			if m.cfg.Silences != nil {
				m.cfg.Silences(l.peer, text)
			}
			break
		}
	}
	clear(lines)
}

// cutText returns the text of a fault of kindSilent about a rank that only this one cannot
// reach.
func (m *Mesh) cutText(limit time.Duration) string {
	return fmt.Sprintf("for %v by rank %d: the line between the two is cut", limit, m.cfg.Rank)
}

// noWay reports whether an error is what the system says of a connection that is cut.
func noWay(err error) bool {
	for _, no := range []error{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// dialWhole connects to a rank with heartbeats. If its system makes no connection within
// the limit, the way there is cut: errCut. If it does, the rank is there but slow to answer,
// perhaps because strangers crowd its port: dialWhole tries for as long as ctx allows.
func (m *Mesh) dialWhole(ctx context.Context, w way) (*transport.Conn, error) {
	for {
		limit, cancel := ctx, context.CancelFunc(func() {})
		if m.cfg.Silence > 0 {
			limit, cancel = context.WithTimeoutCause(ctx, m.cfg.dialLimit(), errCut)
		}
		conn, err := m.dial(limit, w.peer, w.why)
		over := limit.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !over {
			return conn, err
		}
		if !transport.Reached(err) {
			return nil, errCut
		}
	}
}

// errCut is the cause of a context that ended because a peer was not reached.
var errCut = errors.New("no connection was made in time")
