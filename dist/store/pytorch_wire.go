// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// PyTorch's protocol has no frames: a request is an opcode and its arguments,
// one after the other, in little endian. A key or a value is its length (8
// bytes) and its bytes, a list its number (8 bytes) and its members.

// verb is an operation on PyTorch's wire. The numbers are those of 2.2 and later.
type verb byte

const (
	verbValidate   verb = 0
	verbSet        verb = 1
	verbCompareSet verb = 2
	verbGet        verb = 3
	verbAdd        verb = 4
	verbCheck      verb = 5
	verbWait       verb = 6
	verbNumKeys    verb = 7
	verbDelete     verb = 8
	verbAppend     verb = 9
	verbMultiGet   verb = 10
	verbMultiSet   verb = 11
	verbCancelWait verb = 12
	verbPing       verb = 13
	verbPush       verb = 14
	verbPop        verb = 15
	verbQueueLen   verb = 16
	verbListKeys   verb = 17
	verbBarrier    verb = 18
	// verbWatch is in 1.13 alone.
	verbWatch verb = 255
)

var verbNames = map[verb]string{
	verbValidate: "VALIDATE", verbSet: "SET", verbCompareSet: "COMPARE_SET", verbGet: "GET", verbAdd: "ADD",
	verbCheck: "CHECK", verbWait: "WAIT", verbNumKeys: "GETNUMKEYS", verbDelete: "DELETE_KEY", verbAppend: "APPEND",
	verbMultiGet: "MULTI_GET", verbMultiSet: "MULTI_SET", verbCancelWait: "CANCEL_WAIT", verbPing: "PING",
	verbPush: "QUEUE_PUSH", verbPop: "QUEUE_POP", verbQueueLen: "QUEUE_LEN", verbListKeys: "LIST_KEYS",
	verbBarrier: "BARRIER", verbWatch: "WATCH_KEY",
}

func (v verb) String() string { return verbNames[v] }

// stores says whether an operation may leave something in the store under its key.
func (v verb) stores() bool {
	switch v {
	case verbSet, verbCompareSet, verbAdd, verbAppend, verbPush, verbBarrier:
		return true
	}
	return false
}

// verbs1 are the opcodes of 1.13, by their number.
var verbs1 = []verb{verbSet, verbCompareSet, verbGet, verbAdd, verbCheck, verbWait, verbNumKeys, verbWatch, verbDelete}

// pyTorchMagic is what a client of 2.2 and later sends with VALIDATE.
const pyTorchMagic = 0x3C85F7CE

// One-byte answers.
const (
	saysReady     = 0 // and "stop waiting"
	saysNotReady  = 1
	saysCancelled = 1
	saysWatching  = 3
)

// opcodeOf is a verb's number in a generation; ok is false where it has none.
func opcodeOf(v verb, g PyTorchGeneration) (code byte, ok bool) {
	if g == PyTorch2 {
		return byte(v), v != verbWatch
	}
	i := slices.Index(verbs1, v)
	return byte(i), i >= 0
}

// pyTorchRequest is one operation. Its keys are those of a store of Cohort's.
type pyTorchRequest struct {
	verb     verb
	keys     []string
	value    []byte
	values   [][]byte
	expected []byte
	number   int64 // add's delta, ping's nonce, barrier's number of callers
}

// protocolError is a client that does not keep to the protocol.
type protocolError struct{ what string }

func (e *protocolError) Error() string { return e.what }

func breach(format string, a ...any) error { return &protocolError{fmt.Sprintf(format, a...)} }

// pyTorchReader takes requests apart that come through a connection.
type pyTorchReader struct {
	in   *bufio.Reader
	gen  PyTorchGeneration
	room func(n int) error // takes room for a value that comes; may be nil
	// keyRoom takes it for a key that is about to be stored; nil if room is.
	keyRoom func(n int) error
}

// uint64 reads a number.
func (r *pyTorchReader) uint64() (uint64, error) {
	b, err := r.in.Peek(8)
	if err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint64(b)
	_, err = r.in.Discard(8)
	return n, err
}

