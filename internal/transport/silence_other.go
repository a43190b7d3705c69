// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package transport

import "time"

// GiveUpAfter bounds for how long a TCP connection tries to deliver what was sent: not
// here, where the system's own limit holds.
func (c *Conn) GiveUpAfter(time.Duration) {}
