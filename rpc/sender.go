// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/transport"
)

// maxOut is for how many gathered bytes there is room before callers wait until
// they are written.
const maxOut = 1 << 20

// maxLargeOut is for how many bytes of large answers there is room: who asks and does
// not read would else have all answers kept for him.
const maxLargeOut = 64 << 20

// sender is the writing side of a connection. Small messages are gathered, so that
// one system call writes what several goroutines have to say; large ones are
// written from where they are. Messages keep the order in which they were given.
type sender struct {
	conn *transport.Conn
	lost func(error) // ends the connection
	// patience is how long answers wait for room before the connection is given up,
	// 0 for ever: handlers have places that others want.
	patience time.Duration
	bounded  bool // by maxLargeOut

	mu         sync.Mutex
	out, spare []byte
	large      []largeMessage
	largeBytes int            // of those that have not been written
	batch      []largeMessage // those that are being written; without msg when they need no more
	current    int            // of batch
	// Who sets writing writes: a sender itself, or a goroutine that lives as long
	// as there is something to write.
	writing bool
	turns   atomic.Uint64 // writes that have begun, and pieces of large ones
	err     error
	room    chan struct{} // closed when something has been written; nil if nobody waits
	written atomic.Uint64 // bytes
}

// largeMessage stands among what is gathered, after so many bytes of out.
type largeMessage struct {
	after int
	msg   *outgoing
	over  chan struct{} // the message's
}

// send takes a message over and releases it in time. It may be written after
// send has returned. With hurry the caller writes itself if nobody else does.
// ctx bounds the wait for room.
func (s *sender) send(ctx context.Context, m *outgoing, hurry bool) error {
	s.mu.Lock()
	for s.err == nil && (len(s.out) > maxOut || s.bounded && s.largeBytes > maxLargeOut) {
		if s.room == nil {
			s.room = make(chan struct{})
		}
		room := s.room
		s.mu.Unlock()
		var late <-chan time.Time
		if s.patience > 0 {
			timer := time.NewTimer(s.patience)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-room:
		case <-late:
			s.lost(fmt.Errorf("the peer took no answers for %v", s.patience))
		case <-ctx.Done():
			err := ctxerr.Of(ctx)
			m.release(err)
			return err
		}
		s.mu.Lock()
	}
	return s.sendLocked(m, hurry)
}

// post is send that does not wait for room: for short messages about others.
func (s *sender) post(m *outgoing) {
	s.mu.Lock()
	_ = s.sendLocked(m, false) // who is concerned learns of the connection's end
}

// sendLocked is send with the lock held and room, and unlocks.
func (s *sender) sendLocked(m *outgoing, hurry bool) error {
	if err := s.err; err != nil {
		s.mu.Unlock()
		m.release(err)
		return err
	}
	small := m.small()
	if small {
		s.out = m.appendTo(s.out)
	} else {
		s.large = append(s.large, largeMessage{len(s.out), m, m.over})
		s.largeBytes += m.size
	}
	turn := !s.writing
	s.writing = true
	if turn && hurry {
		s.writeOut()
		s.endTurn()
		turn = false
	}
	s.mu.Unlock()
	if small {
		m.release(nil)
	}
	if turn {
		go s.flush()
	}
	return nil
}

// writeOut writes what there is, for the one who writes. The lock is held when it
// is called and when it returns, but not in between.
func (s *sender) writeOut() {
	out, large := s.out, s.large
	s.turns.Add(1)
	s.out, s.spare, s.large = s.spare, nil, nil
	s.batch, s.current = large, -1
	s.mu.Unlock()
	err := s.write(out, large)
	if err != nil {
		s.lost(err)
	}
	s.mu.Lock()
	s.batch = nil
	if cap(out) <= 2*maxOut {
		s.spare = out[:0]
	}
	s.makeRoom()
}

