// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func TestPipeDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe("test")
		defer near.Close()
		defer far.Close()
		buf := make([]byte, 10)
		began := time.Now()
		near.SetReadDeadline(began.Add(3 * time.Second))
		if _, err := near.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		// A deadline that is moved while a read waits counts from then on.
		began = time.Now()
		near.SetReadDeadline(began.Add(time.Hour))
		time.AfterFunc(time.Second, func() { near.SetReadDeadline(began.Add(2 * time.Second)) })
		if _, err := near.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		near.SetReadDeadline(time.Time{})
		time.AfterFunc(time.Hour, func() { far.Write([]byte("late")) })
		if n, err := near.Read(buf); n != 4 || err != nil {
			t.Error(n, err)
		}
		// A deadline bounds one direction only.
		near.SetReadDeadline(time.Now())
		if _, err := near.Write([]byte("x")); err != nil {
			t.Error(err)
		}
	})
}

func TestPipeAfterClose(t *testing.T) {
	near, far := Pipe("test")
	far.Write([]byte("last words"))
	far.Close()
	got, err := io.ReadAll(near)
	if string(got) != "last words" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	if _, err := near.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("write to a closed peer: %v", err)
	}
	near.Close()
	if _, err := near.nc.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after Close: %v", err)
	}
	if _, err := near.nc.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after Close: %v", err)
	}
}

// The ring gives out what was put in, whatever the sizes.
func TestStreamProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStream()
		var model []byte
		next := byte(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			n := rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(0, pipeStart*3)).Draw(t, "n")
			if rapid.Bool().Draw(t, "write") {
				n = min(n, pipeLimit-len(model))
				p := make([]byte, n)
				for i := range p {
					p[i] = next
					next++
				}
				if got, err := s.write(p); got != n || err != nil {
					t.Fatal(got, err)
				}
				model = append(model, p...)
			} else if len(model) > 0 {
				p := make([]byte, n)
				got, err := s.read(p)
				if want := min(n, len(model)); got != want || err != nil {
					t.Fatalf("read %d of %d: %d, %v", n, len(model), got, err)
				}
				if !bytes.Equal(p[:got], model[:got]) {
					t.Fatal("other bytes came out")
				}
				model = model[got:]
			}
		}
	})
}
