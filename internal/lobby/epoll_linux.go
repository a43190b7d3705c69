// SPDX-License-Identifier: Apache-2.0

package lobby

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// atOnce is how many connections are taken before those in the lobby are listened to.
	atOnce = 256
	// calm is how many there may be in the lobby while connections are taken by package net:
	// those of members, which it makes cheaper than connOf.
	calm = 32
)

// polls takes connections from the system itself, and hears of all of them through one
// descriptor: package net would give each a place in the runtime's poller, and reading a goroutine.
type polls struct {
	l       *Lobby
	ln      int // the listener
	isUnix  bool
	poll    *os.File
	raw     syscall.RawConn // of poll
	epoll   int
	in      *visitors
	by      []*visitor // by descriptor
	events  [128]unix.EpollEvent
	buf     []byte
	waiting time.Time     // the deadline that poll has
	deaf    chan struct{} // closed when there is no listener any more
	done    chan struct{}
}

// polling returns the driver for a listener of the system, nil for another one.
func polling(l *Lobby) driver {
	conn, ok := l.ln.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil
	}
	p := &polls{l: l, ln: -1, in: newVisitors(), buf: make([]byte, 4<<10), deaf: make(chan struct{}), done: make(chan struct{})}
	_, p.isUnix = l.ln.(*net.UnixListener)
	if raw.Control(func(fd uintptr) { p.ln = int(fd) }) != nil {
		return nil
	}
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil
	}
	_ = unix.SetNonblock(p.epoll, true) // so that the runtime waits for it
	p.poll = os.NewFile(uintptr(p.epoll), "lobby")
	if p.raw, err = p.poll.SyscallConn(); err == nil {
		err = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, p.ln, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(p.ln)})
	}
	if err != nil || p.poll.SetReadDeadline(time.Time{}) != nil {
		p.poll.Close()
		return nil
	}
	return p
}

func (p *polls) stop() {
	p.wake()
	<-p.done
	p.poll.Close() // not before: its number would be another descriptor's
	p.close()
}

// wake ends a wait, for something that the lobby has been told before.
func (p *polls) wake() { _ = p.poll.SetReadDeadline(time.Unix(1, 0)) }

// close closes the listener, when nobody takes its number for a listener's any more.
func (p *polls) close() {
	if p.ln >= 0 {
		p.ln = -1
		p.l.err = p.l.ln.Close()
		close(p.deaf)
	}
}

// deafen stops to listen, and leaves who is in the lobby there.
func (p *polls) deafen() {
	p.l.mu.Lock()
	if !p.l.deaf {
		p.l.deaf = true
		p.wake()
	}
	p.l.mu.Unlock()
	<-p.deaf
}

func (p *polls) run() {
	defer close(p.done)
	for {
		n := p.wait()
		if p.l.ended() {
			break
		}
		if p.ln >= 0 && p.l.isDeaf() {
			p.waiting = time.Unix(1, 0) // as deafen has set it
			_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, p.ln, nil)
			p.close()
		}
		room := true
		for _, e := range p.events[:n] {
			if int(e.Fd) == p.ln {
				if p.in.num < calm {
					room = p.acceptOne()
				} else {
					room = p.accept()
				}
			} else if int(e.Fd) >= len(p.by) { // the listener, which is no more
			} else if v := p.by[e.Fd]; v != nil && uint32(v.turn) == uint32(e.Pad) {
				p.hear(v)
			}
		}
		now := time.Now()
		for v := p.in.oldest(); v != nil && !v.by.IsZero() && !v.by.After(now); v = p.in.oldest() {
			why := ErrSilent
			if len(v.said) > 0 {
				why = ErrSlow
			}
			p.turnAway(v, why)
		}
		if !room { // of descriptors or memory, which somebody else has
			time.Sleep(pause)
		}
	}
	for v := p.in.oldest(); v != nil; v = p.in.oldest() {
		p.in.leave(v)
		v.close()
	}
}

