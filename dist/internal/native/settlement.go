// SPDX-License-Identifier: Apache-2.0

package native

import (
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
)

// A settlement puts the same words about a mismatch into the errors of all ranks, with the
// lines of both programs:
//
//  1. The rank that finds a mismatch makes it the group's fault, and tells at which line it
//     made its own call.
//  2. The hub of the star takes the first mismatch that it hears of as the group's, and
//     passes it on, so that every wait ends.
//  3. The other of the two ranks tells the hub at which line it made its call. Its star
//     answers, whatever its program is doing.
//  4. When both have answered, or their time is over, the hub tells all ranks the whole.
//     That is the error that they return.
//
// This costs two messages a rank, and only after a mismatch.
const (
	// hubPatience is how long the hub waits for the two ranks to tell where they called.
	// sitePatience is how long every rank waits for the hub's last word. Only a rank that
	// is stopped, gone or very slow makes others wait so long.
	hubPatience  = time.Second
	sitePatience = 1250 * time.Millisecond
)

// settlement is how far the ranks of a star have come with it.
type settlement struct {
	mu    sync.Mutex
	begun *mismatch // nil while there is none
	about int       // the rank that found it
	ended bool
	done  chan struct{} // closed when ended
	timer *time.Timer   // the hub's
}

// finish ends a settlement, which is locked.
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

// mismatched takes the news of a mismatch that a rank has found, or has told more of, and
// passes on what is new.
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

// unsettle ends the settlement when no rank passes anything on any more.
func (s *star) unsettle() {
	s.settlement.mu.Lock()
	s.settlement.finish()
	s.settlement.mu.Unlock()
}

// settled waits for the settlement and returns the mismatch as all ranks have it. The group
// has failed with a mismatch. The goroutines that read the star's connections must not call
// it.
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
