// SPDX-License-Identifier: Apache-2.0

// Package store is a small key-value store through which the ranks of a job
// find each other: who listens where, who has arrived, what was agreed.
//
// A [Store] maps keys to values, both any bytes. Get and Wait wait for keys
// that do not exist yet, which makes "publish my address, read yours" two
// calls. [Memory] keeps the map in the process; [Serve] offers a Memory on a
// [transport.Port], and [Connect] gives the other processes a Store that
// speaks to it over one connection, on which any number of calls may be under
// way. [Prefix] is a part of a store, so that users of one do not collide.
//
// Every operation is atomic, and the operations of all clients happen in one
// order (the store is linearizable): one state machine behind all
// implementations takes requests one by one. Waits are held in it; nothing
// polls.
//
// # Caveats
//
// All methods may be called by several goroutines at once. Every call ends:
// with ctx, and when ctx has no deadline after [DefaultTimeout]. An error is
// an [*Error] that names the operation, the keys (those still missing, for a
// wait that gave up) and the server's address. A call that failed because
// the connection was lost or ctx ended may still have taken effect, so the
// client repeats nothing and does not connect again. When the server is lost
// every pending call fails at once with [ErrLost], and so does every later
// one. Values passed in and returned are copies. Nothing is kept on disk.
package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Limits of every store. A value of MaxValue bytes is a misuse that works:
// tensors travel by collectives.
const (
	MaxKey      = 4 << 10  // bytes
	MaxValue    = 64 << 20 // bytes
	MaxWaitKeys = 64 << 10 // keys in one Wait
	// DefaultTimeout bounds a call whose context has no deadline.
	DefaultTimeout = 5 * time.Minute
)

// Store is a map from keys to values, shared by the members of a job.
type Store interface {
	// Set makes value the key's value.
	Set(ctx context.Context, key string, value []byte) error
	// Get returns the key's value, waiting until there is one.
	Get(ctx context.Context, key string) ([]byte, error)
	// Add adds delta to the integer that the key's value is in decimal text (0
	// when the key does not exist) and returns the sum. Adding 0 reads a counter.
	Add(ctx context.Context, key string, delta int64) (int64, error)
	// CompareAndSet makes desired the key's value if its value is expected, or,
	// when expected is nil, if the key does not exist. (An empty slice that
	// is not nil expects an empty value.) It returns the value that the key
	// has then, nil for none, and whether it was set.
	CompareAndSet(ctx context.Context, key string, expected, desired []byte) (current []byte, swapped bool, err error)
	// Wait waits until all keys exist at once.
	Wait(ctx context.Context, keys ...string) error
	// Delete removes the key and says whether it existed.
	Delete(ctx context.Context, key string) (bool, error)
}

// Causes that callers tell apart with errors.Is. A wait that gave up is its
// context's error.
var (
	// ErrLost is a server that can no longer be reached.
	ErrLost = errors.New("the connection to the store is lost")
	// ErrClosed is a store that was closed on this side.
	ErrClosed = errors.New("the store is closed")
	// ErrLimit is a key, a value or a list of keys that is too long, or an empty key.
	ErrLimit = errors.New("over the store's limit")
	// ErrNotInteger is an Add to a value that is no decimal integer, or a sum beyond 64 bits.
	ErrNotInteger = errors.New("the value is not an integer that can be added to")
)

// Error is a failed operation on a store.
type Error struct {
	Op string // "set", "get", "add", "compare and set", "wait", "delete", "connect"
	// Keys are those of the operation; for a wait that gave up, those that were missing.
	Keys []string
	// Addr is the server's address, or "memory".
	Addr string
	Err  error
}

func (e *Error) Error() string {
	return fmt.Sprintf("store: %s %sat %s: %v", e.Op, quoteKeys(e.Keys), e.Addr, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// quoteKeys lists keys for a message, followed by a blank, without flooding it.
func quoteKeys(keys []string) string {
	const most, longest = 8, 120
	var b strings.Builder
	for i, k := range keys {
		if i == most {
			fmt.Fprintf(&b, "and %d more ", len(keys)-most)
			break
		}
		if len(k) > longest {
			fmt.Fprintf(&b, "%q… (%d bytes) ", k[:longest], len(k))
			continue
		}
		fmt.Fprintf(&b, "%q ", k)
	}
	return b.String()
}

// check tests a request against the limits.
func (q *request) check() error {
	switch q.op {
	case opWait:
		if len(q.keys) > MaxWaitKeys {
			return fmt.Errorf("%w: %d keys, at most %d", ErrLimit, len(q.keys), MaxWaitKeys)
		}
	default:
		if len(q.keys) != 1 {
			return fmt.Errorf("%w: %d keys, want one", ErrLimit, len(q.keys))
		}
	}
	total := 0
	for _, k := range q.keys {
		if k == "" {
			return fmt.Errorf("%w: an empty key", ErrLimit)
		}
		if len(k) > MaxKey {
			return fmt.Errorf("%w: a key of %d bytes, at most %d", ErrLimit, len(k), MaxKey)
		}
		total += len(k)
	}
	if total > MaxValue {
		return fmt.Errorf("%w: %d bytes of keys, at most %d", ErrLimit, total, MaxValue)
	}
	if n := max(len(q.value), len(q.expected)); n > MaxValue {
		return fmt.Errorf("%w: a value of %d bytes, at most %d", ErrLimit, n, MaxValue)
	}
	return nil
}

// deadline gives ctx the default one when it has none.
func deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, DefaultTimeout, fmt.Errorf("no answer within %v, the default for a context without a deadline: %w", DefaultTimeout, context.DeadlineExceeded))
}
