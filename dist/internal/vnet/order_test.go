// SPDX-License-Identifier: Apache-2.0

package vnet

import (
	"io"
	"net"
	"runtime"
	"testing"
	"time"
)

// TestOwnTimersComeFirst: what a host does of itself at the instant at which
// something arrives there, it does before.
func TestOwnTimersComeFirst(t *testing.T) {
	const latency = time.Millisecond
	inNetwork(t, Link{Latency: latency}, func(t *testing.T, n *Network) {
		near, far := connect(t, n)
		for i := range 300 {
			if _, err := near.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(latency + 1)
			if far.(*conn).Pending() {
				t.Fatalf("round %d: what arrives was there before", i)
			}
			start := n.Now()
			if _, err := io.ReadFull(far, make([]byte, 1)); err != nil || n.Now() != start {
				t.Fatalf("round %d: what arrives at this instant was read %v later (%v)", i, n.Now()-start, err)
			}
		}
	})
}

// TestRoom: what the peer reads at one instant, in however many pieces, is room
// for one segment.
func TestRoom(t *testing.T) {
	inNetwork(t, Link{}, func(t *testing.T, n *Network) {
		near, far := connect(t, n)
		before := near.(*conn).sent
		write := func(c net.Conn) {
			if _, err := c.Write(make([]byte, window+1000)); err != nil {
				t.Error(err)
			}
		}
		go write(near)
		time.Sleep(time.Millisecond)
		for range 1000 {
			runtime.Gosched() // to who writes
			if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.ReadFull(far, make([]byte, window)); err != nil {
			t.Fatal(err)
		}
		if got := near.(*conn).sent - before; got != window/segmentBytes+2 {
			t.Errorf("%d parcels, want %d segments, one, and a turn", got, window/segmentBytes)
		}
	})
}
