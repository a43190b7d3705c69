// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// peerUser names the user at the other end of a unix socket, "" if it is not known.
func peerUser(nc net.Conn) string {
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return ""
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return ""
	}
	var cred *unix.Ucred
	if raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
		return ""
	}
	return "user " + strconv.FormatUint(uint64(cred.Uid), 10) + " of this host"
}
