// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

// pipeClient connects a client to the server without a socket. The Fault acts
// on the server's end.
func pipeClient(t testing.TB, srv *Server) (*Client, *transport.Injector) {
	near, far := transport.Pipe(proto)
	f := transport.Inject(far)
	go srv.serve(far)
	c := newClient(near, "pipe")
	t.Cleanup(func() { c.Close() })
	return c, f
}

func TestLargestValue(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 64 MiB a few times")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := serve(t, "127.0.0.1:0")
	v := make([]byte, MaxValue)
	v[0], v[MaxValue-1] = 1, 2
	key := strings.Repeat("k", MaxKey)
	if err := c.Set(ctx, key, v); err != nil {
		t.Fatal(err)
	}
	if got, swapped, err := c.CompareAndSet(ctx, key, v, v); err != nil || !swapped || !bytes.Equal(got, v) {
		t.Fatal(len(got), swapped, err)
	}
}

// A wait that gives up says which keys were missing.
func TestDeadlineNamesMissingKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &Server{mem: NewMemory(), conns: map[*transport.Conn]struct{}{}}
		c, _ := pipeClient(t, srv)
		c.Set(t.Context(), "rank0/addr", nil)
		for name, s := range map[string]Store{"memory": srv.mem, "client": c} {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			began := time.Now()
			err := s.Wait(ctx, "rank0/addr", "rank1/addr", "rank2/addr")
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, context.DeadlineExceeded) || fmt.Sprint(e.Keys) != "[rank1/addr rank2/addr]" {
				t.Errorf("%s: %v, want the deadline and the keys of ranks 1 and 2", name, err)
			}
			if d := time.Since(began); d < 3*time.Second || d > 3*time.Second+cancelGrace {
				t.Errorf("%s: ended after %v", name, d)
			}
			cancel()

			// Without a deadline there is one all the same.
			began = time.Now()
			if _, err := s.Get(context.Background(), "nobody"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "nobody") {
				t.Errorf("%s: %v", name, err)
			}
			if d := time.Since(began); d < DefaultTimeout || d > DefaultTimeout+cancelGrace {
				t.Errorf("%s: ended after %v", name, d)
			}

			why := errors.New("rank 2 failed")
			cancelled, stop := context.WithCancelCause(context.Background())
			time.AfterFunc(time.Second, func() { stop(why) })
			if _, err := s.Get(cancelled, "nobody"); !errors.Is(err, why) {
				t.Errorf("%s: %v, want the context's cause", name, err)
			}
		}
		if n := len(srv.mem.m.calls) + len(srv.mem.m.waiting) + len(srv.mem.pending); n != 0 {
			t.Errorf("%d things still wait", n)
		}
		c.Close()
		srv.running.Wait()
	})
}

func TestLostServerFailsAllCalls(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	h := newHost(t, "127.0.0.1:0")
	c := h.client(t)
	const n = 50
	failed := make(chan error, n)
	for i := range n {
		go func() {
			if i%2 == 0 {
				_, err := c.Get(ctx, fmt.Sprint("key-", i))
				failed <- err
			} else {
				failed <- c.Wait(ctx, fmt.Sprint("key-", i), "other")
			}
		}()
	}
	for h.mem.numWaiting() < n { // every one has reached the server
		if ctx.Err() != nil {
			t.Fatal("the calls did not arrive")
		}
		runtime.Gosched()
	}
	h.srv.Close()
	keys := map[string]bool{}
	for range n {
		err := <-failed
		var e *Error
		if !errors.Is(err, ErrLost) || !errors.As(err, &e) || e.Addr != h.port.Addr() || !strings.Contains(err.Error(), e.Addr) {
			t.Fatalf("%v, want ErrLost with the address", err)
		}
		keys[e.Keys[0]] = true
	}
	if len(keys) != n {
		t.Errorf("the errors name %d keys, want %d", len(keys), n)
	}
	<-c.Lost()
	if err := c.Set(ctx, "later", nil); !errors.Is(err, ErrLost) {
		t.Errorf("a later call: %v", err)
	}
	if n := h.mem.numWaiting(); n != 0 {
		t.Errorf("%d calls of a client that has gone still wait", n)
	}
}

