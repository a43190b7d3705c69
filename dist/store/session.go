// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"

	"github.com/cohort-ml/cohort/internal/transport"
)

// session is one client's connection to a [Server]: it reads the client's requests in
// turn and answers them.
type session struct {
	srv     *Server
	conn    *transport.Conn
	client  uint64
	replies *replyWriter
	alone   func() bool // whether the last request of all clients was this one's
	spins   spinner
	streak  int // requests in a row without one of another client
	buf     []byte
}

// serve answers one client until its connection ends.
func (s *Server) serve(c *transport.Conn) {
	defer c.Close()
	if !s.enter(c) {
		return
	}
	defer s.leave(c)
	w := newReplyWriter(c)
	client := s.mem.attach(w.wake)
	// Order matters: first nothing can be queued any more, then the
	// connection is closed so that a writer in progress ends, then we wait for it.
	defer w.running.Wait()
	defer c.Close()
	defer s.mem.detach(client)

	one := &session{srv: s, conn: c, client: client, replies: w, buf: make([]byte, 0, 512),
		alone: func() bool { return s.last.Load() == client }}
	for one.next() {
	}
}

// next serves one request; false ends the session.
func (s *session) next() bool {
	// The answers to all requests that have come are written at once.
	if len(s.replies.out) > 0 && !s.conn.FrameBuffered() {
		if s.replies.flush() != nil {
			return false
		}
		// A client that is alone may have its next request ready soon.
		if s.streak >= minStreak && s.alone() {
			s.spins.wait(s.conn, s.alone)
		}
	}
	kind, payload, err := s.conn.ReadFrame(s.buf, maxFrame)
	if err != nil {
		return false
	}
	if s.streak++; !s.alone() {
		s.srv.last.Store(s.client)
		s.streak = 0
	}
	if opcode(kind) == opGet {
		if id, value, ok := s.srv.mem.glance(s.client, payload); ok {
			return s.replies.reply(id, &reply{status: statusOK, value: value}) == nil
		}
	}
	id, q, err := parseRequest(kind, payload)
	if err != nil {
		return false
	}
	if q.op == opCancel {
		s.srv.mem.cancel(call{s.client, id})
		return true
	}
	// The store keeps the value: it may not share a buffer that is used
	// again, nor hold on to one that is mostly something else.
	if cap(payload) <= cap(s.buf) || len(q.value) < cap(payload)/2 {
		q.value = bytes.Clone(q.value)
		for i, v := range q.values {
			q.values[i] = bytes.Clone(v)
		}
	}
	return s.answer(id, &q)
}

// answer does a request and replies, unless the request waits; false ends the session.
func (s *session) answer(id uint64, q *request) bool {
	quiet := q.op == opSetQuiet
	if quiet {
		q.op = opSet
	}
	if q.op.waits() {
		s.replies.awaitRoom()
	}
	r := reply{status: statusLimit}
	if _, err := q.check(); err == nil {
		var what outcome
		switch r, what = s.srv.mem.apply(call{s.client, id}, *q); what {
		case idInUse:
			return false // no answer would be safe to give
		case waiting:
			return true
		}
	}
	if quiet {
		return r.status == statusOK // there is no other way to say that it is not
	}
	return s.replies.reply(id, &r) == nil
}
