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

// Beats show that a rank can be reached from the hub. Two others may still have
// no way to each other: a cable, a rule of a firewall. So the lines that data
// takes are watched too. Nothing more is sent on them, since a rank that reads
// late for good reason must not be taken for silent; the systems of both sides
// know whether what they send is answered.

// heldLine is a line of a mesh for data.
type heldLine struct {
	peer int
	conn *transport.Conn
}

// checkLines looks for a line on which the peer's machine has answered nothing
// for the limit.
func (m *Mesh) checkLines(limit time.Duration) {
	m.mu.Lock()
	lines := m.lines[:0]
	for c, peer := range m.conns {
		lines = append(lines, heldLine{peer, c})
	}
	m.lines = lines
	m.mu.Unlock()
	// Who cannot be reached by any names the first, not one by chance.
	slices.SortFunc(lines, func(a, b heldLine) int { return a.peer - b.peer })
	for _, l := range lines {
		if l.conn.Unanswered() >= limit {
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

// cutText is the text of a fault of kindSilent about a rank that only this one
// does not reach.
func (m *Mesh) cutText(limit time.Duration) string {
	return fmt.Sprintf("for %v by rank %d: the line between the two is cut", limit, m.cfg.Rank)
}

// noWay is what the system says of a line that is cut.
func noWay(err error) bool {
	for _, no := range []error{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// dialWhole connects to a rank that beats. A machine that makes no connection for the
// limit is one to which the line is cut: errCut. One that does is there, and its process
// may have strangers at its port: it is asked for as long as ctx allows.
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
