// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// shortRead is the most bytes that a read takes so quickly that it is over
	// before the scheduler could be told of it.
	shortRead = 16 << 10
	// wakeBytes is for how many bytes of a longer read the system is asked to
	// wait before it wakes the reader.
	wakeBytes = 256 << 10
)

// socket reads and writes a TCP or unix socket by calls of its own, where
// package net has none that would do: it reads into two places at once, takes
// the descriptors that come along, and can be asked without waiting.
//
// It must do all the reading of a unix socket: a plain read of a byte that
// carries descriptors drops them. One goroutine at a time may read, and one write.
type socket struct {
	raw syscall.RawConn
	fds *fdQueue // nil for TCP

	lowWater int // what SO_RCVLOWAT is

	in, out transfer

	// of the poll in progress
	polling PollOptions
	glance  func(fd uintptr) bool
}

// transfer is one direction of a socket: the arguments and results of the
// call in progress. They are fields, and the functions are made once, so that
// a call allocates nothing.
type transfer struct {
	header  unix.Msghdr
	vector  [maxVector]unix.Iovec
	sure    int // bytes that are certain to come
	n       int
	errno   syscall.Errno
	oob     []byte // for control messages, when not nil
	control int    // bytes of it that are in use
	attempt func(fd uintptr) bool
}

// maxVector is how many parts one write has at most; the rest follow in another.
const maxVector = 8

// newSource returns what reads nc, and where the descriptors are that came along.
func newSource(nc net.Conn) (io.Reader, *fdQueue) {
	s := &socket{lowWater: 1}
	switch nc := nc.(type) {
	case *net.TCPConn:
		s.raw, _ = nc.SyscallConn()
	case *net.UnixConn:
		s.raw, _ = nc.SyscallConn()
		s.fds = &fdQueue{}
		s.in.oob = make([]byte, unix.CmsgSpace(4*maxQueuedFDs))
	}
	if s.raw == nil {
		return nc, nil
	}
	s.in.attempt = s.receive
	s.out.attempt = s.send
	return s, s.fds
}

// Read implements io.Reader.
func (s *socket) Read(p []byte) (int, error) { return s.readv(p, nil, 1) }

// readv implements [system].
func (s *socket) readv(p, spare []byte, sure int) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.in.sure = sure
	return s.recvmsg(p, spare, s.in.attempt)
}

// recvmsg receives into p and spare by attempts of one kind. It is errNothing
// when they have given up.
func (s *socket) recvmsg(p, spare []byte, attempt func(fd uintptr) bool) (int, error) {
	t := &s.in
	t.vector[0].Base = &p[0]
	t.vector[0].SetLen(len(p))
	parts := 1
	if len(spare) > 0 {
		t.vector[1].Base = &spare[0]
		t.vector[1].SetLen(len(spare))
		parts = 2
	}
	t.header.Iov = &t.vector[0]
	t.header.SetIovlen(parts)
	t.n, t.errno, t.control = 0, 0, 0
	err := s.raw.Read(attempt)
	clear(t.vector[:parts])
	switch {
	case err != nil:
		return 0, err
	case t.errno == unix.EAGAIN:
		return 0, errNothing
	case t.errno != 0:
		return 0, os.NewSyscallError("recvmsg", t.errno)
	}
	received()
	if t.control > 0 {
		if err := s.fds.keep(t.oob[:t.control]); err != nil {
			return 0, err
		}
	}
	if s.fds != nil && t.header.Flags&unix.MSG_CTRUNC != 0 {
		return 0, errors.New("more descriptors in one message than a reader takes")
	}
	if t.n == 0 {
		return 0, io.EOF
	}
	return t.n, nil
}

// receive is called until it returns true; when it returns false the runtime
// parks the goroutine until the socket is readable.
func (s *socket) receive(fd uintptr) bool {
	for !s.take(fd) {
		// If that is a change: what came before it woke nobody.
		if !s.setLowWater(fd, min(s.in.sure, wakeBytes)) {
			return false
		}
	}
	return true
}

// take receives what there is and returns true, also if that fails, or
// false if there is nothing.
func (s *socket) take(fd uintptr) bool {
	t := &s.in
	for {
		t.header.Control = nil
		t.header.SetControllen(0)
		if t.oob != nil {
			t.header.Control = &t.oob[0]
			t.header.SetControllen(len(t.oob))
		}
		n, errno := tryReceive(fd, &t.header)
		switch errno {
		case 0:
			t.n = n
			t.control = int(t.header.Controllen)
			return true
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			t.errno = errno
			return true
		}
	}
}

// setLowWater asks not to be woken for less than n bytes, which are certain
// to come, and says whether that is a change. It matters to waits alone: reads
// take what there is.
func (s *socket) setLowWater(fd uintptr, n int) bool {
	if s.fds != nil { // unix sockets wake for any
		return false
	}
	if n <= shortRead {
		n = 1
	}
	if n == s.lowWater {
		return false
	}
	s.lowWater = n
	return unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, n) == nil
}

// writev implements [system]. It writes all of bufs and changes what is in it.
func (s *socket) writev(bufs [][]byte) error {
	t := &s.out
	for len(bufs) > 0 {
		parts := 0
		for _, b := range bufs[:min(len(bufs), maxVector)] {
			if len(b) > 0 {
				t.vector[parts].Base = &b[0]
				t.vector[parts].SetLen(len(b))
				parts++
			}
		}
		if parts == 0 {
			bufs = bufs[min(len(bufs), maxVector):]
			continue
		}
		t.header.Iov = &t.vector[0]
		t.header.SetIovlen(parts)
		t.n, t.errno = 0, 0
		sending()
		err := s.raw.Write(t.attempt)
		clear(t.vector[:parts])
		if err != nil {
			return err
		}
		if t.errno != 0 {
			return os.NewSyscallError("sendmsg", t.errno)
		}
		for n := t.n; len(bufs) > 0; {
			if n < len(bufs[0]) {
				bufs[0] = bufs[0][n:]
				break
			}
			n -= len(bufs[0])
			bufs[0] = nil
			bufs = bufs[1:]
		}
	}
	return nil
}

// send is to writev what receive is to readv.
func (s *socket) send(fd uintptr) bool {
	t := &s.out
	for {
		n, _, errno := unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&t.header)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch errno {
		case 0:
			t.n = int(n)
			return true
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		default:
			t.errno = errno
			return true
		}
	}
}

// tryReceive calls recvmsg.
func tryReceive(fd uintptr, header *unix.Msghdr) (int, syscall.Errno) {
	const flags = unix.MSG_CMSG_CLOEXEC | unix.MSG_DONTWAIT
	if header.Iov.Len <= shortRead {
		n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(header)), flags)
		return int(n), errno
	}
	n, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(header)), flags)
	return int(n), errno
}

// abstractSockets says that a unix address may begin with "@" and then has no
// name in the file system.
const abstractSockets = true
