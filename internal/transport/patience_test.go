// SPDX-License-Identifier: Apache-2.0

//go:build linux

package transport

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"
)

// processorTime is what this process has used.
func processorTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// patient makes a connection whose ends both have patience.
func patient(t testing.TB, addr string, p Patience) (near, far *Conn) {
	near, far = connect(t, addr)
	near.SetPatience(p)
	far.SetPatience(p)
	by := time.Now().Add(patience)
	near.SetDeadline(by)
	far.SetDeadline(by)
	return near, far
}

// A wait for a late peer is long past any patience; it must cost little.
func TestALatePeerCostsLittle(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "unix:"} {
		near, far := patient(t, addr, Patience{Spin: 200 * time.Microsecond, Block: 2 * time.Millisecond})
		const late = 100 * time.Millisecond
		// Another process's burst on this machine must not fail the test.
		best := late
		for range 5 {
			before := processorTime(t)
			time.AfterFunc(late, func() { far.WriteFrame(1, []byte("at last")) })
			if _, _, err := near.ReadFrame(nil, 10); err != nil {
				t.Fatal(err)
			}
			best = min(best, processorTime(t)-before)
		}
		if best >= late/10 {
			t.Errorf("%s: waiting %v took %v of processor time, want less than a tenth", addr, late, best)
		}
	}
}

// Deadlines that are set, and a Close, while a read waits in the system end it.
func TestPatienceEnds(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "unix:"} {
		p := Patience{Spin: 100 * time.Microsecond, Block: 20 * time.Millisecond}
		near, far := patient(t, addr, p)
		near.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, _, err := near.ReadHeader(10); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v, want the deadline", addr, err)
		}
		near.SetReadDeadline(time.Time{})
		started, ended := make(chan struct{}), make(chan error)
		go func() {
			close(started)
			_, _, err := near.ReadHeader(10)
			ended <- err
		}()
		<-started
		near.Close()
		if err := <-ended; err == nil {
			t.Errorf("%s: a read on a closed connection succeeded", addr)
		}
		if _, _, err := far.ReadHeader(10); err == nil {
			t.Errorf("%s: the peer of a closed connection read a header", addr)
		}
	}
}

// Long payloads whose bytes come in parts of any size, with pauses that are
// within the patience and beyond it, arrive: a reader that asked to be woken
// for much is not left waiting for little.
func TestPayloadsThatTrickle(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, addr := range []string{"127.0.0.1:0", "unix:"} {
		for _, p := range []Patience{{}, {Block: time.Millisecond}, {Spin: 50 * time.Microsecond, Block: time.Millisecond}} {
			r := rand.New(rand.NewPCG(seed, 2))
			near, far := patient(t, addr, p)
			sizes := []int{3 * wakeBytes, 10, wakeBytes + 1, 0, spinReads + 1, 2*wakeBytes + readAhead}
			var stream, all []byte
			for i, n := range sizes {
				payload := pattern(n, uint64(i))
				all = append(all, payload...)
				stream = append(appendHeader(stream, byte(i), n), payload...)
			}
			go func() {
				for len(stream) > 0 {
					n := min(len(stream), []int{1, 7, 100, 5000, 100_000, 1 << 20}[r.IntN(6)])
					if _, err := far.Write(stream[:n]); err != nil {
						t.Error(err)
						return
					}
					stream = stream[n:]
					time.Sleep(time.Duration(r.IntN(1500)) * time.Microsecond)
				}
			}()
			for i, n := range sizes {
				kind, got, err := near.ReadFrame(nil, n)
				if err != nil || int(kind) != i || !bytes.Equal(got, all[:n]) {
					t.Fatalf("%s %+v: frame %d of %d bytes: kind %d, %d bytes, %v", addr, p, i, n, kind, len(got), err)
				}
				all = all[n:]
			}
		}
	}
}
