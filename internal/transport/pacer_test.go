// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/loaded"
)

// taken returns how many connections are taken in within a time, of as many as
// like to come, every nth of which is a member's (0: none).
func taken(p *pacer, from time.Time, d time.Duration, every int) (n int) {
	for now := from; now.Before(from.Add(d)); {
		if pause := p.wait(now); pause > 0 {
			now = now.Add(pause)
			continue
		}
		n++
		now = now.Add(20 * time.Microsecond)
		if every > 0 && n%every == 0 {
			p.admitted(now)
		}
	}
	return n
}

// Strangers get a fixed rate however many they are; while members come,
// everybody gets in.
func TestPacer(t *testing.T) {
	now := time.Now()
	p := newPacer(now.Add(-bunch))
	first := taken(&p, now, time.Second, 0)
	if first < strangersPerSec || first > strangersPerSec+strangersAtOnce+1 {
		t.Errorf("%d strangers in the first second", first)
	}
	now = now.Add(time.Second)
	if n := taken(&p, now, 10*time.Second, 0); n < 9*strangersPerSec || n > 10*strangersPerSec+1 {
		t.Errorf("%d strangers in ten seconds, want %d", n, 10*strangersPerSec)
	}
	now = now.Add(10 * time.Second)
	if n := taken(&p, now, time.Second, 10); n < 25_000 {
		t.Errorf("%d connections in a second in which members come too, want all after the first of them", n)
	}
	now = now.Add(time.Second)
	if n := taken(&p, now, 3*time.Second, 1_000_000); n > 60_000 {
		t.Errorf("%d strangers in the three seconds after the last member", n)
	}
	p = newPacer(now)
	if n := taken(&p, now, bunch/2, 0); n < 20_000 {
		t.Errorf("%d connections when a port has just been opened, want all", n)
	}
}

// A member that comes when strangers hold all places of a port, and wait for
// more, gets in within seconds, and the next one at once.
func TestMemberAmongStrangers(t *testing.T) {
	const numStrangers = 200
	p, token := newPort(t, "127.0.0.1:0", handshakeTimeout, numStrangers/4)
	ctx, cancel := context.WithCancel(t.Context())
	var strangers sync.WaitGroup
	var came atomic.Int64
	for range numStrangers {
		strangers.Go(func() {
			for ctx.Err() == nil {
				nc, err := net.Dial("tcp", p.Addr())
				if err != nil {
					continue
				}
				came.Add(1)
				stop := context.AfterFunc(ctx, func() { nc.Close() })
				io.WriteString(nc, magic[:1])
				io.Copy(io.Discard, nc) // until it is turned away
				stop()
				nc.Close()
			}
		})
	}
	defer strangers.Wait()
	defer cancel()
	for came.Load() < numStrangers {
		time.Sleep(time.Millisecond)
	}
	p.pace.mu.Lock()
	p.pace.member = time.Now().Add(-time.Minute)
	p.pace.mu.Unlock()
	for i, limit := range []time.Duration{patience, loaded.Allow(patience / 4)} {
		start := time.Now()
		c, err := Dial(soon(t), p.Addr(), "echo", token)
		for errors.Is(err, ErrRejected) && time.Since(start) < limit { // pushed out before its first words were read
			c, err = Dial(soon(t), p.Addr(), "echo", token)
		}
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		took := time.Since(start)
		t.Logf("member %d is in after %v; %d strangers came, %d were turned away", i, took, came.Load(), p.Refused())
		if took > limit {
			t.Errorf("member %d waited %v", i, took)
		}
	}
}