// key reads a key.
func (r *pyTorchReader) key() (string, error) {
	n, err := r.uint64()
	if err != nil {
		return "", err
	}
	return r.keyOf(n)
}

// keyOf reads the n bytes of a key.
func (r *pyTorchReader) keyOf(n uint64) (string, error) {
	if n > maxServedKey {
		return "", breach("a key of %d bytes, at most %d", n, maxServedKey)
	}
	b, err := r.in.Peek(int(n))
	switch {
	case err == nil:
		key := fromPyTorch(b)
		if _, err := r.in.Discard(int(n)); err != nil {
			return "", err
		}
		return key, foreign(b, key)
	case !errors.Is(err, bufio.ErrBufferFull):
		return "", err
	}
	b = make([]byte, n)
	if _, err := io.ReadFull(r.in, b); err != nil {
		return "", err
	}
	key := fromPyTorch(b)
	return key, foreign(b, key)
}

// foreign refuses a user's key that would be one that PyTorch keeps for itself.
func foreign(b []byte, key string) error {
	if len(b) > 0 && b[0] == '/' && strings.HasPrefix(key, pyTorchRaw) {
		return breach("the key %q, whose beginning is kept for PyTorch's own", key[:min(len(key), 64)])
	}
	return nil
}

// bytes reads a value.
func (r *pyTorchReader) bytes() ([]byte, error) {
	n, err := r.uint64()
	if err != nil {
		return nil, err
	}
	if n > maxServedValue {
		return nil, breach("a value of %d bytes, at most %d", n, maxServedValue)
	}
	return readBytes(r.in, int(n), r.room)
}

// readBytes reads n bytes. It takes memory as they come, for the number may be a lie, and
// asks room, if there is such, whether it may.
func readBytes(in io.Reader, n int, room func(n int) error) ([]byte, error) {
	const atOnce = 64 << 10
	b := make([]byte, 0, min(n, atOnce))
	if room != nil && n > 0 {
		if err := room(cap(b)); err != nil {
			return nil, err
		}
	}
	for len(b) < n {
		if len(b) == cap(b) {
			more := min(n-len(b), len(b))
			if room != nil {
				if err := room(more); err != nil {
					return nil, err
				}
			}
			b = slices.Grow(b, more)
		}
		part := b[len(b):min(cap(b), n)]
		if _, err := io.ReadFull(in, part); err != nil {
			return nil, err
		}
		b = b[:len(b)+len(part)]
	}
	return b, nil
}

// count reads how many members a list has.
func (r *pyTorchReader) count() (int, error) {
	n, err := r.uint64()
	if err == nil && n > maxPyTorchKeys {
		err = breach("a list of %d keys, at most %d", n, maxPyTorchKeys)
	}
	return int(n), err
}

