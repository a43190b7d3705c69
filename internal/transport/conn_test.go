// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// pattern returns n bytes that differ from place to place.
func pattern(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestFramesArriveWhole(t *testing.T) {
	sizes := []int{0, 1, 7, 8, 4096, readBuffer - headerSize, readBuffer, gatherLimit - headerSize,
		gatherLimit - headerSize + 1, 1 << 20, firstTrust*4 + 3}
	eachLink(t, func(t *testing.T, near, far *Conn) {
		go func() {
			for i, n := range sizes {
				p := pattern(n, uint64(n))
				// In up to three pieces, some of them empty.
				if err := near.WriteFrame(byte(250+i), p[:n/3], nil, p[n/3:n/2], p[n/2:]); err != nil {
					t.Error(err)
				}
			}
			near.Close()
		}()
		for i, n := range sizes {
			kind, got, err := far.ReadFrame(make([]byte, 0, 100), n)
			if err != nil {
				t.Fatalf("frame of %d bytes: %v", n, err)
			}
			if kind != byte(250+i) || !bytes.Equal(got, pattern(n, uint64(n))) {
				t.Errorf("frame of %d bytes: kind %d or its bytes differ", n, kind)
			}
		}
		if _, _, err := far.ReadHeader(10); !errors.Is(err, io.EOF) {
			t.Errorf("after the last frame: %v, want io.EOF", err)
		}
	})
}

func TestWritersDoNotMix(t *testing.T) {
	const writers, frames = 8, 50
	eachLink(t, func(t *testing.T, near, far *Conn) {
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := range frames {
					size := (w*7919 + i*104729) % (2 * gatherLimit)
					p := bytes.Repeat([]byte{byte(w)}, size)
					if err := near.WriteFrame(byte(w), p[:size/2], p[size/2:]); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		var counts [writers]int
		for range writers * frames {
			kind, p, err := far.ReadFrame(nil, 2*gatherLimit)
			if err != nil {
				t.Fatal(err)
			}
			if len(bytes.Trim(p, string([]byte{kind}))) != 0 {
				t.Fatalf("a frame of writer %d has bytes of another", kind)
			}
			counts[kind]++
		}
		wg.Wait()
		for w, n := range counts {
			if n != frames {
				t.Errorf("writer %d: %d frames came, want %d", w, n, frames)
			}
		}
	})
}

func TestPayloadInParts(t *testing.T) {
	eachLink(t, func(t *testing.T, near, far *Conn) {
		p := pattern(100<<10, 3)
		go func() {
			near.WriteFrame(1, p)
			near.WriteFrame(2, p)
			near.WriteFrame(3)
		}()
		if _, n, err := far.ReadHeader(len(p)); err != nil || n != len(p) {
			t.Fatal(n, err)
		}
		got := make([]byte, len(p))
		for lo := 0; lo < len(p); lo += 30000 {
			if err := far.ReadPayload(got[lo:min(lo+30000, len(p))]); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, p) {
			t.Error("the bytes differ")
		}
		if err := far.ReadPayload(got[:1]); err == nil {
			t.Error("reading past the frame's end succeeded")
		}
		if _, _, err := far.ReadHeader(len(p)); err != nil {
			t.Fatal(err)
		}
		if err := far.ReadPayload(got[:10]); err != nil {
			t.Fatal(err)
		}
		if _, _, err := far.ReadHeader(len(p)); err == nil {
			t.Error("a header was read in the middle of a payload")
		}
		if got := far.Unread(); got != len(p)-10 {
			t.Errorf("Unread = %d, want %d", got, len(p)-10)
		}
		if err := far.Discard(); err != nil {
			t.Fatal(err)
		}
		if kind, n, err := far.ReadHeader(0); kind != 3 || n != 0 || err != nil {
			t.Error(kind, n, err)
		}
	})
}

func TestFrameOverTheLimit(t *testing.T) {
	for _, length := range []uint64{11, 1 << 40, MaxFrame} {
		near, far := Pipe("test")
		near.Write(binary.LittleEndian.AppendUint64(nil, 5<<56|length))
		_, _, err := far.ReadHeader(10)
		var e *Error
		if !errors.Is(err, ErrFrameTooLarge) || !errors.As(err, &e) || e.Proto != "test" {
			t.Errorf("length %d: %v, want ErrFrameTooLarge in an *Error", length, err)
		}
		near.Close()
		far.Close()
	}
}

// A frame that says it is long but ends early must not cost its length in memory.
func TestLyingLengthTakesLittleMemory(t *testing.T) {
	near, far := Pipe("test")
	defer far.Close()
	near.Write(binary.LittleEndian.AppendUint64(nil, 1<<40))
	near.Write(make([]byte, 1000))
	near.Close()
	_, _, err := far.ReadFrame(nil, 1<<50)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

func TestCutWithinAFrame(t *testing.T) {
	for _, n := range []int{1, 7, 8, 9, 107} {
		near, far := Pipe("test")
		frame := append(appendHeader(nil, 1, 100), make([]byte, 100)...)
		near.Write(frame[:n])
		near.Close()
		if _, _, err := far.ReadFrame(nil, 1000); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d bytes: %v, want io.ErrUnexpectedEOF", n, err)
		}
		far.Close()
	}
}

func TestHeaderReadResumesAfterDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe("test")
		defer near.Close()
		defer far.Close()
		frame := append(appendHeader(nil, 9, 3), "abc"...)
		near.Write(frame[:5])
		far.SetReadDeadline(time.Now().Add(time.Minute))
		if _, _, err := far.ReadHeader(10); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		far.SetReadDeadline(time.Time{})
		near.Write(frame[5:])
		if kind, p, err := far.ReadFrame(nil, 10); err != nil || kind != 9 || string(p) != "abc" {
			t.Error(kind, p, err)
		}
	})
}

func TestFailedWriteIsFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe("test")
		defer near.Close()
		defer far.Close()
		near.SetWriteDeadline(time.Now().Add(time.Second))
		first := near.WriteFrame(1, make([]byte, 2*pipeLimit)) // nobody reads
		if !errors.Is(first, os.ErrDeadlineExceeded) {
			t.Fatal(first)
		}
		near.SetWriteDeadline(time.Time{})
		if err := near.WriteFrame(1); err == nil || err.Error() != first.Error() {
			t.Errorf("a write after half a frame: %v, want the first failure", err)
		}
	})
}

func TestDoEndsWithItsContext(t *testing.T) {
	eachLink(t, func(t *testing.T, near, far *Conn) {
		near.SetDeadline(time.Time{})
		why := errors.New("the caller is bored")
		ctx, cancel := context.WithCancelCause(context.Background())
		reading := make(chan struct{})
		go func() {
			<-reading
			cancel(why)
		}()
		err := near.Do(ctx, func() error {
			close(reading)
			_, _, err := near.ReadHeader(10)
			return err
		})
		if !errors.Is(err, why) {
			t.Errorf("%v, want the context's cause", err)
		}
		if err := near.Do(ctx, func() error { t.Error("called with a context that is done"); return nil }); !errors.Is(err, why) {
			t.Errorf("%v, want the context's cause", err)
		}
		// Without an error the connection goes on.
		live, stop := context.WithCancel(context.Background())
		defer stop()
		far.WriteFrame(4)
		if err := near.Do(live, func() error { _, _, err := near.ReadHeader(0); return err }); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseEndsReadsAndWrites(t *testing.T) {
	eachLink(t, func(t *testing.T, near, far *Conn) {
		started := make(chan struct{}, 2)
		ended := make(chan error, 2)
		go func() {
			started <- struct{}{}
			_, _, err := near.ReadHeader(10)
			ended <- err
		}()
		go func() {
			started <- struct{}{}
			var err error
			for err == nil { // far does not read
				err = near.WriteFrame(1, make([]byte, 1<<20))
			}
			ended <- err
		}()
		<-started
		<-started
		near.Close()
		for range 2 {
			var e *Error
			if err := <-ended; !errors.As(err, &e) || e.Addr == "" {
				t.Errorf("%v, want an *Error with an address", err)
			}
		}
	})
}

func TestPlainBytesPassBetweenFrames(t *testing.T) {
	eachLink(t, func(t *testing.T, near, far *Conn) {
		near.WriteFrame(1, []byte("frame"))
		near.Write([]byte("plain"))
		far.ReadFrame(nil, 10)
		got := make([]byte, 5)
		if _, err := io.ReadFull(far, got); err != nil || string(got) != "plain" {
			t.Errorf("%q %v", got, err)
		}
	})
}

// Whatever is written, in whatever pieces, is read, in whatever pieces.
func TestFramesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		near, far := Pipe("test")
		defer near.Close()
		defer far.Close()
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(0, 3*gatherLimit)), 1, 8).Draw(t, "sizes")
		cuts := rapid.SliceOfN(rapid.IntRange(0, 100), 3, 3).Draw(t, "cuts in percent")
		go func() {
			for i, n := range sizes {
				p := pattern(n, uint64(i))
				at := n * cuts[0] / 100
				near.WriteFrame(byte(i), p[:at], p[at:])
			}
		}()
		for i, n := range sizes {
			kind, size, err := far.ReadHeader(n)
			if err != nil || kind != byte(i) || size != n {
				t.Fatalf("frame %d: kind %d, %d bytes, want %d: %v", i, kind, size, n, err)
			}
			got := make([]byte, n)
			a, b := n*min(cuts[1], cuts[2])/100, n*max(cuts[1], cuts[2])/100
			for _, part := range [][]byte{got[:a], got[a:b], got[b:]} {
				if err := far.ReadPayload(part); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(got, pattern(n, uint64(i))) {
				t.Fatalf("frame %d of %d bytes differs", i, n)
			}
		}
	})
}

// FuzzReadFrame reads arbitrary bytes as frames: it must end, within the
// limits, and give back what the bytes say.
func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{}, 10)
	f.Add(append(appendHeader(nil, 1, 3), "abc"...), 10)
	f.Add(appendHeader(nil, 255, MaxFrame), 1<<30)
	f.Add(append(appendHeader(nil, 0, 0), 1, 2, 3), 0)
	f.Fuzz(func(t *testing.T, data []byte, limit int) {
		near, far := Pipe("fuzz")
		defer far.Close()
		go func() {
			near.Write(data)
			near.Close()
		}()
		rest := data
		for {
			kind, p, err := far.ReadFrame(nil, limit)
			if err != nil {
				return
			}
			if len(p) > limit {
				t.Fatalf("%d bytes, limit %d", len(p), limit)
			}
			again := append(appendHeader(nil, kind, len(p)), p...)
			if !bytes.HasPrefix(rest, again) {
				t.Fatalf("read kind %d and %d bytes, which is not what was written", kind, len(p))
			}
			rest = rest[len(again):]
		}
	})
}
