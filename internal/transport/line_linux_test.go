// SPDX-License-Identifier: Apache-2.0

package transport

import (
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
