// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package transport

import (
	"net"
	"time"
)

// Unanswered returns for how long the peer's machine has answered nothing. This
// system does not tell: a line that is cut ends with an error in the end.
func (c *Conn) Unanswered() time.Duration {
	if link, ok := c.nc.(interface{ Unanswered() time.Duration }); ok {
		return link.Unanswered()
	}
	return 0
}

// Backoff is 0: this system does not tell.
func (c *Conn) Backoff() time.Duration { return 0 }

// RetrySoon does nothing: this system has no such option.
func (c *Conn) RetrySoon(time.Duration) {}

// Line is nothing here.
type Line struct{}

// Unanswered is [Conn.Unanswered] of a connection that is no Conn.
func (*Line) Unanswered(nc net.Conn) time.Duration {
	if link, ok := nc.(interface{ Unanswered() time.Duration }); ok {
		return link.Unanswered()
	}
	return 0
}

// GiveUpAfter bounds for how long a TCP connection tries to deliver what was sent: not
// here, where the system's own limit holds.
func (c *Conn) GiveUpAfter(time.Duration) {}
