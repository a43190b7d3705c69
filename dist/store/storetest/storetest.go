// SPDX-License-Identifier: Apache-2.0

// Package storetest checks implementations of [store.Store] against what the
// interface promises: one table of cases that every one of them passes, those
// of package store, of its leaf packages and your own.
//
//	func TestMine(t *testing.T) {
//		storetest.Run(t, storetest.Config{Open: func(t *testing.T) (a, b store.Store) {
//			s := mine.New()
//			return s, s
//		}})
//	}
//
// The cases make two views of one empty store, as two processes would have,
// and use them from several goroutines. They bound their waits, and report
// what was promised and what came. What Open makes, Open takes away with
// t.Cleanup.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
)

// Config is a store to check.
type Config struct {
	// Open returns two views of a store that is empty, the same one twice if need be.
	Open func(t *testing.T) (a, b store.Store)
	// MaxValue is the longest value that the store takes, in bytes; 0 is store.MaxValue.
	MaxValue int
	// Patience bounds each case; 0 is 20 s.
	Patience time.Duration
	// Without names cases that the store cannot pass, for it speaks another's protocol that
	// promises less; its documentation says what.
	Without []string
}

type check struct {
	name string
	run  func(t *testing.T, ctx context.Context, a, b store.Store, maxValue int)
}

// Run runs all cases, each as a test of its own and over a store of its own.
func Run(t *testing.T, c Config) {
	if c.MaxValue == 0 {
		c.MaxValue = store.MaxValue
	}
	if c.Patience == 0 {
		c.Patience = 20 * time.Second
	}
	cases := slices.Concat(single, several)
	for _, name := range c.Without {
		if !slices.ContainsFunc(cases, func(k check) bool { return k.name == name }) {
			t.Errorf("there is no case %q to do without", name)
		}
	}
	for _, k := range cases {
		if slices.Contains(c.Without, k.name) {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			a, b := c.Open(t)
			ctx, cancel := context.WithTimeout(context.Background(), c.Patience)
			defer cancel()
			k.run(t, ctx, a, b, c.MaxValue)
		})
	}
}

// single are the cases of operations on one key.
var single = []check{
	{"SetGetDelete", setGetDelete},
	{"ValuesStayApart", valuesStayApart},
	{"GetAndWaitWait", getAndWaitWait},
	{"Add", add},
	{"AddRefuses", addRefuses},
	{"CompareAndSet", compareAndSet},
	{"Append", appendValues},
	{"Limits", limits},
	{"LimitsOfSums", limitsOfSums},
	{"EndedContext", endedContext},
}

func setGetDelete(t *testing.T, ctx context.Context, a, b store.Store, maxValue int) {
	for _, v := range [][]byte{[]byte("x"), {}, nil, []byte("\x00\xff"), make([]byte, 100), make([]byte, min(3<<20, maxValue))} {
		if len(v) > 0 {
			v[len(v)-1] ^= 0x5a
		}
		mine := bytes.Clone(v)
		if err := a.Set(ctx, "k", mine); err != nil {
			t.Fatal(err)
		}
		for i := range mine {
			mine[i] = 1 // the store has its own copy
		}
		got, err := b.Get(ctx, "k")
		if err != nil || got == nil || !bytes.Equal(got, v) {
			t.Errorf("value of %d bytes: got %d bytes, %v", len(v), len(got), err)
		}
		for i := range got {
			got[i] = 2
		}
		if again, err := a.Get(ctx, "k"); err != nil || !bytes.Equal(again, v) {
			t.Errorf("value of %d bytes changed through a reader's slice: %v", len(v), err)
		}
	}
	for _, want := range []bool{true, false} {
		if got, err := b.Delete(ctx, "k"); got != want || err != nil {
			t.Errorf("Delete = %v, %v, want %v", got, err, want)
		}
	}
	// Any bytes are a key.
	for i, key := range []string{"a/b", "a", "/", "a\x00b", "\xff\xfe", "ключ"} {
		if err := a.Set(ctx, key, []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i, key := range []string{"a/b", "a", "/", "a\x00b", "\xff\xfe", "ключ"} {
		if v, err := b.Get(ctx, key); err != nil || !bytes.Equal(v, []byte{byte(i)}) {
			t.Errorf("key %q: %v, %v, want %d", key, v, err, i)
		}
	}
}

// A value does not change when the next request comes over the same connection.
func valuesStayApart(t *testing.T, ctx context.Context, a, b store.Store, _ int) {
	for _, size := range []int{1, 100, 16<<10 - 40, 16 << 10, 32 << 10} {
		for i := range byte(8) {
			v := bytes.Repeat([]byte{i}, size)
			if err := a.Set(ctx, fmt.Sprint("set", i), v); err != nil {
				t.Fatal(err)
			}
			a.Delete(ctx, fmt.Sprint("cas", i))
			if _, swapped, err := a.CompareAndSet(ctx, fmt.Sprint("cas", i), nil, v); !swapped || err != nil {
				t.Fatal(swapped, err)
			}
			if err := a.MultiSet(ctx, []string{fmt.Sprint("multi", i), "pad"}, [][]byte{v, v}); err != nil {
				t.Fatal(err)
			}
			a.Delete(ctx, fmt.Sprint("append", i))
			if err := a.Append(ctx, fmt.Sprint("append", i), v); err != nil {
				t.Fatal(err)
			}
		}
		for i := range byte(8) {
			for _, name := range []string{"set", "cas", "multi", "append"} {
				if got, err := b.Get(ctx, fmt.Sprint(name, i)); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{i}, size)) {
					t.Errorf("%s%d of %d bytes has other bytes, %v", name, i, size, err)
				}
			}
		}
	}
}

