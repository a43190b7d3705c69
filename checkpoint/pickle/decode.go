// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"slices"
	"unicode/utf8"
)

// Limits bound what a decoder takes from a pickle. A zero is the default.
type Limits struct {
	Bytes  int // of the pickle; 64 MiB by default
	Values int // how many values; 4 Mi by default. A shared value counts at each of its places
	Depth  int // of values in values; 64 by default
}

func (l Limits) orDefaults() Limits {
	for _, f := range []struct {
		field *int
		value int
	}{{&l.Bytes, 64 << 20}, {&l.Values, 4 << 20}, {&l.Depth, 64}} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	return l
}

// Options say what a decoder takes.
type Options struct {
	File  string // for messages
	Allow func(Global) bool
	Limits
}

// maxLong bounds the bytes of an integer that no int64 holds.
const maxLong = 256

// decoder is the stack machine.
type decoder struct {
	o         Options
	text      []byte
	pos       int
	at        int // of the instruction that runs
	stack     []any
	marks     []int // heights of the stack
	memo      []any
	sparse    map[uint32]any // of the memo, beyond its end
	numValues int
	shared    map[any]bool // identities of containers that were taken from the memo
}

// failure unwinds the decoder.
type failure struct{ err error }

func (d *decoder) fail(format string, args ...any) {
	panic(failure{&Error{d.o.File, d.at, fmt.Sprintf(format, args...)}})
}

// Decode returns the value of a pickle, which fills text to its end. The error is an [Error]
// or a [ForbiddenError].
func Decode(text []byte, o Options) (v any, err error) {
	v, size, err := DecodeFirst(text, o)
	if err == nil && size < len(text) {
		return nil, &Error{o.File, size, fmt.Sprintf("%d bytes follow the end of the pickle", len(text)-size)}
	}
	return v, err
}

// DecodeFirst is [Decode] for text that goes on after the pickle. size is the length of the
// pickle in bytes.
func DecodeFirst(text []byte, o Options) (v any, size int, err error) {
	o.Limits = o.orDefaults()
	d := &decoder{o: o, text: text, shared: map[any]bool{}}
	defer func() {
		switch f := recover().(type) {
		case nil:
		case failure:
			v, err = nil, f.err
		default:
			panic(f)
		}
	}()
	if len(text) > o.Bytes {
		d.fail("has %d bytes, more than the %d allowed", len(text), o.Bytes)
	}
	v = d.run()
	d.checkTree(v)
	return v, d.pos, nil
}

// take returns the next n bytes.
func (d *decoder) take(n int) []byte {
	if n < 0 || n > len(d.text)-d.pos {
		d.fail("ends within the instruction %#02x, which wants %d more bytes of the %d that are left", d.text[d.at], n, len(d.text)-d.pos)
	}
	b := d.text[d.pos : d.pos+n]
	d.pos += n
	return b
}

func (d *decoder) uint8() int     { return int(d.take(1)[0]) }
func (d *decoder) uint32() uint32 { return binary.LittleEndian.Uint32(d.take(4)) }

// length64 reads a length of 8 bytes.
func (d *decoder) length64() int {
	n := binary.LittleEndian.Uint64(d.take(8))
	if n > uint64(len(d.text)) {
		d.fail("claims %d bytes, and the pickle has %d", n, len(d.text))
	}
	return int(n)
}

// line returns the text up to the next end of a line.
func (d *decoder) line() string {
	n := bytes.IndexByte(d.text[d.pos:], '\n')
	if n < 0 {
		d.fail("ends within a line")
	}
	return d.utf8(d.take(n + 1)[:n])
}

// utf8 returns a text. Python writes lone surrogates as three bytes that are no UTF-8; no name
// of a tensor has them.
func (d *decoder) utf8(b []byte) string {
	if !utf8.Valid(b) {
		d.fail("has a text that is not valid UTF-8")
	}
	return string(b)
}

func (d *decoder) push(v any) {
	if d.numValues++; d.numValues > d.o.Values {
		d.fail("has more than the %d values allowed", d.o.Values)
	}
	d.stack = append(d.stack, v)
}

// floor is the height below which the instructions since the last mark must not reach.
func (d *decoder) floor() int {
	if n := len(d.marks); n > 0 {
		return d.marks[n-1]
	}
	return 0
}

func (d *decoder) pop() any {
	v := d.top()
	d.stack = d.stack[:len(d.stack)-1]
	return v
}

func (d *decoder) top() any {
	if len(d.stack) <= d.floor() {
		d.fail("takes a value from an empty stack (instruction %#02x)", d.text[d.at])
	}
	return d.stack[len(d.stack)-1]
}

// popMark returns the values since the last mark; they belong to the caller.
func (d *decoder) popMark() []any {
	if len(d.marks) == 0 {
		d.fail("wants a mark where there is none (instruction %#02x)", d.text[d.at])
	}
	from := d.floor()
	d.marks = d.marks[:len(d.marks)-1]
	values := slices.Clone(d.stack[from:])
	d.stack = d.stack[:from]
	return values
}

// topMany returns the last n values and takes them from the stack.
func (d *decoder) popMany(n int) []any {
	if len(d.stack)-n < d.floor() {
		d.fail("takes %d values from a stack of %d", n, len(d.stack)-d.floor())
	}
	values := slices.Clone(d.stack[len(d.stack)-n:])
	d.stack = d.stack[:len(d.stack)-n]
	return values
}

// put remembers the value on the top of the stack. Pickles number what they remember one
// after the other, so the memo is a slice; what is beyond its end goes into a map.
func (d *decoder) put(i uint32) {
	v := d.top()
	switch {
	case int64(i) < int64(len(d.memo)):
		d.memo[i] = v
	case int64(i) == int64(len(d.memo)):
		d.memo = append(d.memo, v)
	default:
		if d.sparse == nil {
			d.sparse = map[uint32]any{}
		}
		d.sparse[i] = v
	}
	if d.numValues++; d.numValues > 2*d.o.Values {
		d.fail("remembers more than the %d values allowed", d.o.Values)
	}
}

func (d *decoder) get(i uint32) {
	var v any
	found := int64(i) < int64(len(d.memo))
	if found {
		v = d.memo[i]
	} else {
		v, found = d.sparse[i]
	}
	if !found {
		d.fail("recalls the value %d, which it never remembered", i)
	}
	if id := identity(v); id != nil {
		d.shared[id] = true
	}
	d.push(v)
}

func (d *decoder) global(module, name string) {
	g := Global{module, name}
	if d.o.Allow == nil || !d.o.Allow(g) {
		panic(failure{&ForbiddenError{d.o.File, d.at, g}})
	}
	d.push(g)
}

// long reads an integer of n bytes in two's complement.
func (d *decoder) long(n int) any {
	if n > maxLong {
		d.fail("has an integer of %d bytes, more than the %d allowed", n, maxLong)
	}
	b := slices.Clone(d.take(n))
	slices.Reverse(b)
	if len(b) == 0 {
		return int64(0)
	}
	x := new(big.Int).SetBytes(b)
	if b[0] >= 0x80 {
		x.Sub(x, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	if x.IsInt64() {
		return x.Int64()
	}
	return x
}

func (d *decoder) float() float64 { return math.Float64frombits(binary.BigEndian.Uint64(d.take(8))) }
