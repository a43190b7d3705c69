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

func (p *prefixed) Wait(ctx context.Context, keys ...string) error {
	full := make([]string, len(keys))
	for i, k := range keys {
		full[i] = p.key(k)
	}
	return p.s.Wait(ctx, full...)
}

func (p *prefixed) Delete(ctx context.Context, key string) (bool, error) {
	return p.s.Delete(ctx, p.key(key))
}