func getAndWaitWait(t *testing.T, ctx context.Context, a, b store.Store, _ int) {
	var wg sync.WaitGroup
	wg.Go(func() {
		if got, err := a.Get(ctx, "third"); err != nil || string(got) != "3" {
			t.Errorf("Get: %q, %v", got, err)
		}
	})
	wg.Go(func() {
		if err := a.Wait(ctx, "first", "second", "third", "first", "fourth"); err != nil {
			t.Error(err)
		}
		for _, k := range []string{"first", "second", "third", "fourth"} {
			if _, swapped, err := a.CompareAndSet(ctx, k, nil, nil); swapped || err != nil {
				t.Errorf("Wait returned before %q was there (%v)", k, err)
			}
		}
	})
	wg.Go(func() {
		got, err := a.MultiGet(ctx, "second", "first", "fifth", "second")
		if err != nil || len(got) != 4 || string(bytes.Join(got, []byte(" "))) != "2 1 5 2" {
			t.Errorf("MultiGet: %q, %v", got, err)
		}
	})
	if err := b.Wait(ctx); err != nil {
		t.Errorf("a wait for nothing: %v", err)
	}
	b.Set(ctx, "first", []byte("1"))
	b.Add(ctx, "second", 2)
	b.CompareAndSet(ctx, "third", nil, []byte("3"))
	b.Append(ctx, "fourth", []byte("4"))
	b.MultiSet(ctx, []string{"fifth", "sixth"}, [][]byte{[]byte("5"), []byte("6")})
	wg.Wait()
}

