// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Types of Thrift's compact protocol.
const (
	thriftTrue   = 1
	thriftFalse  = 2
	thriftByte   = 3
	thriftI16    = 4
	thriftI32    = 5
	thriftI64    = 6
	thriftDouble = 7
	thriftBinary = 8
	thriftList   = 9
	thriftSet    = 10
	thriftMap    = 11
	thriftStruct = 12
	thriftUUID   = 13
)

const (
	maxDepth = 64      // of Thrift's structs
	maxName  = 1 << 20 // bytes of a name
)

// thrift reads the compact protocol. It keeps its first error; after it, all values are zero.
type thrift struct {
	r     *bufio.Reader
	err   error
	depth int
}

func (t *thrift) fail(err error) {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if t.err == nil {
		t.err = err
	}
}

func (t *thrift) byte() byte {
	if t.err != nil {
		return 0
	}
	b, err := t.r.ReadByte()
	if err != nil {
		t.fail(err)
	}
	return b
}

func (t *thrift) uvarint() uint64 {
	if t.err != nil {
		return 0
	}
	v, err := binary.ReadUvarint(t.r)
	if err != nil {
		t.fail(err)
		return 0
	}
	return v
}

// int reads a number of any width.
func (t *thrift) int(kind byte) int64 {
	switch kind {
	case thriftByte:
		return int64(int8(t.byte()))
	case thriftI16, thriftI32, thriftI64:
		return zigzag(t.uvarint())
	}
	t.wrong(kind)
	return 0
}

func zigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

func (t *thrift) wrong(kind byte) {
	t.fail(fmt.Errorf("a field has the type %d, which is not its own", kind))
}

// bool reads a field; its value is its type.
func (t *thrift) bool(kind byte) bool {
	if kind != thriftTrue && kind != thriftFalse {
		t.wrong(kind)
	}
	return kind == thriftTrue
}

func (t *thrift) string(kind byte) string {
	if kind != thriftBinary {
		t.wrong(kind)
	}
	n := t.uvarint()
	if t.err == nil && n > maxName {
		t.fail(fmt.Errorf("a name of %d bytes: at most %d are read", n, maxName))
	}
	if t.err != nil {
		return ""
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(t.r, b); err != nil {
		t.fail(err)
	}
	return string(b)
}

// fields reads a struct: read takes the value of each field, or skips it.
func (t *thrift) fields(kind byte, read func(id int, kind byte)) {
	if kind != thriftStruct {
		t.wrong(kind)
	}
	if t.depth++; t.depth > maxDepth {
		t.fail(fmt.Errorf("structs lie more than %d deep", maxDepth))
	}
	id := 0
	for t.err == nil {
		head := t.byte()
		if head == 0 {
			break
		}
		if step := int(head >> 4); step > 0 {
			id += step
		} else {
			id = int(int16(zigzag(t.uvarint())))
		}
		if t.err == nil {
			read(id, head&15)
		}
	}
	t.depth--
}

// list reads a list: read takes each element.
func (t *thrift) list(kind byte, read func(kind byte)) {
	if kind != thriftList && kind != thriftSet {
		t.wrong(kind)
	}
	head := t.byte()
	n := uint64(head >> 4)
	if n == 15 {
		n = t.uvarint()
	}
	for ; n > 0 && t.err == nil; n-- {
		read(head & 15)
	}
}

func (t *thrift) skip(kind byte) {
	switch kind {
	case thriftTrue, thriftFalse:
	case thriftByte:
		t.byte()
	case thriftI16, thriftI32, thriftI64:
		t.uvarint()
	case thriftDouble:
		t.discard(8)
	case thriftUUID:
		t.discard(16)
	case thriftBinary:
		t.discard(t.uvarint())
	case thriftList, thriftSet:
		t.list(kind, t.skipElement)
	case thriftMap:
		n := t.uvarint()
		if n == 0 || t.err != nil {
			return
		}
		kinds := t.byte()
		for ; n > 0 && t.err == nil; n-- {
			t.skipElement(kinds >> 4)
			t.skipElement(kinds & 15)
		}
	case thriftStruct:
		t.fields(kind, func(_ int, kind byte) { t.skip(kind) })
	default:
		t.wrong(kind)
	}
}

// skipElement skips an element of a list: other than of a field, a truth value has a byte of its own.
func (t *thrift) skipElement(kind byte) {
	if kind == thriftTrue || kind == thriftFalse {
		kind = thriftByte
	}
	if t.depth++; t.depth > maxDepth {
		t.fail(fmt.Errorf("lists lie more than %d deep", maxDepth))
	}
	t.skip(kind)
	t.depth--
}

func (t *thrift) discard(n uint64) {
	for n > 0 && t.err == nil {
		part := int(min(n, 1<<20))
		if _, err := t.r.Discard(part); err != nil {
			t.fail(err)
		}
		n -= uint64(part)
	}
}
