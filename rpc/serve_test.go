// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	gather = NewMethod[int, int]("test.gather")
	slow   = NewMethod[time.Duration, int]("test.slow")
	relay  = NewMethod[[]string, string]("test.relay")
	who    = NewMethod[struct{}, string]("test.who")
)

// TestServeAsync: a batch is answered when its last member has come, whatever the
// number of handlers that may run.
func TestServeAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		sum, num := 0, 0
		f, resolve := NewFuture[int]()
		a := agents(t, "pipe", 4, WithConcurrency(1), ServeAsync(gather, func(_ context.Context, n int) *Future[int] {
			mu.Lock()
			defer mu.Unlock()
			sum += n
			if num++; num == 8 {
				resolve(sum, nil)
			}
			return f
		}))
		var fs []*Future[int]
		for i := range 8 {
			fs = append(fs, gather.Async(t.Context(), a[i%4].Peer("w2"), i))
		}
		values, err := WaitAll(t.Context(), fs...)
		if got := fmt.Sprint(values); err != nil || got != "[28 28 28 28 28 28 28 28]" {
			t.Errorf("%s, %v", got, err)
		}
	})
}

// TestConcurrency: no more handlers run at once than allowed, and all run.
func TestConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most [2]atomic.Int64
		serve := func(i int) func(context.Context, time.Duration) (int, error) {
			return func(_ context.Context, d time.Duration) (int, error) {
				most[i].Store(max(most[i].Load(), running[i].Add(1)))
				time.Sleep(d)
				running[i].Add(-1)
				return i, nil
			}
		}
		one := NewMethod[time.Duration, int]("test.one")
		a := agents(t, "pipe", 2, WithConcurrency(10), Serve(slow, serve(0)), Serve(one, serve(1), WithMethodConcurrency(1)))
		began := time.Now()
		var fs []*Future[int]
		for range 100 {
			fs = append(fs, slow.Async(t.Context(), a[0].Peer("w1"), time.Second))
		}
		for range 5 {
			fs = append(fs, one.Async(t.Context(), a[0].Peer("w1"), time.Second))
		}
		if _, err := WaitAll(t.Context(), fs...); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 10*time.Second || most[0].Load() != 10 || most[1].Load() != 1 {
			t.Errorf("%v for 100 calls of 1 s, of which %d ran at once, and of another method %d", took, most[0].Load(), most[1].Load())
		}
	})
}

// TestNested: handlers call on, and an error says the way it came.
func TestNested(t *testing.T) {
	a := agents(t, "pipe", 3, Serve(relay, func(ctx context.Context, way []string) (string, error) {
		me := AgentOf(ctx)
		if len(way) == 0 {
			return "", fmt.Errorf("the end, called by %s", Caller(ctx).Name())
		}
		return relay.Call(ctx, me.Peer(way[0]), way[1:])
	}))
	_, err := relay.Call(t.Context(), a[0].Peer("w1"), []string{"w2", "w0", "w0"})
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(e.Msg, "the end, called by w0") || e.Peer != "w1" {
		t.Fatalf("%v", err)
	}
	var order []string
	for line := range strings.Lines(e.Stack) {
		order = append(order, line[:2])
	}
	if got := strings.Join(order, " "); got != "w0 w0 w2 w1" {
		t.Errorf("the stack leads through %s:\n%s", got, e.Stack)
	}
}

// TestCancelCrosses: the end of a call ends its handler's context.
func TestCancelCrosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 10)
		a := agents(t, "pipe", 2, Serve(wait, func(ctx context.Context, _ struct{}) (struct{}, error) {
			<-ctx.Done()
			ended <- fmt.Errorf("%w: %w", ctx.Err(), context.Cause(ctx))
			return struct{}{}, ctx.Err()
		}))
		p := a[0].Peer("w1")
		ctx, cancel := context.WithCancel(t.Context())
		f := wait.Async(ctx, p, struct{}{})
		synctest.Wait()
		cancel()
		if _, err := f.Wait(t.Context()); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		began := time.Now()
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := wait.Call(soon, p, struct{}{}); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		f = wait.Async(t.Context(), p, struct{}{})
		synctest.Wait()
		began = time.Now()
		if _, err := f.Wait(t.Context()); KindOf(err) != KindTimeout || time.Since(began) != DefaultTimeout {
			t.Errorf("a peer that never answers: %v after %v", err, time.Since(began))
		}
		if err := <-ended; err == nil {
			t.Error("the handler's context ended without a reason")
		}
		f = wait.Async(t.Context(), p, struct{}{})
		synctest.Wait()
		a[0].Close()
		if _, err := f.Wait(t.Context()); KindOf(err) != KindClosed {
			t.Errorf("a call of an agent that was closed: %v", err)
		}
		if err := <-ended; !strings.Contains(err.Error(), "the connection of w0 has ended") {
			t.Error(err)
		}
	})
}

