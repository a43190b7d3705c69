// SPDX-License-Identifier: Apache-2.0

// Package etcd is a [store.Store] in an etcd cluster, for jobs that shall
// find each other there rather than at rank 0: the store then outlives every
// rank, and nobody has to know where rank 0 will be.
//
//	client, err := etcd.NewClient([]string{"https://etcd:2379"}, etcd.Options{TLS: tls})
//	...
//	s := etcd.New(client, "jobs/1234")
//
// The client is the user's, with the endpoints, certificates and names that it
// was made with, and stays the user's to close. It speaks with etcd's JSON gateway,
// so it needs no library of etcd's, and etcd 3.4 or later. A Store keeps nothing but it
// and the root, below which all its keys lie; a new job takes a new root, none
// below another's.
// Nothing is deleted at the end: that, too, is the user's.
//
// # Caveats
//
// Every operation is atomic and all are in one order, as [store.Store]
// promises: reads ask the cluster's leader, and what takes a look and a change
// (Add, Append, QueuePop) is tried again until nobody came in between. Many
// callers that add to one key at once therefore cost more than one does.
// Waits are watches; nothing polls. etcd bounds a request to 1.5 MiB and 128
// operations, so a value, and all values of one call, may have [MaxValue] bytes
// and a MultiSet [MaxMultiSet] keys. A call that failed because the cluster
// was away may have taken effect.
package etcd

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/ctxerr"
)

// Limits beside those of package store, from what an etcd server takes by default.
const (
	MaxValue    = 1 << 20 // bytes: of a value, and of all values in one call
	MaxMultiSet = 128     // keys in one MultiSet
)

// Store is a store below one key of an etcd cluster. Any number of goroutines
// may use it. The zero Store is of no use; make one with New.
type Store struct {
	c    *Client
	root string
}

// New returns the store below root, which may be empty, in the cluster of the client.
func New(client *Client, root string) *Store {
	if root != "" && !strings.HasSuffix(root, "/") {
		root += "/"
	}
	return &Store{client, root}
}

// value is where a key's value is.
func (s *Store) value(key string) string { return s.root + "k/" + key }

// queue is what the keys of a queue's values begin with. The length keeps
// queues apart whose names begin alike.
func (s *Store) queue(key string) string {
	return s.root + "q/" + strconv.Itoa(len(key)) + "/" + key + "/"
}

// call is an operation under way.
type call struct {
	s    *Store
	op   string
	keys []string
	ctx  context.Context
}

// errEnded is the end of a call without a deadline of its own.
var errEnded = fmt.Errorf("no answer within %v, the default for a context without a deadline: %w", store.DefaultTimeout, context.DeadlineExceeded)

// begin checks a call and gives it a deadline.
func (s *Store) begin(ctx context.Context, op string, keys []string, values ...[]byte) (*call, context.CancelFunc, error) {
	c := &call{s: s, op: op, keys: keys, ctx: ctx}
	if err := c.check(values); err != nil {
		return nil, nil, err
	}
	if ctx.Err() != nil {
		return nil, nil, c.fail(c.keys, ctxerr.Of(ctx))
	}
	cancel := func() {}
	if _, ok := ctx.Deadline(); !ok {
		c.ctx, cancel = context.WithTimeoutCause(ctx, store.DefaultTimeout, errEnded)
	}
	return c, cancel, nil
}

func (c *call) fail(keys []string, err error) error {
	return &store.Error{Op: c.op, Keys: keys, Addr: "etcd " + c.s.c.String(), Err: err}
}

// failed is what became of a request that the cluster did not do.
func (c *call) failed(err error) error {
	if c.ctx.Err() != nil {
		why := ""
		if err != nil && !errors.Is(err, c.ctx.Err()) {
			why = " (" + err.Error() + ")"
		}
		return c.fail(c.keys, fmt.Errorf("no answer before the call ended%s: %w", why, ctxerr.Of(c.ctx)))
	}
	if tooLarge(err) {
		return c.fail(c.keys, fmt.Errorf("%w: the server takes less: %w", store.ErrLimit, err))
	}
	return c.fail(c.keys, err)
}

