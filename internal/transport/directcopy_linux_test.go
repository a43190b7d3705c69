// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// wantLoans makes the reader at the other end of a connection ask for loans for good.
func wantLoans(c *Conn) {
	l := linkOf(c)
	l.borrowed.after = -1 // nothing is weighed
	l.in.control.loan.wanted.Store(1)
}

// Payloads that are lent arrive between small ones, in pieces of any size; where
// the memory cannot be read they come through the ring.
func TestLoans(t *testing.T) {
	for name, prepare := range map[string]func(far *memoryLink){
		"read":    func(*memoryLink) {},
		"refused": func(far *memoryLink) { far.peer = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			near, far := connectShared(t)
			by := time.Now().Add(patience)
			near.SetDeadline(by)
			far.SetDeadline(by)
			wantLoans(far)
			prepare(linkOf(far))
			sizes := []int{lendFrom, 3, lendPiece + 5, lendFrom - 1, 2*lendFrom + 1, 0, 3 * lendFrom}
			go func() {
				for i, n := range sizes {
					p := pattern(n, uint64(n))
					if err := near.WriteFrame(byte(i), p[:n/3], p[n/3:]); err != nil {
						t.Error(err)
					}
					clear(p) // it may be used again
				}
				near.Close()
			}()
			for i, n := range sizes {
				kind, size, err := far.ReadHeader(n)
				if err != nil || int(kind) != i || size != n {
					t.Fatalf("frame %d of %d bytes: kind %d, %d bytes, %v", i, n, kind, size, err)
				}
				got := make([]byte, n)
				for lo, step := 0, 1; lo < n; lo, step = lo+step, 3*step {
					if err := far.ReadPayload(got[lo:min(lo+step, n)]); err != nil {
						t.Fatal(err)
					}
				}
				if !bytes.Equal(got, pattern(n, uint64(n))) {
					t.Errorf("the bytes of frame %d differ", i)
				}
			}
			if _, _, err := far.ReadHeader(1); !errors.Is(err, io.EOF) {
				t.Errorf("after the last frame: %v", err)
			}
			if lent := linkOf(near).lent; name == "read" && lent != 5 || name == "refused" && lent != 1 {
				t.Errorf("%d loans", lent)
			}
		})
	}
}

// Who lends is interrupted like another writer.
func TestLoanInterrupted(t *testing.T) {
	for how, want := range map[string]error{"deadline": os.ErrDeadlineExceeded, "close": net.ErrClosed, "peer": syscall.EPIPE} {
		near, far := connectShared(t)
		wantLoans(far)
		result := make(chan error)
		go func() { result <- near.WriteFrame(1, make([]byte, lendFrom)) }()
		for linkOf(near).out.control.loan.number.Load() == 0 {
			time.Sleep(time.Microsecond)
		}
		switch how {
		case "deadline":
			near.SetDeadline(time.Unix(1, 0))
		case "close":
			near.Close()
		case "peer":
			far.Close()
		}
		select {
		case err := <-result:
			if !errors.Is(err, want) {
				t.Errorf("%s: %v", how, err)
			}
		case <-time.After(patience):
			t.Fatalf("%s ends no loan", how)
		}
	}
}

// The way that is quicker is taken, and the other one tried again, ever more seldom.
func TestLoansWeighed(t *testing.T) {
	near, far := connectShared(t)
	l := linkOf(far)
	wanted := func() bool { return linkOf(near).out.control.loan.wanted.Load() != 0 }
	weigh := func(ring, read uint64) { l.borrowed.ring, l.borrowed.read = ring, read; l.weigh() }
	weigh(slowCopy, 0)
	if wanted() {
		t.Error("loans are wanted of a quick ring")
	}
	weigh(5*slowCopy, 0)
	tries, last := 0, 0
	for range 10 * mostLoans {
		was := wanted()
		weigh(5*slowCopy, slowCopy/2)
		if was && !wanted() {
			tries, last = tries+1, l.borrowed.after
		}
	}
	if !(tries > 5 && tries < 20) || last != mostLoans {
		t.Errorf("a slow ring is measured %d times in %d payloads, at last after %d", tries, 10*mostLoans, last)
	}
	weigh(5*slowCopy, 6*slowCopy)
	if wanted() {
		t.Error("loans are wanted that take longer than the ring")
	}
	l.peer = 0
	weigh(9*slowCopy, slowCopy)
	if wanted() {
		t.Error("loans are wanted of a process that is not known")
	}
}
