// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"io"
	"math"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Injector makes a connection fail, for tests of what stands on it. It acts on
// one end; the peer sees what it would see of a process that died or stopped.
// All methods may be called at any time, from any goroutine.
type Injector struct {
	net.Conn
	src io.Reader

	mu       sync.Mutex
	cond     sync.Cond
	stalled  bool
	cut      bool
	closed   bool
	toWrite  int64 // bytes until the cut, or math.MaxInt64
	toRead   int64
	readBy   deadline
	writeBy  deadline
	held     []byte // read during a stall
	numRead  int64
	numWrote int64
}

// Inject puts an Injector under c, which must not have been used yet.
func Inject(c *Conn) *Injector {
	f := &Injector{Conn: c.nc, src: c.in.src, toWrite: math.MaxInt64, toRead: math.MaxInt64}
	f.cond.L = &f.mu
	c.nc = f
	c.many, c.asked = nil, nil
	c.in = reader{src: f, buf: c.in.buf}
	return f
}

// Cut ends the connection as a reset does: this end's operations fail with
// ECONNRESET, the peer finds the stream ended.
func (f *Injector) Cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cutLocked()
}

func (f *Injector) cutLocked() {
	f.cut = true
	f.cond.Broadcast()
	f.Conn.Close()
}

// write waits like Write and returns the connection below, for what is
// written to it in another way.
func (f *Injector) write() (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Conn, f.pass(&f.writeBy)
}

// CutAfterWriting cuts the connection once n more bytes have been written,
// which may be within a frame.
func (f *Injector) CutAfterWriting(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.toWrite = n
}

// CutAfterReading cuts the connection once n more bytes have been read.
func (f *Injector) CutAfterReading(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.toRead = n
}

// Stall makes this end fall silent like a stopped process: nothing is read
// or written, nothing fails, until Resume, a deadline, or Close.
func (f *Injector) Stall() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stalled = true
}

// Resume ends a stall.
func (f *Injector) Resume() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stalled = false
	f.cond.Broadcast()
}

// Counts returns the bytes read and written so far.
func (f *Injector) Counts() (read, written int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.numRead, f.numWrote
}

// pass waits while the connection is stalled. The lock is held.
func (f *Injector) pass(by *deadline) error {
	for {
		switch {
		case f.cut:
			return syscall.ECONNRESET
		case f.closed:
			return net.ErrClosed
		case by.passed():
			return os.ErrDeadlineExceeded
		case !f.stalled:
			return nil
		}
		f.cond.Wait()
	}
}

// Read implements net.Conn. Bytes that come to a read already waiting when a
// stall begins are held back.
func (f *Injector) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.pass(&f.readBy); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if len(f.held) == 0 {
		if f.toRead == 0 {
			f.cutLocked()
			return 0, syscall.ECONNRESET
		}
		room := p[:min(int64(len(p)), f.toRead)]
		f.mu.Unlock()
		n, err := f.src.Read(room)
		f.mu.Lock()
		if f.toRead != math.MaxInt64 {
			f.toRead -= int64(n)
		}
		f.numRead += int64(n)
		if !f.stalled && !f.cut {
			return n, err
		}
		f.held = append([]byte(nil), room[:n]...)
		if stop := f.pass(&f.readBy); stop != nil {
			return 0, stop
		}
		if n == 0 {
			return 0, err
		}
	}
	n := copy(p, f.held)
	f.held = f.held[n:]
	return n, nil
}

// Write implements net.Conn.
func (f *Injector) Write(p []byte) (int, error) {
	f.mu.Lock()
	if err := f.pass(&f.writeBy); err != nil {
		f.mu.Unlock()
		return 0, err
	}
	whole := p
	if int64(len(p)) > f.toWrite {
		p = p[:f.toWrite]
	}
	f.mu.Unlock()
	n, err := 0, error(nil)
	if len(p) > 0 {
		n, err = f.Conn.Write(p)
	}
	f.mu.Lock()
	if f.toWrite != math.MaxInt64 {
		f.toWrite -= int64(n)
	}
	f.numWrote += int64(n)
	f.mu.Unlock()
	if err == nil && len(p) < len(whole) {
		f.Cut()
		err = syscall.ECONNRESET
	}
	return n, err
}

// Close implements net.Conn.
func (f *Injector) Close() error {
	f.mu.Lock()
	f.closed = true
	f.readBy.set(time.Time{}, &f.cond)
	f.writeBy.set(time.Time{}, &f.cond)
	f.mu.Unlock()
	return f.Conn.Close()
}

// SetDeadline implements net.Conn.
func (f *Injector) SetDeadline(t time.Time) error {
	f.mu.Lock()
	f.readBy.set(t, &f.cond)
	f.writeBy.set(t, &f.cond)
	f.mu.Unlock()
	return f.Conn.SetDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (f *Injector) SetReadDeadline(t time.Time) error {
	f.mu.Lock()
	f.readBy.set(t, &f.cond)
	f.mu.Unlock()
	return f.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (f *Injector) SetWriteDeadline(t time.Time) error {
	f.mu.Lock()
	f.writeBy.set(t, &f.cond)
	f.mu.Unlock()
	return f.Conn.SetWriteDeadline(t)
}
