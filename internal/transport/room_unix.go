// SPDX-License-Identifier: Apache-2.0

//go:build unix

package transport

import "golang.org/x/sys/unix"

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
