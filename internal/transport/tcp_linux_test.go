// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The rest of a line before the first probe that is not answered does not count, the time
// since then does, and an answer ends it.
func TestProbedLine(t *testing.T) {
	var l Line
	for _, c := range []struct {
		probes   uint8
		heard    time.Duration
		later    time.Duration // than the look before
		from, to time.Duration // what is counted
	}{
		{0, 3 * time.Second, 0, 0, 0},
		{1, 4 * time.Second, 0, 0, 0},
		{2, 5 * time.Second, time.Second, time.Second, 3 * time.Second},
		{4, 7 * time.Second, 4 * time.Second, 5 * time.Second, 7 * time.Second},
		{0, 0, 0, 0, 0},
		{2, 5 * time.Second, 0, 0, 2 * time.Second},
	} {
		if !l.since.IsZero() {
			l.since = l.since.Add(-c.later)
		}
		if got := l.look(&unix.TCPInfo{Probes: c.probes, Last_ack_recv: uint32(c.heard.Milliseconds())}); got < c.from || got > c.to {
			t.Errorf("%d probes, nothing heard for %v: %v counts, want %v to %v", c.probes, c.heard, got, c.from, c.to)
		}
	}
}

// TestGiveUpAfter: a connection whose peer takes nothing ends in time, through TLS as
// well.
func TestGiveUpAfter(t *testing.T) {
	for _, secure := range []bool{false, true} {
		token := NewToken()
		port, err := Listen("127.0.0.1:0", token)
		if err != nil {
			t.Fatal(err)
		}
		defer port.Close()
		over := make(chan struct{})
		defer close(over)
		port.Handle("deaf", func(c *Conn) {
			<-over
			c.Close()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c, err := Dial(ctx, port.Addr(), "deaf", token, WithTLS(secure))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.GiveUpAfter(500 * time.Millisecond)
		defer context.AfterFunc(ctx, func() { c.Close() })()
		for err == nil {
			err = c.WriteFrame(1, make([]byte, 1<<20))
		}
		if ctx.Err() != nil {
			t.Errorf("TLS %v: after a minute: %v", secure, err)
		}
	}
}
