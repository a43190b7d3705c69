// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/tensor"
)

// TestBadAnswers: a handler whose result cannot be sent, or that leaves without one,
// is an error of its call; its place goes to the next.
func TestBadAnswers(t *testing.T) {
	bad := NewMethod[string, []*tensor.Tensor]("test.bad")
	parked := NewMethod[string, []*tensor.Tensor]("test.parked")
	result := func(how string) []*tensor.Tensor {
		x := tensor.Full(1, 4, 4)
		switch how {
		case "freed":
			x.Free()
		case "freed view":
			y := x.Transpose(0, 1)
			x.Free()
			return []*tensor.Tensor{y}
		case "goexit":
			runtime.Goexit()
		case "nil":
			return []*tensor.Tensor{nil}
		}
		return []*tensor.Tensor{x}
	}
	a := agents(t, "pipe", 2, serveBasics(),
		Serve(bad, func(_ context.Context, how string) ([]*tensor.Tensor, error) { return result(how), nil }, WithMethodConcurrency(1)),
		ServeAsync(parked, func(_ context.Context, how string) *Future[[]*tensor.Tensor] {
			f, resolve := NewFuture[[]*tensor.Tensor]()
			go resolve(result(how), nil)
			if how == "goexit" {
				runtime.Goexit()
			}
			return f
		}, WithMethodConcurrency(1)))
	w1 := a[0].Peer("w1")
	for _, m := range []*Method[string, []*tensor.Tensor]{bad, parked} {
		for _, how := range []string{"freed", "freed view", "goexit", "nil", "good"} {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			_, err := m.Call(ctx, w1, how)
			cancel()
			if good := how == "good" || how == "nil"; good != (err == nil) || KindOf(err) == KindTimeout {
				t.Errorf("%s, %s: %v", m.Name(), how, err)
			}
		}
	}
}

// TestBadArguments: arguments that cannot be sent are an error of the call.
func TestBadArguments(t *testing.T) {
	a := agents(t, "pipe", 2, serveBasics())
	x := tensor.Full(1, 4, 4)
	y := x.Transpose(0, 1)
	x.Free()
	for _, v := range []*tensor.Tensor{x, y} {
		if _, err := echo.Call(t.Context(), a[0].Peer("w1"), v); err == nil || !strings.Contains(err.Error(), "freed") {
			t.Errorf("a freed tensor: %v", err)
		}
	}
}

// TestGivenUpInQueue: a call that its caller gives up before its turn has come does
// not run.
func TestGivenUpInQueue(t *testing.T) {
	count := NewMethod[struct{}, struct{}]("test.count")
	var ran atomic.Int64
	goOn := make(chan struct{})
	a := agents(t, "pipe", 2, serveBasics(), Serve(count, func(context.Context, struct{}) (struct{}, error) {
		if ran.Add(1) == 1 {
			<-goOn
		}
		return struct{}{}, nil
	}, WithMethodConcurrency(1)))
	w1 := a[0].Peer("w1")
	if _, err := noop.Call(t.Context(), w1, struct{}{}); err != nil { // connected, calls keep their order
		t.Fatal(err)
	}
	first := count.Async(t.Context(), w1, struct{}{})
	ctx, cancel := context.WithCancel(t.Context())
	second := count.Async(ctx, w1, struct{}{})
	made, err := count.Remote(ctx, w1, struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := noop.Call(t.Context(), w1, struct{}{}); err != nil { // they are in the queue
		t.Fatal(err)
	}
	cancel()
	if _, err := second.Wait(t.Context()); KindOf(err) != KindCanceled {
		t.Errorf("a call that was given up: %v", err)
	}
	served := func(c InFlight) bool { return c.Served && !c.GivenUp && c.Method == "test.count" }
	for limit := time.Now().Add(30 * time.Second); len(slices.DeleteFunc(a[1].InFlight(), func(c InFlight) bool { return !served(c) })) > 1; {
		if time.Now().After(limit) {
			t.Fatal("the peer does not hear that calls are given up")
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := made.ToHere(t.Context()); KindOf(err) != KindCanceled {
		t.Errorf("a reference to the result of a call that was given up: %v", err)
	}
	close(goOn)
	if _, err := first.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := count.Call(t.Context(), w1, struct{}{}); err != nil {
		t.Fatal(err)
	}
	if n := ran.Load(); n != 2 {
		t.Errorf("%d calls ran, 2 were not given up", n)
	}
}

// TestShutdownWithParked: calls that a handler means to answer later, and whose
// callers have gone or given up, hold no Shutdown up.
func TestShutdownWithParked(t *testing.T) {
	never := NewMethod[struct{}, struct{}]("test.never")
	a := agents(t, "pipe", 2, serveBasics(), ServeAsync(never, func(context.Context, struct{}) *Future[struct{}] {
		f, _ := NewFuture[struct{}]()
		return f
	}))
	if _, err := noop.Call(t.Context(), a[0].Peer("w1"), struct{}{}); err != nil { // connected
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := never.Call(ctx, a[0].Peer("w1"), struct{}{}); KindOf(err) != KindTimeout {
		t.Fatal(err)
	}
	done := make(chan error, 2)
	limit, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	for _, x := range a {
		go func() { done <- x.Shutdown(limit) }()
	}
	for range a {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestUnawaited: calls whose futures nobody waits for are counted as over.
func TestUnawaited(t *testing.T) {
	a := agents(t, "pipe", 2, serveBasics())
	for range 10 {
		noop.Async(t.Context(), a[0].Peer("w1"), struct{}{})
	}
	by := time.Now().Add(30 * time.Second)
	for {
		left := 0
		for _, m := range a[0].Stats().Called {
			left += m.InFlight
		}
		if left == 0 {
			break
		}
		if time.Now().After(by) {
			t.Fatalf("%d calls are in flight", left)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestMeetImpostor: an agent comes to a shutdown as itself only, and clients not at all.
func TestMeetImpostor(t *testing.T) {
	a := agents(t, "pipe", 2, serveBasics())
	for _, in := range []meetArgs{{Rank: 0}, {Rank: 1, Round: 1 << 30}, {Rank: 1, Round: -1}} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if _, err := meetMethod.Call(ctx, a[1].Peer("w0"), in); KindOf(err) != KindApplication {
			t.Errorf("%+v: %v", in, err)
		}
		cancel()
	}
	done := make(chan error, 2)
	for _, x := range a {
		go func() { done <- x.Shutdown(t.Context()) }()
	}
	for range a {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
