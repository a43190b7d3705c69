// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"sync"

	"github.com/cohort-ml/cohort/internal/transport"
)

// proto is what the store is called on a port.
const proto = "store"

// reuseLimit is the size of requests that are read into a buffer that is used again.
const reuseLimit = 16 << 10

// Server offers a Memory to the members of the job.
type Server struct {
	port *transport.Port
	mem  *Memory

	mu      sync.Mutex
	conns   map[*transport.Conn]struct{}
	closed  bool
	running sync.WaitGroup
}

// Serve offers mem on a port, until Close.
func Serve(port *transport.Port, mem *Memory) *Server {
	s := &Server{port: port, mem: mem, conns: map[*transport.Conn]struct{}{}}
	port.Handle(proto, s.serve)
	return s
}

// Close withdraws the offer, closes all clients' connections and waits until
// their goroutines have ended. The Memory and the port stay.
func (s *Server) Close() error {
	s.port.Handle(proto, nil)
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
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
	s.mu.Unlock()
	s.running.Done()
}

// serve answers one client until its connection ends.
func (s *Server) serve(c *transport.Conn) {
	defer c.Close()
	if !s.enter(c) {
		return
	}
	defer s.leave(c)
	p := &patron{conn: c}
	client := s.mem.attach(p.wake)
	// Order matters: first nothing can be queued any more, then the
	// connection is closed so that a writer in progress ends, then we wait for it.
	defer p.running.Wait()
	defer c.Close()
	defer s.mem.detach(client)

	buf := make([]byte, 0, 512)
	var head []byte
	for {
		kind, payload, err := c.ReadFrame(buf, maxFrame)
		if err != nil {
			return
		}
		id, q, err := parseRequest(kind, payload)
		if err != nil {
			return
		}
		if q.op == opCancel {
			s.mem.cancel(call{client, id})
			continue
		}
		if s.mem.isWaiting(call{client, id}) {
			return // one id for two calls: no answer would be safe to give
		}
		if cap(payload) <= reuseLimit {
			buf = payload[:0]
		}
		// The store keeps the value: it may not share a buffer that is used
		// again, nor hold on to one that is mostly something else.
		if cap(payload) <= reuseLimit || len(q.value) < cap(payload)/2 {
			q.value = bytes.Clone(q.value)
			for i, v := range q.values {
				q.values[i] = bytes.Clone(v)
			}
		}
		r, done := reply{status: statusLimit}, true
		if _, err := q.check(); err == nil {
			r, done = s.mem.apply(call{client, id}, q)
		}
		if !done {
			continue
		}
		var tail []byte
		head, tail = appendReply(head[:0], id, &r)
		if c.WriteFrame(byte(r.status), head, tail) != nil {
			return
		}
	}
}

// patron is what a client that waits is told when its wait ends, possibly by
// another client's request, which must not be held up by this client's
// connection: so the replies are queued and written by a goroutine that lives
// only as long as there are some.
type patron struct {
	conn *transport.Conn

	mu      sync.Mutex
	queue   []answer
	writing bool
	running sync.WaitGroup
}

func (p *patron) wake(id uint64, r reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, answer{call{id: id}, r})
	if !p.writing {
		p.writing = true
		p.running.Add(1)
		go p.write()
	}
}

func (p *patron) write() {
	defer p.running.Done()
	var head []byte
	for {
		p.mu.Lock()
		batch := p.queue
		p.queue = nil
		if len(batch) == 0 {
			p.writing = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		for i := range batch {
			var tail []byte
			head, tail = appendReply(head[:0], batch[i].id, &batch[i].reply)
			if p.conn.WriteFrame(byte(batch[i].status), head, tail) != nil {
				// The reader finds the connection broken too, and ends the client.
				p.conn.Close()
				break
			}
		}
	}
}
