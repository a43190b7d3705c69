// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/transport"
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
	nobody, err := transport.HoldPort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	a, err := Init(t.Context(), "a", WithToken(agenttest.Token), WithPeers([]PeerAddr{{"a", "127.0.0.1:0"}, {"b", nobody.Addr()}}))
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
	if _, err := mem.Get(ctx, "agent/0"); err != nil {
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

// TestTwoOfOneName: of two processes of a list that say that they are the same member,
// the one at its address is; the other is told so, and so is one at whose address
// nobody answers.
func TestTwoOfOneName(t *testing.T) {
	t.Setenv("COHORT_TRANSPORT", "")
	address := func() string {
		t.Helper()
		p, err := transport.HoldPort("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p.Addr()
	}
	agent := func(name string, list []PeerAddr, opts ...Option) *Agent {
		t.Helper()
		a, err := Init(t.Context(), name, append(opts, WithToken(agenttest.Token), WithPeers(list), serveBasics())...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Close() })
		return a
	}
	for _, at := range []func(name string) string{
		func(string) string { return address() },
		func(name string) string { return "unix:" + t.TempDir() + "/" + name },
	} {
		list := []PeerAddr{{"a", at("a")}, {"b", at("b")}}
		elsewhere := WithListen("127.0.0.1:0")
		server, impostor := agent("b", list), agent("a", list, elsewhere)
		if _, err := noop.Call(t.Context(), impostor.Peer("b"), struct{}{}); KindOf(err) != KindUnreachable || !strings.Contains(err.Error(), "cannot be proven") {
			t.Errorf("%s: a call in the name of a member that is not there: %v, want kind %q", list[0].Addr, err, KindUnreachable)
		}
		member := agent("a", list)
		if _, err := noop.Call(t.Context(), member.Peer("b"), struct{}{}); err != nil {
			t.Errorf("%s: the member's call: %v", list[0].Addr, err)
		}
		if _, err := noop.Call(t.Context(), server.Peer("a"), struct{}{}); err != nil {
			t.Errorf("%s: a call to the member: %v", list[0].Addr, err)
		}
		_, err := noop.Call(t.Context(), impostor.Peer("b"), struct{}{})
		if KindOf(err) != KindNameTaken || !strings.Contains(err.Error(), list[0].Addr) {
			t.Errorf("%s: a call in the name of another process: %v; want kind %q and where that is", list[0].Addr, err, KindNameTaken)
		}
	}
}
