// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// linkOf returns what is below a connection through shared memory.
func linkOf(c *Conn) *memoryLink { return c.nc.(*memoryLink) }

// A reader is found in all the ways in which it waits: looking, asleep in the
// system (or, where this goroutine is late, after that), parked in the poller.
func TestSharedWaits(t *testing.T) {
	near, far := connectShared(t)
	got := make(chan byte)
	go func() {
		for {
			kind, _, err := far.ReadFrame(nil, 100)
			if err != nil {
				close(got)
				return
			}
			got <- kind
		}
	}()
	await := func(state uint32) {
		word := &linkOf(far).in.control.reader
		for end := time.Now().Add(patience); word.Load() < state; runtime.Gosched() {
			if time.Now().After(end) {
				t.Fatalf("the reader is never %d", state)
			}
		}
	}
	for i := range byte(30) {
		switch i % 3 {
		case 1:
			await(asleep)
		case 2:
			await(parked)
		}
		if err := near.WriteFrame(i); err != nil {
			t.Fatal(err)
		}
		if kind := <-got; kind != i {
			t.Fatalf("frame %d came, want %d", kind, i)
		}
	}
	await(parked)
	near.Close()
	if _, more := <-got; more {
		t.Error("a frame came after the end")
	}
}

// A deadline and Close end a reader and a writer that wait, however they do.
func TestSharedInterrupt(t *testing.T) {
	for _, wait := range []time.Duration{0, lookTime, blockTime, 5 * blockTime} {
		for _, how := range []string{"deadline", "close", "peer"} {
			near, far := connectShared(t)
			result := make(chan error, 2)
			go func() {
				_, err := near.Read(make([]byte, 10))
				result <- err
			}()
			go func() {
				p := make([]byte, ringSize)
				for {
					if _, err := near.Write(p); err != nil {
						result <- err
						return
					}
				}
			}()
			for begin := time.Now(); time.Since(begin) < wait; {
			}
			switch how {
			case "deadline":
				near.SetDeadline(time.Unix(1, 0))
			case "close":
				near.Close()
			case "peer":
				far.Close()
			}
			for range 2 {
				var err error
				select {
				case err = <-result:
				case <-time.After(patience):
					t.Fatalf("%s after %v ends no wait", how, wait)
				}
				ok := errors.Is(err, map[string]error{"deadline": os.ErrDeadlineExceeded, "close": net.ErrClosed}[how])
				if how == "peer" {
					ok = errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE)
				}
				if !ok {
					t.Errorf("%s after %v: %v", how, wait, err)
				}
			}
		}
	}
}

// A deadline that is taken back leaves a connection that works.
func TestSharedDeadlineAgain(t *testing.T) {
	near, far := connectShared(t)
	far.SetReadDeadline(time.Now().Add(2 * time.Millisecond))
	if _, _, err := far.ReadHeader(10); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	far.SetReadDeadline(time.Time{})
	go near.WriteFrame(7)
	if kind, _, err := far.ReadHeader(10); err != nil || kind != 7 {
		t.Error(kind, err)
	}
}

// A peer that writes what it likes into the memory ends the connection with an
// error, or makes it wait, but does nothing else.
func TestSharedLiar(t *testing.T) {
	const seed = 1
	r := rand.New(rand.NewPCG(seed, 0))
	t.Log("seed", seed)
	for round := range 60 {
		near, far := connectShared(t)
		near.SetDeadline(time.Now().Add(20 * time.Millisecond))
		liar := linkOf(far)
		words := []func(uint64){
			liar.out.control.written.Store, liar.in.control.taken.Store, liar.in.control.written.Store, liar.out.control.taken.Store,
			func(v uint64) { liar.out.control.loan.number.Store(uint32(v)) }, liar.out.control.loan.at.Store, liar.out.control.loan.addr.Store,
			liar.out.control.loan.size.Store, func(v uint64) { liar.in.control.loan.ended.Store(uint32(v)) }, liar.in.control.loan.taken.Store,
			func(v uint64) { liar.in.control.loan.wanted.Store(uint32(v)) },
			func(v uint64) { liar.in.control.reader.Store(uint32(v)) }, func(v uint64) { liar.out.control.writer.Store(uint32(v)) },
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			buf := make([]byte, 2*lendFrom)
			for {
				if _, _, err := near.ReadFrame(buf, len(buf)); err != nil {
					return
				}
			}
		}()
		lies := make(chan struct{})
		go func() {
			defer close(lies)
			for range 2000 {
				v := r.Uint64()
				if r.IntN(2) == 0 {
					v >>= r.IntN(64)
				}
				words[r.IntN(len(words))](v)
				if r.IntN(8) == 0 {
					copy(liar.out.data[r.IntN(ringSize):], pattern(16, v))
				}
			}
		}()
		p := make([]byte, 2*lendFrom)
		for near.WriteFrame(1, p) == nil {
		}
		<-lies
		<-done
		near.Close()
		far.Close()
		if round == 0 {
			near, far := connectShared(t)
			linkOf(far).out.control.written.Store(ringSize + 1)
			if _, _, err := near.ReadHeader(10); !errors.Is(err, errLying) {
				t.Errorf("bytes beyond the ring: %v", err)
			}
			linkOf(far).in.control.taken.Store(5 * ringSize)
			if _, err := near.Write(make([]byte, 2*ringSize)); !errors.Is(err, errLying) {
				t.Errorf("more taken than was put: %v", err)
			}
		}
	}
}

