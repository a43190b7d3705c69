// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
)

// several are the cases of operations on many keys and of queues.
var several = []check{
	{"MultiSetIsAtomic", multiSetIsAtomic},
	{"NumKeys", numKeys},
	{"Queue", queue},
	{"QueueSharesOut", queueSharesOut},
	{"QueueBesideKeys", queueBesideKeys},
	{"PopGivesUp", popGivesUp},
	{"WaitsGiveUp", waitsGiveUp},
}

// multiSetIsAtomic: readers of all keys at once see one writer's values.
func multiSetIsAtomic(t *testing.T, ctx context.Context, a, b store.Store, _ int) {
	keys := []string{"x", "y", "z"}
	const rounds = 20
	var wg sync.WaitGroup
	for i, s := range []store.Store{a, b} {
		wg.Go(func() {
			for r := range rounds {
				v := fmt.Appendf(nil, "%d/%d", i, r)
				if err := s.MultiSet(ctx, keys, [][]byte{v, v, v}); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range rounds {
				got, err := s.MultiGet(ctx, keys...)
				if err != nil || len(got) != 3 || !bytes.Equal(got[0], got[1]) || !bytes.Equal(got[1], got[2]) {
					t.Errorf("%q, %v: values of several writers", got, err)
				}
			}
		})
	}
	wg.Wait()
	if err := a.MultiSet(ctx, nil, nil); err != nil {
		t.Errorf("no keys: %v", err)
	}
	if got, err := a.MultiGet(ctx); len(got) != 0 || err != nil {
		t.Errorf("no keys: %q, %v", got, err)
	}
	if err := a.MultiSet(ctx, []string{"twice", "twice"}, [][]byte{[]byte("1"), []byte("2")}); err != nil {
		t.Error(err)
	}
	if v, err := b.Get(ctx, "twice"); string(v) != "2" || err != nil {
		t.Errorf("a key that was there twice: %q, %v, want its last value", v, err)
	}
}

func numKeys(t *testing.T, ctx context.Context, a, b store.Store, _ int) {
	for _, k := range []string{"a/1", "a/2", "b", "a"} {
		if err := a.Set(ctx, k, nil); err != nil {
			t.Fatal(err)
		}
	}
	a.Set(ctx, "b", []byte("again"))
	a.QueuePush(ctx, "a/queue", nil)
	for prefix, want := range map[string]int{"": 4, "a": 3, "a/": 2, "b": 1, "c": 0} {
		if n, err := b.NumKeys(ctx, prefix); n != want || err != nil {
			t.Errorf("%d keys begin with %q, %v, want %d", n, prefix, err, want)
		}
	}
	b.Delete(ctx, "a/1")
	if n, err := a.NumKeys(ctx, "a/"); n != 1 || err != nil {
		t.Errorf("%d, %v after Delete, want 1", n, err)
	}
}

func queue(t *testing.T, ctx context.Context, a, b store.Store, _ int) {
	length := func(want int) {
		t.Helper()
		if n, err := a.QueueLen(ctx, "q"); n != want || err != nil {
			t.Errorf("QueueLen = %d, %v, want %d", n, err, want)
		}
	}
	length(0)
	for round := range 3 {
		for i := range 5 {
			if err := a.QueuePush(ctx, "q", fmt.Appendf(nil, "%d/%d", round, i)); err != nil {
				t.Fatal(err)
			}
		}
		length(5)
		for i := range 5 {
			if v, err := b.QueuePop(ctx, "q"); string(v) != fmt.Sprintf("%d/%d", round, i) || err != nil {
				t.Errorf("round %d: popped %q, %v, want value %d", round, v, err, i)
			}
		}
		length(0)
	}
	// Never empty for a while.
	a.QueuePush(ctx, "q", []byte("-1"))
	for i := range 50 {
		a.QueuePush(ctx, "q", fmt.Append(nil, i))
		if v, err := b.QueuePop(ctx, "q"); string(v) != fmt.Sprint(i-1) || err != nil {
			t.Fatalf("popped %q, %v, want %d", v, err, i-1)
		}
	}
	length(1)
	a.QueuePush(ctx, "q", nil)
	b.QueuePop(ctx, "q")
	if v, err := b.QueuePop(ctx, "q"); v == nil || len(v) > 0 || err != nil {
		t.Errorf("popped %v, %v, want an empty value", v, err)
	}
}

// queueSharesOut: each value goes to one of those who wait.
func queueSharesOut(t *testing.T, ctx context.Context, a, b store.Store, _ int) {
	const num = 40
	got := make(chan string, num)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range num / 4 {
				v, err := []store.Store{a, b}[i%2].QueuePop(ctx, "q")
				if err != nil {
					t.Error(err)
				}
				got <- string(v)
			}
		})
	}
	for i := range 2 {
		wg.Go(func() {
			for j := range num / 2 {
				if err := []store.Store{a, b}[i%2].QueuePush(ctx, "q", fmt.Appendf(nil, "%d/%d", i, j)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for range num {
		seen[<-got] = true
	}
	if len(seen) != num {
		t.Errorf("%d values came of %d that were pushed", len(seen), num)
	}
	if n, err := a.QueueLen(ctx, "q"); n != 0 || err != nil {
		t.Errorf("%d left, %v", n, err)
	}
}

// queueBesideKeys: a queue and a key of one name do not meet.
func queueBesideKeys(t *testing.T, ctx context.Context, a, b store.Store, _ int) {
	a.Set(ctx, "name", []byte("value"))
	a.QueuePush(ctx, "name", []byte("pushed"))
	if v, err := b.Get(ctx, "name"); string(v) != "value" || err != nil {
		t.Errorf("Get: %q, %v", v, err)
	}
	if existed, err := b.Delete(ctx, "name"); !existed || err != nil {
		t.Errorf("Delete: %v, %v", existed, err)
	}
	if n, err := b.QueueLen(ctx, "name"); n != 1 || err != nil {
		t.Errorf("QueueLen: %d, %v", n, err)
	}
	if v, err := b.QueuePop(ctx, "name"); string(v) != "pushed" || err != nil {
		t.Errorf("QueuePop: %q, %v", v, err)
	}
}

// popGivesUp: a pop that gave up takes nothing away.
func popGivesUp(t *testing.T, ctx context.Context, a, b store.Store, _ int) {
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	var e *store.Error
	if _, err := a.QueuePop(short, "jobs"); !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &e) || e.Op != "queue pop" || !strings.Contains(err.Error(), `jobs"`) {
		t.Errorf("%v, want the deadline, the operation and the queue", err)
	}
	b.QueuePush(ctx, "jobs", []byte("1"))
	if v, err := a.QueuePop(ctx, "jobs"); string(v) != "1" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}

// waitsGiveUp: a wait that ends names the keys that are missing, no others.
func waitsGiveUp(t *testing.T, ctx context.Context, a, _ store.Store, _ int) {
	a.Set(ctx, "here", nil)
	for name, call := range map[string]func(ctx context.Context) error{
		"wait":      func(ctx context.Context) error { return a.Wait(ctx, "here", "gone1", "gone2") },
		"multi get": func(ctx context.Context) error { return second(a.MultiGet(ctx, "here", "gone1", "gone2")) },
		"get":       func(ctx context.Context) error { return second(a.Get(ctx, "gone1")) },
	} {
		var err error
		// A store that was not reached in time misses all keys: then it has longer.
		for limit := 30 * time.Millisecond; limit < 10*time.Second; limit *= 6 {
			short, cancel := context.WithTimeout(ctx, limit)
			err = call(short)
			cancel()
			if err == nil || !strings.Contains(err.Error(), `here"`) {
				break
			}
		}
		var e *store.Error
		if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &e) || e.Op != name || !strings.Contains(err.Error(), `gone1"`) || strings.Contains(err.Error(), `here"`) {
			t.Errorf("%s: %v, want the deadline and the missing keys alone", name, err)
		}
	}
}