func (s *Memory) numWaiting() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, mine := range s.m.calls {
		n += len(mine)
	}
	return n
}

func TestCloseFailsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &Server{mem: NewMemory(), conns: map[*transport.Conn]struct{}{}}
		c, _ := pipeClient(t, srv)
		failed := make(chan error)
		go func() {
			_, err := c.Get(t.Context(), "k")
			failed <- err
		}()
		synctest.Wait()
		c.Close()
		if err := <-failed; !errors.Is(err, ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
		if err := c.Set(t.Context(), "k", nil); !errors.Is(err, ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
		synctest.Wait()
		if n := srv.mem.numWaiting(); n != 0 {
			t.Errorf("%d calls of a client that has gone still wait", n)
		}
	})
}

// A server that has stopped ends no call by itself: the calls' contexts do,
// also while the request is being written.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &Server{mem: NewMemory(), conns: map[*transport.Conn]struct{}{}}
		c, fault := pipeClient(t, srv)
		if err := c.Set(t.Context(), "k", nil); err != nil {
			t.Fatal(err)
		}
		fault.Stall()
		within := func(d, slack time.Duration, f func(ctx context.Context) error) error {
			t.Helper()
			ctx, cancel := context.WithTimeout(context.Background(), d)
			defer cancel()
			began := time.Now()
			err := f(ctx)
			if took := time.Since(began); err == nil || took < d || took > d+slack {
				t.Errorf("%v after %v, want an error after %v", err, took, d)
			}
			return err
		}
		err := within(time.Second, cancelGrace, func(ctx context.Context) error { _, err := c.Get(ctx, "k"); return err })
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "k") {
			t.Error(err)
		}
		// The pipe fills up; one call is stuck in its write, another behind it.
		stuck := make(chan error)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		go func() { stuck <- c.Set(ctx, "large", make([]byte, 1<<20)) }()
		synctest.Wait()
		err = within(time.Second, cancelGrace, func(ctx context.Context) error { return c.Set(ctx, "small", nil) })
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrLost) {
			t.Error(err)
		}
		began := time.Now()
		if err := <-stuck; !errors.Is(err, ErrLost) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 9*time.Second+writeGrace {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		fault.Resume()
	})
}

// A client that does not read its replies holds up nobody else.
func TestClientThatDoesNotReadHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &Server{mem: NewMemory(), conns: map[*transport.Conn]struct{}{}}
		deaf, far := transport.Pipe(proto)
		go srv.serve(far)
		for id := range uint64(20) {
			head, _ := appendRequest(nil, id, &request{op: opGet, keys: []string{"large"}})
			if err := deaf.WriteFrame(byte(opGet), head); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		c, _ := pipeClient(t, srv)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := c.Set(ctx, "large", make([]byte, 1<<20)); err != nil {
			t.Error(err)
		}
		if _, err := c.Add(ctx, "n", 1); err != nil {
			t.Error(err)
		}
		deaf.Close()
		c.Close()
		srv.running.Wait()
	})
}

// TestIDInUse: an id that waits already ends its client, and nobody else.
func TestIDInUse(t *testing.T) {
	for _, again := range []request{
		{op: opGet, keys: []string{"k"}}, // would hide the first from drop, and its answer would have no taker
		{op: opSet, keys: []string{"k"}, value: []byte("v")},
	} {
		synctest.Test(t, func(t *testing.T) {
			srv := &Server{mem: NewMemory(), conns: map[*transport.Conn]struct{}{}}
			near, far := transport.Pipe(proto)
			defer near.Close()
			go srv.serve(far)
			for _, q := range []request{{op: opGet, keys: []string{"k"}}, again} {
				head, tail := appendRequest(nil, 7, &q)
				if err := near.WriteFrame(byte(q.op), head, tail); err != nil {
					t.Fatal(err)
				}
			}
			near.SetReadDeadline(time.Now().Add(time.Second))
			if kind, _, err := near.ReadFrame(nil, maxFrame); !errors.Is(err, io.EOF) {
				t.Errorf("%v with an id that waits: reply %d, %v, want the connection's end", again.op, kind, err)
			}
			near.Close()
			srv.running.Wait()
			if err := srv.mem.Set(t.Context(), "k", []byte("v")); err != nil {
				t.Error(err)
			}
			if n := srv.mem.numWaiting(); n != 0 {
				t.Errorf("%d calls wait, want none", n)
			}
		})
	}
}

