// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"net"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// TestHoldPortsAtOnce: those who choose at the same time choose differently, and all can
// listen.
func TestHoldPortsAtOnce(t *testing.T) {
	const num = 32
	var chosen [num]*HeldPort
	var choosing sync.WaitGroup
	for i := range chosen {
		choosing.Go(func() {
			var err error
			if chosen[i], err = holdPortOf("127.0.0.1", firstHeldPort, firstHeldPort+4*num-1); err != nil {
				t.Error(err)
			}
		})
	}
	choosing.Wait()
	for _, p := range chosen {
		defer p.Close()
		if p == nil {
			continue
		}
		l, err := net.Listen("tcp", p.Addr())
		if err != nil {
			t.Error(err)
			continue
		}
		defer l.Close()
	}
}

// TestHeldPortIsListenedAt: whoever listens at a held port may choose any address of this
// machine, and nobody else gets the port.
func TestHeldPortIsListenedAt(t *testing.T) {
	p, err := HoldPort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	refused := func(when string) {
		t.Helper()
		if q, err := holdPortOf("127.0.0.1", p.Port(), p.Port()); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s, the port can be held again: %v", when, err)
			q.Close()
		}
	}
	refused("before")
	for _, at := range []string{"127.0.0.1", "0.0.0.0", "", "::", "::1"} {
		l, err := net.Listen("tcp", net.JoinHostPort(at, strconv.Itoa(p.Port())))
		if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
			continue // there is no IPv6
		}
		if err != nil {
			t.Errorf("nobody can listen at %q: %v", at, err)
			continue
		}
		refused("while there is a listener at " + at)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		refused("after a listener at " + at)
	}
}

// TestHeldPortBesideForks: a port that is held can be listened at, though this process starts
// others all the time, which have copies of its sockets for a moment.
func TestHeldPortBesideForks(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	defer starting.Wait()
	defer stop()
	for range 2 {
		starting.Go(func() {
			for ctx.Err() == nil {
				_ = exec.Command("/bin/true").Run()
			}
		})
	}
	for range 300 {
		p, err := HoldPort("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", p.Addr())
		if err != nil {
			p.Close()
			t.Fatal(err)
		}
		l.Close()
		p.Close()
	}
}