func add(t *testing.T, ctx context.Context, a, b store.Store, _ int) {
	const callers, each = 8, 20
	var wg sync.WaitGroup
	seen := make([]bool, callers*each+1)
	var mu sync.Mutex
	for i := range callers {
		s := []store.Store{a, b}[i%2]
		wg.Go(func() {
			for range each {
				n, err := s.Add(ctx, "n", 1)
				mu.Lock()
				if err != nil || n < 1 || int(n) >= len(seen) || seen[n] {
					t.Errorf("Add = %d, %v: out of range or given twice", n, err)
				} else {
					seen[n] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if n, err := a.Add(ctx, "n", 0); n != callers*each || err != nil {
		t.Errorf("sum %d, %v", n, err)
	}
	if v, err := b.Get(ctx, "n"); string(v) != strconv.Itoa(callers*each) {
		t.Errorf("as text %q, %v", v, err)
	}
	if n, err := b.Add(ctx, "zero", 0); n != 0 || err != nil {
		t.Errorf("Add of 0 = %d, %v", n, err)
	}
	if v, err := a.Get(ctx, "zero"); string(v) != "0" || err != nil {
		t.Errorf("after Add of 0: %q, %v", v, err)
	}
}

func addRefuses(t *testing.T, ctx context.Context, a, b store.Store, _ int) {
	a.Set(ctx, "text", []byte("abc"))
	if _, err := b.Add(ctx, "text", 1); !errors.Is(err, store.ErrNotInteger) || !strings.Contains(err.Error(), "text") {
		t.Errorf("Add to text: %v", err)
	}
	a.Add(ctx, "big", math.MaxInt64)
	if _, err := b.Add(ctx, "big", 1); !errors.Is(err, store.ErrNotInteger) {
		t.Errorf("overflow: %v", err)
	}
	if n, err := b.Add(ctx, "big", math.MinInt64); n != -1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

func compareAndSet(t *testing.T, ctx context.Context, a, b store.Store, _ int) {
	for i, step := range []struct {
		expected, desired, current []byte
		swapped                    bool
	}{
		{[]byte("x"), []byte("y"), nil, false},
		{[]byte{}, []byte("y"), nil, false}, // an empty value is not a missing one
		{nil, []byte{}, []byte{}, true},
		{nil, []byte("y"), []byte{}, false},
		{[]byte{}, []byte("1"), []byte("1"), true},
		{[]byte("2"), []byte("3"), []byte("1"), false},
		{[]byte("1"), nil, []byte{}, true},
	} {
		current, swapped, err := []store.Store{a, b}[i%2].CompareAndSet(ctx, "k", step.expected, step.desired)
		if err != nil || swapped != step.swapped || !bytes.Equal(current, step.current) || (current == nil) != (step.current == nil) {
			t.Errorf("step %d: %q, %v, %v, want %q, %v", i, current, swapped, err, step.current, step.swapped)
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	winners := 0
	for i := range 16 {
		wg.Go(func() {
			if _, swapped, err := []store.Store{a, b}[i%2].CompareAndSet(ctx, "leader", nil, []byte{byte(i)}); err != nil {
				t.Error(err)
			} else if swapped {
				mu.Lock()
				winners++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if winners != 1 {
		t.Errorf("%d leaders", winners)
	}
}

// appendValues: what several callers append is all there, each part whole.
func appendValues(t *testing.T, ctx context.Context, a, b store.Store, _ int) {
	const callers, each = 8, 10
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range each {
				if err := []store.Store{a, b}[i%2].Append(ctx, "log", fmt.Appendf(nil, "%d:%d\n", i, j)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	v, err := a.Get(ctx, "log")
	if err != nil {
		t.Fatal(err)
	}
	next := make([]int, callers)
	for _, line := range strings.Split(strings.TrimSuffix(string(v), "\n"), "\n") {
		var i, j int
		if _, err := fmt.Sscanf(line, "%d:%d", &i, &j); err != nil || i < 0 || i >= callers || j != next[i] {
			t.Fatalf("line %q of %q: want whole lines, each caller's in order", line, v)
		}
		next[i]++
	}
	for i, n := range next {
		if n != each {
			t.Errorf("caller %d: %d of %d lines", i, n, each)
		}
	}
	// What a reader has does not grow, nor does a value that took its place.
	if err := a.Set(ctx, "v", []byte("a")); err != nil {
		t.Fatal(err)
	}
	first, _ := b.Get(ctx, "v")
	for _, part := range []string{"b", "", "c"} {
		if err := b.Append(ctx, "v", []byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if v, err := a.Get(ctx, "v"); string(v) != "abc" || string(first) != "a" || err != nil {
		t.Errorf("%q, before %q, %v", v, first, err)
	}
	a.Append(ctx, "new", nil)
	if v, err := b.Get(ctx, "new"); len(v) != 0 || v == nil || err != nil {
		t.Errorf("after nothing was appended: %v, %v, want an empty value", v, err)
	}
}

func limits(t *testing.T, ctx context.Context, a, _ store.Store, maxValue int) {
	large := make([]byte, maxValue+1)
	long := strings.Repeat("k", store.MaxKey+1)
	many := make([]string, store.MaxKeys+1)
	for i := range many {
		many[i] = "k"
	}
	half := make([]byte, maxValue/2+1)
	for name, got := range map[string]struct {
		key string // to be named
		err error
	}{
		"empty key":       {"", a.Set(ctx, "", nil)},
		"long key":        {long[:50], a.Set(ctx, long, nil)},
		"long value":      {"k1", a.Set(ctx, "k1", large)},
		"empty wait key":  {"", a.Wait(ctx, "a", "")},
		"many keys":       {"k", a.Wait(ctx, many...)},
		"long get":        {long[:50], second(a.Get(ctx, long))},
		"long expected":   {"k2", third(a.CompareAndSet(ctx, "k2", large, nil))},
		"long append":     {"k3", a.Append(ctx, "k3", large)},
		"long push":       {"k4", a.QueuePush(ctx, "k4", large)},
		"empty pop":       {"", second(a.QueuePop(ctx, ""))},
		"empty queue len": {"", second(a.QueueLen(ctx, ""))},
		"empty append":    {"", a.Append(ctx, "", nil)},
		"empty add":       {"", second(a.Add(ctx, "", 1))},
		"empty delete":    {"", second(a.Delete(ctx, ""))},
		"many multi get":  {"k", second(a.MultiGet(ctx, many...))},
		"long multi get":  {long[:50], second(a.MultiGet(ctx, "a", long))},
		"long multi set":  {"bad", a.MultiSet(ctx, []string{"good", "bad"}, [][]byte{nil, large})},
		"sum of values":   {"two", a.MultiSet(ctx, []string{"one", "two"}, [][]byte{half, half})},
		"empty multi set": {"", a.MultiSet(ctx, []string{"one", ""}, [][]byte{nil, nil})},
		"long num keys":   {long[:50], second(a.NumKeys(ctx, long))},
	} {
		var e *store.Error
		if !errors.Is(got.err, store.ErrLimit) || !errors.As(got.err, &e) || len(got.err.Error()) > 2000 || !strings.Contains(got.err.Error(), got.key) {
			t.Errorf("%s: %v, want ErrLimit in an *Error of readable length that names %q", name, got.err, got.key)
		}
	}
	if err := a.MultiSet(ctx, []string{"one", "two"}, [][]byte{nil}); err == nil || !strings.Contains(err.Error(), "two") {
		t.Errorf("two keys and one value: %v", err)
	}
	if n, err := a.NumKeys(ctx, ""); n != 0 || err != nil {
		t.Errorf("%d keys after nothing but refusals, %v", n, err)
	}
}

// limitsOfSums: what would come of an append is bounded too, and what comes at once.
func limitsOfSums(t *testing.T, ctx context.Context, a, _ store.Store, maxValue int) {
	half := make([]byte, maxValue/2+1)
	if err := a.Set(ctx, "k", half); err != nil {
		t.Fatal(err)
	}
	if err := a.Append(ctx, "k", half); !errors.Is(err, store.ErrLimit) || !strings.Contains(err.Error(), `k"`) {
		t.Errorf("append beyond the limit: %v", err)
	}
	if _, err := a.MultiGet(ctx, "k", "k"); !errors.Is(err, store.ErrLimit) {
		t.Errorf("values beyond the limit: %v", err)
	}
	if v, err := a.Get(ctx, "k"); len(v) != len(half) || err != nil {
		t.Errorf("afterwards: %d bytes, %v", len(v), err)
	}
}

func second[T any](_ T, err error) error { return err }

func third[T, U any](_ T, _ U, err error) error { return err }

func endedContext(t *testing.T, ctx context.Context, a, _ store.Store, _ int) {
	ended, cancel := context.WithCancelCause(ctx)
	why := errors.New("rank 2 failed")
	cancel(why)
	for name, err := range map[string]error{
		"set":        a.Set(ended, "key", nil),
		"get":        second(a.Get(ended, "key")),
		"wait":       a.Wait(ended, "key"),
		"queue pop":  second(a.QueuePop(ended, "key")),
		"queue push": a.QueuePush(ended, "key", nil),
		"multi set":  a.MultiSet(ended, []string{"key"}, [][]byte{nil}),
	} {
		var e *store.Error
		if !errors.As(err, &e) || !errors.Is(err, why) || !errors.Is(err, context.Canceled) || e.Op != name || !strings.Contains(err.Error(), `key"`) {
			t.Errorf("%s: %v, want the context's error and cause, the operation and the key", name, err)
		}
	}
	waiting, stop := context.WithCancelCause(ctx)
	time.AfterFunc(time.Millisecond, func() { stop(why) })
	if _, err := a.Get(waiting, "key"); !errors.Is(err, why) || !errors.Is(err, context.Canceled) {
		t.Errorf("get that waits: %v, want the context's error and cause", err)
	}
	if n, err := a.NumKeys(ctx, ""); n != 0 || err != nil {
		t.Errorf("%d keys, %v: a call with an ended context did something", n, err)
	}
}