func TestTooManyWaitsAreRefused(t *testing.T) {
	s := NewMemory()
	client := s.attach(func(uint64, reply) {})
	defer s.detach(client)
	for id := range uint64(maxWaiting) {
		if _, what := s.apply(call{client, id}, request{op: opGet, keys: []string{"k"}}); what != waiting {
			t.Fatal("answered")
		}
	}
	if r, what := s.apply(call{client, maxWaiting}, request{op: opGet, keys: []string{"k"}}); what != answered || r.status != statusLimit {
		t.Errorf("call %d: %v %v, want a refusal", maxWaiting, r, what)
	}
}

func TestPrefixKeepsUsersApart(t *testing.T) {
	ctx := t.Context()
	m := NewMemory()
	a, b := Prefix(m, "a"), Prefix(m, "b")
	a.Set(ctx, "k", []byte("1"))
	b.Set(ctx, "k", []byte("2"))
	if v, err := a.Get(ctx, "k"); err != nil || string(v) != "1" {
		t.Errorf("%q, %v", v, err)
	}
	if v, err := m.Get(ctx, "b/k"); err != nil || string(v) != "2" {
		t.Errorf("%q, %v", v, err)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if err := a.Wait(done, "none"); err == nil || !strings.Contains(err.Error(), `"a/none"`) {
		t.Errorf("%v, want the key as the store has it", err)
	}
}

func TestManyClients(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	h := newHost(t, "127.0.0.1:0")
	const n = 100
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			c, err := Connect(ctx, h.port.Addr(), h.token, transport.EncryptControl)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if err := c.Set(ctx, fmt.Sprint("rank/", i), []byte(strconv.Itoa(i))); err != nil {
				t.Error(err)
			}
			keys := make([]string, n)
			for j := range keys {
				keys[j] = fmt.Sprint("rank/", j)
			}
			if err := c.Wait(ctx, keys...); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestConnectErrors(t *testing.T) {
	h := newHost(t, "127.0.0.1:0")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := Connect(ctx, h.port.Addr(), transport.NewToken(), transport.EncryptControl)
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, transport.ErrRejected) || !strings.Contains(err.Error(), h.port.Addr()) {
		t.Errorf("%v", err)
	}
}

func TestErrorsStayReadable(t *testing.T) {
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = strings.Repeat("x", i)
	}
	e := &Error{Op: "wait", Keys: keys, Addr: "a:1", Err: ErrLost}
	if n := len(e.Error()); n > 2000 || !strings.Contains(e.Error(), "992 more") {
		t.Errorf("%d bytes: %s", n, e.Error())
	}
}

