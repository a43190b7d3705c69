// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

// Ports are chosen below the range from which systems take the ports of outgoing
// connections (from 32768 on Linux, from 49152 elsewhere), and below the ports at which
// jobs meet by default (29400 and 29500).
const (
	firstHeldPort = 20000
	lastHeldPort  = 29399
	holdTries     = 64
)

// HeldPort is a TCP port at which another process of the job will listen. On Linux nobody
// else can choose the port in the meantime: see [HoldPort].
type HeldPort struct {
	host    string
	port    int
	release func()
}

// HoldPort chooses a port of this machine at which nobody listens and which nobody else
// holds, and checks that a process can listen at host and this port.
//
// On Linux it holds the port until Close. One process can listen at the port in this time,
// at any address, if its socket has SO_REUSEADDR as that of a server should. Package net,
// PyTorch and libuv set it. A process that looks for a port without SO_REUSEADDR, as HoldPort
// does, gets another one. Other systems do not let a process listen at a port that is held:
// HoldPort only looks there, and the port may be taken before the process listens.
func HoldPort(host string) (*HeldPort, error) {
	return holdPortOf(host, firstHeldPort, lastHeldPort)
}

// holdPortOf is [HoldPort] with the ports from first to last.
func holdPortOf(host string, first, last int) (*HeldPort, error) {
	var err error
	for range holdTries {
		p := &HeldPort{host: host, port: first + rand.IntN(last-first+1)}
		if p.release, err = bindPort(p.port); err == nil {
			if err = CanListen(host, p.port); err == nil {
				return p, nil
			}
			p.Close()
			// Some systems that run Linux programs (gVisor) let nobody listen at a port that
			// is bound, whatever its options. There a port cannot be held.
			if errors.Is(err, syscall.EADDRINUSE) && CanListen(host, p.port) == nil {
				return p, nil
			}
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return nil, err
}

// CanListen returns the error that a process gets that listens at host and port. When it
// returns, no copy of its socket listens there.
func CanListen(host string, port int) error {
	addr, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return withoutForks(func() error {
		l, err := net.ListenTCP("tcp", addr)
		if err != nil {
			return err
		}
		return l.Close()
	})
}

// Port returns the number of the port.
func (p *HeldPort) Port() int { return p.port }

// Addr returns the host that HoldPort was given, and the port: "127.0.0.1:20000".
func (p *HeldPort) Addr() string { return net.JoinHostPort(p.host, strconv.Itoa(p.port)) }

// Close lets the port go. Who listens there goes on. It does nothing if p is nil.
func (p *HeldPort) Close() {
	if p != nil && p.release != nil {
		p.release()
		p.release = nil
	}
}