func (c *call) check(values [][]byte) error {
	for _, k := range c.keys {
		switch {
		case k == "" && c.op != "num keys":
			return c.fail([]string{k}, fmt.Errorf("%w: an empty key", store.ErrLimit))
		case len(k) > store.MaxKey:
			return c.fail([]string{k}, fmt.Errorf("%w: a key of %d bytes, at most %d", store.ErrLimit, len(k), store.MaxKey))
		}
	}
	most := store.MaxKeys
	if c.op == "multi set" {
		most = MaxMultiSet
	}
	if len(c.keys) > most {
		return c.fail(c.keys, fmt.Errorf("%w: %d keys, at most %d", store.ErrLimit, len(c.keys), most))
	}
	total := 0
	for i, v := range values {
		if total += len(v); total > MaxValue {
			return c.fail(c.keys[min(i, len(c.keys)-1):][:1], fmt.Errorf("%w: a value of %d bytes, %d with those before it, at most %d", store.ErrLimit, len(v), total, MaxValue))
		}
	}
	return nil
}

// snapshot returns the values of keys at one moment, nil for those that do not
// exist, and that moment's revision.
func (c *call) snapshot(keys []string) (values [][]byte, rev int64, err error) {
	for {
		values, rev, err = c.snapshotAt(keys)
		if !compacted(err) {
			return values, rev, err
		}
	}
}

func (c *call) snapshotAt(keys []string) (values [][]byte, rev int64, err error) {
	values = make([][]byte, 0, len(keys))
	total := 0
	for batch := range slices.Chunk(keys, MaxMultiSet) {
		ops := make([]operation, len(batch))
		for i, k := range batch { // all batches read the state that the first one met
			ops[i].Range = &rangeRequest{Key: []byte(c.s.value(k)), Revision: number(rev), KeysOnly: c.op == "wait"}
		}
		var r txnReply
		if err := c.s.c.call(c.ctx, "/v3/kv/txn", txnRequest{Success: ops}, &r, true); err != nil {
			return nil, 0, err
		}
		if rev == 0 {
			rev = int64(r.Header.Revision)
		}
		replies, err := r.ranges(len(batch))
		if err != nil {
			return nil, 0, err
		}
		for _, one := range replies {
			var v []byte
			if len(one.Kvs) > 0 {
				v = valueOf(one.Kvs[0].Value)
			}
			if total += len(v); total > MaxValue && c.op == "multi get" {
				return nil, 0, fmt.Errorf("%w: the values together have more than %d bytes", store.ErrLimit, MaxValue)
			}
			values = append(values, v)
		}
	}
	return values, rev, nil
}

// valueOf returns a value that is there; etcd leaves an empty one out.
func valueOf(v []byte) []byte {
	if v == nil {
		return []byte{}
	}
	return v
}

// await waits until all keys exist at once, and returns their values then.
func (c *call) await() ([][]byte, error) {
	for {
		values, rev, err := c.snapshot(c.keys)
		if err != nil {
			return nil, c.failed(err)
		}
		var missing []string
		for i, v := range values {
			if v == nil {
				missing = append(missing, c.keys[i])
			}
		}
		if missing == nil {
			return values, nil
		}
		if err := c.watch(c.s.value(missing[0]), nil, rev+1); err != nil {
			return nil, c.gaveUp(missing, "not set by anybody", err)
		}
	}
}

// gaveUp is a wait that has ended with its context, or with the watch.
func (c *call) gaveUp(missing []string, what string, err error) error {
	if c.ctx.Err() != nil {
		err = fmt.Errorf("%s before the wait ended: %w", what, ctxerr.Of(c.ctx))
	}
	return c.fail(missing, err)
}

// watch returns when something has been put at a key (or at one from there to end), from a
// revision on, or when it is worth another look.
func (c *call) watch(key string, end []byte, rev int64) error {
	var w watchRequest
	w.Create.Key, w.Create.End, w.Create.StartRevision, w.Create.Filters = []byte(key), end, number(rev), []string{"NODELETE"}
	err := c.s.c.ask(c.ctx, "/v3/watch", w, true, func(body io.Reader) error {
		m := newMessages(body)
		for {
			switch r, err := m.next(); {
			case errors.Is(err, errTooLong):
				return nil // much has happened
			case err != nil:
				return err
			case r.CompactRevision > 0, len(r.Events) > 0:
				return nil
			case r.Canceled:
				return &Status{Code: codeUnavailable, Message: "the watch was ended: " + shown([]byte(r.CancelReason))}
			}
		}
	})
	if err != nil && c.ctx.Err() != nil {
		return c.ctx.Err()
	}
	return err
}