// wait returns how many events there are, if need be when there are some or the oldest has waited enough.
func (p *polls) wait() (n int) {
	var by time.Time
	if v := p.in.oldest(); v != nil {
		by = v.by
	}
	// One that is too early does no harm.
	if p.waiting.IsZero() != by.IsZero() && !by.IsZero() || p.waiting.After(by) || !p.waiting.IsZero() && !p.waiting.After(time.Now()) {
		_ = p.poll.SetReadDeadline(by)
		p.waiting = by
	}
	if p.l.ended() || p.ln >= 0 && p.l.isDeaf() { // whose deadline may just have been replaced
		return 0
	}
	_ = p.raw.Read(func(uintptr) bool { // its error is that the deadline has passed
		n, _ = unix.EpollWait(p.epoll, p.events[:], 0)
		return n > 0
	})
	return max(n, 0)
}

// acceptOne takes a connection by package net, of which there is one.
func (p *polls) acceptOne() bool {
	nc, err := p.l.ln.Accept()
	if err != nil { // which the system itself is asked about
		return p.accept()
	}
	fd := -1
	if conn, ok := nc.(syscall.Conn); ok {
		if raw, err := conn.SyscallConn(); err == nil {
			_ = raw.Control(func(n uintptr) { fd = int(n) })
		}
	}
	if fd < 0 {
		nc.Close()
		return true
	}
	p.take(&visitor{fd: fd, nc: nc}, SourceOf(nc))
	return true
}

// accept takes connections until there are none, or many. It reports whether that is not for want of room.
func (p *polls) accept() bool {
	for range atOnce {
		fd, from, err := unix.Accept4(p.ln, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch {
		case err == nil:
			p.take(&visitor{fd: fd}, p.sourceOf(fd, from))
		case errors.Is(err, unix.EAGAIN):
			return true
		case wantsRoom(err):
			if !p.makeRoom() {
				return false
			}
		}
	}
	return true
}

// wantsRoom says that the system has no descriptor or no memory to give.
func wantsRoom(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)
}

// take has a connection enter the lobby, and the house if it has said what it should.
func (p *polls) take(v *visitor, from Source) {
	fd := v.fd
	if admit := p.l.Admit; admit != nil {
		if why := admit(from); why != nil {
			p.l.refuse(from, why) // first: who sees it closed can count on that
			v.hangUp(false)
			return
		}
	}
	if p.l.waits != nil {
		here, err := unix.Getsockname(fd)
		there, err2 := unix.Getpeername(fd)
		if err != nil || err2 != nil || !p.l.waits(netAddr(there), netAddr(here)) {
			p.letIn(v, from)
			return
		}
	}
	for range 2 { // so that who has more than its share gives it back to others
		if p.l.crowded(p.in.num) {
			p.makeRoom()
		}
	}
	if p.l.Patience != Forever {
		v.by = time.Now().Add(p.l.Patience)
	}
	v.need, _ = p.l.Judge(nil)
	p.in.enter(v, from)
	p.l.count(p.in)
	for len(p.by) <= fd {
		p.by = append(p.by, nil)
	}
	p.by[fd] = v
	if p.hear(v); v.gone {
		return
	}
	if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{
		Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET&0xffffffff, Fd: int32(fd), Pad: int32(v.turn)}); err != nil {
		p.turnAway(v, ErrCrowded)
		return
	}
	v.polled = true
}

// makeRoom has somebody go, who may have said the word at the last moment. It reports
// whether there was anybody.
func (p *polls) makeRoom() bool {
	v := p.in.next()
	if v == nil {
		return false
	}
	if p.hear(v); !v.gone {
		p.turnAway(v, ErrCrowded)
	}
	return true
}

