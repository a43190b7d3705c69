// SPDX-License-Identifier: Apache-2.0

package native

import (
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
)

// How a mismatch comes to stand in all ranks' errors in the same words, with
// the lines of both programs:
//
// Who finds one makes it the group's fault, as any other, and says where it
// made its own call. The hub of the star takes the first that it hears of for
// the group's and passes it on, so that every wait ends. The other of the two
// ranks, when it hears of it, tells the hub where it made its call; the news
// comes to its star, so it answers whatever it is doing. When both have
// answered, or have had their time, the hub tells all ranks the whole, which is
// what they return. All that costs 2 messages a rank, and only after a mismatch.
const (
	// hubPatience is how long the hub waits for the two ranks to say where
	// they called, sitePatience how long all wait for the hub's last word: seldom,
	// as who has stopped or is gone alone does not say, or a machine that does much else.
	hubPatience  = time.Second
	sitePatience = 1250 * time.Millisecond
)

// settlement is how far the ranks of a star are in that.
type settlement struct {
	mu    sync.Mutex
	begun *mismatch // nil while there is none
	about int       // the rank that found it
	ended bool
	done  chan struct{} // closed when ended
	timer *time.Timer   // the hub's
}

// finish ends a settlement; it is locked.
func (st *settlement) finish() {
	if st.ended {
		return
	}
	st.ended = true
	close(st.done)
	if st.timer != nil {
		st.timer.Stop()
	}
}

// mismatched takes word of a mismatch that a rank has found or has said more
// of, and passes it on as far as it is news.
func (s *star) mismatched(from, about int, m *mismatch) {
	st := &s.settlement
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.ended {
		return
	}
	first := st.begun == nil
	switch {
	case first:
		st.begun, st.about = m, about
	case s.rank == 0:
		st.begun.merge(from, m)
	case from == 0: // the hub's word counts
		st.begun = m
	}
	news := st.begun.say(s.rank, s.cfg.Site, s.past)
	tell := func(but int) { s.tell(but, frameFault, encodeFault(about, kindMismatch, st.begun.encode())) }
	complete := st.begun.complete()
	switch {
	case s.rank != 0:
		if from == s.rank && first || from == 0 && news {
			tell(s.rank)
		}
		if complete && from == 0 && !news || !s.hasHub() {
			st.finish()
		}
	case complete:
		tell(s.rank)
		st.finish()
	case first:
		tell(from)
		st.timer = time.AfterFunc(hubPatience, s.settleNow)
	}
}

// settleNow has the hub tell all ranks what it knows.
func (s *star) settleNow() {
	st := &s.settlement
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.begun != nil && !st.ended {
		st.begun.giveUp()
		s.tell(s.rank, frameFault, encodeFault(st.about, kindMismatch, st.begun.encode()))
		st.finish()
	}
}

// hasHub reports whether a spoke still has a connection to the hub.
func (s *star) hasHub() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns[0] != nil
}

// unsettle ends the wait for words that nobody will pass on any more.
func (s *star) unsettle() {
	s.settlement.mu.Lock()
	s.settlement.finish()
	s.settlement.mu.Unlock()
}

// settled returns the error of a mismatch as all ranks have it, which it waits
// for: nothing else has ended the group before. It must not be called by who
// reads the star's connections.
func (s *star) settled(e *fault.MismatchError) *fault.MismatchError {
	st := &s.settlement
	patience := time.NewTimer(sitePatience)
	defer patience.Stop()
	select {
	case <-st.done:
	case <-patience.C:
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	m := st.begun
	if m == nil { // the star had come to its end
		m = newMismatch(e)
		m.say(s.rank, s.cfg.Site, s.past)
	}
	return m.error(s.cfg.Group, s.rank)
}
