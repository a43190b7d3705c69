// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// abstractSockets says that a unix address may begin with "@" and then has no
// name in the file system.
const abstractSockets = true

// message is what recvmsg is called with, kept from call to call: the portable
// wrapper allocates it, and room for a sender's address, each time.
type message struct {
	header unix.Msghdr
	vector unix.Iovec
}

// receive calls recvmsg once. p, which is not empty, and oob must be on the
// heap. Descriptors are marked close-on-exec as they are received, so that
// none leaks into a child forked at that moment.
func (m *message) receive(fd int, p, oob []byte) (n, oobn, flags int, err error) {
	m.vector.Base = &p[0]
	m.vector.SetLen(len(p))
	m.header = unix.Msghdr{Iov: &m.vector, Control: &oob[0]}
	m.header.SetIovlen(1)
	m.header.SetControllen(len(oob))
	r, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.header)), unix.MSG_CMSG_CLOEXEC)
	m.vector.Base = nil
	if errno != 0 {
		return 0, 0, 0, errno
	}
	return int(r), int(m.header.Controllen), int(m.header.Flags), nil
}