// hear reads what a connection says.
func (p *polls) hear(v *visitor) {
	for v.need > 0 {
		n, err := p.read(v)
		switch {
		case n > 0:
			v.said = append(v.said, p.buf[:n]...)
			if len(v.said) < v.need {
				continue
			}
			need, why := p.l.Judge(v.said)
			if why != nil {
				p.refuse(v, why, true)
				return
			}
			v.need = need
		case errors.Is(err, unix.EAGAIN):
			// What has come decides perhaps, if not all that may.
			if _, why := p.l.Judge(v.said); why != nil && len(v.said) > 0 {
				p.refuse(v, why, true)
			}
			return
		case errors.Is(err, unix.EINTR):
		default: // an end, or a reset
			if why := ErrCut; len(v.said) > 0 {
				p.turnAway(v, why)
			} else {
				p.turnAway(v, ErrSilent)
			}
			return
		}
	}
	if v.polled { // else it has come with its words
		_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, v.fd, nil)
	}
	p.by[v.fd] = nil
	p.in.leave(v)
	p.letIn(v, v.from.Source)
}

// letIn hands a connection to who is behind the lobby.
func (p *polls) letIn(v *visitor, from Source) {
	if v.nc == nil {
		var err error
		if v.nc, err = p.connOf(v.fd); err != nil {
			p.l.refuse(from, ErrCrowded)
			return
		}
	}
	p.l.Enter(v.nc, from, v.said)
}

// netAddr is an address of a TCP connection, nil of another one.
func netAddr(a unix.Sockaddr) net.Addr {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)))
	case *unix.SockaddrInet6:
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)))
	}
	return nil
}

// read reads as much as is needed, or looks at it.
func (p *polls) read(v *visitor) (n int, err error) {
	buf := p.buf[:min(v.need-len(v.said), len(p.buf))]
	if !p.l.peek {
		return unix.Read(v.fd, buf)
	}
	n, _, err = unix.Recvfrom(v.fd, buf, unix.MSG_PEEK)
	return n, err
}

// connOf makes a connection of a descriptor. That takes another one, for which somebody
// has to go if need be; if there is nobody, the peer sees a reset.
func (p *polls) connOf(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "")
	defer f.Close() // FileConn has one of its own
	nc, err := net.FileConn(f)
	for wantsRoom(err) && p.makeRoom() {
		nc, err = net.FileConn(f)
	}
	if err != nil {
		forget(fd)
	}
	return nc, err
}

// forget has the system reset a connection when it is closed.
func forget(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

func (p *polls) turnAway(v *visitor, why error) { p.refuse(v, why, false) }

// refuse turns a connection away; one that was judged is shown an end first.
func (p *polls) refuse(v *visitor, why error, judged bool) {
	p.in.leave(v)
	p.by[v.fd] = nil
	p.l.refuse(v.from.Source, why)
	v.hangUp(judged)
}

// hangUp ends a connection so that the system forgets it at once, with an end before if
// the other side is to see one.
func (v *visitor) hangUp(end bool) {
	if end {
		_ = unix.Shutdown(v.fd, unix.SHUT_WR)
	}
	forget(v.fd)
	v.close()
}

func (v *visitor) close() {
	if v.nc != nil {
		v.nc.Close()
		return
	}
	unix.Close(v.fd)
}

func (p *polls) sourceOf(fd int, addr unix.Sockaddr) Source {
	if p.isUnix {
		if cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			return User(int(cred.Uid))
		}
		return Source{user: noUser}
	}
	switch a := addr.(type) {
	case *unix.SockaddrInet4:
		return Host(netip.AddrFrom4(a.Addr))
	case *unix.SockaddrInet6:
		return Host(netip.AddrFrom16(a.Addr))
	}
	return Source{user: noUser}
}

// peerUser returns the user at the other end of a unix socket.
func peerUser(nc net.Conn) (uid int, ok bool) {
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return 0, false
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return 0, false
	}
	var cred *unix.Ucred
	if raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
		return 0, false
	}
	return int(cred.Uid), true
}
