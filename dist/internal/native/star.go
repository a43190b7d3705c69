// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/transport"
)

// star watches the ranks of a group and spreads the news of a fault. Every rank (a spoke)
// has one connection to rank 0 (the hub), which carries only beats while all is well (see
// [heartbeat]). When a process ends, in whatever way, the system closes its connection, and
// the hub tells the others. When the hub's process ends, every spoke sees it. A rank that
// leaves in good order says so first. Once the hub has left, no rank watches the others.
type star struct {
	cfg            *Config
	rank, numRanks int
	// heard is called for the fault of another rank, left for a rank that has left.
	heard func(rank int, kind uint32, text string)
	left  func(rank int)
	// stalled is called for a collective in which another rank waits. It may be nil, and is
	// set before any rank joins.
	stalled func(rank int, c *operation.Call)

	beats    *heartbeat  // nil: no beats
	troubled atomic.Bool // trouble has got its error, or is about to
	// lines is called now and then to look for connections that are cut. It may be nil, and
	// is set before any rank joins.
	lines func(limit time.Duration)
	// past returns this rank's collective of a number, if the history has it. It is set
	// before any rank joins.
	past func(seq uint64) (operation.Call, bool)
	// known returns the fault that is recorded in shared memory. It may be nil, and is set
	// before any rank joins.
	known      func() (rank int, kind uint32, text string, ok bool)
	settlement settlement
	asks       asks
	inquiries  inquiries
	// compare compares another rank's last calls with this one's, and reports whether this
	// rank has made them all. It may be nil, and is set before any rank joins.
	compare func(rank int, calls []operation.Call) (fits bool)

	mu      sync.Mutex
	conns   map[int]*transport.Conn // by rank: all spokes, or the hub
	closing bool
	why     string // the group could not be made
	passed  uint64 // the hub: number of the last collective passed on by tellStalled
	readers sync.WaitGroup
	joined  chan int   // ranks as they join
	trouble chan error // the first fault, for who waits for ranks to join
}

func newStar(cfg *Config, heard func(rank int, kind uint32, text string), left func(rank int)) *star {
	n := len(cfg.Members)
	s := &star{cfg: cfg, rank: cfg.Rank, numRanks: n, heard: heard, left: left, conns: map[int]*transport.Conn{},
		settlement: settlement{done: make(chan struct{})}, asks: newAsks(), inquiries: newInquiries(), joined: make(chan int, n), trouble: make(chan error, 1)}
	s.beats = newHeartbeat(s)
	return s
}

// mayJoin returns why the sender of a hello cannot join at this rank.
func (s *star) mayJoin(h hello) error {
	switch {
	case s.rank != 0 || h.rank == 0:
		return fmt.Errorf("rank %d cannot join at rank %d", h.rank, s.rank)
	case h.number != s.cfg.Agreed:
		err := fmt.Errorf("rank %d has made group %q with other options than rank %d", h.rank, s.cfg.Group, s.rank)
		s.alarm(err)
		return err
	}
	return nil
}

// alarm ends the wait for ranks that have not joined with an error, unless it has one
// already.
func (s *star) alarm(err error) {
	if !s.troubled.Swap(true) {
		s.trouble <- err
	}
}

// giveUp sets why the group could not be made, before close: see [Config.reason].
func (s *star) giveUp(why string) {
	s.mu.Lock()
	s.why = why
	s.mu.Unlock()
}

// join adds the connection to a rank and watches it. word, which may be nil, tells the rank
// that it has joined; it is called before any news goes to the rank.
func (s *star) join(rank int, c *transport.Conn, word func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return &closedError{s.why}
	}
	if s.conns[rank] != nil {
		return fmt.Errorf("rank %d has joined before", rank)
	}
	if word != nil {
		if err := word(); err != nil {
			return err
		}
	}
	if s.cfg.Silence > 0 {
		c.RetrySoon(s.cfg.Silence / retries)
	}
	s.conns[rank] = c
	s.readers.Add(1)
	go s.watch(rank, c)
	s.beats.start()
	select {
	case s.joined <- rank:
	default: // a rank that joined, was lost and came again
	}
	return nil
}

// awaitSpokes waits at the hub until all spokes have joined: a later one would miss earlier
// news.
func (s *star) awaitSpokes(ctx context.Context) error {
	cfg := s.cfg
	missing := map[int]bool{}
	for r := 1; r < s.numRanks; r++ {
		missing[r] = true
	}
	for len(missing) > 0 {
		select {
		case r := <-s.joined:
			delete(missing, r)
		case err := <-s.trouble:
			return err
		case <-ctx.Done():
			var other *fault.RankError
			if cause := context.Cause(ctx); errors.As(cause, &other) {
				return cause
			}
			e := &fault.TimeoutError{Group: cfg.Group, Op: "init", Cause: ctxerr.Of(ctx)}
			for r, m := range cfg.Members {
				if missing[r] {
					e.Missing = append(e.Missing, m)
				}
			}
			return e
		}
	}
	return nil
}

// watch reads the news from one connection until it ends.
func (s *star) watch(rank int, c *transport.Conn) {
	defer s.readers.Done()
	buf := make([]byte, maxControl)
	for {
		kind, payload, err := c.ReadFrame(buf, maxControl)
		if err != nil {
			s.lost(rank, c, err)
			return
		}
		s.beats.took(rank)
		goOn, err := s.take(rank, kind, payload)
		if err != nil {
			s.disown(rank, c, err)
			return
		}
		if !goOn {
			return
		}
	}
}

// take takes a frame that came from a rank. goOn is false if the connection has ended with
// it; an error is that no rank would send such a frame.
func (s *star) take(rank int, kind byte, payload []byte) (goOn bool, err error) {
	switch kind {
	case frameBeat:
		err = s.beats.beaten(rank, payload)
	case frameSkew:
		err = s.beats.skew(rank, payload)
	case frameAsk:
		err = s.asked(rank, payload)
	case frameDoing:
		err = s.answered(rank, payload)
	case frameCheck:
		err = s.check(rank, payload)
	case frameChecked:
		err = s.checked(rank, payload)
	case frameBye:
		s.part(rank, payload)
		s.drop(rank)
		s.gone(rank)
		return false, nil
	case frameStalled:
		err = s.takeStalled(rank, payload)
	case frameFault, frameLeft:
		return s.takeFault(rank, kind, payload)
	default:
		err = fmt.Errorf("a frame of kind %d", kind)
	}
	return true, err
}

// takeStalled takes the collective in which a rank waits.
func (s *star) takeStalled(rank int, payload []byte) error {
	about, call, err := parseStalled(payload, s.numRanks)
	if err == nil && s.rank == 0 && about != rank {
		err = fmt.Errorf("it sent the call of rank %d", about)
	}
	if err != nil {
		return err
	}
	if s.stalled != nil {
		s.stalled(about, &call)
	}
	s.tellStalled(about, &call)
	return nil
}

// takeFault takes the news of a fault, or that a rank has left.
func (s *star) takeFault(rank int, kind byte, payload []byte) (goOn bool, err error) {
	about, what, text, err := parseFault(payload, s.numRanks)
	switch {
	case err != nil:
		return false, err
	case kind == frameLeft:
		s.part(about, []byte(text))
		s.left(about)
		return true, nil
	}
	s.news(rank, about, what, text)
	if about == s.rank && what == kindFailed { // the sender has no more to do with this rank
		s.drop(rank)
		return false, nil
	}
	return true, nil
}

// lost takes the end of a connection. It means that the rank's process has ended, unless
// what came could not be read.
func (s *star) lost(rank int, c *transport.Conn, err error) {
	var number syscall.Errno
	switch {
	case errors.Is(err, transport.ErrAlert): // after which nothing can be sent
		if s.drop(rank) {
			s.news(rank, s.rank, kindFailed, fmt.Sprintf("rank %d could not read what it sent: %v", s.cfg.Members[rank].Rank, err))
		}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.As(err, &number):
		if s.drop(rank) {
			s.news(rank, rank, kindDied, "")
		}
	default:
		s.disown(rank, c, err)
	}
}

