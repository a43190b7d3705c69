// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
)

// Operation is a call that somebody made, what came of it, and when: between
// Call and Return it must have happened in one instant if the store is linearizable.
type Operation struct {
	Client       int
	Call, Return time.Duration // since the beginning
	// What is "set", "get", "add", "cas", "delete", "append", "multi set",
	// "multi get", "push", "pop" or "len".
	What          string
	Key           string
	Value         string // set, cas (desired), append, push; of both keys for a multi set
	Expected      string // cas
	Got           string // get, pop, cas (the value then), multi get (both)
	Swapped, None bool   // cas: it was set, there is no value; delete: Swapped if it existed
	Number        int64  // add, len
}

func (o Operation) String() string {
	return fmt.Sprintf("client %d %v-%v %s %s %q %q -> %q %v %v %d", o.Client, o.Call, o.Return, o.What, o.Key, o.Expected, o.Value, o.Got, o.Swapped, o.None, o.Number)
}

// State is what a store with the keys of [Record] has in it.
type State struct {
	A, B   string // "=" and the value, or empty if there is none
	N      int64
	Queue  string // values, each followed by a comma
	length int64
}

// Step says whether an operation may have done what it says it did with a store
// in a state, and what state that leaves. It is the store's definition in the
// form in which a checker of linearizability wants it.
func (s State) Step(o Operation) (bool, State) {
	slot := &s.A
	if o.Key == "b" {
		slot = &s.B
	}
	old, exists := strings.CutPrefix(*slot, "=")
	switch o.What {
	case "set":
		*slot = "=" + o.Value
	case "get":
		return exists && old == o.Got, s
	case "append":
		*slot = "=" + old + o.Value
	case "delete":
		*slot = ""
		return o.Swapped == exists, s
	case "cas":
		if exists && old == o.Expected {
			*slot = "=" + o.Value
			return o.Swapped && o.Got == o.Value, s
		}
		return !o.Swapped && o.None == !exists && o.Got == old, s
	case "multi set":
		s.A, s.B = "="+o.Value, "="+o.Value
	case "multi get":
		return s.A != "" && s.B != "" && o.Got == s.A[1:]+" "+s.B[1:], s
	case "add":
		s.N++
		return o.Number == s.N, s
	case "push":
		s.Queue += o.Value + ","
		s.length++
	case "pop":
		head, rest, ok := strings.Cut(s.Queue, ",")
		s.Queue = rest
		s.length--
		return ok && head == o.Got, s
	case "len":
		return o.Number == s.length, s
	default:
		panic("storetest: an operation " + o.What)
	}
	return true, s
}

// Record has a client for each of stores, all views of one that is empty, make
// numOps random calls, and returns what came of them. The calls are those that
// the seed gives; how they meet is chance.
func Record(t *testing.T, ctx context.Context, seed uint64, stores []store.Store, numOps int) []Operation {
	t.Helper()
	began := time.Now()
	var mu sync.Mutex
	var all []Operation
	var wg sync.WaitGroup
	for i, s := range stores {
		wg.Go(func() {
			c := &recorder{s: s, client: i, r: rand.New(rand.NewPCG(seed, uint64(i))), began: began}
			for len(c.ops) < numOps {
				if err := c.step(ctx); err != nil {
					t.Errorf("seed %d, client %d: %v", seed, i, err)
					return
				}
			}
			mu.Lock()
			all = append(all, c.ops...)
			mu.Unlock()
		})
	}
	wg.Wait()
	slices.SortFunc(all, func(a, b Operation) int { return int(a.Call - b.Call) })
	return all
}

// recorder is a client of Record.
type recorder struct {
	s      store.Store
	client int
	r      *rand.Rand
	began  time.Time
	ops    []Operation
}

// do makes a call and notes it.
func (c *recorder) do(o Operation, call func(o *Operation) error) error {
	o.Client = c.client
	o.Call = time.Since(c.began)
	if err := call(&o); err != nil {
		return err
	}
	o.Return = time.Since(c.began)
	c.ops = append(c.ops, o)
	return nil
}

// step makes one or two calls. Nobody waits for ever: who deletes a key sets
// it, and who pops has pushed.
func (c *recorder) step(ctx context.Context) error {
	key := []string{"a", "b"}[c.r.IntN(2)]
	value := fmt.Sprintf("%d.%d", c.client, len(c.ops))
	set := func() error {
		return c.do(Operation{What: "set", Key: key, Value: value}, func(*Operation) error { return c.s.Set(ctx, key, []byte(value)) })
	}
	if len(c.ops) == 0 { // so that there is something
		return c.multiSet(ctx, value)
	}
	switch c.r.IntN(10) {
	case 0:
		return set()
	case 1, 2:
		return c.do(Operation{What: "get", Key: key}, func(o *Operation) error {
			v, err := c.s.Get(ctx, key)
			o.Got = string(v)
			return err
		})
	case 3:
		return c.do(Operation{What: "add", Key: "n"}, func(o *Operation) (err error) {
			o.Number, err = c.s.Add(ctx, "n", 1)
			return err
		})
	case 4:
		err := c.do(Operation{What: "delete", Key: key}, func(o *Operation) (err error) {
			o.Swapped, err = c.s.Delete(ctx, key)
			return err
		})
		if err != nil {
			return err
		}
		return set()
	case 5: // with a value that may well be the one
		expected := value
		for _, o := range c.ops {
			if o.Key == key && o.Got != "" {
				expected = o.Got
			}
		}
		return c.do(Operation{What: "cas", Key: key, Expected: expected, Value: value}, func(o *Operation) error {
			v, swapped, err := c.s.CompareAndSet(ctx, key, []byte(expected), []byte(value))
			o.Got, o.None, o.Swapped = string(v), v == nil, swapped
			return err
		})
	case 6:
		return c.do(Operation{What: "append", Key: key, Value: value}, func(*Operation) error { return c.s.Append(ctx, key, []byte(value)) })
	case 7:
		return c.multiSet(ctx, value)
	case 8:
		return c.do(Operation{What: "multi get"}, func(o *Operation) error {
			v, err := c.s.MultiGet(ctx, "a", "b")
			if err == nil {
				o.Got = string(v[0]) + " " + string(v[1])
			}
			return err
		})
	default:
		return c.queue(ctx, value)
	}
}

func (c *recorder) multiSet(ctx context.Context, value string) error {
	return c.do(Operation{What: "multi set", Value: value}, func(*Operation) error {
		return c.s.MultiSet(ctx, []string{"a", "b"}, [][]byte{[]byte(value), []byte(value)})
	})
}

// queue pushes, looks and pops.
func (c *recorder) queue(ctx context.Context, value string) error {
	err := c.do(Operation{What: "push", Value: value}, func(*Operation) error { return c.s.QueuePush(ctx, "q", []byte(value)) })
	if err == nil {
		err = c.do(Operation{What: "len"}, func(o *Operation) error {
			n, err := c.s.QueueLen(ctx, "q")
			o.Number = int64(n)
			return err
		})
	}
	if err != nil {
		return err
	}
	return c.do(Operation{What: "pop"}, func(o *Operation) error {
		v, err := c.s.QueuePop(ctx, "q")
		o.Got = string(v)
		return err
	})
}