func (s *sender) write(out []byte, large []largeMessage) error {
	at := 0
	var err error
	for i := range large { // whose messages may be withdrawn meanwhile
		if after := large[i].after; err == nil && after > at {
			_, err = s.conn.Write(out[at:after])
			at = after
		}
		m := s.begin(i)
		if m == nil {
			continue // nobody wants it to go out any more
		}
		if err == nil {
			s.written.Add(uint64(m.size))
			err = m.write(s.conn, &s.turns)
		}
		s.ended(i)
		m.release(err)
	}
	if err == nil && len(out) > at {
		_, err = s.conn.Write(out[at:])
	}
	s.written.Add(uint64(len(out)))
	return err
}

// begin takes up a large message of those that are being written, nil if it has
// been given up.
func (s *sender) begin(i int) *outgoing {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = i
	s.turns.Add(1)
	return s.batch[i].msg
}

// ended says that a large message needs its tensors no more.
func (s *sender) ended(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.largeBytes -= s.batch[i].msg.size
	s.batch[i].msg = nil
	s.current = -1
	s.makeRoom()
}

// makeRoom tells those who wait for room, with the lock held.
func (s *sender) makeRoom() {
	if s.room != nil {
		close(s.room)
		s.room = nil
	}
}

// withdraw takes a large message back of which nothing has been written. over is
// how it tells that it has been released.
func (s *sender) withdraw(over chan struct{}) bool {
	s.mu.Lock()
	var m *outgoing
	for i, l := range s.large {
		if l.over == over {
			m = l.msg
			s.large = slices.Delete(s.large, i, i+1)
			break
		}
	}
	for i, l := range s.batch {
		if l.over == over && l.msg != nil && i != s.current {
			m = l.msg
			s.batch[i].msg = nil
		}
	}
	if m == nil {
		s.mu.Unlock()
		return false
	}
	s.largeBytes -= m.size
	s.mu.Unlock()
	m.release(errWithdrawn)
	return true
}

var errWithdrawn = errors.New("its call ended before")

// settle returns when nothing reads the tensors of a large message any more whose
// sender has lost interest: it is not sent, or it has been sent, or the connection is
// given up because the peer does not take it.
func (s *sender) settle(over chan struct{}) {
	select {
	case <-over:
		return
	default:
	}
	if s.withdraw(over) {
		return
	}
	tick := time.NewTicker(stallTime)
	defer tick.Stop()
	for turn := s.turn(); ; turn = s.turn() {
		select {
		case <-over:
			return
		case <-tick.C:
			if turn != 0 && s.turn() == turn {
				s.lost(fmt.Errorf("the peer took no data for %v", stallTime))
			}
		}
	}
}

// suspect gives the connection up if the peer takes nothing for a while.
func (s *sender) suspect() {
	turn := s.turn()
	if turn == 0 {
		return
	}
	time.AfterFunc(stallTime, func() {
		if s.turn() == turn {
			s.lost(fmt.Errorf("the peer took no data for %v", stallTime))
		}
	})
}

// endTurn ends the turn of the one who writes, with the lock held. A goroutine
// takes it when there is more.
func (s *sender) endTurn() {
	if s.more() {
		go s.flush()
		return
	}
	s.writing = false
}

// turn tells one write, or a piece of it, from another, 0 while nobody writes.
func (s *sender) turn() uint64 {
	if !s.busy() {
		return 0
	}
	return s.turns.Load()
}

// busy says whether somebody is writing.
func (s *sender) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writing
}

func (s *sender) more() bool { return s.err == nil && len(s.out)+len(s.large) > 0 }

// flush is a goroutine that has the turn, and writes while there is something to write.
func (s *sender) flush() {
	for {
		// Those who are about to send something join in.
		runtime.Gosched()
		s.mu.Lock()
		if !s.more() {
			s.writing = false
			s.mu.Unlock()
			return
		}
		s.writeOut()
		s.mu.Unlock()
	}
}

// close ends the sending. What has not been written will not be.
func (s *sender) close(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	large := s.large
	s.large, s.out = nil, nil
	for i, l := range s.batch {
		if l.msg != nil && i != s.current {
			large = append(large, l)
			s.batch[i].msg = nil
		}
	}
	s.makeRoom()
	s.mu.Unlock()
	for _, l := range large {
		l.msg.release(err)
	}
}
