// SPDX-License-Identifier: Apache-2.0

// Package store is a small key-value store through which the ranks of a job find each other:
// where each listens, who has arrived, what was agreed.
//
// A [Store] maps keys to values, both any bytes. Get and Wait wait for keys that do not exist yet,
// so that "publish my address, read yours" is two calls. MultiSet, MultiGet and Append take one
// round trip for many keys, and queues hand out work. There are several kinds of store:
//
//   - [Memory] keeps the map in this process.
//   - [Listen] serves one over TCP. [Dial] gives other processes a [Client], a Store that uses one
//     connection for any number of calls at a time. A group of package dist has one already
//     (Group.Store).
//   - [OpenFile] gives processes that share a file system a [File], without server and port.
//   - Package etcd keeps a store in an etcd cluster.
//   - [ListenPyTorch] and [DialPyTorch] speak the protocol of PyTorch's TCPStore, [OpenPyTorchFile]
//     the format of its FileStore.
//
// [Prefix] is a part of a store, so that the users of one store do not collide.
//
// Every operation is atomic, and the operations of all clients happen in one order (the store is
// linearizable): one state machine behind all implementations takes the requests one by one. Calls
// that wait are kept in the state machine, and nothing polls except the waits of a File.
//
// # Files
//
//	interface       store.go (Store, limits, errors), prefix.go, methods.go (Store's methods as requests)
//	state machine   request.go (operations, requests, replies), machine.go, machine_pytorch.go
//	in memory       memory.go
//	over TCP        tcp.go (Listen, Dial), server.go, session.go (one client), replies.go, client.go, client_write.go,
//	                wire.go, spin.go (spinning before a read sleeps)
//	in a file       file.go, file_log.go (format), file_unix.go
//	PyTorch's       pytorch.go, pytorch_wire.go, pytorch_server.go, pytorch_conn.go (one client), pytorch_client.go,
//	                pytorch_client_calls.go, pytorch_dial.go, pytorch_release.go, pytorch_file.go
//
// # Caveats
//
// All methods may be called by several goroutines at once. Every call ends: with ctx, or after
// [DefaultTimeout] if ctx has no deadline. An error is an [*Error], which names the operation, the
// keys (for a wait that gave up, those still missing) and the server's address. A call that failed
// because the connection was lost or ctx ended may still have taken effect, so the client repeats
// nothing and does not connect again. When the server is lost, every pending call fails at once with
// [ErrLost], and so does every later one. Values passed in and returned are copies. Only a File is
// kept on disk.
package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Limits of every store. A value of MaxValue bytes works, but tensors should travel by
// collectives.
const (
	MaxKey   = 4 << 10  // bytes
	MaxValue = 64 << 20 // bytes: of a value, and of all values in one call
	MaxKeys  = 64 << 10 // keys in one call
	// DefaultTimeout bounds a call whose context has no deadline.
	DefaultTimeout = 5 * time.Minute
)

// Store is a map from keys to values, shared by the members of a job.
type Store interface {
	// Set makes value the key's value.
	Set(ctx context.Context, key string, value []byte) error
	// Get returns the key's value, waiting until there is one.
	Get(ctx context.Context, key string) ([]byte, error)
	// Add adds delta to the key's value and returns the sum. The value is an integer in
	// decimal text, 0 when the key does not exist. Adding 0 reads a counter.
	Add(ctx context.Context, key string, delta int64) (int64, error)
	// CompareAndSet makes desired the key's value if its value is expected. If expected is
	// nil, the key must not exist; an empty slice that is not nil expects an empty value.
	// CompareAndSet returns the value that the key has then, nil if it has none, and
	// whether it was set.
	CompareAndSet(ctx context.Context, key string, expected, desired []byte) (current []byte, swapped bool, err error)
	// Wait waits until all keys exist at once.
	Wait(ctx context.Context, keys ...string) error
	// Delete removes the key and reports whether it existed.
	Delete(ctx context.Context, key string) (bool, error)
	// Append adds value to the end of the key's value, which is empty when the key does not
	// exist. The whole may have MaxValue bytes.
	Append(ctx context.Context, key string, value []byte) error
	// MultiGet waits until all keys exist at once and returns their values at
	// that moment, in order: at most MaxValue bytes together.
	MultiGet(ctx context.Context, keys ...string) ([][]byte, error)
	// MultiSet makes values[i] the value of keys[i], for all i at once. If a key is there
	// twice, its last value counts.
	MultiSet(ctx context.Context, keys []string, values [][]byte) error
	// QueuePush adds value to the end of the queue of that name. Queues are separate from
	// keys: Get, Wait, Delete and NumKeys do not see them.
	QueuePush(ctx context.Context, key string, value []byte) error
	// QueuePop takes the value at the head of the queue, and waits until there is one. Each
	// value goes to one caller.
	QueuePop(ctx context.Context, key string) ([]byte, error)
	// QueueLen returns how many values are in the queue, 0 when there is no queue of that name.
	QueueLen(ctx context.Context, key string) (int, error)
	// NumKeys returns how many keys begin with prefix. All keys begin with "".
	NumKeys(ctx context.Context, prefix string) (int, error)
}