// disown ends the connection to a rank that has sent what no rank would send. It tells the
// rank why: if that is the hub, the others can hear of it only through the hub.
func (s *star) disown(rank int, c *transport.Conn, err error) {
	text := "broke the protocol: " + err.Error()
	_ = c.WriteFrame(frameFault, encodeFault(rank, kindFailed, text))
	if s.drop(rank) {
		s.news(rank, rank, kindFailed, text)
	}
}

// drop closes a connection and reports whether its end is news. It is none while this rank
// leaves.
func (s *star) drop(rank int) bool {
	if s.rank != 0 { // after the lock
		defer s.unsettle()
		defer s.confirmed()
	} else {
		defer s.came(rank, math.MaxUint64)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.conns[rank]; c != nil {
		c.Close()
		delete(s.conns, rank)
	}
	return !s.closing
}

// news takes a fault that came from a rank. It tells the other ranks first. Once this rank's
// calls have failed, its process may end, and a rank that heard only of that would take it
// for the cause.
func (s *star) news(from, about int, kind uint32, text string) {
	// Ranks that hear of it leave at once. Their leave must not count as the reason.
	first := !s.troubled.Swap(true)
	s.pass(from, about, kind, text)
	s.heard(about, kind, text)
	if kind == kindDied && s.cfg.Deaths != nil {
		s.cfg.Deaths(about)
	}
	if kind == kindSilent && s.cfg.Silences != nil {
		s.cfg.Silences(about, text)
	}
	if first {
		s.trouble <- s.cfg.faultError(nil, about, kind, text)
	}
}

// gone takes a rank's leave.
func (s *star) gone(rank int) {
	s.left(rank)
	about, kind, text := rank, uint32(kindLeft), ""
	if s.known != nil {
		if r, k, t, ok := s.known(); ok { // the reason for its leave
			about, kind, text = r, k, t
		}
	}
	s.alarm(s.cfg.faultError(nil, about, kind, text))
	s.tell(rank, frameLeft, encodeFault(rank, kindLeft, string(s.partingOf(rank))))
}

// spread tells all others of a fault that this rank has found.
func (s *star) spread(about int, kind uint32, text string) {
	s.pass(s.rank, about, kind, text)
}

// pass tells a fault to the ranks that have not heard of it.
func (s *star) pass(from, about int, kind uint32, text string) {
	if kind == kindMismatch {
		if m, err := parseMismatch(text, s.numRanks); err == nil {
			s.mismatched(from, about, m)
			return
		}
	}
	s.tell(from, frameFault, encodeFault(about, kind, text))
}

// tell passes news on. The hub sends it to all spokes but the one that it came from; a spoke
// sends its own news to the hub.
func (s *star) tell(from int, kind byte, payload []byte) {
	if s.rank != 0 && from != s.rank {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, c := range s.conns {
		if r != from {
			// A connection that cannot be written has a reader that finds out.
			_ = c.WriteFrame(kind, payload)
		}
	}
}

// tellStalled tells in which collective a rank waits. A spoke tells the hub about itself;
// the hub tells all ranks, once for each number.
func (s *star) tellStalled(rank int, c *operation.Call) {
	if s.rank == 0 {
		s.mu.Lock()
		news := c.Seq > s.passed
		s.passed = max(s.passed, c.Seq)
		s.mu.Unlock()
		if !news {
			return
		}
	}
	s.tell(rank, frameStalled, encodeStalled(rank, c))
}

// close tells all ranks that this one leaves, and waits for the goroutines that read.
func (s *star) close() {
	if s.rank == 0 {
		s.settleNow()
	}
	s.unsettle()
	words := s.words()
	s.mu.Lock()
	s.closing = true // before the beats end: nobody joins any more
	s.mu.Unlock()
	s.beats.close()
	s.mu.Lock()
	var failed []byte // for ranks that joined after the fault was passed on
	if about, kind, text, ok := (&closedError{s.why}).fault(s.numRanks); ok && s.rank == 0 && kind != kindMismatch {
		failed = encodeFault(about, kind, text)
	}
	for r, c := range s.conns {
		if failed != nil {
			_ = c.WriteFrame(frameFault, failed)
		}
		_ = c.WriteFrame(frameBye, words)
		c.Close()
		delete(s.conns, r)
	}
	s.mu.Unlock()
	s.readers.Wait()
}
