// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"time"
)

// errNothing is a poll that found nothing in its time.
var errNothing = errors.New("nothing has come")

// poller is a source that can be asked without waiting for it.
type poller interface {
	// poll reads into p what there is, or is errNothing.
	poll(p []byte, h PollOptions) (int, error)
}

// PollOptions is how Poll waits. The zero PollOptions takes what is there.
type PollOptions struct {
	// Spin is how long the connection is asked again and again, with room for
	// others on the core in between. It ends early when GoOn, which may be nil,
	// returns false.
	Spin time.Duration
	GoOn func() bool
	// Block is how long the thread then sleeps in the system. Being woken from
	// that takes half of what being woken by the runtime's poller takes, and on
	// a busy core less than that. Nothing ends it early.
	Block time.Duration
}

// CanPoll says whether Poll may find something.
func (c *Conn) CanPoll() bool { return c.asked != nil }

// Poll waits for a short while for something to come, without parking its
// goroutine, and says whether there is something to be read. Where an answer is
// due soon that saves wake-ups, and a caller whose context may end can wait so
// without anybody to interrupt it. An error is left for the next read, and
// makes it true. It is for who reads the connection.
func (c *Conn) Poll(h PollOptions) bool {
	if c.in.r < c.in.w || c.in.err != nil {
		return true
	}
	if c.asked == nil {
		return false
	}
	n, err := c.asked.poll(c.in.buf, h)
	if errors.Is(err, errNothing) {
		return false
	}
	c.in.r, c.in.w, c.in.err = 0, n, err
	return true
}
