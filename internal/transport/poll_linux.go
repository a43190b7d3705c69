// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"time"

	"golang.org/x/sys/unix"
)

// poll implements [poller].
func (s *socket) poll(p []byte, h PollOptions) (int, error) {
	if s.glance == nil {
		s.glance = s.look
	}
	s.polling = h
	n, err := s.recvmsg(p, nil, s.glance)
	s.polling = PollOptions{}
	return n, err
}

// look is receive for poll: it never asks to be parked.
func (s *socket) look(fd uintptr) bool {
	var began time.Time
	for !s.take(fd) {
		if spin := s.polling.Spin; spin > 0 {
			now := time.Now()
			if began.IsZero() {
				began = now
			}
			if now.Sub(began) < spin && (s.polling.GoOn == nil || s.polling.GoOn()) {
				// The peer may be waiting for this very core.
				_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
				continue
			}
			s.polling.Spin = 0
		}
		if s.polling.Block <= 0 {
			s.in.errno = unix.EAGAIN
			return true
		}
		s.setLowWater(fd, 1) // after a long read nothing short would end the wait
		await(fd, s.polling.Block)
		s.polling.Block = 0
	}
	return true
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
