// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
)

// methods gives a store the methods of [Store], all made of one function that does any
// request. The request's slices are the caller's: do copies what it keeps. Those of the
// reply become the caller's.
type methods struct {
	do func(ctx context.Context, q request) (reply, error)
}

// Set implements Store.
func (m *methods) Set(ctx context.Context, key string, value []byte) error {
	_, err := m.do(ctx, request{op: opSet, keys: []string{key}, value: value})
	return err
}

// Get implements Store.
func (m *methods) Get(ctx context.Context, key string) ([]byte, error) {
	r, err := m.do(ctx, request{op: opGet, keys: []string{key}})
	return r.value, err
}

// Add implements Store.
func (m *methods) Add(ctx context.Context, key string, delta int64) (int64, error) {
	r, err := m.do(ctx, request{op: opAdd, keys: []string{key}, delta: delta})
	return r.number, err
}

// CompareAndSet implements Store.
func (m *methods) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, bool, error) {
	r, err := m.do(ctx, request{op: opCAS, keys: []string{key}, expected: expected, value: desired})
	return r.value, err == nil && r.status == statusOK, err
}

// Wait implements Store.
func (m *methods) Wait(ctx context.Context, keys ...string) error {
	_, err := m.do(ctx, request{op: opWait, keys: keys})
	return err
}

// Delete implements Store.
func (m *methods) Delete(ctx context.Context, key string) (bool, error) {
	r, err := m.do(ctx, request{op: opDelete, keys: []string{key}})
	return err == nil && r.status == statusOK, err
}

// Append implements Store.
func (m *methods) Append(ctx context.Context, key string, value []byte) error {
	_, err := m.do(ctx, request{op: opAppend, keys: []string{key}, value: value})
	return err
}

// MultiGet implements Store.
func (m *methods) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	r, err := m.do(ctx, request{op: opMultiGet, keys: keys})
	if err == nil && len(r.values) != len(keys) {
		err = &Error{Op: opMultiGet.String(), Keys: keys, Addr: "client", Err: fmt.Errorf("%d values came for %d keys", len(r.values), len(keys))}
	}
	return r.values, err
}

// MultiSet implements Store.
func (m *methods) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	_, err := m.do(ctx, request{op: opMultiSet, keys: keys, values: values})
	return err
}

// QueuePush implements Store.
func (m *methods) QueuePush(ctx context.Context, key string, value []byte) error {
	_, err := m.do(ctx, request{op: opPush, keys: []string{key}, value: value})
	return err
}

// QueuePop implements Store.
func (m *methods) QueuePop(ctx context.Context, key string) ([]byte, error) {
	r, err := m.do(ctx, request{op: opPop, keys: []string{key}})
	return r.value, err
}

// QueueLen implements Store.
func (m *methods) QueueLen(ctx context.Context, key string) (int, error) {
	r, err := m.do(ctx, request{op: opQueueLen, keys: []string{key}})
	return int(r.number), err
}

// NumKeys implements Store.
func (m *methods) NumKeys(ctx context.Context, prefix string) (int, error) {
	r, err := m.do(ctx, request{op: opNumKeys, keys: []string{prefix}})
	return int(r.number), err
}
