// SPDX-License-Identifier: Apache-2.0

package store

import "context"

// Prefix returns the part of s whose keys begin with prefix and "/". Keys in
// errors are those of s, so that they can be found there; MaxKey applies to them too.
func Prefix(s Store, prefix string) Store {
	return &prefixed{s, prefix + "/"}
}

type prefixed struct {
	s      Store
	prefix string
}

// key returns a key of the underlying store; an empty one stays empty, so
// that it is refused there.
func (p *prefixed) key(key string) string {
	if key == "" {
		return ""
	}
	return p.prefix + key
}

func (p *prefixed) Set(ctx context.Context, key string, value []byte) error {
	return p.s.Set(ctx, p.key(key), value)
}

func (p *prefixed) Get(ctx context.Context, key string) ([]byte, error) {
	return p.s.Get(ctx, p.key(key))
}

func (p *prefixed) Add(ctx context.Context, key string, delta int64) (int64, error) {
	return p.s.Add(ctx, p.key(key), delta)
}

func (p *prefixed) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, bool, error) {
	return p.s.CompareAndSet(ctx, p.key(key), expected, desired)
}

// keys returns keys of the underlying store.
func (p *prefixed) keys(keys []string) []string {
	full := make([]string, len(keys))
	for i, k := range keys {
		full[i] = p.key(k)
	}
	return full
}

func (p *prefixed) Wait(ctx context.Context, keys ...string) error {
	return p.s.Wait(ctx, p.keys(keys)...)
}

func (p *prefixed) Append(ctx context.Context, key string, value []byte) error {
	return p.s.Append(ctx, p.key(key), value)
}

func (p *prefixed) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	return p.s.MultiGet(ctx, p.keys(keys)...)
}

func (p *prefixed) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	return p.s.MultiSet(ctx, p.keys(keys), values)
}

func (p *prefixed) QueuePush(ctx context.Context, key string, value []byte) error {
	return p.s.QueuePush(ctx, p.key(key), value)
}

func (p *prefixed) QueuePop(ctx context.Context, key string) ([]byte, error) {
	return p.s.QueuePop(ctx, p.key(key))
}

func (p *prefixed) QueueLen(ctx context.Context, key string) (int, error) {
	return p.s.QueueLen(ctx, p.key(key))
}

func (p *prefixed) NumKeys(ctx context.Context, prefix string) (int, error) {
	return p.s.NumKeys(ctx, p.prefix+prefix)
}

func (p *prefixed) Delete(ctx context.Context, key string) (bool, error) {
	return p.s.Delete(ctx, p.key(key))
}
