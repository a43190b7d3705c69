// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// poll implements [poller].
func (s *socket) poll(p []byte, h Haste) (int, error) {
	t := &s.in
	t.vector[0].Base = &p[0]
	t.vector[0].SetLen(len(p))
	t.header.Iov = &t.vector[0]
	t.header.SetIovlen(1)
	t.n, t.errno, t.control = 0, 0, 0
	if s.glance == nil {
		s.glance = s.look
	}
	s.haste = h
	err := s.raw.Read(s.glance)
	s.haste = Haste{}
	clear(t.vector[:1])
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

// look is receive for poll: it never asks to be parked.
func (s *socket) look(fd uintptr) bool {
	t := &s.in
	var began time.Time
	for {
		t.header.Control = nil
		t.header.SetControllen(0)
		if t.oob != nil {
			t.header.Control = &t.oob[0]
			t.header.SetControllen(len(t.oob))
		}
		var errno syscall.Errno
		t.n, errno = tryReceive(fd, &t.header)
		switch errno {
		case 0:
			t.control = int(t.header.Controllen)
			return true
		case unix.EINTR:
			continue
		case unix.EAGAIN:
		default:
			t.errno = errno
			return true
		}
		if spin := s.haste.Spin; spin > 0 {
			now := time.Now()
			if began.IsZero() {
				began = now
			}
			if now.Sub(began) < spin && (s.haste.GoOn == nil || s.haste.GoOn()) {
				// The peer may be waiting for this very core.
				_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
				continue
			}
			s.haste.Spin = 0
		}
		if s.haste.Block <= 0 {
			t.errno = unix.EAGAIN
			return true
		}
		await(fd, s.haste.Block)
		s.haste.Block = 0
	}
}

// await waits in the system until there may be something to read or the time is up.
// To wake a thread that waits so takes less than to wake the runtime's poller
// and through it a goroutine.
func await(fd uintptr, d time.Duration) {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	limit := unix.NsecToTimespec(int64(d))
	// Neither result matters: the caller tries again.
	_, _ = unix.Ppoll(fds[:], &limit, nil)
}
