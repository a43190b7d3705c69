// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// PyTorch's store (c10d's TCPStore), spoken as a server and as a client.
//
// # Keys
//
// A user's key k is "/"+k on PyTorch's wire, and k in a store of Cohort's, so a key
// that one side sets is what the other reads. What PyTorch keeps for itself
// comes without the slash ("init/", the counter of those who have joined); in a store of
// Cohort's that is the key pyTorchRaw+"init/", and a user's key that begins so is
// refused. An empty key, which PyTorch allows, is there for PyTorch alone.
//
// # Generations
//
// PyTorch's protocol has no version in it, and two forms are in use: that of 1.13,
// and that of 2.2 and later, which begins each connection with a magic number.
// A server tells them apart by the first bytes, a client by what the server does
// with its first bytes. Those between (2.0, 2.1) have other numbers for the same
// operations and are refused where they can be told.

// PyTorchGeneration is a form of PyTorch's store protocol.
type PyTorchGeneration int

const (
	// PyTorch1 is the protocol of PyTorch 1.13 and before.
	PyTorch1 PyTorchGeneration = 1
	// PyTorch2 is the protocol of PyTorch 2.2 and later.
	PyTorch2 PyTorchGeneration = 2
)

func (g PyTorchGeneration) String() string {
	switch g {
	case PyTorch1:
		return "1.13"
	case PyTorch2:
		return "2.2+"
	}
	return "unknown"
}

// Limits of PyTorch's protocol, in bytes: those of its own server with libuv (2.4
// and later), which ends connections that go beyond, and so what a client keeps to.
const (
	maxPyTorchKey   = 8 << 10
	maxPyTorchValue = 8 << 20
	maxPyTorchKeys  = 128 << 10
)

// Limits of a server of ours, in bytes. PyTorch's without libuv, and all of 1.13, know none.
const (
	maxServedKey   = 1 << 20
	maxServedValue = 512 << 20 // of a value, and of all values in one request
	// maxServed is of all keys and values that there are, and those on their way.
	maxServed = int64(2 << 30)
	// maxServedKeys is what keys, and numbers, may take beyond that: a store that large
	// values have filled still serves its ranks' barriers.
	maxServedKeys = int64(256 << 20)
)

// stoll reads the number at the beginning of a value as PyTorch's stores do, by C++'s
// std::stoll: blanks before it and all that comes behind are left out.
func stoll(b []byte) (n int64, ok bool) {
	b = bytes.TrimLeft(b, " \t\n\v\f\r")
	end := 0
	if len(b) > 0 && (b[0] == '+' || b[0] == '-') {
		end++
	}
	for end < len(b) && '0' <= b[end] && b[end] <= '9' {
		end++
	}
	n, err := strconv.ParseInt(string(b[:end]), 10, 64)
	return n, err == nil
}

// ErrUnsupported is an operation that the server's version of PyTorch does not have.
var ErrUnsupported = errors.New("PyTorch's store at the other end does not have this operation")

// pyTorchRaw begins the keys that have no slash on PyTorch's wire.
const pyTorchRaw = "\x00pytorch:"

// joinKey is PyTorch's counter of those who have joined, on its wire.
const joinKey = "init/"

// fromPyTorch is the key in a store of Cohort's of one on PyTorch's wire.
func fromPyTorch(key []byte) string {
	if len(key) > 0 && key[0] == '/' {
		return string(key[1:])
	}
	return pyTorchRaw + string(key)
}

// toPyTorch appends the key on PyTorch's wire of one in a store of Cohort's.
func toPyTorch(b []byte, key string) []byte {
	if raw, ok := strings.CutPrefix(key, pyTorchRaw); ok {
		return append(b, raw...)
	}
	return append(append(b, '/'), key...)
}

// PyTorchRefusal is a client that a [PyTorchServer] has refused, or has put out
// for what it sent.
type PyTorchRefusal struct {
	Server     string            // the server's address
	Peer       string            // the client's address
	Generation PyTorchGeneration // 0 before the client has shown it
	Sent       []byte            // the first bytes of what it sent last, if it sent something
	Err        error
	Untold     int // refusals of which nothing was told, since the last one that was
}

// toldAtOnce is how many refusals are told of in a minute.
const toldAtOnce = 16

// telling says of which refusals to tell.
type telling struct {
	mu           sync.Mutex
	until        time.Time // of the minute
	told, untold int
}

// one counts a refusal, and says whether to tell of it and how many others were not told.
func (t *telling) one(now time.Time) (untold int, tell bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.After(t.until) {
		t.until, t.told = now.Add(time.Minute), 0
	}
	if t.told == toldAtOnce {
		t.untold++
		return 0, false
	}
	t.told++
	untold, t.untold = t.untold, 0
	return untold, true
}

func (r *PyTorchRefusal) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "store: PyTorch's store at %s put out %s", r.Server, r.Peer)
	if r.Generation != 0 {
		fmt.Fprintf(&b, " (PyTorch %v)", r.Generation)
	}
	if len(r.Sent) > 0 {
		fmt.Fprintf(&b, ", which sent % x", r.Sent)
	}
	fmt.Fprintf(&b, ": %v", r.Err)
	if r.Untold > 0 {
		fmt.Fprintf(&b, "; %d others were refused before", r.Untold)
	}
	return b.String()
}

func (r *PyTorchRefusal) Unwrap() error { return r.Err }
