// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"math"
)

// The protocol "store" of package transport. A request is a frame whose kind
// is the opcode, a reply one whose kind is the status. Both begin with the
// call's id (8 bytes, little endian), chosen by the client, unique among its
// unanswered calls. Then:
//
//	set, append, push,
//	set async           key, value (the rest); set async gets no reply
//	get, delete, pop,
//	queue len, num keys key
//	add                 key, delta (varint)
//	compare and set     key, 0: must not exist | 1, expected; desired (the rest)
//	wait, multi get     number of keys (uvarint), keys
//	multi set           number of keys (uvarint), keys, as many values
//	cancel              nothing; the call that id names gets its reply
//	reply               content byte, then by it: nothing | value (the rest) |
//	                    number (varint) | number of keys (uvarint), missing keys |
//	                    number of values (uvarint), values
//
// A key, an expected value and one of several is its length (uvarint) and its bytes. What
// does not parse, or has the id of a call that waits, ends the connection.
const (
	maxFrame = 2*MaxValue + 1<<20
	idSize   = 8
)

const (
	contentNone    = 0
	contentValue   = 1
	contentNumber  = 2
	contentMissing = 3
	contentValues  = 4
)

var errMalformed = errors.New("a message that does not parse")

// appendRequest appends a request's payload up to its last value, which is
// returned to be written behind it.
func appendRequest(b []byte, id uint64, q *request) (head, tail []byte) {
	return appendBody(binary.LittleEndian.AppendUint64(b, id), q)
}

// appendBody is appendRequest without the id.
func appendBody(b []byte, q *request) (head, tail []byte) {
	switch q.op {
	case opSet, opSetQuiet, opAppend, opPush:
		return appendBytes(b, q.keys[0]), q.value
	case opGet, opDelete, opPop, opQueueLen, opNumKeys:
		return appendBytes(b, q.keys[0]), nil
	case opAdd:
		return binary.AppendVarint(appendBytes(b, q.keys[0]), q.delta), nil
	case opCAS:
		b = appendBytes(b, q.keys[0])
		if q.expected == nil {
			return append(b, 0), q.value
		}
		return appendBytes(append(b, 1), q.expected), q.value
	case opWait, opMultiGet, opMultiSet:
		b = binary.AppendUvarint(b, uint64(len(q.keys)))
		for _, k := range q.keys {
			b = appendBytes(b, k)
		}
		for _, v := range q.values {
			b = appendBytes(b, v)
		}
	}
	return b, nil
}

// parseRequest reads a request. Its byte slices are parts of payload.
func parseRequest(kind byte, payload []byte) (id uint64, q request, err error) {
	r := reader{rest: payload}
	id = r.uint64()
	if q, err = parseBody(kind, r); err != nil {
		return 0, request{}, err
	}
	return id, q, nil
}

// parseBody reads what appendBody wrote.
func parseBody(kind byte, r reader) (q request, err error) {
	q.op = opcode(kind)
	switch q.op {
	case opSet, opSetQuiet, opAppend, opPush:
		q.keys = []string{string(r.bytes())}
		q.value = r.all()
	case opGet, opDelete, opPop, opQueueLen, opNumKeys:
		q.keys = []string{string(r.bytes())}
	case opAdd:
		q.keys = []string{string(r.bytes())}
		q.delta = r.varint()
	case opCAS:
		q.keys = []string{string(r.bytes())}
		switch r.byte() {
		case 0:
		case 1:
			if q.expected = r.bytes(); q.expected == nil {
				q.expected = []byte{}
			}
		default:
			r.bad = true
		}
		q.value = r.all()
	case opWait, opMultiGet:
		q.keys = r.keys()
	case opMultiSet:
		q.keys = r.keys()
		q.values = r.values(uint64(len(q.keys)))
	case opCancel:
	default:
		r.bad = true
	}
	if r.bad || len(r.rest) > 0 {
		return request{}, errMalformed
	}
	return q, nil
}

// appendReply appends a reply's payload up to its value, which is returned
// to be written behind it.
func appendReply(b []byte, id uint64, r *reply) (head, tail []byte) {
	b = binary.LittleEndian.AppendUint64(b, id)
	switch {
	case r.value != nil:
		return append(b, contentValue), r.value
	case r.values != nil:
		b = binary.AppendUvarint(append(b, contentValues), uint64(len(r.values)))
		for _, v := range r.values {
			b = appendBytes(b, v)
		}
		return b, nil
	case r.number != 0:
		return binary.AppendVarint(append(b, contentNumber), r.number), nil
	case r.missing != nil:
		b = binary.AppendUvarint(append(b, contentMissing), uint64(len(r.missing)))
		for _, k := range r.missing {
			b = appendBytes(b, k)
		}
		return b, nil
	}
	return append(b, contentNone), nil
}

// parseReply reads a reply. Its value is a part of payload.
func parseReply(kind byte, payload []byte) (id uint64, r reply, err error) {
	in := reader{rest: payload}
	id = in.uint64()
	r.status = status(kind)
	switch in.byte() {
	case contentNone:
	case contentValue:
		if r.value = in.all(); r.value == nil {
			r.value = []byte{}
		}
	case contentNumber:
		r.number = in.varint()
	case contentMissing:
		r.missing = in.keys()
	case contentValues:
		r.values = in.values(in.uvarint())
	default:
		in.bad = true
	}
	if in.bad || len(in.rest) > 0 || r.status < statusOK || r.status > statusTooLarge {
		return 0, reply{}, errMalformed
	}
	return id, r, nil
}

func appendBytes[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// reader takes a message apart; after a mistake bad is set and everything is zero.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) take(n uint64) []byte {
	if r.bad || n > uint64(len(r.rest)) {
		r.bad, r.rest = true, nil
		return nil
	}
	head := r.rest[:n:n]
	r.rest = r.rest[n:]
	return head
}

func (r *reader) all() []byte { return r.take(uint64(len(r.rest))) }

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return math.MaxUint8
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.take(uint64(size))
	return n
}

func (r *reader) varint() int64 {
	n, size := binary.Varint(r.rest)
	if size <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.take(uint64(size))
	return n
}

func (r *reader) bytes() []byte { return r.take(r.uvarint()) }

func (r *reader) keys() []string {
	n := r.uvarint()
	// Each key takes a byte at least, so a count beyond the bytes is a lie; and
	// a key of one byte takes twenty times as much memory.
	if n > MaxKeys || n > uint64(len(r.rest)) {
		r.bad, r.rest = true, nil
		return nil
	}
	keys := make([]string, 0, n)
	for range n {
		keys = append(keys, string(r.bytes()))
		if r.bad {
			return nil
		}
	}
	return keys
}

// values reads n values, none of them nil.
func (r *reader) values(n uint64) [][]byte {
	if n > MaxKeys || n > uint64(len(r.rest)) {
		r.bad, r.rest = true, nil
		return nil
	}
	values := make([][]byte, 0, n)
	for range n {
		v := r.bytes()
		if r.bad {
			return nil
		}
		if v == nil {
			v = []byte{}
		}
		values = append(values, v)
	}
	return values
}