// TestDeath: calls to an agent that ends fail at once, and calls after that too.
func TestDeath(t *testing.T) {
	agenttest.Over(t, func(t *testing.T, kind string) {
		a := agents(t, kind, 2, serveBasics())
		lost := make(chan *Peer, 4)
		a[0].OnPeerLost(func(p *Peer, err error) { lost <- p })
		var f *Future[struct{}]
		for range 2 { // the second time it is on its way
			if _, err := noop.Call(t.Context(), a[0].Peer("w1"), struct{}{}); err != nil {
				t.Fatal(err)
			}
			f = wait.Async(t.Context(), a[0].Peer("w1"), struct{}{})
		}
		a[1].Close()
		if _, err := f.Wait(t.Context()); KindOf(err) != KindLost && KindOf(err) != KindCanceled && KindOf(err) != KindClosed {
			t.Errorf("a call under way: %v", err)
		}
		if p := <-lost; p.Name() != "w1" {
			t.Errorf("%v was lost", p)
		}
		began := time.Now()
		_, err := noop.Call(t.Context(), a[0].Peer("w1"), struct{}{})
		if k := KindOf(err); k != KindUnreachable && k != KindLost || time.Since(began) > 20*time.Second {
			t.Errorf("a call after the end: %v after %v", err, time.Since(began))
		}
	})
}

func TestNameTaken(t *testing.T) {
	mem := store.NewMemory()
	network := NewNetwork()
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan struct{})
	go func() {
		defer close(first)
		_, _ = Init(ctx, "same", WithNetwork(network), WithStore(mem, 0, 2))
	}()
	defer func() { cancel(); <-first }()
	if err := mem.Wait(t.Context(), "agent/0"); err != nil {
		t.Fatal(err)
	}
	_, err := Init(t.Context(), "same", WithNetwork(network), WithStore(mem, 1, 2))
	if KindOf(err) != KindNameTaken || !strings.Contains(err.Error(), `the name "same" is taken by process`) {
		t.Errorf("a name that is taken: %v", err)
	}
	_, err = Init(t.Context(), "other", WithNetwork(network), WithStore(mem, 0, 2))
	if KindOf(err) != KindNameTaken || !strings.Contains(err.Error(), "rank 0 is taken") {
		t.Errorf("a rank that is taken: %v", err)
	}
	soon, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	if _, err := Init(soon, "third", WithNetwork(network), WithStore(store.Prefix(mem, "third/"), 1, 3)); err == nil || !strings.Contains(err.Error(), "rank 0, 2 have not come") {
		t.Errorf("an agent that does not come: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for name, opts := range map[string][]Option{
		"nil":         {nil},
		"two meeting": {WithStore(store.NewMemory(), 0, 1), WithPeers([]PeerAddr{{"a", "127.0.0.1:1"}})},
		"rank":        {WithStore(store.NewMemory(), 2, 2)},
		"twice":       {serveBasics(), serveBasics()},
		"codes":       {WithError("a", errSentinel), WithError("a", errSentinel)},
		"not there":   {WithToken(agenttest.Token), WithPeers([]PeerAddr{{"b", "127.0.0.1:1"}})},
		"concurrency": {Serve(noop, func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil }, WithMethodConcurrency(0))},
		"size":        {WithMaxMessage(1)},
		"listen":      {WithListen("nowhere")},
		"token":       {WithToken("x")},
	} {
		if a, err := Init(t.Context(), "a", opts...); err == nil {
			t.Errorf("%s: no error", name)
			a.Close()
		}
	}
	if _, err := Init(t.Context(), "a b"); err == nil {
		t.Error("a name with a blank")
	}
	alone, err := Init(t.Context(), "alone", serveBasics())
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	if _, err := noop.Call(t.Context(), alone.Self(), struct{}{}); err != nil {
		t.Error(err)
	}
	if err := alone.Offer(Serve(who, func(context.Context, struct{}) (string, error) { return "me", nil })); err != nil {
		t.Error(err)
	}
	if s, err := who.Call(t.Context(), alone.Peer("alone"), struct{}{}); s != "me" || err != nil {
		t.Errorf("%q, %v", s, err)
	}
	if err := alone.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := alone.Offer(Serve(add, func(context.Context, addArgs) (*tensor.Tensor, error) { return nil, nil })); KindOf(err) != KindClosed {
		t.Errorf("an offer of an agent that was closed: %v, want kind %q", err, KindClosed)
	}
}

