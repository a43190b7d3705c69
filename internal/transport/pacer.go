// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"sync"
	"time"
)

const (
	// strangersPerSec is how many connections a second a port takes in while
	// none turns out to be a member's. To turn one away costs about 80 µs of
	// processor time, of which the system has 60 for any connection: at this rate
	// one per cent of a core. A member that comes behind a thousand strangers
	// waits ten seconds.
	strangersPerSec = 100
	// strangersAtOnce is how many are taken in together.
	strangersAtOnce = 32
	// bunch is for how long after a member has come the port takes in whatever
	// comes: members come in bunches.
	bunch = time.Second
)

// pacer keeps strangers from a job's processor time. Every connection takes a
// token, a member's gives it back; tokens come in at a fixed rate. Without
// one, connections wait in the system's queue, which costs nothing.
type pacer struct {
	mu     sync.Mutex
	tokens float64
	last   time.Time // when tokens was right
	member time.Time // when one has come
}

func newPacer(now time.Time) pacer { return pacer{tokens: strangersAtOnce, last: now, member: now} }

// wait returns how long to wait before the next connection is taken in, and
// takes a token if that is no time.
func (p *pacer) wait(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens = min(strangersAtOnce, p.tokens+strangersPerSec*now.Sub(p.last).Seconds())
	p.last = now
	if p.tokens < 1 {
		if now.Sub(p.member) >= bunch {
			return time.Microsecond + time.Duration((1-p.tokens)/strangersPerSec*float64(time.Second))
		}
		p.tokens = 1
	}
	p.tokens--
	return 0
}

// admitted gives the token of a member back.
func (p *pacer) admitted(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens = min(strangersAtOnce, p.tokens+1)
	p.member = now
}