// change replaces the value of a key by what f makes of it (nil for none),
// however often others come in between.
func (c *call) change(f func(old []byte) ([]byte, error)) error {
	key := c.s.value(c.keys[0])
	var r rangeReply
	if err := c.s.c.call(c.ctx, "/v3/kv/range", rangeRequest{Key: []byte(key)}, &r, true); err != nil {
		return c.failed(err)
	}
	kvs := r.Kvs
	for {
		var old []byte
		rev := number(0) // of a key that does not exist
		if len(kvs) > 0 {
			old, rev = valueOf(kvs[0].Value), kvs[0].ModRevision
		}
		v, err := f(old)
		if err != nil {
			return c.fail(c.keys, err)
		}
		done, now, err := c.putIf(unchanged(key, rev), key, v)
		if err != nil || done {
			return err
		}
		kvs = now
	}
}

// putIf puts a value at a key if a condition holds. Otherwise it returns what is there.
func (c *call) putIf(condition compare, key string, value []byte) (done bool, now []keyValue, err error) {
	var t txnReply
	err = c.s.c.call(c.ctx, "/v3/kv/txn", txnRequest{
		Compare: []compare{condition},
		Success: []operation{{Put: &putRequest{[]byte(key), valueOf(value)}}},
		Failure: []operation{{Range: &rangeRequest{Key: []byte(key)}}},
	}, &t, false)
	if err != nil {
		return false, nil, c.failed(err)
	}
	if t.Succeeded {
		return true, nil, nil
	}
	replies, err := t.ranges(1)
	if err != nil {
		return false, nil, c.failed(err)
	}
	return false, replies[0].Kvs, nil
}

// Set implements [store.Store].
func (s *Store) Set(ctx context.Context, key string, value []byte) error {
	c, cancel, err := s.begin(ctx, "set", []string{key}, value)
	if err != nil {
		return err
	}
	defer cancel()
	return c.put(s.value(key), value)
}

func (c *call) put(at string, value []byte) error {
	if err := c.s.c.call(c.ctx, "/v3/kv/put", putRequest{[]byte(at), valueOf(value)}, &struct{}{}, false); err != nil {
		return c.failed(err)
	}
	return nil
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	c, cancel, err := s.begin(ctx, "get", []string{key})
	if err != nil {
		return nil, err
	}
	defer cancel()
	values, err := c.await()
	if err != nil {
		return nil, err
	}
	return values[0], nil
}

// Add implements [store.Store].
func (s *Store) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	c, cancel, err := s.begin(ctx, "add", []string{key})
	if err != nil {
		return 0, err
	}
	defer cancel()
	err = c.change(func(old []byte) ([]byte, error) {
		n := int64(0)
		if old != nil {
			if n, err = strconv.ParseInt(string(old), 10, 64); err != nil {
				return nil, store.ErrNotInteger
			}
		}
		if delta > 0 && n > math.MaxInt64-delta || delta < 0 && n < math.MinInt64-delta {
			return nil, store.ErrNotInteger
		}
		sum = n + delta
		return strconv.AppendInt(nil, sum, 10), nil
	})
	if err != nil {
		return 0, err
	}
	return sum, nil
}

// CompareAndSet implements [store.Store].
func (s *Store) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, bool, error) {
	c, cancel, err := s.begin(ctx, "compare and set", []string{key}, desired)
	if err == nil {
		err = c.check([][]byte{expected})
		if err != nil {
			cancel()
		}
	}
	if err != nil {
		return nil, false, err
	}
	defer cancel()
	at := s.value(key)
	as := compare{Key: []byte(at), Result: "EQUAL", Target: "CREATE", CreateRevision: new(number)}
	if expected != nil { // never true of a key that does not exist
		as = compare{Key: []byte(at), Result: "EQUAL", Target: "VALUE", Value: &expected}
	}
	done, now, err := c.putIf(as, at, desired)
	switch {
	case err != nil:
		return nil, false, err
	case done:
		return valueOf(bytes.Clone(desired)), true, nil
	case len(now) > 0:
		return valueOf(now[0].Value), false, nil
	}
	return nil, false, nil
}

// Wait implements [store.Store].
func (s *Store) Wait(ctx context.Context, keys ...string) error {
	c, cancel, err := s.begin(ctx, "wait", keys)
	if err != nil {
		return err
	}
	defer cancel()
	_, err = c.await()
	return err
}

// Delete implements [store.Store].
func (s *Store) Delete(ctx context.Context, key string) (bool, error) {
	c, cancel, err := s.begin(ctx, "delete", []string{key})
	if err != nil {
		return false, err
	}
	defer cancel()
	var r deleteReply
	if err := s.c.call(c.ctx, "/v3/kv/deleterange", deleteRequest{[]byte(s.value(key))}, &r, false); err != nil {
		return false, c.failed(err)
	}
	return r.Deleted > 0, nil
}

