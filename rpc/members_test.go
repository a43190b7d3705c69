// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
)

// TestListsDiffer: agents that were given the same peers in another order, or not the
// same, do not work with ranks that mean different agents.
func TestListsDiffer(t *testing.T) {
	list := []PeerAddr{{"a", "unix:" + t.TempDir() + "/a"}, {"b", "unix:" + t.TempDir() + "/b"}}
	third := PeerAddr{"c", "unix:" + t.TempDir() + "/c"}
	for name, other := range map[string][]PeerAddr{
		"order": {list[1], list[0]},
		"more":  {list[0], list[1], third},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := Init(t.Context(), "a", WithToken(agenttest.Token), WithPeers(list), serveBasics())
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			b, err := Init(t.Context(), "b", WithToken(agenttest.Token), WithPeers(other), serveBasics())
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			for _, p := range []*Peer{a.Peer("b"), b.Peer("a")} {
				_, err := noop.Call(t.Context(), p, struct{}{})
				if KindOf(err) != KindMembers || !strings.Contains(err.Error(), "lists of WithPeers differ") {
					t.Errorf("a call to %v: %v; want kind %q and why", p, err, KindMembers)
				}
			}
		})
	}
	if _, err := Init(t.Context(), "d", WithToken(agenttest.Token), WithPeers(list)); err == nil || !strings.Contains(err.Error(), "it has a, b") {
		t.Errorf("an agent that is not in its own list: %v; want whom the list has", err)
	}
}

// TestNobodyThere: a call to an address at which nobody listens tries until its limit,
// and then says what it found.
func TestNobodyThere(t *testing.T) {
	t.Setenv("COHORT_TRANSPORT", "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr().String()
	l.Close()
	a, err := Init(t.Context(), "a", WithToken(agenttest.Token), WithPeers([]PeerAddr{{"a", "127.0.0.1:0"}, {"b", gone}}))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := noop.Call(ctx, a.Peer("b"), struct{}{}); KindOf(err) != KindUnreachable || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("a call to nobody: %v; want kind %q and what the last try found", err, KindUnreachable)
	}
}

// TestSizesDiffer: who comes to a store with another size than the first is told at
// once.
func TestSizesDiffer(t *testing.T) {
	mem := store.NewMemory()
	common := []Option{WithToken(agenttest.Token), WithNetwork(NewNetwork())}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	first := make(chan error, 1)
	go func() {
		_, err := Init(ctx, "w0", slices.Concat(common, []Option{WithStore(mem, 0, 2)})...)
		first <- err
	}()
	if _, err := mem.Get(ctx, agentKeyOf(0)); err != nil {
		t.Fatal(err)
	}
	_, err := Init(ctx, "w1", slices.Concat(common, []Option{WithStore(mem, 1, 3)})...)
	if KindOf(err) != KindMembers || !strings.Contains(err.Error(), "w0") || ctx.Err() != nil {
		t.Errorf("an agent of 3 beside one of 2: %v; want kind %q and the other's name", err, KindMembers)
	}
	cancel()
	if err := <-first; err == nil {
		t.Error("the first one met somebody")
	}
}
