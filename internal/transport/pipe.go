// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const (
	pipeStart = 4 << 10
	pipeLimit = 256 << 10
)

// Pipe returns the two ends of a connection inside the process. It buffers
// like a socket, has deadlines, and works in testing/synctest.
func Pipe(proto string) (*Conn, *Conn) {
	ab, ba := newStream(), newStream()
	a := &pipeEnd{in: ba, out: ab}
	b := &pipeEnd{in: ab, out: ba}
	return NewConn(a, proto), NewConn(b, proto)
}

// stream is one direction of a pipe: a ring that grows up to a limit.
type stream struct {
	mu   sync.Mutex
	cond sync.Cond
	ring []byte
	head int // of the first byte
	n    int

	writerGone, readerGone bool
	readBy, writeBy        deadline
}

func newStream() *stream {
	s := &stream{}
	s.cond.L = &s.mu
	return s
}

// deadline is a time after which waits on a cond end. The cond's lock guards it.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

// set is called with the cond's lock held.
func (d *deadline) set(t time.Time, cond *sync.Cond) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	if wait := time.Until(t); !t.IsZero() && wait > 0 {
		d.timer = time.AfterFunc(wait, func() {
			cond.L.Lock()
			defer cond.L.Unlock()
			cond.Broadcast()
		})
	}
	cond.Broadcast()
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.readerGone:
			return 0, net.ErrClosed
		case s.readBy.passed():
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		case s.n > 0:
			n := copy(p, s.ring[s.head:min(s.head+s.n, len(s.ring))])
			n += copy(p[n:], s.ring[:max(0, min(s.n-n, s.head))])
			s.head = (s.head + n) % len(s.ring)
			s.n -= n
			s.cond.Broadcast()
			return n, nil
		case s.writerGone:
			return 0, io.EOF
		}
		s.cond.Wait()
	}
}

func (s *stream) write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	written := 0
	for {
		switch {
		case s.writerGone:
			return written, net.ErrClosed
		case s.writeBy.passed():
			return written, os.ErrDeadlineExceeded
		case s.readerGone:
			return written, io.ErrClosedPipe
		case written == len(p):
			return written, nil
		}
		s.grow(len(p) - written)
		if s.n == len(s.ring) {
			s.cond.Wait()
			continue
		}
		tail := (s.head + s.n) % len(s.ring)
		end := len(s.ring)
		if tail < s.head {
			end = s.head
		}
		n := copy(s.ring[tail:end], p[written:])
		s.n += n
		written += n
		s.cond.Broadcast()
	}
}

// grow makes room for more bytes while the ring is below its limit.
func (s *stream) grow(more int) {
	size := max(len(s.ring), pipeStart)
	for size < s.n+more && size < pipeLimit {
		size *= 2
	}
	if size == len(s.ring) {
		return
	}
	ring := make([]byte, size)
	n := copy(ring, s.ring[s.head:min(s.head+s.n, len(s.ring))])
	copy(ring[n:s.n], s.ring)
	s.ring, s.head = ring, 0
}

// pipeEnd is one side of a pipe.
type pipeEnd struct{ in, out *stream }

func (e *pipeEnd) Read(p []byte) (int, error)  { return e.in.read(p) }
func (e *pipeEnd) Write(p []byte) (int, error) { return e.out.write(p) }

func (e *pipeEnd) Close() error {
	e.SetDeadline(time.Time{}) // stops the timers
	e.in.mu.Lock()
	e.in.readerGone = true
	e.in.cond.Broadcast()
	e.in.mu.Unlock()
	e.out.mu.Lock()
	e.out.writerGone = true
	e.out.cond.Broadcast()
	e.out.mu.Unlock()
	return nil
}

func (e *pipeEnd) SetDeadline(t time.Time) error {
	e.SetReadDeadline(t)
	return e.SetWriteDeadline(t)
}

func (e *pipeEnd) SetReadDeadline(t time.Time) error {
	e.in.mu.Lock()
	defer e.in.mu.Unlock()
	e.in.readBy.set(t, &e.in.cond)
	return nil
}

func (e *pipeEnd) SetWriteDeadline(t time.Time) error {
	e.out.mu.Lock()
	defer e.out.mu.Unlock()
	e.out.writeBy.set(t, &e.out.cond)
	return nil
}

func (e *pipeEnd) LocalAddr() net.Addr  { return pipeAddr{} }
func (e *pipeEnd) RemoteAddr() net.Addr { return pipeAddr{} }

// pipeAddr is the address of both ends of every pipe.
type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }
