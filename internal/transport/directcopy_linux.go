// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// lendFrom is the size from which a payload may be read where it is.
	lendFrom = 256 << 10
	// lendPiece is how much one system call reads of it.
	lendPiece = 4 << 20
	// slowCopy is how many picoseconds a byte takes from a ring before it is worth
	// to find out what reading the peer's memory takes: 6 GB/s. Between cores that
	// share no cache it takes three times as long, between others a third.
	slowCopy = 160
	// firstLoans and mostLoans are after how many loans the ring is measured again.
	firstLoans, mostLoans = 32, 1024
)

// loan is a payload that the reader copies straight from the writer's memory, by
// process_vm_readv, where the writer would else have to copy it into the ring first.
// It stands in the stream behind the bytes of the ring that have been written, and
// the writer waits until it has been taken. That needs the permission to read the
// peer's memory, which processes of one user have unless the system is told
// otherwise; without it the ring carries everything.
type loan struct {
	number atomic.Uint32 // of loans ever offered; by the writer
	at     atomic.Uint64 // bytes written to the ring before it
	addr   atomic.Uint64
	size   atomic.Uint64
	_      [28]byte
	ended  atomic.Uint32 // the number of the last one that the reader is done with
	taken  atomic.Uint64 // of its bytes: fewer than its size if they cannot be read
	wanted atomic.Uint32 // not 0: the reader would rather have loans
	_      [44]byte
}

// lend offers p to the reader and waits until it has been taken. It returns how
// much of it has: less than all where the reader may not read this process's memory.
func (l *memoryLink) lend(p []byte) (int, error) {
	o := &l.out.control.loan
	l.tell()
	l.lent++
	o.at.Store(l.out.count)
	o.addr.Store(uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p)))))
	o.size.Store(uint64(len(p)))
	sending()
	o.number.Store(l.lent)
	if c := l.out.control; c.reader.Load() != awake {
		l.wake(&c.reader)
	}
	err := l.awaitPeer(func() (bool, error) { return o.ended.Load() == l.lent, nil })
	runtime.KeepAlive(p)
	switch {
	case err != nil:
		return 0, err
	case o.ended.Load() == l.lent:
	case l.passed(&l.writeBy):
		return 0, os.ErrDeadlineExceeded
	case l.closed.Load():
		return 0, net.ErrClosed
	default:
		return 0, syscall.EPIPE
	}
	taken := o.taken.Load()
	if taken > uint64(len(p)) {
		return 0, fmt.Errorf("%w: %d bytes taken of %d that were lent", errLying, taken, len(p))
	}
	return int(taken), nil
}

// borrowed is what a reader knows of a loan.
type borrowed struct {
	number uint32 // of the last one that it has looked at
	active bool
	addr   uint64
	size   uint64
	off    uint64 // bytes taken
	// Picoseconds that a byte takes, 0 where that has not been measured.
	ring, read uint64
	loans      int // since the ring was last measured
	after      int // how many of them it is measured again
}

// offered says whether there is a loan to be read now that the ring is empty. The
// number must have been loaded before the ring was looked at.
func (l *memoryLink) offered(number uint32) (bool, error) {
	b := &l.borrowed
	if !b.active && number != b.number {
		o := &l.in.control.loan
		if at := o.at.Load(); at != l.in.count {
			return false, fmt.Errorf("%w: a loan after %d bytes, of which %d have come", errLying, at, l.in.count)
		}
		*b = borrowed{number: number, active: true, addr: o.addr.Load(), size: o.size.Load(), ring: b.ring, read: b.read, loans: b.loans, after: b.after}
	}
	return b.active, nil
}

// borrow reads more of the loan into p. What cannot be read comes through the ring.
func (l *memoryLink) borrow(p []byte) (int, error) {
	b := &l.borrowed
	want := min(uint64(len(p)), b.size-b.off, lendPiece)
	n := 0
	var began time.Time
	if want > 0 {
		began = time.Now()
		n = l.readPeer(p[:want], b.addr+b.off)
	}
	b.off += uint64(n)
	if n > 0 && b.off < b.size {
		return n, nil
	}
	// The peer's process must still be the one that lent.
	if hungUp(l.raw) {
		l.gone.Store(true)
		return 0, io.EOF
	}
	if n >= ringPiece {
		mix(&b.read, began, n)
		l.weigh()
	} else if b.off < b.size {
		l.in.control.loan.wanted.Store(0)
		b.after = -1 // never again
	}
	b.active = false
	o := &l.in.control.loan
	o.taken.Store(b.off)
	o.ended.Store(b.number)
	if w := &l.in.control.writer; w.Load() != awake && w.Swap(awake) != awake {
		futexWake(w)
	}
	return n, nil
}

// readPeer copies from the peer's memory and returns how much it could.
func (l *memoryLink) readPeer(p []byte, addr uint64) int {
	here := unix.Iovec{Base: unsafe.SliceData(p)}
	here.SetLen(len(p))
	there := [2]uintptr{uintptr(addr), uintptr(len(p))} // an address of another process
	n, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, uintptr(l.peer), uintptr(unsafe.Pointer(&here)), 1, uintptr(unsafe.Pointer(&there)), 1, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// mix takes a measurement into a mean.
func mix(mean *uint64, began time.Time, n int) {
	took := uint64(time.Since(began).Nanoseconds()) * 1000 / uint64(n)
	if took = min(took, 10*slowCopy); *mean == 0 {
		*mean = took
	} else {
		*mean = (7**mean + took) / 8
	}
}

// weigh says to the writer which way is the quicker one.
func (l *memoryLink) weigh() {
	b := &l.borrowed
	if b.after < 0 || l.peer <= 0 || b.ring == 0 {
		return
	}
	w := &l.in.control.loan.wanted
	switch {
	case b.ring <= slowCopy || b.read != 0 && b.ring <= b.read:
		b.loans, b.after = 0, firstLoans
		w.Store(0)
	case b.loans >= b.after:
		// Processes move to other cores: look at the ring again, seldom.
		b.loans, b.after = 0, min(max(2*b.after, firstLoans), mostLoans)
		b.ring = 0
		w.Store(0)
	default:
		b.loans++
		w.Store(1)
	}
}

// peerOf returns the number of the process at the other end of a unix socket, 0
// if that is not known.
func peerOf(raw syscall.RawConn) int {
	pid := 0
	err := raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	if err != nil {
		return 0
	}
	return pid
}
