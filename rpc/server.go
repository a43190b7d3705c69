// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

// discardFactor says which oversized messages are read over, and which end the
// connection: that many times what is allowed.
const discardFactor = 4

// serverLink is a connection on which a peer calls this agent.
type serverLink struct {
	agent *Agent
	peer  *Peer
	id    string // of the life of the peer that connected
	life  uint64 // the same, for hooks
	conn  *transport.Conn
	limit int // of the peer's messages
	sender
	ctx    context.Context // of its calls: ends with the connection
	cancel context.CancelCauseFunc

	moved  atomic.Uint64 // pieces of frames that have come
	spins  spinner
	cmu    sync.Mutex
	active map[uint64]*incoming
	num    atomic.Int64 // of active
	ended  bool
}

// serve reads calls until the connection ends.
func (s *serverLink) serve() {
	var err error
	polls := s.conn.CanPoll()
	for err == nil {
		if polls {
			s.look()
		}
		err = s.readOne()
	}
	s.lose(err)
}

// look asks the connection for a while for the next call, where that is likely to
// come soon: when all others have been answered, as those of a caller are who makes
// one after the other.
func (s *serverLink) look() {
	if s.conn.FrameBuffered() {
		return
	}
	// What was started for the last call needs this thread.
	runtime.Gosched()
	if s.num.Load() == 0 {
		s.spins.look(s.conn)
	}
}

// lose ends the connection and the calls that came on it.
func (s *serverLink) lose(err error) {
	s.cmu.Lock()
	if s.ended {
		s.cmu.Unlock()
		return
	}
	s.ended = true
	active := s.active
	s.active = nil
	for _, in := range active {
		s.agent.abandoned.add(in)
	}
	s.num.Store(0)
	s.cmu.Unlock()
	if !errors.Is(err, errClosed) {
		err = fmt.Errorf("the connection of %s has ended: %w", s.peer.name, err)
	}
	for _, in := range active { // before anybody hears of the loss: see join of package autograd
		in.own.end(err)
		if in.flow != nil {
			in.flow.fail(err)
		}
	}
	s.agent.lostPeer(s.peer, s.life, err)
	s.cancel(err)
	s.conn.Close()
	s.sender.close(err)
}

// readOne reads a message. An error is the connection's end.
func (s *serverLink) readOne() error {
	r, err := readHead(s.conn, discardFactor*s.agent.maxMessage)
	if err != nil {
		return err
	}
	if r.kind == frameNote {
		return s.takeNote(r)
	}
	id, err := r.items()
	if err != nil {
		return err
	}
	switch r.kind {
	case frameCall:
		return s.take(id, r)
	case frameCancel:
		r.release()
		s.cmu.Lock()
		in := s.active[id]
		if in != nil {
			delete(s.active, id)
			s.num.Add(-1)
			s.agent.abandoned.add(in)
		}
		s.cmu.Unlock()
		if in != nil {
			in.own.end(in.own.whyCanceled())
			if in.flow != nil {
				in.flow.fail(errorf(KindCanceled, in.method.name, s.peer, "the peer has closed the stream"))
			}
		}
		return s.conn.Discard()
	case frameItem, frameEnd, frameCredit:
		s.cmu.Lock()
		var f *flow
		if in := s.active[id]; in != nil {
			f = in.flow
		}
		s.cmu.Unlock()
		return takeFlow(s.conn, f, r, s.agent.maxMessage, &s.moved)
	}
	return protocolError("a frame of kind %d, which is none that a caller sends", r.kind)
}

