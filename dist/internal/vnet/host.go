// SPDX-License-Identifier: Apache-2.0

package vnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
)

const (
	firstPort  = 29500 // the first that is listened on
	firstOut   = 40000 // the first of connections that go out
	numOut     = 20000
	maxBacklog = 4096 // connections that wait to be accepted
)

// Host is a place in a network, where one process would run.
type Host struct {
	net     *Network
	number  int
	state   sync.Cond // on net.mu: changes of what follows
	stopped int       // faults that it is stopped by
	dead    bool
	ports   map[int]*listener
	conns   map[*conn]struct{}
	dialled map[int]uint64 // by the host that was
	asleep  []func()       // what a stopped process does when it goes on
}

func newHost(n *Network, number int) *Host {
	h := &Host{net: n, number: number, ports: map[int]*listener{}, conns: map[*conn]struct{}{}, dialled: map[int]uint64{}}
	h.state.L = &n.mu
	return h
}

// addr returns an address of the host.
func (h *Host) addr(port int) *net.TCPAddr {
	return &net.TCPAddr{IP: net.IPv4(10, byte(h.number>>16), byte(h.number>>8), byte(h.number)), Port: port}
}

// hostOf returns the number of the host that an address is of.
func (n *Network) hostOf(address string) (*Host, int, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, 0, err
	}
	ip := net.ParseIP(host).To4()
	number, err := strconv.Atoi(port)
	if ip == nil || ip[0] != 10 || err != nil {
		return nil, 0, fmt.Errorf("address %q is of no host of this network", address)
	}
	i := int(ip[1])<<16 | int(ip[2])<<8 | int(ip[3])
	if i >= len(n.hosts) {
		return nil, 0, fmt.Errorf("address %q: %w", address, syscall.EHOSTUNREACH)
	}
	return n.hosts[i], number, nil
}

// Stop stops what runs on the host, as SIGSTOP does: its connections stay, and
// take what comes, but nothing is read, nothing leaves, and nothing fails. Each
// Stop wants a Continue.
func (h *Host) Stop() {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.stopped++
}

// Continue undoes a Stop.
func (h *Host) Continue() {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.stopped--; h.stopped == 0 {
		h.wake()
	}
}

// wake lets a process that was stopped go on: what has come to it meanwhile it
// finds on one connection after the other. The network is locked.
func (h *Host) wake() {
	for _, do := range h.asleep {
		do()
	}
	h.asleep = nil
	h.state.Broadcast()
	h.inTurn(h.sorted())
}

// inTurn has what waits on connections of the host go on with one after the
// other: what a process makes of several at one instant is the scheduler's.
func (h *Host) inTurn(conns []*conn) {
	if h.net.closed {
		return
	}
	for _, c := range conns {
		c.frozen = true
		h.net.at(h.net.now(), func() {
			c.frozen = false
			c.cond.Broadcast()
		})
	}
}

// Stopped reports whether the host is stopped.
func (h *Host) Stopped() bool {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	return h.stopped > 0 && !h.dead
}

// Pass waits while the host is stopped, and reports whether it lives.
func (h *Host) Pass() (alive bool) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	for h.stopped > 0 && !h.dead {
		h.state.Wait()
	}
	return !h.dead
}

// Kill ends what runs on the host, as SIGKILL does: the system closes its
// connections, and answers that nobody is there.
func (h *Host) Kill() {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.dead {
		return
	}
	conns := h.sorted()
	h.inTurn(conns)
	h.end()
	for _, c := range conns {
		c.sendEnd()
	}
}

// end ends all waits on the host. The network is locked.
func (h *Host) end() {
	h.dead = true
	h.asleep = nil
	h.state.Broadcast()
	for _, l := range h.ports {
		l.cond.Broadcast()
	}
	for c := range h.conns {
		c.readBy.stop()
		c.writeBy.stop()
		c.cond.Broadcast()
	}
}

// sorted returns the connections of the host in an order that is always the same.
func (h *Host) sorted() []*conn {
	all := make([]*conn, 0, len(h.conns))
	for c := range h.conns {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *conn) int {
		return cmp.Or(a.far.number-b.far.number, cmp.Compare(a.id, b.id), bit(a.accepted)-bit(b.accepted))
	})
	return all
}

// connsWith returns the connections with another host.
func (h *Host) connsWith(other int) []*conn {
	return slices.DeleteFunc(h.sorted(), func(c *conn) bool { return c.far.number != other })
}

// Listen opens a port of the host.
func (h *Host) Listen() (net.Listener, error) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.dead {
		return nil, errDead
	}
	port := firstPort
	for h.ports[port] != nil {
		port++
	}
	l := &listener{host: h, port: port}
	l.cond.L = &h.net.mu
	h.ports[port] = l
	return l, nil
}

// Dial connects to a port of a host.
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	n := h.net
	n.mu.Lock()
	defer n.mu.Unlock()
	to, port, err := n.hostOf(address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	h.dialled[to.number]++ // others may be dialled at this instant, in any order
	id := h.dialled[to.number]
	near := newConn(h, to, id, false)
	near.local, near.remote = h.addr(firstOut+int(id%numOut)), to.addr(port)
	fail := func(err error) (net.Conn, error) {
		near.shut()
		return nil, &net.OpError{Op: "dial", Net: network, Addr: near.remote, Err: err}
	}
	stop := context.AfterFunc(ctx, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		near.cond.Broadcast()
	})
	defer stop()
	answered := false
	n.send(near.parcel(segmentHead, func() {
		to.call(near, port, func() {
			if answered = !near.closed && !h.dead; !answered {
				near.sendReset()
			}
			near.cond.Broadcast()
		})
	}))
	for {
		switch {
		case h.dead && !near.frozen:
			return fail(errDead)
		case h.stopped > 0 || near.frozen:
		case near.broken != nil:
			return fail(near.broken)
		case answered:
			return near, nil
		case ctx.Err() != nil:
			return fail(ctx.Err())
		}
		near.cond.Wait()
	}
}

// call takes a connection that has come to a port. The network is locked.
func (h *Host) call(near *conn, port int, answer func()) {
	l := h.ports[port]
	if h.dead || l == nil || len(l.backlog) >= maxBacklog {
		h.net.send(parcel{from: h.number, to: near.host.number, conn: near.id, reply: true, size: segmentHead,
			arrive: func() { near.lose(syscall.ECONNREFUSED) }})
		return
	}
	far := newConn(h, near.host, near.id, true)
	far.local, far.remote = near.remote, near.local
	far.peer, near.peer = near, far
	h.net.send(far.parcel(segmentHead, answer))
	l.backlog = append(l.backlog, far)
	l.cond.Broadcast()
}

// listener is a port of a host.
type listener struct {
	host    *Host
	port    int
	cond    sync.Cond // on the network's lock
	backlog []*conn
	closed  bool
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	l.host.net.mu.Lock()
	defer l.host.net.mu.Unlock()
	for {
		switch {
		case l.closed || l.host.dead:
			return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
		case len(l.backlog) > 0:
			c := l.backlog[0]
			l.backlog = l.backlog[1:]
			return c, nil
		}
		l.cond.Wait()
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.host.net.mu.Lock()
	defer l.host.net.mu.Unlock()
	if l.closed {
		return os.ErrClosed
	}
	l.closed = true
	delete(l.host.ports, l.port)
	for _, c := range l.backlog {
		c.shut()
	}
	l.backlog = nil
	l.cond.Broadcast()
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.host.addr(l.port) }

var (
	errDead     = errors.New("the host is dead")
	errTimedOut = syscall.ETIMEDOUT
)
