// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lookTime is how long a read or write looks at the memory before it sleeps, as
	// long as that is worth it: about what being woken costs, so that it loses at
	// most half. It does not offer its core to others in between: two threads that
	// happened to be on one core would stay there, while who sleeps is woken on
	// one that is free. Where looking brings nothing, for the cores are taken, it
	// lasts half as long each time, down to leastLook.
	lookTime  = 64 * time.Microsecond
	leastLook = 2 * time.Microsecond
	// looksPerTime are between two readings of the clock.
	looksPerTime = 64
	// blockTime is how long a reader then sleeps in the system, from which it is
	// woken sooner than from the runtime's poller, but keeps a thread busy.
	blockTime = shortSleep
	// writerNap is how long a writer sleeps before it looks whether the peer is
	// still there.
	writerNap = 20 * time.Millisecond
)

// looking is for how long it is worth to look.
type looking struct{ now time.Duration }

// time returns it.
func (p *looking) time() time.Duration {
	if p.now == 0 {
		p.now = lookTime
	}
	return p.now
}

// learn takes in how long a wait has been.
func (p *looking) learn(waited time.Duration) {
	if waited <= 2*lookTime { // being woken is part of it
		p.now = lookTime
	} else {
		p.now = max(p.now/2, leastLook)
	}
}

// memoryLink is a connection through memory that two processes share: a ring in
// each direction. The unix socket by which they met stays: a byte over it wakes
// a reader that is parked in the runtime's poller, and its end tells that the
// peer's process has died.
//
// A side that waits says so in the ring, then looks once more; a side that has
// put or taken bytes tells so, then looks whether the other waits. One of the
// two sees the other. Who looks costs the other side no system call.
type memoryLink struct {
	sock   *net.UnixConn
	raw    syscall.RawConn
	memory []byte
	peer   int    // the number of its process, 0 if that is not known
	in     ring   // one goroutine at a time reads
	out    ring   // and one writes
	untold int    // bytes put of which the peer does not know yet
	lent   uint32 // loans offered
	borrowed
	// how long it is worth to look for bytes, and for room
	forBytes, forRoom looking

	// users counts the operations in progress, and 1 until Close. Who makes it
	// 0 unmaps the memory.
	users  atomic.Int32
	closed atomic.Bool
	gone   atomic.Bool // the peer's end of the socket is

	begun           time.Time    // a moment of the clock that nobody sets
	readBy, writeBy atomic.Int64 // deadlines, nanoseconds since begun, 0 for none

	bell     [16]byte // what has been read of the peer's bells
	ringBell func(fd uintptr) bool
}

// newMemoryLink makes a link over memory that begins with the ring in which the
// process writes that has made it.
func newMemoryLink(sock *net.UnixConn, memory []byte, maker bool) (*memoryLink, error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return nil, err
	}
	l := &memoryLink{begun: time.Now(), sock: sock, raw: raw, memory: memory, peer: peerOf(raw), ringBell: ringBell}
	l.out, l.in = newRing(memory[:linkSize/2]), newRing(memory[linkSize/2:])
	if !maker {
		l.out, l.in = l.in, l.out
	}
	l.users.Store(1)
	return l, nil
}

// linkSize is how much memory a link needs.
const linkSize = 2 * (ringHead + ringSize)