// What is set without waiting is there for the client's own calls, in order,
// and for others after Flush.
func TestSetAsync(t *testing.T) {
	h := newHost(t, "127.0.0.1:0")
	c := h.client(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	large := make([]byte, 3*gatherLimit)
	for i := range 3000 {
		v := fmt.Append(nil, i)
		if i%500 == 7 {
			v = append(v, large...)
		}
		if err := c.SetAsync(ctx, "k", v); err != nil {
			t.Fatal(err)
		}
		clear(v) // the slice is the caller's again
		if i%100 == 7 {
			if got, err := c.Get(ctx, "k"); err != nil || !strings.HasPrefix(string(got), fmt.Sprint(i)) {
				t.Fatalf("after set %d: %.20q, %v", i, got, err)
			}
		}
		if err := c.SetAsync(ctx, fmt.Sprint(i), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if v, err := h.mem.Get(ctx, "k"); string(v) != "2999" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	if n, err := h.mem.NumKeys(ctx, ""); n != 3001 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
	if err := c.SetAsync(ctx, "", nil); !errors.Is(err, ErrLimit) {
		t.Errorf("an empty key: %v", err)
	}
	if err := c.SetAsync(ctx, "long", make([]byte, MaxValue+1)); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "long") {
		t.Errorf("a long value: %v", err)
	}
	h.srv.Close()
	<-c.Lost()
	if err := c.SetAsync(ctx, "k", nil); !errors.Is(err, ErrLost) {
		t.Errorf("after the server's end: %v", err)
	}
	var e *Error
	if err := c.Flush(ctx); !errors.Is(err, ErrLost) || !errors.As(err, &e) || e.Op != "flush" {
		t.Errorf("after the server's end: %v", err)
	}
}

// A server that takes nothing stops a caller who does not wait for answers
// when there is much before it, until its context ends.
func TestSetAsyncIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &Server{mem: NewMemory(), conns: map[*transport.Conn]struct{}{}}
		c, fault := pipeClient(t, srv)
		fault.Stall()
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		began := time.Now()
		value := make([]byte, 1000)
		var err error
		n := 0
		for ; err == nil && n < 10000; n++ {
			err = c.SetAsync(ctx, "k", value)
		}
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Second || n < 100 {
			t.Errorf("%v after %v and %d sets, want the deadline", err, time.Since(began), n)
		}
		if err := c.Set(context.Background(), "k", nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 3*time.Second+DefaultTimeout+cancelGrace {
			t.Errorf("%v after %v, want the default deadline", err, time.Since(began))
		}
		fault.Resume()
		if err := c.Flush(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// Small and large requests of many callers on one connection stay apart.
func TestSharedConnection(t *testing.T) {
	c := serve(t, "127.0.0.1:0")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			key := fmt.Sprint("k", i)
			for j := range 60 {
				v := make([]byte, 1+(i*j*997)%(2*gatherLimit))
				v[0] = byte(j)
				if err := c.Set(ctx, key, v); err != nil {
					t.Error(err)
					return
				}
				if got, err := c.Get(ctx, key); err != nil || len(got) != len(v) || got[0] != v[0] {
					t.Errorf("%s, round %d: %d bytes, %v, want %d", key, j, len(got), err, len(v))
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestPrefixIsToldOfInLimits: a key that fits alone may not fit behind a prefix.
func TestPrefixIsToldOfInLimits(t *testing.T) {
	long := strings.Repeat("k", MaxKey)
	s := Prefix(Prefix(NewMemory(), "outer"), "inner")
	want := `6 of them are the prefix "outer/"`
	err := s.Set(t.Context(), long, nil)
	if err == nil || !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `6 of them are the prefix "inner/"`) {
		t.Errorf("got %v, want %q and the inner one", err, want)
	}
	if _, err := s.MultiGet(t.Context(), "a", long); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestOpenFileWithoutPath(t *testing.T) {
	if s, err := OpenFile(""); err == nil || !strings.Contains(err.Error(), "the path is empty") {
		t.Errorf("got %v and %v", s, err)
	}
}

// TestLeftBefore: who asks for those that leave learns of those that have left before, once.
func TestLeftBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &Server{mem: NewMemory(), conns: map[*transport.Conn]struct{}{}}
		c, _ := pipeClient(t, srv)
		if err := errors.Join(c.Set(t.Context(), "k", nil), c.Close()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		var left []string
		srv.OnLeave(func(peer string) { left = append(left, peer) })
		synctest.Wait()
		srv.OnLeave(func(peer string) { t.Errorf("told of %s again", peer) })
		synctest.Wait()
		if len(left) != 1 {
			t.Errorf("told of %q, want one client", left)
		}
	})
}