// TestPeersByHand: agents that are given addresses, over TCP and unix sockets.
func TestPeersByHand(t *testing.T) {
	t.Setenv("COHORT_TRANSPORT", "")
	dir := t.TempDir()
	list := []PeerAddr{{"a", "unix:" + dir + "/a"}, {"b", "unix:" + dir + "/b"}}
	b := make(chan *Agent, 1)
	go func() {
		time.Sleep(10 * time.Millisecond) // a's first call waits for it
		agent, err := Init(t.Context(), "b", WithToken(agenttest.Token), WithPeers(list), serveBasics())
		if err != nil {
			t.Error(err)
		}
		b <- agent
	}()
	a, err := Init(t.Context(), "a", WithToken(agenttest.Token), WithPeers(list))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := noop.Call(t.Context(), a.Peer("b"), struct{}{}); err != nil {
		t.Error(err)
	}
	var wg sync.WaitGroup
	for _, x := range []*Agent{a, <-b} {
		wg.Go(func() {
			if err := x.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestGroup: ranks of a group, as goroutines, need no token.
func TestGroup(t *testing.T) {
	t.Setenv("COHORT_TRANSPORT", "")
	t.Setenv("COHORT_TOKEN", "")
	err := dist.Spawn(t.Context(), 3, func(ctx context.Context, g *dist.Group) error {
		a, err := Init(ctx, fmt.Sprintf("worker%d", g.Rank()), WithGroup(g), serveBasics())
		if err != nil {
			return err
		}
		if n, err := g.Store().NumKeys(ctx, "rpc/agent/"); err != nil || n != 3 { // as docs/rpc-wire.md has it
			return fmt.Errorf("the store has %d agents, %w", n, err)
		}
		x := tensor.Full(float64(g.Rank()), 3)
		for _, p := range a.Peers() {
			out, err := add.Call(ctx, p, addArgs{x, x})
			if err != nil {
				return err
			}
			if got := out.Float32s()[2]; got != float32(2*g.Rank()) {
				return fmt.Errorf("the sum at %v is %v", p, got)
			}
		}
		return a.Shutdown(ctx)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestShutdownWaits: calls that go on from handler to handler are not cut off.
func TestShutdownWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hops := NewMethod[int, int]("test.hops")
		var done atomic.Int64
		a := agents(t, "pipe", 4, Serve(hops, func(ctx context.Context, n int) (int, error) {
			time.Sleep(100 * time.Millisecond)
			me := AgentOf(ctx)
			if n > 0 { // nobody waits for it
				hops.Async(context.Background(), me.PeerRank((me.Rank()+1)%me.Size()), n-1)
			} else {
				done.Add(1)
			}
			return 0, nil
		}))
		for i := range 4 {
			hops.Async(t.Context(), a[i].Peer("w0"), 10+i)
		}
		var wg sync.WaitGroup
		for _, x := range a {
			wg.Go(func() {
				if err := x.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if done.Load() != 4 {
			t.Errorf("%d of 4 chains came to their end", done.Load())
		}
	})
}

// TestShutdownMissing: who does not come is named.
func TestShutdownMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := agents(t, "pipe", 3)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { _ = a[1].Shutdown(ctx) })
		if err := a[0].Shutdown(ctx); err == nil || !strings.Contains(err.Error(), "w2 (rank 2) did not come") {
			t.Error(err)
		}
		wg.Wait()
	})
}

// TestShutdownDeath: who has gone without a word is named soon, to all.
func TestShutdownDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := agents(t, "pipe", 3)
		a[2].Close()
		began := time.Now()
		var wg sync.WaitGroup
		for _, x := range a[:2] {
			wg.Go(func() {
				if err := x.Shutdown(t.Context()); err == nil || !strings.Contains(err.Error(), "w2 (rank 2) has gone") {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestQueueIsBounded: what waits is bounded in bytes, but one call always may.
func TestQueueIsBounded(t *testing.T) {
	g := gate{limit: 1}
	calls := []*incoming{{size: 1}, {size: 2 * maxQueuedBytes}, {size: 1}, {size: maxQueuedBytes - 1}, {size: 2}, {size: 1}}
	enter := func(i int, now, full bool) {
		t.Helper()
		if n, f := g.enter(calls[i]); n != now || f != full {
			t.Errorf("call %d: now %v, full %v", i, n, f)
		}
	}
	enter(0, true, false)
	enter(1, false, false)
	enter(2, false, true)
	if in := g.next(); in != calls[1] {
		t.Errorf("the next is %v", in)
	}
	enter(3, false, false)
	enter(4, false, true)
	enter(5, false, false)
	for _, want := range []*incoming{calls[3], calls[5], nil} {
		if in := g.next(); in != want {
			t.Errorf("the next is %v, want %v", in, want)
		}
	}
	if g.running != 0 || g.bytes != 0 {
		t.Errorf("%d run, %d bytes", g.running, g.bytes)
	}
}