// enter begins an operation, unless the link is closed.
func (l *memoryLink) enter() bool {
	for {
		n := l.users.Load()
		if n == 0 || l.closed.Load() {
			return false
		}
		if l.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave ends an operation.
func (l *memoryLink) leave() {
	if l.users.Add(-1) == 0 {
		_ = unix.Munmap(l.memory)
	}
}

// Read implements io.Reader.
func (l *memoryLink) Read(p []byte) (int, error) { return l.readv(p, nil, 1) }

// readv implements [system].
func (l *memoryLink) readv(p, spare []byte, sure int) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if !l.enter() {
		return 0, net.ErrClosed
	}
	defer l.leave()
	h := PollOptions{} // what there is costs no look at the clock
	if n, err := l.receive(p, spare, &h); err != errNothing {
		return n, err
	}
	began := time.Now()
	h = PollOptions{Spin: l.forBytes.time()}
	if sure >= ringPiece { // the writer is at it
		h.Spin = lookTime
	}
	if h.Spin == lookTime { // else the next bytes are far, or others want the threads
		h.Block = blockTime
	}
	for {
		n, err := l.receive(p, spare, &h)
		if err != errNothing {
			l.forBytes.learn(time.Since(began))
			return n, err
		}
		if err := l.park(); err != nil {
			return 0, err
		}
	}
}

// poll implements [poller].
func (l *memoryLink) poll(p []byte, h PollOptions) (int, error) {
	if !l.enter() {
		return 0, net.ErrClosed
	}
	defer l.leave()
	return l.receive(p, nil, &h)
}

// receive takes what has come, or what comes in the time of h, which it uses up.
// It is errNothing when nothing has.
func (l *memoryLink) receive(p, spare []byte, h *PollOptions) (int, error) {
	c := l.in.control
	var began time.Time
	for looks := 1; ; looks++ {
		if l.passed(&l.readBy) {
			return 0, os.ErrDeadlineExceeded
		}
		ended := c.ended.Load() != 0 || l.gone.Load() // before the bytes: they may come first
		n, err := l.takeAll(p, spare)
		switch {
		case n > 0:
			received()
			return n, nil
		case err != nil:
			return 0, err
		case l.closed.Load(): // here, which is seen before its effects
			return 0, net.ErrClosed
		case ended:
			return 0, io.EOF
		}
		if h.Spin > 0 {
			if looks == 1 {
				// What this goroutine has just started would else wait for another
				// thread to be woken: a hundred times as long.
				runtime.Gosched()
			}
			if looks%looksPerTime != 0 {
				continue
			}
			now := time.Now()
			if began.IsZero() {
				began = now
			}
			if now.Sub(began) < h.Spin && (h.GoOn == nil || h.GoOn()) {
				continue
			}
			h.Spin = 0
		}
		if h.Block <= 0 {
			return 0, errNothing
		}
		c.reader.Store(asleep)
		if quiet, _ := l.quiet(); quiet {
			limit := h.Block
			if by := l.readBy.Load(); by != 0 {
				limit = max(0, min(limit, time.Duration(by)-time.Since(l.begun)))
			}
			futexSleep(&c.reader, limit)
		}
		c.reader.Store(awake)
		h.Block = 0
	}
}

// quiet reports whether there is nothing that a reader would not wait for.
func (l *memoryLink) quiet() (bool, error) {
	n, err := l.in.come(1)
	c := l.in.control
	lent := l.borrowed.active || c.loan.number.Load() != l.borrowed.number
	return n == 0 && !lent && err == nil && c.ended.Load() == 0 && !l.gone.Load() && !l.closed.Load() && !l.passed(&l.readBy), err
}

// takeAll fills p, and then spare as far as that waits for nothing.
func (l *memoryLink) takeAll(p, spare []byte) (n int, err error) {
	number := l.in.control.loan.number.Load()
	for _, into := range [2][]byte{p, spare} {
		for len(into) > 0 {
			var began time.Time
			if n, _ := l.in.come(ringPiece); n >= ringPiece && len(into) >= ringPiece {
				began = time.Now()
			}
			var m int
			if m, err = l.in.take(into); err != nil {
				return n, err
			}
			if m == 0 {
				if n > 0 {
					return n, nil
				}
				if lent, err := l.offered(number); !lent {
					return 0, err
				}
				return l.borrow(into)
			}
			if m == ringPiece && !began.IsZero() {
				mix(&l.borrowed.ring, began, m)
				l.weigh()
			}
			n += m
			into = into[m:]
			l.in.control.taken.Store(l.in.count)
			if w := &l.in.control.writer; w.Load() != awake && w.Swap(awake) != awake {
				futexWake(w)
			}
		}
	}
	return n, nil
}

// park waits in the runtime's poller until there may be something to read.
func (l *memoryLink) park() error {
	c := l.in.control
	c.reader.Store(parked)
	defer c.reader.Store(awake)
	if quiet, err := l.quiet(); !quiet {
		return err
	}
	_, err := l.sock.Read(l.bell[:])
	switch {
	case err == nil:
	case l.closed.Load():
		return net.ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		// Another one may have been set in the meantime: then it waits on.
	default: // the peer has closed the socket, or its process has ended
		l.gone.Store(true)
	}
	return nil
}

// Write implements io.Writer.
func (l *memoryLink) Write(p []byte) (int, error) {
	if !l.enter() {
		return 0, net.ErrClosed
	}
	defer l.leave()
	return l.send(p, true)
}

// writev implements [system].
func (l *memoryLink) writev(bufs [][]byte) error {
	if !l.enter() {
		return net.ErrClosed
	}
	defer l.leave()
	for i, p := range bufs {
		if len(p) >= lendFrom && l.out.control.loan.wanted.Load() != 0 {
			n, err := l.lend(p)
			if err != nil {
				return err
			}
			p = p[n:]
		}
		if _, err := l.send(p, i == len(bufs)-1); err != nil {
			return err
		}
	}
	return nil
}

// send puts all of p into the ring. The peer is told of pieces, and of the rest if last.
func (l *memoryLink) send(p []byte, last bool) (int, error) {
	done := 0
	for {
		if l.passed(&l.writeBy) {
			return done, os.ErrDeadlineExceeded
		}
		if l.gone.Load() || l.out.control.left.Load() != 0 {
			if l.closed.Load() { // here, which is seen before its effects
				return done, net.ErrClosed
			}
			return done, syscall.EPIPE
		}
		n, err := l.out.put(p[done:])
		if err != nil {
			return done, err
		}
		done += n
		l.untold += n
		if l.untold >= ringPiece || last && done == len(p) {
			l.tell()
		}
		if done == len(p) {
			return done, nil
		}
		if n > 0 {
			continue
		}
		l.tell()
		if err := l.awaitRoom(); err != nil {
			return done, err
		}
	}
}

// writeMade implements [madeWriter]: fill writes into the ring.
func (l *memoryLink) writeMade(n, unit int, fill func(p []byte, at int) error) error {
	if !l.enter() {
		return net.ErrClosed
	}
	defer l.leave()
	if unit > ringSize/4 {
		return fmt.Errorf("bytes in units of %d, at most %d", unit, ringSize/4)
	}
	for at := 0; at < n; {
		piece := min(n-at, max(unit, madePiece/unit*unit))
		p, err := l.out.span(piece, unit)
		if err != nil {
			return err
		}
		switch {
		case p != nil:
			if err := fill(p, at); err != nil {
				return err
			}
			at += len(p)
			l.out.count += uint64(len(p))
			l.untold += len(p)
			p = nil
		case l.out.tail() < unit: // it lies on both sides of the ring's end
			p = make([]byte, unit)
			if err := fill(p, at); err != nil {
				return err
			}
			at += unit
		default:
			enough := max(unit, piece/4)
			if err := l.awaitPeer(func() (bool, error) {
				n, err := l.out.room(enough)
				return n >= enough, err
			}); err != nil {
				return err
			}
		}
		if _, err := l.send(p, true); err != nil { // tells, and looks whether the peer is there
			return err
		}
	}
	return nil
}

// tell lets the peer know of what has been put, and wakes it if it waits for that.
func (l *memoryLink) tell() {
	if l.untold == 0 {
		return
	}
	l.untold = 0
	sending()
	c := l.out.control
	c.written.Store(l.out.count)
	if c.reader.Load() != awake {
		l.wake(&c.reader)
	}
}

// wake wakes the peer's reader, or on another ring this process's.
func (l *memoryLink) wake(word *atomic.Uint32) {
	switch word.Swap(awake) {
	case asleep:
		futexWake(word)
	case parked:
		// That the socket is full means that bells enough are ringing; that it is
		// closed, the reader finds out.
		_ = l.raw.Write(l.ringBell)
	}
}

// ringBell writes the byte that wakes a parked reader.
func ringBell(fd uintptr) bool {
	bell := [1]byte{1}
	_ = unix.Sendto(int(fd), bell[:], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	return true
}

// awaitRoom waits until there may be room in the outgoing ring.
func (l *memoryLink) awaitRoom() error {
	return l.awaitPeer(func() (bool, error) {
		n, err := l.out.room(1)
		return n > 0, err
	})
}

// awaitPeer waits until the peer's reader has done something, or there is no more
// sense in waiting.
func (l *memoryLink) awaitPeer(done func() (bool, error)) error {
	c := l.out.control
	ready := func() (bool, error) {
		ok, err := done()
		return ok || c.left.Load() != 0 || l.closed.Load() || l.passed(&l.writeBy), err
	}
	began := time.Now()
	defer func() { l.forRoom.learn(time.Since(began)) }()
	for looks := 1; looks%looksPerTime != 0 || time.Since(began) < l.forRoom.time(); looks++ {
		if ok, err := ready(); ok || err != nil {
			return l.checkOpen(err)
		}
	}
	for nap := shortSleep; ; nap = writerNap {
		c.writer.Store(asleep)
		ok, err := ready()
		if ok || err != nil {
			c.writer.Store(awake)
			return l.checkOpen(err)
		}
		limit := nap
		if by := l.writeBy.Load(); by != 0 {
			limit = max(0, min(limit, time.Duration(by)-time.Since(l.begun)))
		}
		futexSleep(&c.writer, limit)
		c.writer.Store(awake)
		if ok, err := done(); err == nil && !ok && hungUp(l.raw) {
			l.gone.Store(true)
			return nil
		}
	}
}

// checkOpen returns err, or that the link has been closed here.
func (l *memoryLink) checkOpen(err error) error {
	if err == nil && l.closed.Load() {
		return net.ErrClosed
	}
	return err
}

// Close implements net.Conn. The peer reads what has been written, then the end.
func (l *memoryLink) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	// The memory is there: the 1 of this call in users has not been taken back.
	l.out.control.ended.Store(1)
	l.in.control.left.Store(1)
	l.wakeAll()
	for _, word := range []*atomic.Uint32{&l.out.control.reader, &l.in.control.writer} {
		if word.Swap(awake) == asleep {
			futexWake(word)
		}
	}
	err := l.sock.Close() // which wakes who is parked, here and there
	l.leave()
	return err
}

// wakeAll has the operations in progress at this end look up.
func (l *memoryLink) wakeAll() {
	for _, word := range []*atomic.Uint32{&l.in.control.reader, &l.out.control.writer} {
		if word.CompareAndSwap(asleep, awake) {
			futexWake(word)
		}
	}
}

// SetDeadline implements net.Conn.
func (l *memoryLink) SetDeadline(t time.Time) error {
	return errors.Join(l.SetReadDeadline(t), l.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (l *memoryLink) SetReadDeadline(t time.Time) error {
	if !l.enter() {
		return net.ErrClosed
	}
	defer l.leave()
	l.readBy.Store(l.nanos(t))
	l.wakeAll()
	return l.sock.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (l *memoryLink) SetWriteDeadline(t time.Time) error {
	if !l.enter() {
		return net.ErrClosed
	}
	defer l.leave()
	l.writeBy.Store(l.nanos(t))
	l.wakeAll()
	return nil
}

// nanos returns a deadline as a number, 0 for none. A clock that is set meanwhile changes
// nothing.
func (l *memoryLink) nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(1, int64(t.Sub(l.begun)))
}

func (l *memoryLink) passed(by *atomic.Int64) bool {
	at := by.Load()
	return at != 0 && int64(time.Since(l.begun)) >= at
}

// LocalAddr implements net.Conn.
func (l *memoryLink) LocalAddr() net.Addr { return l.sock.LocalAddr() }

// RemoteAddr implements net.Conn.
func (l *memoryLink) RemoteAddr() net.Addr { return l.sock.RemoteAddr() }

// Pending reports whether something has come that has not been read.
func (l *memoryLink) Pending() bool {
	if !l.enter() {
		return true
	}
	defer l.leave()
	c := l.in.control
	return c.written.Load() != c.taken.Load() || c.ended.Load() != 0 || hungUp(l.raw)
}

// String says what it is, for messages.
func (l *memoryLink) String() string {
	return fmt.Sprintf("shared memory with %s", addressOf(l.sock.RemoteAddr()))
}
