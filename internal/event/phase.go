// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/internal/goroutine"
)

// Phase is what the goroutine that trains is at.
type Phase uint8

// The phases. Together they are all of the time.
const (
	Other         Phase = iota // what no other phase is
	Data                       // waiting for the next batch
	Forward                    // computing losses
	Backward                   // computing gradients
	Optimizer                  // clipping gradients and moving parameters
	Communication              // standing still while data move between ranks; of one rank alone, with Waiting
	Waiting                    // standing still because another rank has not come
	Saving                     // writing checkpoints, as far as the step waits for it
	Evaluating                 // evaluating the model
	NumPhases
)

var phaseNames = [NumPhases]string{"other", "data", "forward", "backward", "optimizer", "communication", "waiting", "checkpoint", "evaluation"}

// String returns the name of the phase, as files and metrics have it.
func (p Phase) String() string {
	if p >= NumPhases {
		return fmt.Sprintf("phase %d", uint8(p))
	}
	return phaseNames[p]
}

// Computes reports whether the phase is computation of the model.
func (p Phase) Computes() bool { return p == Forward || p == Backward || p == Optimizer }

// opaque reports whether collectives in the phase belong to it.
func (p Phase) opaque() bool { return p == Data || p == Saving || p == Evaluating }

// Times is how long each phase has taken.
type Times [NumPhases]time.Duration

// Total is the sum.
func (t Times) Total() (sum time.Duration) {
	for _, d := range t {
		sum += d
	}
	return sum
}

// Minus returns the differences.
func (t Times) Minus(u Times) Times {
	for p := range t {
		t[p] -= u[p]
	}
	return t
}

// Plus returns the sums.
func (t Times) Plus(u Times) Times {
	for p := range t {
		t[p] += u[p]
	}
	return t
}

// clock measures the phases of one goroutine. The stream's lock guards it.
type clock struct {
	owner uintptr // the goroutine that is in the phases; 0 before the first
	phase Phase
	since time.Duration // up to when times counts
	begun time.Duration // when the phase began
	times Times
}

// advance adds what has passed since to the phase.
func (c *clock) advance(now time.Duration) {
	if now > c.since {
		c.times[c.phase] += now - c.since
		c.since = now
	}
}

// Enter says that the goroutine that calls it is in another phase from here on, and returns in which
// it was. It makes this goroutine the one whose time is measured.
func (s *Stream) Enter(p Phase) (before Phase) {
	if s == nil {
		return Other
	}
	now, by := s.Now(), goroutine.ID()
	s.mu.Lock()
	c := &s.clock
	before = c.phase
	c.advance(now)
	c.owner = by
	if p != before {
		if before != Other {
			s.emitPhase(now)
		}
		c.phase, c.begun = p, now
	}
	s.mu.Unlock()
	return before
}

// Within runs f in a phase.
func (s *Stream) Within(p Phase, f func() error) error {
	before := s.Enter(p)
	defer s.Enter(before)
	return f()
}

// Times returns how long the phases have taken so far. Waiting is in Communication.
func (s *Stream) Times() Times {
	if s == nil {
		return Times{}
	}
	now := s.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clock
	c.advance(now)
	return c.times
}

// stood counts time of the measured goroutine that it stood still. The stream is locked.
func (s *Stream) stood(by uintptr, from, to time.Duration) {
	c := &s.clock
	if by != c.owner || c.owner == 0 || to <= from {
		return
	}
	if c.phase.opaque() {
		return
	}
	from = max(from, c.begun, s.window.stoodTo) // no time counts twice
	if to <= from {
		return
	}
	c.times[c.phase] -= to - from
	c.times[Communication] += to - from
	s.window.stood(from, to)
}
