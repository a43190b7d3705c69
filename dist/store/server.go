// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

// proto is what the store is called on a port.
const proto = "store"

// keepOut is how much room for replies an idle client may keep.
const keepOut = 4 << 10

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
	running sync.WaitGroup
}

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
// ended, other than by [Server.Close]; nil ends that. left may take its time: only
// Close waits for it.
func (s *Server) OnLeave(left func(peer string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = left
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
	}
	s.mu.Unlock()
	if left != nil {
		left(c.Peer())
	}
	s.running.Done()
}

// serve answers one client until its connection ends.
func (s *Server) serve(c *transport.Conn) {
	defer c.Close()
	if !s.enter(c) {
		return
	}
	defer s.leave(c)
	p := newPatron(c)
	client := s.mem.attach(p.wake)
	// Order matters: first nothing can be queued any more, then the
	// connection is closed so that a writer in progress ends, then we wait for it.
	defer p.running.Wait()
	defer c.Close()
	defer s.mem.detach(client)

	alone := func() bool { return s.last.Load() == client }
	var spins spinner
	streak := 0 // requests in a row without one of another client
	buf := make([]byte, 0, 512)
	for {
		// The answers to all requests that have come are written at once.
		if len(p.out) > 0 && !c.FrameBuffered() {
			if p.flush() != nil {
				return
			}
			// A client that is alone may have its next request ready soon.
			if streak >= minStreak && alone() {
				spins.wait(c, alone)
			}
		}
		kind, payload, err := c.ReadFrame(buf, maxFrame)
		if err != nil {
			return
		}
		if streak++; !alone() {
			s.last.Store(client)
			streak = 0
		}
		if opcode(kind) == opGet {
			if id, value, ok := s.mem.glance(client, payload); ok {
				if p.reply(id, &reply{status: statusOK, value: value}) != nil {
					return
				}
				continue
			}
		}
		id, q, err := parseRequest(kind, payload)
		if err != nil {
			return
		}
		if q.op == opCancel {
			s.mem.cancel(call{client, id})
			continue
		}
		quiet := q.op == opSetQuiet
		if quiet {
			q.op = opSet
		}
		// The store keeps the value: it may not share a buffer that is used
		// again, nor hold on to one that is mostly something else.
		if cap(payload) <= cap(buf) || len(q.value) < cap(payload)/2 {
			q.value = bytes.Clone(q.value)
			for i, v := range q.values {
				q.values[i] = bytes.Clone(v)
			}
		}
		if q.op.waits() {
			p.awaitRoom()
		}
		r := reply{status: statusLimit}
		if _, err := q.check(); err == nil {
			var what outcome
			if r, what = s.mem.apply(call{client, id}, q); what == idInUse {
				return // no answer would be safe to give
			} else if what == waiting {
				continue
			}
		}
		if quiet {
			if r.status != statusOK {
				return // there is no other way to say it
			}
			continue
		}
		if p.reply(id, &r) != nil {
			return
		}
	}
}

// patron is what a client that waits is told when its wait ends, possibly by
// another client's request, which must not be held up by this client's
// connection: so the replies are queued and written by a goroutine that lives
// only as long as there are some.
//
// A client that does not read its replies is not to fill the server's memory:
// while many are unwritten, no more requests of it that wait are taken.
//
// The replies of calls that do not wait are gathered in out, which belongs to
// the goroutine that reads the requests.
type patron struct {
	conn *transport.Conn
	out  []byte

	mu      sync.Mutex
	queue   []answer
	unsent  int        // replies queued, or being written
	load    int        // bytes of their values
	written *sync.Cond // on mu: unsent and load have become less
	writing bool
	running sync.WaitGroup
}

const (
	// maxUnsent bounds the replies that wait to be written to a client when it
	// makes another request that waits, maxLoad the bytes of their values. Replies
	// of requests that wait already, maxWaiting of them, may come on top.
	maxUnsent = 4 << 10
	maxLoad   = 2 * MaxValue
)

func newPatron(c *transport.Conn) *patron {
	p := &patron{conn: c}
	p.written = sync.NewCond(&p.mu)
	return p
}

// awaitRoom waits until there are few unwritten replies.
func (p *patron) awaitRoom() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.unsent >= maxUnsent || p.load >= maxLoad {
		p.written.Wait()
	}
}

// load returns the bytes of a reply's values.
func (r *reply) load() int {
	n := len(r.value)
	for _, v := range r.values {
		n += len(v)
	}
	return n
}

func (p *patron) wake(id uint64, r reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unsent++
	p.load += r.load()
	p.queue = append(p.queue, answer{call{id: id}, r})
	if !p.writing {
		p.writing = true
		p.running.Add(1)
		go p.write()
	}
}

func (p *patron) write() {
	defer p.running.Done()
	var out []byte
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
		var err error
		for i := range batch {
			if out, err = p.gather(out, batch[i].id, &batch[i].reply); err != nil {
				break
			}
		}
		if err == nil && len(out) > 0 {
			_, err = p.conn.Write(out)
			out = out[:0]
		}
		if err != nil {
			// The reader finds the connection broken too, and ends the client.
			p.conn.Close()
		}
		p.mu.Lock()
		p.unsent -= len(batch)
		for i := range batch {
			p.load -= batch[i].load()
		}
		p.written.Broadcast()
		p.mu.Unlock()
	}
}

// reply gathers a reply.
func (p *patron) reply(id uint64, r *reply) (err error) {
	p.out, err = p.gather(p.out, id, r)
	return err
}

// flush writes the gathered replies.
func (p *patron) flush() error {
	_, err := p.conn.Write(p.out)
	p.out = p.out[:0]
	if cap(p.out) > keepOut {
		p.out = nil // thousands of clients may have had much to say once
	}
	return err
}

// gather appends a reply's frame to out, or writes both when they are long.
func (p *patron) gather(out []byte, id uint64, r *reply) ([]byte, error) {
	if len(r.value) <= gatherLimit && len(r.values) == 0 && len(r.missing) == 0 {
		begin := len(out)
		out = append(out, make([]byte, transport.HeaderSize)...)
		out, tail := appendReply(out, id, r)
		out = append(out, tail...)
		transport.PutHeader(out[begin:], byte(r.status), len(out)-begin-transport.HeaderSize)
		if len(out) <= gatherLimit {
			return out, nil
		}
		_, err := p.conn.Write(out)
		return out[:0], err
	}
	if len(out) > 0 {
		if _, err := p.conn.Write(out); err != nil {
			return nil, err
		}
	}
	head, tail := appendReply(nil, id, r)
	return out[:0], p.conn.WriteFrame(byte(r.status), head, tail)
}
