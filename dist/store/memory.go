// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"sync"

	"github.com/cohort-ml/cohort/internal/ctxerr"
)

// maxWaiting bounds the calls of one client that wait on the server.
const maxWaiting = 64 << 10

// Memory is a Store in this process. It can be used directly and be served to
// other processes at the same time. Make one with NewMemory.
type Memory struct {
	methods

	mu      sync.Mutex
	m       *machine
	last    uint64 // client that came last
	sinks   map[uint64]func(id uint64, r reply)
	scratch []answer

	// calls made in this process: client 0
	lastID  uint64
	pending map[uint64]chan reply
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	s := &Memory{m: newMachine(), sinks: map[uint64]func(uint64, reply){}, pending: map[uint64]chan reply{}}
	s.methods.do = s.do
	s.sinks[0] = func(id uint64, r reply) {
		s.pending[id] <- r
		delete(s.pending, id)
	}
	return s
}

// attach adds a client, whose replies to calls that waited go to sink, which
// is called with the store locked and must not block.
func (s *Memory) attach(sink func(id uint64, r reply)) (client uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.sinks[s.last] = sink
	return s.last
}

// detach removes a client and the calls that it has waiting.
func (s *Memory) detach(client uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m.drop(client)
	delete(s.sinks, client)
}

// outcome is what became of a request of a client.
type outcome int

const (
	answered outcome = iota
	waiting          // the reply comes to the client's sink later
	idInUse          // another call of that id waits; nothing was done
)

// apply does a request that has passed its check. The request's slices become the store's.
func (s *Memory) apply(c call, q request) (reply, outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m.isWaiting(c) {
		return reply{}, idInUse
	}
	own, done := s.applyLocked(c, q)
	if !done {
		return reply{}, waiting
	}
	return own, answered
}

// glance answers the payload of a get whose key exists, without taking it
// apart into things of their own.
func (s *Memory) glance(client uint64, payload []byte) (id uint64, value []byte, ok bool) {
	r := reader{rest: payload}
	id = r.uint64()
	key := r.bytes()
	if r.bad || len(r.rest) > 0 {
		return 0, nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m.isWaiting(call{client, id}) {
		return 0, nil, false
	}
	value, ok = s.m.values[string(key)]
	return id, value, ok
}

func (s *Memory) applyLocked(c call, q request) (own reply, done bool) {
	if q.op.waits() && s.m.numWaiting(c.client) >= maxWaiting {
		return reply{status: statusLimit}, true
	}
	s.scratch = s.m.apply(c, q, s.scratch[:0])
	for _, a := range s.scratch {
		if a.call == c {
			own, done = a.reply, true
			continue
		}
		s.sinks[a.client](a.id, a.reply)
	}
	clear(s.scratch)
	return own, done
}

// cancel ends a waiting call, whose reply then goes to its sink like any
// other. It does nothing when the call has been answered.
func (s *Memory) cancel(c call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scratch = s.m.cancel(c, s.scratch[:0])
	for _, a := range s.scratch {
		s.sinks[a.client](a.id, a.reply)
	}
	clear(s.scratch)
}

// do runs a request of this process.
func (s *Memory) do(ctx context.Context, q request) (reply, error) {
	fail := func(keys []string, err error) (reply, error) {
		return reply{}, &Error{Op: q.op.String(), Keys: keys, Addr: "memory", Err: err}
	}
	if keys, err := q.check(); err != nil {
		return fail(keys, err)
	}
	if ctx.Err() != nil {
		return fail(q.keys, ctxerr.Of(ctx))
	}
	q = q.clone()
	var answered chan reply
	s.mu.Lock()
	s.lastID++
	c := call{0, s.lastID}
	r, done := s.applyLocked(c, q)
	if !done {
		answered = make(chan reply, 1)
		s.pending[c.id] = answered
	}
	s.mu.Unlock()
	if !done {
		ctx, release := deadline(ctx)
		defer release()
		select {
		case r = <-answered:
		case <-ctx.Done():
			s.cancel(c) // or it has been answered just now
			if r = <-answered; r.status == statusCancelled {
				return fail(r.missing, missingError(ctxerr.Of(ctx), q.op))
			}
		}
	}
	if err := r.err(); err != nil {
		return fail(q.keys, err)
	}
	return r.clone(), nil
}

// missingError says that a wait ended with its context.
func missingError(cause error, op opcode) error {
	what := "not set by anybody"
	if op == opPop {
		what = "nothing was pushed for this call"
	}
	return fmt.Errorf("%s before the wait ended: %w", what, cause)
}

// err turns a status that is a failure into an error.
func (r *reply) err() error {
	switch r.status {
	case statusOK, statusNo:
		return nil
	case statusNotInteger:
		return ErrNotInteger
	case statusLimit:
		return fmt.Errorf("%w: the server refused the request", ErrLimit)
	case statusTooLarge:
		return fmt.Errorf("%w: the value, or the values together, would have more than %d bytes", ErrLimit, MaxValue)
	}
	return fmt.Errorf("a reply with status %d, which this version does not know", r.status)
}

// grow counts bytes more, or none, and returns how many the keys and values have.
func (s *Memory) grow(n int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m.size = s.m.count() + n
	return s.m.size
}

// peek returns a key's value. It belongs to the store.
func (s *Memory) peek(key []byte) (value []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok = s.m.values[string(key)]
	return value, ok
}
