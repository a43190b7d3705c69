// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/link"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

// server answers the calls that a peer makes on one connection.
type server struct {
	*link.ServerConn
	agent  *Agent
	peer   *Peer
	ctx    context.Context // of its calls: ends with the connection
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	active map[uint64]*incoming
	ended  bool
}

// Serve implements [link.Handler].
func (h *linkHandler) Serve(c *link.ServerConn) link.Server {
	a := (*Agent)(h)
	s := &server{ServerConn: c, agent: a, active: map[uint64]*incoming{}}
	if rank := c.Peer.Rank; rank >= 0 {
		s.peer = a.peers[rank]
	} else {
		s.peer = &Peer{agent: a, name: c.Peer.Name, rank: -1}
		s.peer.err = errorf(KindUnknownPeer, "", s.peer, "it is a client, which serves nothing")
	}
	s.ctx, s.cancel = context.WithCancelCause(context.WithValue(a.ctx, callerKey{}, s))
	return s
}

// Ended implements [link.Server]: it ends the calls that came on the connection.
func (s *server) Ended(err error) {
	s.mu.Lock()
	s.ended = true
	active := s.active
	s.active = nil
	for _, in := range active {
		s.agent.abandoned.add(in)
	}
	s.Active.Store(0)
	s.mu.Unlock()
	err = ownError(err)
	if !errors.Is(err, errClosed) {
		err = fmt.Errorf("the connection of %s has ended: %w", s.peer.name, err)
	}
	for _, in := range active { // before lostPeer reports the loss: see join of package autograd
		in.own.end(err)
		if in.flow != nil {
			in.flow.end(err)
		}
	}
	s.agent.lostPeer(s.peer, s.Life, err)
	s.cancel(err)
}

// Take implements [link.Server].
func (s *server) Take(r *wire.Received) error {
	id, err := r.Items()
	if err != nil {
		return err
	}
	switch r.Kind {
	case wire.FrameCall:
		return s.takeCall(id, r)
	case wire.FrameCancel:
		return s.takeCancel(id, r)
	case wire.FrameItem, wire.FrameEnd, wire.FrameCredit:
		s.mu.Lock()
		in := s.active[id]
		s.mu.Unlock()
		if in == nil || in.flow == nil { // it has ended
			r.Release()
			return s.Discard()
		}
		return in.flow.Take(&s.Reader, r)
	}
	return wire.Protocolf("a frame of kind %d, which callers do not send", r.Kind)
}

// takeCancel ends a call that its caller has given up.
func (s *server) takeCancel(id uint64, r *wire.Received) error {
	r.Release()
	s.mu.Lock()
	in := s.active[id]
	if in != nil {
		delete(s.active, id)
		s.Active.Add(-1)
		s.agent.abandoned.add(in)
	}
	s.mu.Unlock()
	if in != nil {
		in.own.end(in.own.whyCanceled())
		if in.flow != nil {
			in.flow.end(errorf(KindCanceled, in.method.name, s.peer, "the peer has closed the stream"))
		}
	}
	return s.Discard()
}

// takeCall reads a call and runs it.
func (s *server) takeCall(id uint64, r *wire.Received) error {
	in, no, err := s.readCall(id, r)
	if err != nil {
		return err
	}
	m := in.method
	if no == nil && m.open != nil {
		m.open(in)
	}
	if err := s.add(in); err != nil {
		return err
	}
	m.stats.begun()
	if no == nil && s.agent.closing.Load() {
		no = &Error{Kind: KindClosed, Msg: errClosed.Error()}
	}
	// A reference to the result is known from now on, not from when its call's turn comes.
	if no == nil && r.RRef != nil && m.open == nil {
		no = s.agent.refs.remote(in, r.RRef)
	}
	switch {
	case no != nil:
		if no.Rank = -1; no.Method == "" {
			no.Method = m.name
		}
		in.refuse(no)
	case m.quick:
		s.runQuick(in)
	default:
		in.queue()
	}
	return nil
}

// readCall reads a call whose head has come. If no is not nil, it is the answer: the call
// is not given to a handler.
func (s *server) readCall(id uint64, r *wire.Received) (in *incoming, no *Error, err error) {
	a, d := s.agent, &r.Dec
	name := d.Text()
	timeout, sig := d.Uint(), d.Uint()
	r.ReadExtras()
	if d.Err() != nil {
		return nil, nil, wire.Protocolf("a call whose head cannot be read: %v", d.Err())
	}
	m := a.method(name)
	in = &incoming{agent: a, from: s, caller: s.peer, id: id, method: m, msg: r, began: time.Now(), size: r.Size}
	in.own.base = s.ctx
	if timeout > 0 {
		in.own.deadline = in.began.Add(time.Duration(min(timeout, 1<<52)) * time.Microsecond)
	}
	switch limit := a.end.MaxMessage; {
	case m == nil:
		no = &Error{Kind: KindUnknownMethod, Method: string(name), Msg: fmt.Sprintf("there is no method %q; it serves %s", name, a.methodList())}
		in.method = a.nobody
	case r.Size > limit:
		no = &Error{Kind: KindTooLarge, Msg: fmt.Sprintf("the request has %d bytes, at most %d", r.Size, limit)}
	case sig != 0 && sig != m.sig:
		no = &Error{Kind: KindTypes, Msg: "the types differ: the method served is " + m.text}
	}
	if no == nil {
		bad, err := s.Tensors(r)
		if err != nil {
			return nil, nil, err
		}
		if bad != nil {
			no = &Error{Kind: KindProtocol, Msg: bad.Error()}
		}
	}
	return in, no, s.Discard() // the rest, if the call was refused
}

// add adds a call to those that are under way.
func (s *server) add(in *incoming) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return errClosed
	case s.active[in.id] != nil:
		return wire.Protocolf("call %d is under way already", in.id)
	}
	if !in.method.hidden {
		s.agent.handling.add(1)
	}
	s.active[in.id] = in
	s.Active.Add(1)
	return nil
}

// done removes a call that is being answered, and says whether it was there. If not, the
// caller has given up, or the connection has ended.
func (s *server) done(in *incoming) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active[in.id] != in {
		return false
	}
	delete(s.active, in.id)
	s.Active.Add(-1)
	return true
}

// runQuick runs a call on the goroutine that reads. A handler that ends the goroutine ends
// the connection.
func (s *server) runQuick(in *incoming) {
	returned := false
	defer func() {
		if !returned {
			v := recover()
			in.fail(v)
			if v == nil {
				s.Lose(errLeft)
			}
		}
	}()
	in.method.run(in)
	returned = true
}

// abandoned are calls that no caller waits for any more, and whose handlers have not
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
