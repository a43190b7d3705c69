// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// endAfterSilence makes the system end a connection to a machine that confirms nothing.
func endAfterSilence(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { // without it the time for an answer holds
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silenceTime.Milliseconds()))
	})
}
