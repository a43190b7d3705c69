// SPDX-License-Identifier: Apache-2.0

package link

import (
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

const (
	// spinTime is how long a lone caller polls for its answer before its thread sleeps,
	// and blockTime how long the thread sleeps before the goroutine is parked.
	spinTime  = 50 * time.Microsecond
	blockTime = 2 * time.Millisecond
	// maxSkip bounds how many waits in a row do not spin.
	maxSkip = 1024
)

// spinner decides whether to spin. Spinning pays where both sides have a core to
// themselves, and costs most where they have not. So after each spin without success,
// twice as many waits do not spin.
type spinner struct{ skip, last int }

// wait polls the connection, spinning and then blocking.
func (s *spinner) wait(c *transport.Conn) bool {
	if c.Poll(transport.PollOptions{}) {
		return true
	}
	if s.skip > 0 {
		s.skip--
		return c.Poll(transport.PollOptions{Block: blockTime})
	}
	began := time.Now()
	come := c.Poll(transport.PollOptions{Spin: spinTime, Block: blockTime})
	s.learn(come && time.Since(began) < spinTime)
	return come
}

// look polls the connection for no longer than a spin.
func (s *spinner) look(c *transport.Conn) {
	if c.Poll(transport.PollOptions{}) {
		return
	}
	if s.skip > 0 {
		s.skip--
		return
	}
	s.learn(c.Poll(transport.PollOptions{Spin: spinTime}))
}

// learn takes in whether a spin has been worth it.
func (s *spinner) learn(good bool) {
	if good {
		s.last = 0
		return
	}
	s.last = min(2*s.last+1, maxSkip)
	s.skip = s.last
}
