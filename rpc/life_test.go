// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/rpc/internal/link"
	"github.com/cohort-ml/cohort/rpc/internal/rref"
)

// lives starts a server and, as often as a test wants, another process of its peer, both
// behind proxies.
func lives(t *testing.T, opts ...Option) (server *Agent, begin func() *Agent, between [2]*agenttest.Proxy) {
	t.Setenv("COHORT_TRANSPORT", "tcp")
	var list []PeerAddr
	for i, name := range []string{"server", "worker"} {
		between[i] = agenttest.NewProxy(t)
		list = append(list, PeerAddr{name, between[i].Address()})
	}
	start := func(i int) *Agent {
		a, err := Init(t.Context(), list[i].Name, append(opts, WithToken(agenttest.Token), WithPeers(list), WithListen("127.0.0.1:0"), serveBasics())...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Close() })
		between[i].To(a.Addr())
		return a
	}
	return start(0), func() *Agent { return start(1) }, between
}

// TestTheNextLife: a process is started again while the end of the one before, and its
// last words, are still on their way. Calls back to it, and references that it has, are
// the new one's.
func TestTheNextLife(t *testing.T) {
	back := NewMethod[struct{}, struct{}]("test.back")
	server, begin, between := lives(t, append(refHandlers(nil), Serve(back, func(ctx context.Context, _ struct{}) (struct{}, error) {
		return noop.Call(ctx, Caller(ctx), struct{}{})
	}))...)
	refer := func(a *Agent, x int) *RRef[int] {
		t.Helper()
		if _, err := back.Call(t.Context(), a.Peer("server"), struct{}{}); err != nil {
			t.Errorf("a call back: %v", err)
		}
		r, err := refAdd.Remote(t.Context(), a.Peer("server"), [2]int{x, x})
		if err != nil {
			t.Fatal(err)
		}
		want(t, r, 2*x)
		return r
	}
	links := func() (all []*link.ServerConn) {
		for _, c := range serversOf(server) {
			if c.peer.rank == 1 { // not one that asks who is there
				all = append(all, c.ServerConn)
			}
		}
		return all
	}
	first := begin()
	refer(first, 1)
	before := links()[0]
	letGo, letGoBack := between[0].Hold(), between[1].Hold()
	leave := encodeNotes(first.refs.instance, []rref.Message{{Kind: rref.KindLeave}})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := begin()
	r := refer(second, 2)
	letGo()
	letGoBack()
	server.refs.take(before, leave) // as if it had been read before
	agenttest.Eventually(t, "the connections of the first process are over", func() bool {
		all := links()
		return len(all) == 1 && all[0] != before
	})
	want(t, r, 4)
	r.Release()
	agenttest.Eventually(t, "the second process has no references", func() bool { return second.References().Held == 0 })
}

// TestCallsBackWhileConnecting: the agent has begun to connect to a process when another
// takes that one's place. Who calls the new one does not get the error of the old one.
func TestCallsBackWhileConnecting(t *testing.T) {
	back := NewMethod[struct{}, struct{}]("test.back")
	calling := make(chan struct{}, 1)
	server, begin, between := lives(t, Serve(back, func(ctx context.Context, _ struct{}) (struct{}, error) {
		calling <- struct{}{}
		return noop.Call(ctx, Caller(ctx), struct{}{})
	}))
	first := begin()
	if _, err := noop.Call(t.Context(), first.Peer("server"), struct{}{}); err != nil {
		t.Fatal(err)
	}
	first.Close()
	token, err := transport.ParseToken(agenttest.Token)
	if err != nil {
		t.Fatal(err)
	}
	mute, err := transport.Listen("127.0.0.1:0", token)
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	accepted := make(chan *transport.Conn, 1)
	mute.Handle("rpc", func(c *transport.Conn) { accepted <- c })
	between[1].To(mute.Addr())
	call := noop.Async(t.Context(), server.Peer("worker"), struct{}{})
	conn := <-accepted // and says nothing
	second := begin()
	callBack := back.Async(t.Context(), second.Peer("server"), struct{}{})
	<-calling
	agenttest.Eventually(t, "the server calls", func() bool { return server.end.Calling.Load() == 1 })
	conn.Close()
	if _, err := callBack.Wait(t.Context()); err != nil {
		t.Errorf("a call back: %v", err)
	}
	if _, err := call.Wait(t.Context()); err != nil {
		t.Errorf("the call that was made before: %v", err)
	}
}

// serversOf returns what answers the connections on which others call an agent.
func serversOf(a *Agent) (all []*server) {
	for _, s := range a.end.Servers() {
		all = append(all, s.(*server))
	}
	return all
}

// want fails the test if a reference is to another value.
func want(t *testing.T, r *RRef[int], x int) {
	t.Helper()
	if got, err := r.ToHere(t.Context()); err != nil || got != x {
		t.Errorf("the reference is to %d, %v; want %d", got, err, x)
	}
}

// TestShutdownOfTheNextLife: who called Shutdown and was killed before the others came
// has not called it for the process that takes its place.
func TestShutdownOfTheNextLife(t *testing.T) {
	server, begin, _ := lives(t)
	first := begin()
	ctx, kill := context.WithCancel(t.Context())
	end := make(chan error, 1)
	go func() { end <- first.Shutdown(ctx) }()
	came := func() int {
		server.rounds.mu.Lock()
		defer server.rounds.mu.Unlock()
		if r := server.rounds.all[0]; r != nil {
			return len(r.came)
		}
		return 0
	}
	agenttest.Eventually(t, "the first process has come", func() bool { return came() == 1 })
	kill()
	if err := <-end; err == nil {
		t.Error("the first process left in good order")
	}
	second := begin()
	if _, err := noop.Call(t.Context(), second.Peer("server"), struct{}{}); err != nil {
		t.Fatal(err)
	}
	soon, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	go func() { end <- server.Shutdown(soon) }()
	if err := second.Shutdown(soon); err != nil {
		t.Errorf("the second process: %v", err)
	}
	if err := <-end; err != nil {
		t.Errorf("the server: %v", err)
	}
}
