// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
)

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

// told returns an error about a key that is too long with what of it is the prefix,
// which the caller may know nothing of.
func (p *prefixed) told(err error) error {
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, ErrLimit) || len(e.Keys) != 1 || len(e.Keys[0]) <= MaxKey {
		return err
	}
	told := *e
	told.Err = fmt.Errorf("%w: %d of them are the prefix %q", e.Err, len(p.prefix), p.prefix)
	return &told
}

func (p *prefixed) Set(ctx context.Context, key string, value []byte) error {
	return p.told(p.s.Set(ctx, p.key(key), value))
}

func (p *prefixed) Get(ctx context.Context, key string) ([]byte, error) {
	v, err := p.s.Get(ctx, p.key(key))
	return v, p.told(err)
}

func (p *prefixed) Add(ctx context.Context, key string, delta int64) (int64, error) {
	v, err := p.s.Add(ctx, p.key(key), delta)
	return v, p.told(err)
}

func (p *prefixed) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, bool, error) {
	v, ok, err := p.s.CompareAndSet(ctx, p.key(key), expected, desired)
	return v, ok, p.told(err)
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
	return p.told(p.s.Wait(ctx, p.keys(keys)...))
}

func (p *prefixed) Append(ctx context.Context, key string, value []byte) error {
	return p.told(p.s.Append(ctx, p.key(key), value))
}

func (p *prefixed) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	v, err := p.s.MultiGet(ctx, p.keys(keys)...)
	return v, p.told(err)
}

func (p *prefixed) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	return p.told(p.s.MultiSet(ctx, p.keys(keys), values))
}

func (p *prefixed) QueuePush(ctx context.Context, key string, value []byte) error {
	return p.told(p.s.QueuePush(ctx, p.key(key), value))
}

func (p *prefixed) QueuePop(ctx context.Context, key string) ([]byte, error) {
	v, err := p.s.QueuePop(ctx, p.key(key))
	return v, p.told(err)
}

func (p *prefixed) QueueLen(ctx context.Context, key string) (int, error) {
	v, err := p.s.QueueLen(ctx, p.key(key))
	return v, p.told(err)
}

func (p *prefixed) NumKeys(ctx context.Context, prefix string) (int, error) {
	v, err := p.s.NumKeys(ctx, p.prefix+prefix)
	return v, p.told(err)
}

func (p *prefixed) Delete(ctx context.Context, key string) (bool, error) {
	v, err := p.s.Delete(ctx, p.key(key))
	return v, p.told(err)
}
