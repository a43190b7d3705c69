// SPDX-License-Identifier: Apache-2.0

package link

import (
	"runtime"
	"sync/atomic"

	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

// discardFactor bounds messages that are over the limit: one up to this many times the
// limit is read and refused, a larger one ends the connection.
const discardFactor = 4

// ServerConn is a connection on which a peer calls this agent.
type ServerConn struct {
	Peer  *Peer
	Life  uint64 // of the peer that connected
	Limit int    // of the peer's messages
	// Active is how many calls are being answered; the [Server] counts them. While there
	// are none the connection is polled for the next one.
	Active atomic.Int64
	Sender
	Reader
	end    *Endpoint
	id     string // of the life of the peer
	conn   *transport.Conn
	spins  spinner
	server Server
	ended  atomic.Bool
}

// Server answers what comes on a [ServerConn].
type Server interface {
	// Take reads the rest of a message whose head has come, and answers it. An error is
	// the connection's end.
	Take(r *wire.Received) error
	// Ended says why the connection has ended. It is called once, before the connection is
	// closed.
	Ended(err error)
}

// serve reads messages until the connection ends.
func (s *ServerConn) serve() {
	var err error
	polls := s.conn.CanPoll()
	for err == nil {
		if polls {
			s.look()
		}
		err = s.readOne()
	}
	s.Lose(err)
}

// look polls the connection for the next call where that is likely to come soon: when all
// others have been answered, as those of a caller are who makes one after the other.
func (s *ServerConn) look() {
	if s.conn.FrameBuffered() {
		return
	}
	// What was started for the last call needs this thread.
	runtime.Gosched()
	if s.Active.Load() == 0 {
		s.spins.look(s.conn)
	}
}

// readOne reads a message. An error is the connection's end.
func (s *ServerConn) readOne() error {
	kind, size, err := s.conn.ReadHeader(transport.MaxFrame)
	if err != nil {
		return err
	}
	if limit := discardFactor * s.end.MaxMessage; size > limit {
		return wire.Protocolf("a frame of %d bytes, at most %d", size, limit)
	}
	r, err := wire.ReadHead(s.conn, kind, size)
	if err != nil {
		return err
	}
	if r.Kind == wire.FrameNote {
		return s.takeNote(r)
	}
	return s.server.Take(r)
}

// Lose ends the connection for a reason; the first one counts.
func (s *ServerConn) Lose(err error) {
	if s.ended.CompareAndSwap(false, true) {
		s.server.Ended(err)
		s.conn.Close()
		s.Sender.close(err)
	}
}

// Alone says whether no call is being answered.
func (s *ServerConn) Alone() bool { return s.Active.Load() == 0 && !s.Busy() }
