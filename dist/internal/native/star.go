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

// star watches the ranks of a group and spreads the news of a fault. Every
// rank (a spoke) holds one connection to rank 0 (the hub); while all is well it
// carries nothing but beats (see heartbeat). When a process ends, however it ends, the system closes
// its connection, and the hub tells the others; when the hub ends, every
// spoke sees it. A rank that leaves in good order says so first. Once the hub
// has left, nobody watches the others any more.
type star struct {
	cfg            *Config
	rank, numRanks int
	// heard is called for a fault of another rank, left for one that has left.
	heard func(rank int, kind uint32, text string)
	left  func(rank int)
	// stalled is called for the collective that another rank waits in. May be
	// nil; set before any rank joins.
	stalled func(rank int, c *operation.Call)

	beats    *heartbeat  // nil: no beats
	troubled atomic.Bool // trouble has its error, or will
	// lines is called now and then to look for lines that are cut. May be nil;
	// set before any rank joins.
	lines func(limit time.Duration)
	// past returns this rank's collective of a number, if it is remembered. Set
	// before any rank joins.
	past func(seq uint64) (operation.Call, bool)
	// known returns the fault that ranks have written down where all see it. May
	// be nil; set before any rank joins.
	known      func() (rank int, kind uint32, text string, ok bool)
	settlement settlement
	asks       asks
	inquiries  inquiries
	// compare compares another rank's last calls with this one's and reports
	// whether it has made them all. May be nil; set before any rank joins.
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

// alarm ends the wait for ranks that have not joined, unless there is a reason
// already.
func (s *star) alarm(err error) {
	if !s.troubled.Swap(true) {
		s.trouble <- err
	}
}

// giveUp says why the group could not be made, before close: see [Config.reason].
func (s *star) giveUp(why string) {
	s.mu.Lock()
	s.why = why
	s.mu.Unlock()
}

// join adds the connection to a rank and watches it. word, which may be nil, tells
// the rank that it has joined, before any news.
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

// awaitSpokes waits at the hub until all have joined: who joins later would
// miss the news that came before.
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
		switch kind {
		case frameBeat, frameSkew, frameAsk, frameDoing, frameCheck, frameChecked:
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
			}
			if err != nil {
				s.disown(rank, c, err)
				return
			}
		case frameBye:
			s.part(rank, payload)
			s.drop(rank)
			s.gone(rank)
			return
		case frameStalled:
			about, call, err := parseStalled(payload, s.numRanks)
			if err == nil && s.rank == 0 && about != rank {
				err = fmt.Errorf("it speaks for rank %d", about)
			}
			if err != nil {
				s.disown(rank, c, err)
				return
			}
			if s.stalled != nil {
				s.stalled(about, &call)
			}
			s.tellStalled(about, &call)
		case frameFault, frameLeft:
			about, what, text, err := parseFault(payload, s.numRanks)
			if err != nil {
				s.disown(rank, c, err)
				return
			}
			if kind == frameLeft {
				s.part(about, []byte(text))
				s.left(about)
				continue
			}
			s.news(rank, about, what, text)
			if about == s.rank && what == kindFailed { // it has no more to do with this rank
				s.drop(rank)
				return
			}
		default:
			s.disown(rank, c, fmt.Errorf("a frame of kind %d", kind))
			return
		}
	}
}

// lost takes the end of a connection. That a rank's process has ended is what it
// means, unless what came could not be read.
func (s *star) lost(rank int, c *transport.Conn, err error) {
	var number syscall.Errno
	switch {
	case errors.Is(err, transport.ErrAlert): // after which nothing can be said to it
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

// disown ends the connection to a rank that has sent what no rank sends. It is
// told, for it may be the hub, through which alone the others can hear of it.
func (s *star) disown(rank int, c *transport.Conn, err error) {
	text := "broke the protocol: " + err.Error()
	_ = c.WriteFrame(frameFault, encodeFault(rank, kindFailed, text))
	if s.drop(rank) {
		s.news(rank, rank, kindFailed, text)
	}
}

// drop closes a connection and reports whether its end is news: not when this
// rank is leaving.
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

// news takes a fault that came from a rank. The others are told first: when
// this rank's calls have failed its process may end, and be taken for the cause
// by who hears only of that.
func (s *star) news(from, about int, kind uint32, text string) {
	// Those who hear of it leave at once, which is not to be taken for the reason.
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
		if r, k, t, ok := s.known(); ok { // which it has left for
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

// pass tells those of a fault who have not heard of it.
func (s *star) pass(from, about int, kind uint32, text string) {
	if kind == kindMismatch {
		if m, err := parseMismatch(text, s.numRanks); err == nil {
			s.mismatched(from, about, m)
			return
		}
	}
	s.tell(from, frameFault, encodeFault(about, kind, text))
}

// tell passes news on: from the hub to all spokes but the one it came from,
// from a spoke to the hub, if it is the spoke's own.
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

// tellStalled says what collective a rank waits in: a spoke what it waits in
// itself, to the hub, and the hub to all, once for each number.
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

// close takes leave of all and waits for the watchers.
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
	var failed []byte // who joined after that was passed on has not heard of it
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
