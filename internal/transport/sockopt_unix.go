// SPDX-License-Identifier: Apache-2.0

//go:build unix

package transport

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socketOf returns the socket below a connection, nil if it has none.
func (c *Conn) socketOf() syscall.RawConn {
	nc := c.nc
	if link, ok := nc.(*tlsLink); ok {
		nc = link.wire.Conn
	}
	switch nc := nc.(type) {
	case *net.TCPConn:
		raw, _ := nc.SyscallConn()
		return raw
	case *net.UnixConn:
		raw, _ := nc.SyscallConn()
		return raw
	}
	return nil
}

// Pending reports whether something has come, bytes or the stream's end, that
// nobody has read yet: a reader may be slow to get a processor. Any goroutine
// may ask. Connections without a socket never have, but for those that can tell.
func (c *Conn) Pending() bool {
	if link, ok := c.nc.(interface{ Pending() bool }); ok {
		return link.Pending()
	}
	raw := c.socketOf()
	if raw == nil {
		return false
	}
	pending := false
	_ = raw.Control(func(fd uintptr) {
		var b [1]byte
		for {
			_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if err != unix.EINTR {
				pending = err != unix.EAGAIN
				return
			}
		}
	})
	return pending
}

// Probe makes the system ask the peer's machine on a TCP connection that is at
// rest whether it is still there, and end the connection when nothing has been
// answered for about limit. The system counts in seconds.
func (c *Conn) Probe(limit time.Duration) {
	nc := c.nc
	if link, ok := nc.(*tlsLink); ok {
		nc = link.wire.Conn
	}
	if tcp, ok := nc.(*net.TCPConn); ok {
		every := max(time.Second, (limit / 3).Truncate(time.Second))
		// Without, what was set when the connection was made holds.
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: max(2, int(limit/every))})
	}
}

// Buffers returns how many bytes the system keeps of what has been sent and not
// yet gone, and of what has come and not yet been read, with what it needs itself
// for them. Both are 0 where that is not known.
func (c *Conn) Buffers() (out, in int) {
	raw := c.socketOf()
	if raw == nil {
		return 0, 0
	}
	_ = raw.Control(func(fd uintptr) {
		var err error
		if out, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil {
			in, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
		}
		if err != nil {
			out, in = 0, 0
		}
	})
	return out, in
}