// keys reads a list of keys.
func (r *pyTorchReader) keys() ([]string, error) {
	n, err := r.count()
	if err != nil {
		return nil, err
	}
	keys := make([]string, 0, min(n, 64))
	total := 0
	for range n {
		k, err := r.key()
		if err != nil {
			return nil, err
		}
		if total += len(k); total > maxPyTorchValue {
			return nil, breach("a list of keys of more than %d bytes", maxPyTorchValue)
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// storedKey reads a key that is about to be stored.
func (r *pyTorchReader) storedKey() (string, error) {
	k, err := r.key()
	if err == nil && r.keyRoom != nil {
		err = r.keyRoom(entrySize + len(k))
	}
	return k, err
}

// pairs reads MULTI_SET's keys and values.
func (r *pyTorchReader) pairs() (keys []string, values [][]byte, err error) {
	n, err := r.count()
	if err != nil {
		return nil, nil, err
	}
	total := 0
	for range n {
		k, err := r.storedKey()
		if err != nil {
			return nil, nil, err
		}
		v, err := r.bytes()
		if err != nil {
			return nil, nil, err
		}
		if total += len(k) + len(v); total > maxServedValue {
			return nil, nil, breach("keys and values of more than %d bytes in one request", maxServedValue)
		}
		keys, values = append(keys, k), append(values, v)
	}
	return keys, values, nil
}

// verb reads a request's opcode.
func (r *pyTorchReader) verb() (verb, error) {
	code, err := r.in.ReadByte()
	if err != nil {
		return 0, err
	}
	v := verb(code)
	if r.gen == PyTorch1 {
		if int(code) >= len(verbs1) {
			return 0, breach("opcode %d, which PyTorch %v does not have; %s", code, r.gen,
				"2.0 and 2.1 use other numbers than 1.13 and are not supported")
		}
		v = verbs1[code]
	}
	if v == verbValidate {
		return 0, breach("VALIDATE in the middle of a connection")
	}
	if v > verbBarrier && v != verbWatch || v == verbWatch && r.gen != PyTorch1 {
		return 0, breach("opcode %d, which PyTorch %v does not have", code, r.gen)
	}
	return v, nil
}

// arguments reads what follows a request's opcode.
func (r *pyTorchReader) arguments(v verb) (q pyTorchRequest, err error) {
	q.verb = v
	switch v {
	case verbNumKeys, verbCancelWait, verbListKeys:
		return q, nil
	case verbPing:
		b, err := r.in.Peek(4)
		if err != nil {
			return q, err
		}
		q.number = int64(binary.LittleEndian.Uint32(b))
		_, err = r.in.Discard(4)
		return q, err
	case verbCheck, verbWait, verbMultiGet:
		q.keys, err = r.keys()
		return q, err
	case verbMultiSet:
		q.keys, q.values, err = r.pairs()
		return q, err
	}
	read := r.key
	if v.stores() {
		read = r.storedKey
	}
	key, err := read()
	if err != nil {
		return q, err
	}
	q.keys = []string{key}
	return r.rest(q)
}

// rest reads what follows a request's only key.
func (r *pyTorchReader) rest(q pyTorchRequest) (pyTorchRequest, error) {
	var err error
	switch q.verb {
	case verbSet, verbAppend, verbPush:
		q.value, err = r.bytes()
	case verbCompareSet:
		if q.expected, err = r.bytes(); err == nil {
			q.value, err = r.bytes()
		}
	case verbAdd, verbBarrier:
		var n uint64
		n, err = r.uint64()
		q.number = int64(n)
	}
	return q, err
}

// appendPyTorch appends a request as a client of a generation sends it.
func appendPyTorch(b []byte, g PyTorchGeneration, q *pyTorchRequest) []byte {
	code, _ := opcodeOf(q.verb, g)
	b = append(b, code)
	switch q.verb {
	case verbNumKeys, verbCancelWait, verbListKeys:
		return b
	case verbPing:
		return binary.LittleEndian.AppendUint32(b, uint32(q.number))
	case verbCheck, verbWait, verbMultiGet, verbMultiSet:
		b = binary.LittleEndian.AppendUint64(b, uint64(len(q.keys)))
		for i, k := range q.keys {
			b = appendPyTorchKey(b, k)
			if q.verb == verbMultiSet {
				b = appendVec(b, q.values[i])
			}
		}
		return b
	}
	b = appendPyTorchKey(b, q.keys[0])
	switch q.verb {
	case verbSet, verbAppend, verbPush:
		b = appendVec(b, q.value)
	case verbCompareSet:
		b = appendVec(appendVec(b, q.expected), q.value)
	case verbAdd, verbBarrier:
		b = binary.LittleEndian.AppendUint64(b, uint64(q.number))
	}
	return b
}

func appendPyTorchKey(b []byte, key string) []byte {
	at := len(b)
	b = toPyTorch(append(b, 0, 0, 0, 0, 0, 0, 0, 0), key)
	binary.LittleEndian.PutUint64(b[at:], uint64(len(b)-at-8))
	return b
}

func appendVec(b, v []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(v))), v...)
}
