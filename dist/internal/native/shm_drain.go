// SPDX-License-Identifier: Apache-2.0

package native

import (
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/dist/operation"
)

// Ranks that share memory write to what others have lent, and a call that fails
// is over for one rank earlier than for the next. Its caller may do with the
// tensors what it likes once the call has returned. So a rank whose call has
// failed waits until those that may still be at its memory have left the call:
// they have entered it, and not said that they are out of it. Who enters later
// finds the fault before it touches anything: it says that it has entered and
// then looks for a fault, where the other records the fault and then looks who
// has entered, so that one of them sees the other.

const (
	// leaveLimit bounds that wait: a process that is stopped, and has not been
	// found to be, leaves nothing.
	leaveLimit = time.Second
	// leavePause is the longest time between two looks.
	leavePause = time.Millisecond
)

// awaitLeave waits until nobody is at what this rank has lent for a call that
// has failed. The fault has been recorded.
func (s *Shm) awaitLeave(seq uint64) {
	s.patiently(func() bool {
		for i := 1; i < s.n; i++ {
			p := s.after(i)
			b := s.call(p, seq)
			if b.entry.value.Load() == uint32(seq) && b.left.Load() != uint32(seq) && !s.isGone(p) {
				return false
			}
		}
		return true
	})
}

// awaitTaken waits until a peer is no longer at a message that it was to copy
// from this rank's memory. The fault has been recorded.
func (s *Shm) awaitTaken(peer int) {
	p := s.pipes.has(pipeKey{peer, true, pipeMessages})
	if p == nil {
		return
	}
	s.patiently(func() bool {
		return p.block.reading.Load() == 0 || s.isGone(peer)
	})
}

// patiently looks until something is so, or for leaveLimit.
func (s *Shm) patiently(isSo func() bool) {
	end := time.Now().Add(leaveLimit)
	for pause := time.Microsecond; !isSo() && time.Now().Before(end); pause = min(2*pause, leavePause) {
		time.Sleep(pause)
	}
}

// isGone reports whether a rank touches nobody's memory any more: it has closed
// the group, died, or fallen silent.
func (s *Shm) isGone(rank int) bool {
	return s.seg.block(rank).left.Load() != 0 || s.gone[rank].Load()
}

// mayTouch returns an error if the group has failed, so that a rank that comes to
// a call leaves alone what others have lent for it: they may have left.
func (s *Shm) mayTouch(c *operation.Call) error {
	if s.seg.faultless() {
		return nil
	}
	for start := time.Now(); time.Since(start) < leaveLimit; time.Sleep(leavePause) {
		if rank, kind, text, ok := s.seg.fault(); ok {
			return s.faultError(c, rank, kind, text)
		}
	}
	return fmt.Errorf("dist: %v of group %q: the group has failed", c, s.cfg.Group)
}
