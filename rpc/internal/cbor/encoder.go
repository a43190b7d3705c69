// SPDX-License-Identifier: Apache-2.0

// Package cbor turns Go values into CBOR (RFC 8949) and back, by plans that are
// compiled once a type.
//
// A [Codec] compiles a [Plan] for a type: structs become maps with the names of
// their fields, slices of numbers typed arrays (RFC 8746) of little-endian
// elements, which are copied in one piece, []byte byte strings, times tag 0.
// Types that a codec's owner knows better, such as tensors, are its [Special]s:
// what they write may refer to things that travel beside the bytes, which the
// encoder's and decoder's Env holds.
//
// The encoding is the shortest one for every length and number but floating-point
// ones, which keep their width. The decoder takes any well-formed encoding of
// definite length. It believes no length before it has seen as many bytes, takes
// no more memory than a fixed multiple of what came, and goes no deeper than
// [MaxDepth]; text is checked for UTF-8, a map for keys that are there twice, a
// struct for fields that it does not have and fields that are missing. An error
// says where in the value it happened and what would have been expected there.
//
// # Caveats
//
// Plans may be used by several goroutines at once, an [Encoder] or [Decoder] by
// one. A pointer that a plan is given must be one to a value of its type.
// Decoded strings and slices do not share memory with the input.
package cbor

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Major types, in the upper three bits of an item's first byte.
const (
	majorUint  = 0 << 5
	majorInt   = 1 << 5 // -1 - n
	majorBytes = 2 << 5
	majorText  = 3 << 5
	majorArray = 4 << 5
	majorMap   = 5 << 5
	majorTag   = 6 << 5
	majorOther = 7 << 5

	valueFalse   = majorOther | 20
	valueTrue    = majorOther | 21
	valueNull    = majorOther | 22
	valueFloat16 = majorOther | 25
	valueFloat32 = majorOther | 26
	valueFloat64 = majorOther | 27
)

// MaxDepth is how deep values nest at most.
const MaxDepth = 64

// Encoder appends items to Buf. The zero Encoder is ready.
type Encoder struct {
	Buf []byte
	// Env is for specials.
	Env any
	// Err is the first failure of a plan or a special.
	Err error

	depth int
}

// Fail notes a failure, unless there is one already.
func (e *Encoder) Fail(err error) {
	if e.Err == nil {
		e.Err = err
	}
}

// enter goes one level down, which the callee leaves by e.depth--.
func (e *Encoder) enter() bool {
	if e.depth++; e.depth > MaxDepth {
		e.Fail(fmt.Errorf("the value nests deeper than %d levels, or refers to itself", MaxDepth))
	}
	return e.Err == nil
}

func (e *Encoder) head(major byte, n uint64) {
	switch {
	case n < 24:
		e.Buf = append(e.Buf, major|byte(n))
	case n <= math.MaxUint8:
		e.Buf = append(e.Buf, major|24, byte(n))
	case n <= math.MaxUint16:
		e.Buf = append(e.Buf, major|25, byte(n>>8), byte(n))
	case n <= math.MaxUint32:
		e.Buf = binary.BigEndian.AppendUint32(append(e.Buf, major|26), uint32(n))
	default:
		e.Buf = binary.BigEndian.AppendUint64(append(e.Buf, major|27), n)
	}
}

// Uint appends a number.
func (e *Encoder) Uint(v uint64) { e.head(majorUint, v) }

// Int appends a number that may be negative.
func (e *Encoder) Int(v int64) {
	if v < 0 {
		e.head(majorInt, uint64(-1-v))
		return
	}
	e.head(majorUint, uint64(v))
}

// Bytes appends a byte string.
func (e *Encoder) Bytes(b []byte) {
	e.head(majorBytes, uint64(len(b)))
	e.Buf = append(e.Buf, b...)
}

// Text appends a text string.
func (e *Encoder) Text(s string) {
	e.head(majorText, uint64(len(s)))
	e.Buf = append(e.Buf, s...)
}

// Array begins an array of n items, which follow.
func (e *Encoder) Array(n int) { e.head(majorArray, uint64(n)) }

// Map begins a map of n pairs, which follow.
func (e *Encoder) Map(n int) { e.head(majorMap, uint64(n)) }

// Tag appends a tag, whose item follows.
func (e *Encoder) Tag(n uint64) { e.head(majorTag, n) }

// Bool appends true or false.
func (e *Encoder) Bool(v bool) {
	if v {
		e.Buf = append(e.Buf, valueTrue)
		return
	}
	e.Buf = append(e.Buf, valueFalse)
}

// Null appends null.
func (e *Encoder) Null() { e.Buf = append(e.Buf, valueNull) }

// Float32 appends a number of 32 bits.
func (e *Encoder) Float32(v float32) {
	e.Buf = binary.BigEndian.AppendUint32(append(e.Buf, valueFloat32), math.Float32bits(v))
}

// Float64 appends a number of 64 bits.
func (e *Encoder) Float64(v float64) {
	e.Buf = binary.BigEndian.AppendUint64(append(e.Buf, valueFloat64), math.Float64bits(v))
}
