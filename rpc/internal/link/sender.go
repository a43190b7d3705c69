// SPDX-License-Identifier: Apache-2.0

package link

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
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

const (
	// maxOut is how many gathered bytes may wait to be written before senders wait.
	maxOut = 1 << 20
	// MaxLargeOut is how many bytes of large answers may wait to be written. A peer that
	// asks and does not read would otherwise fill this process's memory.
	MaxLargeOut = 64 << 20
)

// Sender is the writing side of a connection. Small messages are gathered, so that one
// system call writes the messages of several goroutines; large ones are written from their
// own memory. Messages keep the order in which they were given.
type Sender struct {
	conn *transport.Conn
	lost func(error) // ends the connection
	// patience is how long answers wait for room before the connection ends, 0 for ever:
	// the handlers that wait hold places that others want.
	patience time.Duration
	bounded  bool // by MaxLargeOut

	mu         sync.Mutex
	out, spare []byte
	large      []largeMessage
	largeBytes int            // of those that have not been written
	batch      []largeMessage // those that are being written; without msg when they are over
	current    int            // of batch
	// writing says that somebody writes: a goroutine that sends, or one that lives as long
	// as there is something to write.
	writing bool
	turns   atomic.Uint64 // writes that have begun, and pieces of large ones
	err     error
	room    chan struct{} // closed when something has been written; nil if nobody waits
	written atomic.Uint64 // bytes
}

// largeMessage stands among the gathered bytes, after so many bytes of out.
type largeMessage struct {
	after int
	msg   *wire.Outgoing
	over  chan struct{} // the message's
}

// Send takes a message over, and releases it when it has been written, which may be after
// Send has returned. With hurry the caller writes it itself if nobody else writes. ctx
// bounds the wait for room.
func (s *Sender) Send(ctx context.Context, m *wire.Outgoing, hurry bool) error {
	s.mu.Lock()
	for s.err == nil && (len(s.out) > maxOut || s.bounded && s.largeBytes > MaxLargeOut) {
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
			m.Release(err)
			return err
		}
		s.mu.Lock()
	}
	return s.sendLocked(m, hurry)
}

// post is Send without the wait for room: for short messages about calls.
func (s *Sender) post(m *wire.Outgoing) {
	s.mu.Lock()
	_ = s.sendLocked(m, false) // an error is the connection's end, which the calls learn of
}

// Tell sends a short message about a call or a stream: its number, and other numbers.
func (s *Sender) Tell(kind byte, id uint64, numbers ...uint64) {
	m := wire.New(kind, nil)
	m.Enc.Array(1 + len(numbers))
	m.Enc.Uint(id)
	for _, n := range numbers {
		m.Enc.Uint(n)
	}
	if err := m.Finish(wire.MaxHead); err != nil {
		m.Release(err)
		return
	}
	s.post(m)
}

// sendLocked is Send with the lock held and with room. It unlocks.
func (s *Sender) sendLocked(m *wire.Outgoing, hurry bool) error {
	if err := s.err; err != nil {
		s.mu.Unlock()
		m.Release(err)
		return err
	}
	small := m.Small()
	if small {
		s.out = m.AppendTo(s.out)
	} else {
		s.large = append(s.large, largeMessage{len(s.out), m, m.Over()})
		s.largeBytes += m.Size
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
		m.Release(nil)
	}
	if turn {
		go s.flush()
	}
	return nil
}

