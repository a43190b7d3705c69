// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socket is one of this process's, as the system sees it.
type socket struct {
	fd         int
	here, peer string // addresses: "127.0.0.1:29500", "@name" of a unix socket
	listens    bool
}

// ownSockets returns the stream sockets of this process.
func ownSockets() (list []socket) {
	for fd := range 1 << 12 { // without a descriptor of its own
		if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
			continue
		}
		s := socket{fd: fd}
		if here, err := unix.Getsockname(fd); err == nil {
			s.here = socketAddr(here)
		}
		if peer, err := unix.Getpeername(fd); err == nil {
			s.peer = socketAddr(peer)
		}
		listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		s.listens = err == nil && listens == 1
		if s.here != "" {
			list = append(list, s)
		}
	}
	return list
}

func socketAddr(a unix.Sockaddr) string {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return net.JoinHostPort(net.IP(a.Addr[:]).String(), strconv.Itoa(a.Port))
	case *unix.SockaddrInet6:
		return net.JoinHostPort(net.IP(a.Addr[:]).String(), strconv.Itoa(a.Port))
	case *unix.SockaddrUnix:
		return "unix:" + a.Name
	}
	return ""
}

func (s *socket) tcp() bool { return !strings.HasPrefix(s.here, "unix:") }

// deafen makes the system drop what comes to a socket, as a cut line would: no
// answer, no reset.
func (s *socket) deafen() error {
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
	return unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(drop)), Filter: &drop[0]})
}

// cutOff has nothing of what is sent to this process come over TCP any more, on
// the connections there are. What it sends itself is dropped at the other ends by
// cutFrom; then isolate keeps it from making new ones.
func cutOff() (links [][2]string, err error) {
	for _, s := range ownSockets() {
		if s.tcp() && !s.listens {
			if err := s.deafen(); err != nil && !errors.Is(err, unix.EBADF) { // it has just been closed
				return nil, err
			}
			links = append(links, [2]string{s.here, s.peer})
		}
	}
	return links, nil
}

// isolate leaves this process no descriptors for new connections for this time. Not
// before all is cut: it may fail of that at once, and the ports of its connections
// be given to others.
func isolate(cutFor time.Duration) {
	_, _ = cutOff() // what has been made since
	var was syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was) == nil {
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: was.Max})
		time.AfterFunc(cutFor, func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was) })
	}
}

// cutFrom drops what comes over the connections of a process that is cut off.
func cutFrom(links [][2]string) {
	for _, s := range ownSockets() {
		if s.tcp() && slices.Contains(links, [2]string{s.peer, s.here}) {
			_ = s.deafen()
		}
	}
}

// spoil writes garbage into a connection of this process. It is longer than the
// head of a frame: a few bytes before a true one may make it one of great length,
// for the rest of which the reader waits.
func spoil(rng *rand.Rand) error {
	var open []socket
	for _, s := range ownSockets() {
		if !s.listens && s.peer != "" {
			open = append(open, s)
		}
	}
	if len(open) == 0 {
		return fmt.Errorf("no connection to spoil")
	}
	_, err := unix.Write(open[rng.IntN(len(open))].fd, noise(rng, 16+rng.IntN(200)))
	return err
}

func noise(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// strangers has connections of somebody without the token come to every port of
// this process, and returns what ends them: some say nothing, some half a
// handshake, some anything.
func strangers(rng *rand.Rand, garbage bool) (end func(), err error) {
	var conns []net.Conn
	end = func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}
	for _, s := range ownSockets() {
		if !s.listens {
			continue
		}
		network, addr := "tcp", s.here
		if !s.tcp() {
			network, addr = "unix", strings.TrimPrefix(s.here, "unix:")
		}
		for range 10 {
			c, err := net.Dial(network, addr)
			if err != nil {
				end()
				return nil, err
			}
			conns = append(conns, c)
			if garbage {
				_, _ = c.Write(noise(rng, 1+rng.IntN(5000))) // it may be shut before the end
			} else {
				_, _ = c.Write([]byte("\xc0HORT\r\n\x01\x04coll")[:rng.IntN(13)])
			}
		}
	}
	return end, nil
}
