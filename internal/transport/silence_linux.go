// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// GiveUpAfter makes the system end a TCP connection on which nothing of what was sent
// has been taken for that long: the peer's machine has gone, the line is cut, or its
// program stands still and has no room for more. By itself it would try for a quarter
// of an hour, less and less often, so that a line which comes back is found late.
func (c *Conn) GiveUpAfter(limit time.Duration) {
	nc := c.nc
	if link, ok := nc.(*tlsLink); ok {
		nc = link.wire.Conn
	}
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // it has been closed
	}
	_ = raw.Control(func(fd uintptr) { // without it the system's own limit holds
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
	})
}
