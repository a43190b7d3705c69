// SPDX-License-Identifier: Apache-2.0

package store

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

// proto is what the store is called on a port.
const proto = "store"

// Server offers a Memory to the members of the job.
type Server struct {
	port  *transport.Port
	owned bool // ends with the server
	mem   *Memory
	last  atomic.Uint64 // the client that was served last

	mu      sync.Mutex
	conns   map[*transport.Conn]struct{}
	closed  bool
	empty   chan struct{} // to be closed when there is no connection; or nil
	left    func(peer string)
	asked   bool     // OnLeave has been called
	early   []string // who has left before that
	running sync.WaitGroup
}

// maxEarly bounds Server.early.
const maxEarly = 4096

// RequireTLS has a port refuse the store's clients of other hosts that do not
// come through TLS. Before [Serve].
func RequireTLS(port *transport.Port) { port.RequireTLS(proto) }

// Serve offers mem on a port that has other uses, until Close; [Listen] makes a
// port for the store alone.
func Serve(port *transport.Port, mem *Memory) *Server {
	s := &Server{port: port, mem: mem, conns: map[*transport.Conn]struct{}{}}
	port.Handle(proto, s.serve)
	return s
}

// OnLeave has left called, with its address, when a client's connection has
// ended, other than by [Server.Close], and at the first time for those that have ended
// already; nil ends that. left may take its time: only Close waits for it.
func (s *Server) OnLeave(left func(peer string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	early := s.early
	s.left, s.asked, s.early = left, true, nil
	if left == nil || len(early) == 0 || s.closed {
		return
	}
	s.running.Go(func() {
		for _, peer := range early {
			left(peer)
		}
	})
}

// Linger withdraws the offer and waits until all clients have gone, but not
// longer than patience. A server that ends right after its last answer would
// take that answer, still on its way, from those who wait for it.
func (s *Server) Linger(patience time.Duration) {
	s.port.Handle(proto, nil)
	linger(&s.mu, s.conns, &s.empty, patience)
}

// linger waits until a server's connections have all gone, but not longer than
// patience. empty is what who takes the last one off closes.
func linger[C comparable, V any](mu *sync.Mutex, conns map[C]V, empty *chan struct{}, patience time.Duration) {
	gone := make(chan struct{})
	mu.Lock()
	if len(conns) > 0 {
		*empty = gone
	} else {
		close(gone)
	}
	mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C:
	}
}

// Close withdraws the offer, closes all clients' connections and waits until
// their goroutines have ended. The Memory stays, and a port that was given to [Serve].
func (s *Server) Close() error {
	s.port.Handle(proto, nil)
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
	if s.owned {
		return s.port.Close()
	}
	return nil
}

// enter counts a connection in, unless the server is closed.
func (s *Server) enter(c *transport.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.conns[c] = struct{}{}
	s.running.Add(1)
	return true
}

func (s *Server) leave(c *transport.Conn) {
	s.mu.Lock()
	delete(s.conns, c)
	if len(s.conns) == 0 && s.empty != nil {
		close(s.empty)
		s.empty = nil
	}
	left := s.left
	if s.closed {
		left = nil
	} else if !s.asked && len(s.early) < maxEarly {
		s.early = append(s.early, c.Peer())
	}
	s.mu.Unlock()
	if left != nil {
		left(c.Peer())
	}
	s.running.Done()
}
