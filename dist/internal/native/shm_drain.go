// SPDX-License-Identifier: Apache-2.0

package native

import (
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/dist/operation"
)

// Ranks that share memory write to tensors that others have lent. A call that fails ends
// on one rank earlier than on the next, and the caller may use its tensors once the call
// has returned. So a rank whose call has failed waits until no other rank can be at its
// memory: until each that has entered the call has left it. A rank that enters later finds
// the fault before it touches anything. It raises its entry flag and then looks for a
// fault; the failed rank records the fault and then looks at the entry flags. So one of
// the two sees the other.

const (
	// leaveLimit bounds that wait: a stopped process that nobody has found yet never
	// leaves.
	leaveLimit = time.Second
	// leavePause is the longest time between two looks.
	leavePause = time.Millisecond
)

// awaitLeave waits until no rank is at the memory that this one has lent for a failed call.
// The fault has been recorded.
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

// awaitTaken waits until a peer no longer copies a message from this rank's memory. The
// fault has been recorded.
func (s *Shm) awaitTaken(peer int) {
	p := s.pipes.has(pipeKey{peer, true, pipeMessages})
	if p == nil {
		return
	}
	s.patiently(func() bool {
		return p.block.reading.Load() == 0 || s.isGone(peer)
	})
}

// patiently waits until a condition holds, for leaveLimit at most.
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

// mayTouch returns an error if the group has failed: then a rank that comes to a call must
// not touch what others have lent, for they may have returned from it.
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
