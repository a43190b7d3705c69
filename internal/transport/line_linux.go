// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Unanswered returns for how long the peer's machine has answered nothing of
// what this one has sent again and again, data or probes ([Conn.Probe]); 0 where
// there is nothing to answer. That the peer's program reads slowly, or is
// stopped, does not count: its machine answers. Any goroutine may ask.
func (c *Conn) Unanswered() time.Duration {
	if link, ok := c.nc.(interface{ Unanswered() time.Duration }); ok {
		return link.Unanswered()
	}
	return unanswered(c.socketOf())
}

// Unanswered is [Conn.Unanswered] of a connection that is no Conn; 0 for one that is not
// over TCP.
func Unanswered(nc net.Conn) time.Duration {
	if link, ok := nc.(interface{ Unanswered() time.Duration }); ok {
		return link.Unanswered()
	}
	if wrapped, ok := nc.(interface{ NetConn() net.Conn }); ok { // TLS
		nc = wrapped.NetConn()
	}
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return 0
	}
	raw, _ := tcp.SyscallConn()
	return unanswered(raw)
}

func unanswered(raw syscall.RawConn) time.Duration {
	if raw == nil {
		return 0
	}
	var info *unix.TCPInfo
	_ = raw.Control(func(fd uintptr) {
		// No such thing is known of unix sockets: they give an error.
		info, _ = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if info == nil {
		return 0
	}
	// A full peer answers with a window of 0, less and less often.
	again := info.Unacked > 0 && info.Retransmits >= 2 && info.Snd_wnd > 0
	if again || info.Probes >= 2 {
		return time.Duration(info.Last_ack_recv) * time.Millisecond
	}
	return 0
}