// Append implements [store.Store].
func (s *Store) Append(ctx context.Context, key string, value []byte) error {
	c, cancel, err := s.begin(ctx, "append", []string{key}, value)
	if err != nil {
		return err
	}
	defer cancel()
	return c.change(func(old []byte) ([]byte, error) {
		if n := len(old) + len(value); n > MaxValue {
			return nil, fmt.Errorf("%w: the value would have %d bytes, at most %d", store.ErrLimit, n, MaxValue)
		}
		return slices.Concat(old, value), nil
	})
}

// MultiGet implements [store.Store].
func (s *Store) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	c, cancel, err := s.begin(ctx, "multi get", keys)
	if err != nil {
		return nil, err
	}
	defer cancel()
	return c.await()
}

// MultiSet implements [store.Store], for at most [MaxMultiSet] keys.
func (s *Store) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	c := &call{s: s, op: "multi set", keys: keys}
	if len(keys) != len(values) {
		return c.fail(keys, fmt.Errorf("%d values for %d keys, want as many", len(values), len(keys)))
	}
	c, cancel, err := s.begin(ctx, c.op, keys, values...)
	if err != nil {
		return err
	}
	defer cancel()
	last := map[string]int{} // etcd takes no key twice
	for i, k := range keys {
		last[k] = i
	}
	var ops []operation
	for i, k := range keys {
		if last[k] == i {
			ops = append(ops, operation{Put: &putRequest{[]byte(s.value(k)), valueOf(values[i])}})
		}
	}
	if len(ops) == 0 {
		return nil
	}
	if err := s.c.call(c.ctx, "/v3/kv/txn", txnRequest{Success: ops}, &txnReply{}, false); err != nil {
		return c.failed(err)
	}
	return nil
}

// QueuePush implements [store.Store].
func (s *Store) QueuePush(ctx context.Context, key string, value []byte) error {
	c, cancel, err := s.begin(ctx, "queue push", []string{key}, value)
	if err != nil {
		return err
	}
	defer cancel()
	// The order is that of etcd's revisions; the name only has to be new.
	var name [16]byte
	rand.Read(name[:])
	return c.put(s.queue(key)+hex.EncodeToString(name[:]), value)
}

// QueuePop implements [store.Store].
func (s *Store) QueuePop(ctx context.Context, key string) ([]byte, error) {
	c, cancel, err := s.begin(ctx, "queue pop", []string{key})
	if err != nil {
		return nil, err
	}
	defer cancel()
	below := s.queue(key)
	for {
		var r rangeReply
		first := rangeRequest{Key: []byte(below), End: after(below), Limit: 1, SortOrder: "ASCEND", SortTarget: "CREATE"}
		if err := s.c.call(c.ctx, "/v3/kv/range", first, &r, true); err != nil {
			return nil, c.failed(err)
		}
		if len(r.Kvs) == 0 {
			if err := c.watch(below, after(below), int64(r.Header.Revision)+1); err != nil {
				return nil, c.gaveUp(c.keys, "nothing was pushed for this call", err)
			}
			continue
		}
		// It is the head as long as it is there: what comes is behind it.
		head := r.Kvs[0]
		var t txnReply
		take := txnRequest{Compare: []compare{unchanged(string(head.Key), head.ModRevision)}, Success: []operation{{Delete: &deleteRequest{head.Key}}}}
		if err := s.c.call(c.ctx, "/v3/kv/txn", take, &t, false); err != nil {
			return nil, c.failed(err)
		}
		if t.Succeeded {
			return valueOf(head.Value), nil
		}
	}
}

// after returns the end of the keys that begin with a text.
func after(prefix string) []byte {
	end := []byte(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return []byte{0} // all keys
}

// QueueLen implements [store.Store].
func (s *Store) QueueLen(ctx context.Context, key string) (int, error) {
	return s.count(ctx, "queue len", key, s.queue(key))
}

// NumKeys implements [store.Store].
func (s *Store) NumKeys(ctx context.Context, prefix string) (int, error) {
	return s.count(ctx, "num keys", prefix, s.value(prefix))
}

func (s *Store) count(ctx context.Context, op, key, below string) (int, error) {
	c, cancel, err := s.begin(ctx, op, []string{key})
	if err != nil {
		return 0, err
	}
	defer cancel()
	var r rangeReply
	if err := s.c.call(c.ctx, "/v3/kv/range", rangeRequest{Key: []byte(below), End: after(below), CountOnly: true}, &r, true); err != nil {
		return 0, c.failed(err)
	}
	return int(r.Count), nil
}