// AcceptShared takes no descriptor that may be taken from under it, nor other frames.
func TestSharedRefused(t *testing.T) {
	memfd := func(size int64, flags, seals int) int {
		fd, err := unix.MemfdCreate("test", flags)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		if seals != 0 {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
				t.Fatal(err)
			}
		}
		return fd
	}
	for _, c := range []struct {
		name, want string
		offer      func(near *Conn) error
	}{
		{"shrinkable", "may change its size", func(c *Conn) error {
			fd := memfd(linkSize, unix.MFD_ALLOW_SEALING, 0)
			defer unix.Close(fd)
			return c.SendFD(frameMemory, fd, []byte{memoryVersion})
		}},
		{"short", "bytes, want", func(c *Conn) error {
			fd := memfd(4096, unix.MFD_ALLOW_SEALING, sizeSeals)
			defer unix.Close(fd)
			return c.SendFD(frameMemory, fd, []byte{memoryVersion})
		}},
		{"read only", "map the peer's", func(c *Conn) error {
			fd := memfd(linkSize, unix.MFD_ALLOW_SEALING, sizeSeals|unix.F_SEAL_WRITE)
			defer unix.Close(fd)
			return c.SendFD(frameMemory, fd, []byte{memoryVersion})
		}},
		{"a file", "no memory file", func(c *Conn) error {
			f, err := os.Open("/dev/null")
			if err != nil {
				return err
			}
			defer f.Close()
			return c.SendFD(frameMemory, int(f.Fd()), []byte{memoryVersion})
		}},
		{"no descriptor", "no descriptor came", func(c *Conn) error { return c.WriteFrame(frameMemory, []byte{memoryVersion}) }},
		{"version", "want shared memory of version", func(c *Conn) error { return c.WriteFrame(frameMemory, []byte{memoryVersion + 1}) }},
		{"long", "longer than", func(c *Conn) error { return c.WriteFrame(frameMemory, make([]byte, 17)) }},
		{"silence", "deadline exceeded", func(*Conn) error { return nil }},
	} {
		near, far := connect(t, "unix:")
		if err := c.offer(near); err != nil {
			t.Fatal(err)
		}
		limit := patience
		if c.name == "silence" {
			limit = time.Second / 5
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		if _, err := AcceptShared(ctx, far); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		cancel()
	}
	near, _ := connect(t, "127.0.0.1:0")
	if _, err := AcceptShared(context.Background(), near); !errors.Is(err, errNoMemory) {
		t.Errorf("TCP: %v", err)
	}
}

// A process that is killed is noticed at once, by a reader, and by a writer that
// waits for room.
func TestSharedPeerKilled(t *testing.T) {
	token := NewToken()
	p, err := Listen("unix:", token)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	arrived := make(chan *Conn, 1)
	p.Handle("test", func(c *Conn) {
		if c, err := AcceptShared(ctx, c); err != nil {
			t.Error(err)
		} else {
			arrived <- c
		}
	})
	cmd := exec.Command(os.Args[0], sharedArg, p.Addr(), token.Text())
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := <-arrived
	defer c.Close()
	if _, payload, err := c.ReadFrame(nil, 100); err != nil || !bytes.Equal(payload, []byte("here")) {
		t.Fatal(payload, err)
	}
	result := make(chan error, 2)
	go func() {
		_, _, err := c.ReadFrame(nil, 100)
		result <- err
	}()
	go func() {
		for {
			if err := c.WriteFrame(1, make([]byte, ringSize)); err != nil {
				result <- err
				return
			}
		}
	}()
	for linkOf(c).in.control.reader.Load() != parked || linkOf(c).out.control.writer.Load() != asleep {
		runtime.Gosched()
	}
	killed := time.Now()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-result; !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EPIPE) {
			t.Error(err)
		}
	}
	if took := time.Since(killed); took > 10*time.Second {
		t.Errorf("noticed after %v", took)
	}
	_ = cmd.Wait()
}
