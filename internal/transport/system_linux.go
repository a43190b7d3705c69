// SPDX-License-Identifier: Apache-2.0

package transport

import "golang.org/x/sys/unix"

// recvFlags keeps received descriptors from leaking into a child that is
// forked between receiving and marking them.
const recvFlags = unix.MSG_CMSG_CLOEXEC

// abstractSockets says that a unix address may begin with "@" and then has no
// name in the file system.
const abstractSockets = true
