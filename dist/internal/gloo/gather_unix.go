// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package gloo

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// gatherer writes runs of memory to a socket, without waiting if need be.
type gatherer struct {
	raw  syscall.RawConn
	runs [][]byte
	wait bool
	n    int
	err  error
	try  func(fd uintptr) bool
}

// newGatherer returns nil for what is no TCP connection itself.
func newGatherer(conn net.Conn) *gatherer {
	tcp, ok := conn.(*net.TCPConn)
	if !ok || raceEnabled {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	g := &gatherer{raw: raw}
	g.try = g.once
	return g
}

func (g *gatherer) once(fd uintptr) bool {
	for {
		if len(g.runs) == 1 {
			g.n, g.err = unix.Write(int(fd), g.runs[0])
		} else {
			g.n, g.err = unix.Writev(int(fd), g.runs)
		}
		switch g.err {
		case nil:
			return true
		case unix.EINTR:
		case unix.EAGAIN:
			g.n, g.err = 0, nil
			return !g.wait
		default:
			g.n = 0
			return true
		}
	}
}

// write returns how many bytes the socket has taken, 0 where it takes none now and is
// not to be waited for.
func (g *gatherer) write(runs [][]byte, wait bool) (int, error) {
	g.runs, g.wait = runs, wait
	err := g.raw.Write(g.try)
	g.runs = nil
	if err == nil {
		err = g.err
	}
	return g.n, err
}
