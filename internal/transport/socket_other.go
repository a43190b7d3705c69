// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package transport

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// abstractSockets says that unix sockets are files here.
const abstractSockets = false

// newSource returns what reads nc, and where the descriptors are that came along.
func newSource(nc net.Conn) (io.Reader, *fdQueue) {
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return nc, nil
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return nc, nil
	}
	r := &fdReader{raw: raw, fds: &fdQueue{}, oob: make([]byte, unix.CmsgSpace(4*maxQueuedFDs))}
	r.receive = r.tryReceive
	return r, r.fds
}

// fdReader reads a unix socket and keeps the descriptors that come with the
// bytes. It must do all the reading of the socket: a plain read of a byte that
// carries descriptors drops them, and the buffered reader above reads ahead.
type fdReader struct {
	raw syscall.RawConn
	fds *fdQueue

	// the read in progress; fields so that receive is made once
	p       []byte
	n       int
	err     error
	oob     []byte
	receive func(fd uintptr) bool
}

func (r *fdReader) tryReceive(fd uintptr) bool {
	for {
		n, oobn, flags, _, err := unix.Recvmsg(int(fd), r.p, r.oob, 0)
		switch err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		case nil:
			r.n, r.err = n, nil
			if oobn > 0 {
				r.err = r.fds.keep(r.oob[:oobn])
			}
			if flags&unix.MSG_CTRUNC != 0 && r.err == nil {
				r.err = errors.New("more descriptors in one message than a reader takes")
			}
		default:
			r.n, r.err = 0, os.NewSyscallError("recvmsg", err)
		}
		return true
	}
}

// Read implements io.Reader.
func (r *fdReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	r.p = p
	err := r.raw.Read(r.receive)
	r.p = nil
	if err != nil {
		return 0, err
	}
	received()
	if r.err != nil {
		return 0, r.err
	}
	if r.n == 0 {
		return 0, io.EOF
	}
	return r.n, nil
}
