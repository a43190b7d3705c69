// SPDX-License-Identifier: Apache-2.0

package store

import (
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

const (
	// spinTime is how long either side asks for the other's next word before its
	// thread goes to sleep: about what being woken takes, and then some.
	spinTime = 50 * time.Microsecond
	// blockTime is how long the thread sleeps before its goroutine is parked.
	blockTime = 2 * time.Millisecond
	// maxSkip is how many waits in a row do without a spin at most.
	maxSkip = 1024
	// minStreak is how many requests of one client in a row make the server
	// think that it is alone.
	minStreak = 16
)

// underWay counts the calls of all clients in this process. To spin, or to sleep
// in the system, keeps a core from the process's other goroutines, so only a call
// that is alone does so: the cores are the process's, and so is the count.
var underWay atomic.Int64

// spinner decides whether to spin. It pays where both sides have a core for
// themselves, and is the worst that one can do where they have not, so each time
// that it brings nothing it is left out for twice as long.
type spinner struct{ skip, last int }

// wait polls the connection, while goOn says so.
func (s *spinner) wait(c *transport.Conn, goOn func() bool) bool {
	if c.Poll(transport.PollOptions{}) {
		return true
	}
	if s.skip > 0 {
		s.skip--
		return c.Poll(transport.PollOptions{Block: blockTime})
	}
	began := time.Now()
	come := c.Poll(transport.PollOptions{Spin: spinTime, GoOn: goOn, Block: blockTime})
	if come && time.Since(began) < spinTime {
		s.last = 0
	} else {
		s.last = min(2*s.last+1, maxSkip)
		s.skip = s.last
	}
	return come
}
