// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"testing"
	"time"
)

// TestParkedCalls: a peer has so many calls answered later, and no more; others, and its
// ordinary calls, are served. Those that are given up leave nothing behind.
func TestParkedCalls(t *testing.T) {
	const more = 10
	later := NewMethod[bool, int]("test.later")
	slow := NewMethod[struct{}, int]("test.slow")
	round, resolve := NewFuture[int]()
	made := make(chan struct{})
	a := agents(t, "pipe", 3, serveBasics(),
		ServeAsync(later, func(_ context.Context, now bool) *Future[int] {
			if now {
				return Resolved(1, nil)
			}
			return round
		}),
		Serve(slow, func(context.Context, struct{}) (int, error) {
			<-made
			return 3, nil
		}))
	server := a[1]
	parked := func() int {
		server.parked.mu.Lock()
		defer server.parked.mu.Unlock()
		return server.parked.n
	}
	followed := func() int {
		round.mu.Lock()
		defer round.mu.Unlock()
		return len(round.next.list)
	}
	until := func(what string, is func() bool) {
		t.Helper()
		for by := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(by) {
				t.Fatalf("not so after 20 s: %s; %d parked, %d wait", what, parked(), followed())
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var fs []*Future[int]
	for i := range maxParked + more {
		c := t.Context()
		if i%2 == 0 {
			c = ctx
		}
		fs = append(fs, later.Async(c, a[0].Peer("w1"), false))
	}
	refused := func() (n int) {
		for _, s := range server.Stats().Served {
			if s.Method == later.name {
				n = int(s.Failures)
			}
		}
		return n
	}
	until("the calls have come", func() bool { return refused() >= more && followed() == maxParked })
	if _, err := later.Call(t.Context(), a[0].Peer("w1"), true); KindOf(err) != KindBusy {
		t.Errorf("one more call: %v, want kind %q", err, KindBusy)
	}
	if _, err := noop.Call(t.Context(), a[0].Peer("w1"), struct{}{}); err != nil {
		t.Errorf("an ordinary call of the same peer: %v", err)
	}
	if _, err := later.Call(t.Context(), a[2].Peer("w1"), true); err != nil {
		t.Errorf("a call of another peer: %v", err)
	}

	cancel()
	until("what was given up is forgotten", func() bool { return followed() == parked() && parked() <= maxParked/2+more })
	resolve(2, nil)
	kinds := map[Kind]int{}
	for _, f := range fs {
		v, err := f.Wait(t.Context())
		if err == nil && v != 2 {
			t.Fatalf("an answer is %d", v)
		}
		kinds[KindOf(err)]++
	}
	if n := kinds[""] + kinds[KindBusy] + kinds[KindCanceled]; kinds[KindBusy] != more || n != len(fs) {
		t.Errorf("the calls ended as %v, want %d refused and the others answered or canceled", kinds, more)
	}
	until("all have been answered", func() bool { return parked() == 0 })

	// The value of a reference that has not been made is waited for in the same way.
	ref, err := slow.Remote(t.Context(), a[0].Peer("w1"), struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Release()
	limit, stop := context.WithCancel(t.Context())
	end := make(chan error, 1)
	go func() {
		_, err := ref.ToHere(limit)
		end <- err
	}()
	until("the fetch waits", func() bool { return parked() == 1 })
	stop()
	until("the fetch is forgotten", func() bool { return parked() == 0 })
	close(made)
	if err := <-end; KindOf(err) != KindCanceled {
		t.Errorf("a fetch that was given up: %v", err)
	}
	if v, err := ref.ToHere(t.Context()); v != 3 || err != nil {
		t.Errorf("the value is %d, %v", v, err)
	}
}