// take reads a call and runs it.
func (s *serverLink) take(id uint64, r *received) error {
	a, d := s.agent, &r.dec
	name := d.Text()
	timeout, sig := d.Uint(), d.Uint()
	r.readExtras()
	if d.Err() != nil {
		return protocolError("a call whose head cannot be read: %v", d.Err())
	}
	m := a.method(name)
	in := &incoming{agent: a, from: s, caller: s.peer, id: id, method: m, msg: r, began: time.Now(), size: r.size}
	in.own.base = s.ctx
	if timeout > 0 {
		in.own.deadline = in.began.Add(time.Duration(min(timeout, 1<<52)) * time.Microsecond)
	}
	var no *Error
	switch {
	case m == nil:
		no = &Error{Kind: KindUnknownMethod, Msg: fmt.Sprintf("there is no method %q; it serves %s", name, a.methodList())}
		in.method = a.nobody
	case r.size > a.maxMessage:
		no = &Error{Kind: KindTooLarge, Msg: fmt.Sprintf("the request has %d bytes, at most %d", r.size, a.maxMessage)}
	case sig != 0 && sig != m.sig:
		no = &Error{Kind: KindTypes, Msg: "the types differ: the method served is " + m.text}
	}
	if no == nil {
		bad, err := r.readTensors(s.conn, &s.moved)
		if err != nil {
			return err
		}
		if bad != nil {
			no = &Error{Kind: KindProtocol, Msg: bad.Error()}
		}
	}
	if err := s.conn.Discard(); err != nil { // what has not been read
		return err
	}
	if no == nil && m.open != nil {
		m.open(in)
	}
	s.cmu.Lock()
	switch {
	case s.ended:
		s.cmu.Unlock()
		return errClosed
	case s.active[id] != nil:
		s.cmu.Unlock()
		return protocolError("call %d is under way already", id)
	}
	if !in.method.hidden {
		a.handling.add(1)
	}
	s.active[id] = in
	s.num.Add(1)
	s.cmu.Unlock()
	in.method.stats.begun()
	if no == nil && a.closing.Load() {
		no = &Error{Kind: KindClosed, Msg: errClosed.Error()}
	}
	// A reference to the result is known from now on, not from when its call's turn comes.
	if no == nil && r.rref != nil && m.open == nil {
		no = a.refs.remote(in, r.rref)
	}
	if no != nil {
		no.Rank, no.Method = -1, string(name)
		in.refuse(no)
		return nil
	}
	if m.quick {
		s.runQuick(in)
		return nil
	}
	g := m.gate
	if g == nil {
		g = &a.gate
	}
	now, full := g.enter(in)
	switch {
	case full:
		in.refuse(&Error{Kind: KindBusy, Method: m.name, Rank: -1, Msg: fmt.Sprintf("more calls wait for their turn than %d, or than %d bytes of them", maxQueued, maxQueuedBytes)})
	case now:
		go g.runAll(in)
	}
	return nil
}

// runQuick runs a call on the goroutine that reads. A handler that ends that ends the
// connection.
func (s *serverLink) runQuick(in *incoming) {
	returned := false
	defer func() {
		if !returned {
			v := recover()
			in.fail(v)
			if v == nil {
				s.lose(errLeft)
			}
		}
	}()
	in.method.run(in)
	returned = true
}

// refuse answers a call that no handler sees.
func (in *incoming) refuse(err *Error) {
	in.msg.release()
	in.msg = nil
	in.ctx = &in.own
	if in.keep != nil {
		_ = in.keep(nil, err) // the caller gets the same error
	}
	in.reply(err, nil)
}

// done takes a call that is being answered off the list, and says whether it was
// there: else the caller has given up, or gone.
func (s *serverLink) done(in *incoming) bool {
	s.cmu.Lock()
	defer s.cmu.Unlock()
	if s.active[in.id] != in {
		return false
	}
	delete(s.active, in.id)
	s.num.Add(-1)
	return true
}

// abandoned are calls for which nobody waits any more, and whose handlers have not
// returned: a shutdown waits for them.
type abandoned struct {
	mu    sync.Mutex
	calls map[*incoming]struct{}
}

// add takes a call in that leaves the list of its connection, whose lock is held.
func (b *abandoned) add(in *incoming) {
	if in.method.hidden {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.calls == nil {
		b.calls = map[*incoming]struct{}{}
	}
	b.calls[in] = struct{}{}
}

func (b *abandoned) remove(in *incoming) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.calls, in)
}

// alone says whether no other call is under way.
func (s *serverLink) alone() bool { return s.num.Load() == 0 && !s.sender.busy() }