// writeOut writes what there is. The caller has the turn. The lock is held when writeOut
// is called and when it returns, but not in between.
func (s *Sender) writeOut() {
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

func (s *Sender) write(out []byte, large []largeMessage) error {
	at := 0
	var err error
	for i := range large { // whose messages may be withdrawn meanwhile
		if after := large[i].after; err == nil && after > at {
			_, err = s.conn.Write(out[at:after])
			at = after
		}
		m := s.begin(i)
		if m == nil {
			continue // it has been withdrawn
		}
		if err == nil {
			s.written.Add(uint64(m.Size))
			err = m.Write(s.conn, &s.turns)
		}
		s.ended(i)
		m.Release(err)
	}
	if err == nil && len(out) > at {
		_, err = s.conn.Write(out[at:])
	}
	s.written.Add(uint64(len(out)))
	return err
}

// begin takes up a large message of the batch, nil if it has been withdrawn.
func (s *Sender) begin(i int) *wire.Outgoing {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = i
	s.turns.Add(1)
	return s.batch[i].msg
}

// ended says that a large message of the batch has been written.
func (s *Sender) ended(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.largeBytes -= s.batch[i].msg.Size
	s.batch[i].msg = nil
	s.current = -1
	s.makeRoom()
}

// makeRoom wakes those who wait for room, with the lock held.
func (s *Sender) makeRoom() {
	if s.room != nil {
		close(s.room)
		s.room = nil
	}
}

// Withdraw takes a large message back of which nothing has been written, and says whether
// it could. over is the message's channel.
func (s *Sender) Withdraw(over chan struct{}) bool {
	s.mu.Lock()
	var m *wire.Outgoing
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
	s.largeBytes -= m.Size
	s.mu.Unlock()
	m.Release(errWithdrawn)
	return true
}

var errWithdrawn = errors.New("its call ended before")

// Settle returns when nothing reads the tensors of a large message any more. A message
// that has not begun is withdrawn. One that has begun is waited for; if the peer takes no
// data for a while, the connection ends.
func (s *Sender) Settle(over chan struct{}) {
	select {
	case <-over:
		return
	default:
	}
	if s.Withdraw(over) {
		return
	}
	tick := time.NewTicker(StallTime)
	defer tick.Stop()
	for turn := s.turn(); ; turn = s.turn() {
		select {
		case <-over:
			return
		case <-tick.C:
			if turn != 0 && s.turn() == turn {
				s.lost(fmt.Errorf("the peer took no data for %v", StallTime))
			}
		}
	}
}

// Suspect ends the connection if the peer takes no data for a while.
func (s *Sender) Suspect() {
	turn := s.turn()
	if turn == 0 {
		return
	}
	time.AfterFunc(StallTime, func() {
		if s.turn() == turn {
			s.lost(fmt.Errorf("the peer took no data for %v", StallTime))
		}
	})
}

// endTurn ends the turn of the goroutine that writes, with the lock held. If there is
// more, another goroutine takes the turn.
func (s *Sender) endTurn() {
	if s.more() {
		go s.flush()
		return
	}
	s.writing = false
}

// turn is a number that changes with each write and each piece of one; 0: nobody writes.
func (s *Sender) turn() uint64 {
	if !s.Busy() {
		return 0
	}
	return s.turns.Load()
}

// Busy says whether somebody is writing.
func (s *Sender) Busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writing
}

func (s *Sender) more() bool { return s.err == nil && len(s.out)+len(s.large) > 0 }

// flush is a goroutine that has the turn, and writes while there is something to write.
func (s *Sender) flush() {
	for {
		// Goroutines that are about to send something join in.
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

// Err returns why the connection takes no more messages, nil if it does.
func (s *Sender) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// close ends the sending. What has not been written is dropped.
func (s *Sender) close(err error) {
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
		l.msg.Release(err)
	}
}

// Reader is the reading side of a connection, for what reads the rest of a message whose
// head has come.
type Reader struct {
	conn  *transport.Conn
	moved atomic.Uint64 // pieces of frames that have come
}

// Tensors reads the list of tensors and the tensors, which are the rest of the message. If
// the list is wrong nothing has been read, and bad says why.
func (r *Reader) Tensors(m *wire.Received) (bad, err error) { return m.ReadTensors(r.conn, &r.moved) }

// Discard reads the rest of the message and drops it.
func (r *Reader) Discard() error { return r.conn.Discard() }
