// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"
)

func TestHoldPort(t *testing.T) {
	p, err := HoldPort("127.0.0.1")
	if err != nil || p.Port() < firstHeldPort || p.Port() > lastHeldPort || p.Addr() != net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port())) {
		t.Fatalf("%+v, %v", p, err)
	}
	defer p.Close()
	l, err := net.Listen("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := CanListen("127.0.0.1", p.Port()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port that is listened on: %v", err)
	}
	if p, err := HoldPort("192.0.2.1"); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("an address of another machine: %+v, %v", p, err)
	}
	(*HeldPort)(nil).Close()
}

// TestHeldPortIsLetGo: a port that was let go can be held again.
func TestHeldPortIsLetGo(t *testing.T) {
	for range 16 { // another process may be faster
		p, err := HoldPort("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		p.Close()
		if p, err = holdPortOf("127.0.0.1", p.Port(), p.Port()); err == nil {
			p.Close()
			return
		}
	}
	t.Error("16 ports that were held cannot be held again")
}