// Causes of an [Error], to be found with [errors.Is]. The cause of a wait that gave up is its
// context's error and its context's cause.
var (
	// ErrLost is the cause when the server can no longer be reached.
	ErrLost = errors.New("the connection to the store is lost")
	// ErrClosed is the cause when this process has closed the store.
	ErrClosed = errors.New("the store is closed")
	// ErrLimit is the cause when a key, a value or a list of keys is too long, or a key is
	// empty.
	ErrLimit = errors.New("over the store's limit")
	// ErrNotInteger is the cause when an Add finds no decimal integer, or its sum exceeds 64
	// bits.
	ErrNotInteger = errors.New("the value is not an integer that can be added to")
)

// Error is a failed operation on a store.
type Error struct {
	// Op is "set", "get", "add", "compare and set", "wait", "delete", "append",
	// "multi get", "multi set", "queue push", "queue pop", "queue len",
	// "num keys", "set async", "flush", "connect" or "open".
	Op string
	// Keys are those of the operation. For a wait that gave up they are the missing ones, for
	// an operation over a limit those that exceed it.
	Keys []string
	// Addr is the server's address, "memory", or the file's path.
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

// check tests a request against the limits. With the error it returns the keys at fault.
func (q *request) check() ([]string, error) {
	switch {
	case q.op.isMulti():
		if len(q.keys) > MaxKeys {
			return q.keys, fmt.Errorf("%w: %d keys, at most %d", ErrLimit, len(q.keys), MaxKeys)
		}
		if q.op == opMultiSet && len(q.values) != len(q.keys) {
			return q.keys, fmt.Errorf("%d values for %d keys, want as many", len(q.values), len(q.keys))
		}
	case len(q.keys) != 1:
		return q.keys, fmt.Errorf("%w: %d keys, want one", ErrLimit, len(q.keys))
	}
	total := 0
	for i, k := range q.keys {
		if k == "" && q.op != opNumKeys {
			return q.keys[i : i+1], fmt.Errorf("%w: an empty key", ErrLimit)
		}
		if len(k) > MaxKey {
			return q.keys[i : i+1], fmt.Errorf("%w: a key of %d bytes, at most %d", ErrLimit, len(k), MaxKey)
		}
		if total += len(k); total > MaxValue {
			return q.keys, fmt.Errorf("%w: more than %d bytes of keys", ErrLimit, MaxValue)
		}
	}
	if n := max(len(q.value), len(q.expected)); n > MaxValue {
		return q.keys, fmt.Errorf("%w: a value of %d bytes, at most %d", ErrLimit, n, MaxValue)
	}
	total = 0
	for i, v := range q.values {
		if total += len(v); total > MaxValue {
			return q.keys[i : i+1], fmt.Errorf("%w: a value of %d bytes, %d with those before it, at most %d", ErrLimit, len(v), total, MaxValue)
		}
	}
	return nil, nil
}

var errDefaultTimeout = fmt.Errorf("no answer within %v, the default for a context without a deadline: %w", DefaultTimeout, context.DeadlineExceeded)

// deadline gives ctx the default one when it has none.
func deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, DefaultTimeout, errDefaultTimeout)
}
