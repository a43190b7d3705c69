// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"net"

	"golang.org/x/sys/unix"
)

// peerUser returns the user at the other end of a unix socket.
func peerUser(nc net.Conn) (uid int, ok bool) {
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return 0, false
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return 0, false
	}
	var cred *unix.Ucred
	if raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
		return 0, false
	}
	return int(cred.Uid), true
}
