// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"
)

// verbs gives a store its methods, all made of one that does any request. The
// request's slices are the caller's: do copies what it keeps. Those of the
// reply become the caller's.
type verbs struct {
	do func(ctx context.Context, q request) (reply, error)
}

// Set implements Store.
func (v *verbs) Set(ctx context.Context, key string, value []byte) error {
	_, err := v.do(ctx, request{op: opSet, keys: []string{key}, value: value})
	return err
}

// Get implements Store.
func (v *verbs) Get(ctx context.Context, key string) ([]byte, error) {
	r, err := v.do(ctx, request{op: opGet, keys: []string{key}})
	return r.value, err
}

// Add implements Store.
func (v *verbs) Add(ctx context.Context, key string, delta int64) (int64, error) {
	r, err := v.do(ctx, request{op: opAdd, keys: []string{key}, delta: delta})
	return r.number, err
}

// CompareAndSet implements Store.
func (v *verbs) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, bool, error) {
	r, err := v.do(ctx, request{op: opCAS, keys: []string{key}, expected: expected, value: desired})
	return r.value, err == nil && r.status == statusOK, err
}

// Wait implements Store.
func (v *verbs) Wait(ctx context.Context, keys ...string) error {
	_, err := v.do(ctx, request{op: opWait, keys: keys})
	return err
}

// Delete implements Store.
func (v *verbs) Delete(ctx context.Context, key string) (bool, error) {
	r, err := v.do(ctx, request{op: opDelete, keys: []string{key}})
	return err == nil && r.status == statusOK, err
}

// Append implements Store.
func (v *verbs) Append(ctx context.Context, key string, value []byte) error {
	_, err := v.do(ctx, request{op: opAppend, keys: []string{key}, value: value})
	return err
}

// MultiGet implements Store.
func (v *verbs) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	r, err := v.do(ctx, request{op: opMultiGet, keys: keys})
	if err == nil && len(r.values) != len(keys) {
		err = &Error{Op: opMultiGet.String(), Keys: keys, Addr: "client", Err: fmt.Errorf("%d values came for %d keys", len(r.values), len(keys))}
	}
	return r.values, err
}

// MultiSet implements Store.
func (v *verbs) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	_, err := v.do(ctx, request{op: opMultiSet, keys: keys, values: values})
	return err
}

// QueuePush implements Store.
func (v *verbs) QueuePush(ctx context.Context, key string, value []byte) error {
	_, err := v.do(ctx, request{op: opPush, keys: []string{key}, value: value})
	return err
}

// QueuePop implements Store.
func (v *verbs) QueuePop(ctx context.Context, key string) ([]byte, error) {
	r, err := v.do(ctx, request{op: opPop, keys: []string{key}})
	return r.value, err
}

// QueueLen implements Store.
func (v *verbs) QueueLen(ctx context.Context, key string) (int, error) {
	r, err := v.do(ctx, request{op: opQueueLen, keys: []string{key}})
	return int(r.number), err
}

// NumKeys implements Store.
func (v *verbs) NumKeys(ctx context.Context, prefix string) (int, error) {
	r, err := v.do(ctx, request{op: opNumKeys, keys: []string{prefix}})
	return int(r.number), err
}

// clone returns a request that shares no memory with q.
func (q request) clone() request {
	q.keys = slices.Clone(q.keys)
	q.value = bytes.Clone(q.value)
	q.expected = bytes.Clone(q.expected)
	q.values = slices.Clone(q.values)
	for i, v := range q.values {
		q.values[i] = bytes.Clone(v)
	}
	return q
}

// clone returns a reply that shares no memory with r.
func (r reply) clone() reply {
	r.value = bytes.Clone(r.value)
	r.values = slices.Clone(r.values)
	for i, v := range r.values {
		r.values[i] = bytes.Clone(v)
	}
	return r
}
