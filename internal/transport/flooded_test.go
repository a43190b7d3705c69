// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// What a Dial that has run out of time has met is known from its error: nobody, a system that
// makes connections and a process that takes none, or one that has no room. It has
// tried until then, whatever it met.
func TestWhatADialHasMet(t *testing.T) {
	for _, c := range []struct {
		name           string
		meets          func(net.Conn)
		reached, alive bool
	}{
		{"nobody", nil, false, false},
		{"a process that does nothing", func(net.Conn) {}, true, false},
		{"a process without room", func(nc net.Conn) { nc.(*net.TCPConn).SetLinger(0); nc.Close() }, true, true},
	} {
		port, err := HoldPort("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		defer port.Close()
		var accepting sync.WaitGroup
		stop := func() {}
		if c.meets != nil {
			ln, err := net.Listen("tcp", port.Addr())
			if err != nil {
				t.Fatal(err)
			}
			stop = func() { ln.Close() }
			accepting.Go(func() {
				for nc, err := ln.Accept(); err == nil; nc, err = ln.Accept() {
					defer nc.Close()
					c.meets(nc)
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), rejectPatience*3)
		tries := 0
		_, err = Dial(ctx, port.Addr(), "echo", NewToken(), WithFailures(func(error) { tries++ }))
		cancel()
		stop()
		accepting.Wait()
		if !errors.Is(err, context.DeadlineExceeded) || Reached(err) != c.reached || Alive(err) != c.alive || tries == 0 {
			t.Errorf("%s: %v after %d failures: reached %v, alive %v", c.name, err, tries, Reached(err), Alive(err))
		}
		if c.alive && !isReset(err) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A peer that is busy for longer than a try takes is asked again.
func TestDialOutlastsASlowPeer(t *testing.T) {
	p, token := newPort(t, "127.0.0.1:0", patience, 10)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var relays sync.WaitGroup
	defer relays.Wait()
	relays.Go(func() {
		first, err := ln.Accept() // and says nothing
		if err != nil {
			t.Error(err)
			return
		}
		defer first.Close()
		near, err := ln.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer near.Close()
		far, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Error(err)
			return
		}
		defer far.Close()
		hello := make([]byte, helloSize)
		for _, hop := range []struct {
			from, to net.Conn
			n        int
		}{{near, far, helloSize}, {far, near, challengeSize}, {near, far, proofSize}, {far, near, verdictSize}} {
			hop.from.SetDeadline(time.Now().Add(patience))
			for n := 0; n < hop.n; {
				k, err := hop.from.Read(hello[:min(len(hello), hop.n-n)])
				if err != nil {
					t.Error(err)
					return
				}
				n += k
				if _, err := hop.to.Write(hello[:k]); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	var met []error
	c, err := Dial(soon(t), ln.Addr().String(), "echo", token, WithFailures(func(err error) { met = append(met, err) }))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if len(met) != 1 || !errors.Is(met[0], os.ErrDeadlineExceeded) {
		t.Errorf("met %v, want one try without an answer", met)
	}
}

// A listener that hangs up because it ends, before one that has ended so, is no refusal: between the
// two nobody was there.
func TestDialOutlastsListenersThatEnd(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := ln.Addr().String()
	hangUp := func(ln net.Listener) {
		nc, err := ln.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		io.ReadFull(nc, make([]byte, helloSize)) // else it would be a reset
		ln.Close()
		nc.Close()
	}
	token := NewToken()
	var failures []error
	var since time.Time
	var again net.Listener
	var ending sync.WaitGroup
	ending.Go(func() { hangUp(ln) })
	defer ending.Wait()
	var port *Port
	c, err := Dial(soon(t), at, "echo", token, WithFailures(func(err error) {
		failures = append(failures, err)
		switch {
		case since.IsZero():
			since = time.Now()
		case again == nil && time.Since(since) > 2*rejectPatience:
			if again, err = net.Listen("tcp", at); err == nil {
				ending.Go(func() { hangUp(again) })
			}
		case again != nil && errors.Is(err, ErrRejected):
			if port, err = Listen(at, token); err == nil {
				port.Handle("echo", func(c *Conn) { c.Close() })
			}
		}
	}))
	if port != nil {
		defer port.Close()
	}
	if err != nil {
		t.Fatalf("%v; the tries failed with %v", err, failures)
	}
	c.Close()
}
