// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package transport

import "golang.org/x/sys/unix"

// abstractSockets says that unix sockets are files here.
const abstractSockets = false

// message needs no room here.
type message struct{}

// receive calls recvmsg once. Descriptors that come are marked close-on-exec
// by the caller right after.
func (*message) receive(fd int, p, oob []byte) (n, oobn, flags int, err error) {
	n, oobn, flags, _, err = unix.Recvmsg(fd, p, oob, 0)
	return n, oobn, flags, err
}
