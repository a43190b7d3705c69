// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestCutEndsBothSides(t *testing.T) {
	eachLink(t, func(t *testing.T, near, far *Conn) {
		f := Inject(near)
		reading := make(chan error, 1)
		go func() {
			_, _, err := near.ReadHeader(10)
			reading <- err
		}()
		if err := near.WriteFrame(1, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := far.ReadFrame(nil, 10); err != nil {
			t.Fatal(err)
		}
		f.Cut()
		if err := <-reading; err == nil {
			t.Error("a read at the cut end succeeded")
		}
		if err := near.WriteFrame(1); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a write at the cut end: %v", err)
		}
		if _, _, err := far.ReadHeader(10); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the peer: %v", err)
		}
	})
}

func TestCutWithinAWrite(t *testing.T) {
	eachLink(t, func(t *testing.T, near, far *Conn) {
		f := Inject(near)
		f.CutAfterWriting(3*headerSize + 20)
		for range 2 {
			if err := near.WriteFrame(1, make([]byte, 6)); err != nil {
				t.Fatal(err)
			}
		}
		if err := near.WriteFrame(1, make([]byte, 30000), make([]byte, 10)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the write that is cut: %v", err)
		}
		for range 2 {
			if _, _, err := far.ReadFrame(nil, 100000); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := far.ReadFrame(nil, 100000); !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the frame that is cut: %v", err)
		}
		if _, n := f.Counts(); n != 3*headerSize+20 {
			t.Errorf("%d bytes written", n)
		}
	})
}

func TestCutWithinARead(t *testing.T) {
	eachLink(t, func(t *testing.T, near, far *Conn) {
		f := Inject(near)
		f.CutAfterReading(headerSize + 4)
		far.WriteFrame(1, make([]byte, 10))
		if _, _, err := near.ReadFrame(nil, 100); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v", err)
		}
	})
}

func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe("test")
		defer near.Close()
		defer far.Close()
		f := Inject(near)
		f.Stall()
		far.WriteFrame(1, []byte("unheard"))
		began := time.Now()
		near.SetDeadline(began.Add(time.Second))
		if _, _, err := near.ReadHeader(10); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("read: %v after %v", err, time.Since(began))
		}
		near.SetDeadline(time.Time{})
		time.AfterFunc(time.Minute, f.Resume)
		began = time.Now()
		if kind, _, err := near.ReadFrame(nil, 10); err != nil || kind != 1 || time.Since(began) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		f.Stall()
		time.AfterFunc(time.Minute, func() { near.Close() })
		if err := near.WriteFrame(1); err == nil {
			t.Error("a write on a stalled connection succeeded")
		}
	})
}

// What comes to a read that was waiting when the stall began is not lost.
func TestStallHoldsBackAWaitingRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe("test")
		defer near.Close()
		defer far.Close()
		f := Inject(near)
		near.SetReadDeadline(time.Now().Add(time.Second))
		read := make(chan error)
		go func() {
			_, _, err := near.ReadHeader(10)
			read <- err
		}()
		synctest.Wait()
		f.Stall()
		far.WriteFrame(1, []byte("held"))
		if err := <-read; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		near.SetReadDeadline(time.Time{})
		f.Resume()
		if _, p, err := near.ReadFrame(nil, 10); err != nil || string(p) != "held" {
			t.Errorf("%q, %v", p, err)
		}
	})
}
