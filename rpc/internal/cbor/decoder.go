// SPDX-License-Identifier: Apache-2.0

package cbor

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// budgetFactor bounds the memory that decoding takes: as many bytes for each
	// byte of input, and budgetBase beside.
	budgetFactor = 64
	budgetBase   = 64 << 10
)

// ErrShort is input that ends within an item.
var ErrShort = errors.New("the bytes end within a value")

// Error is input that is not what a plan or caller wants.
type Error struct {
	// Path leads to the place: names of fields, indices, from the outside.
	Path []string
	// Want is what was expected there and Got what came; empty where Err says it all.
	Want, Got string
	Err       error
}

func (e *Error) Error() string {
	var b strings.Builder
	if len(e.Path) > 0 {
		b.WriteString("at ")
		for i, p := range e.Path {
			if i > 0 && !strings.HasPrefix(p, "[") {
				b.WriteByte('.')
			}
			b.WriteString(p)
		}
		b.WriteString(": ")
	}
	if e.Err != nil {
		b.WriteString(e.Err.Error())
	} else {
		fmt.Fprintf(&b, "want %s, got %s", e.Want, e.Got)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// Decoder reads items from bytes. After a failure, which Err keeps, every method
// returns the zero value.
type Decoder struct {
	// Env is for specials.
	Env any

	buf    []byte
	pos    int
	depth  int
	budget int
	err    *Error
}

// Reset makes the decoder read b, which must not change until it has.
func (d *Decoder) Reset(b []byte) {
	d.buf, d.pos, d.depth, d.err = b, 0, 0, nil
	d.budget = budgetBase + budgetFactor*len(b)
}

// Err returns the first failure, an [*Error], or nil.
func (d *Decoder) Err() error {
	if d.err == nil {
		return nil
	}
	return d.err
}

// Pos returns how many bytes have been read.
func (d *Decoder) Pos() int { return d.pos }

// Rest returns the bytes that have not been read.
func (d *Decoder) Rest() []byte { return d.buf[d.pos:] }

// Fail notes a failure, unless there is one already.
func (d *Decoder) Fail(err error) {
	if d.err == nil {
		d.err = &Error{Err: err}
	}
}

func (d *Decoder) failf(format string, args ...any) { d.Fail(fmt.Errorf(format, args...)) }

// Mismatch notes that the next item is not what is wanted.
func (d *Decoder) Mismatch(want string) {
	if d.err == nil {
		d.err = &Error{Want: want, Got: d.describe()}
	}
}

// at adds a step to the path of a failure; the innermost comes first.
func (d *Decoder) at(step string) {
	if d.err != nil && len(d.err.Path) < 2*MaxDepth {
		d.err.Path = slices.Insert(d.err.Path, 0, step)
	}
}

// describe names the next item.
func (d *Decoder) describe() string {
	if d.pos >= len(d.buf) {
		return "the end"
	}
	b := d.buf[d.pos]
	switch b & 0xe0 {
	case majorUint:
		return "an integer"
	case majorInt:
		return "a negative integer"
	case majorBytes:
		return "bytes"
	case majorText:
		return "text"
	case majorArray:
		return "a list" // an array is what Python's tensors may be
	case majorMap:
		return "a map"
	case majorTag:
		probe := Decoder{buf: d.buf, pos: d.pos}
		_, n := probe.head()
		return fmt.Sprintf("tag %d", n)
	}
	switch b {
	case valueFalse, valueTrue:
		return "a bool"
	case valueNull:
		return "null"
	case valueFloat16, valueFloat32, valueFloat64:
		return "a floating-point number"
	}
	return fmt.Sprintf("the byte %#02x", b)
}

// enter goes one level down, which the caller leaves by d.depth--.
func (d *Decoder) enter() bool {
	if d.depth++; d.depth > MaxDepth {
		d.failf("the value nests deeper than %d levels", MaxDepth)
	}
	return d.err == nil
}

// Spend takes memory out of the budget, before it is taken.
func (d *Decoder) Spend(n, size int) bool {
	if d.err != nil {
		return false
	}
	if size > 0 && n > d.budget/size {
		d.failf("%d elements of %d bytes are more than so short a message may make", n, size)
		return false
	}
	d.budget -= n * size
	return true
}

// head reads an item's first bytes. For floating-point numbers n are their bits.
func (d *Decoder) head() (first byte, n uint64) {
	if d.err != nil {
		return 0, 0
	}
	if d.pos >= len(d.buf) {
		d.Fail(ErrShort)
		return 0, 0
	}
	first = d.buf[d.pos]
	low := first & 0x1f
	if low < 24 {
		d.pos++
		return first, uint64(low)
	}
	size := 0
	switch low {
	case 24:
		size = 1
	case 25:
		size = 2
	case 26:
		size = 4
	case 27:
		size = 8
	case 31:
		d.failf("a value of indefinite length")
		return 0, 0
	default:
		d.failf("the byte %#02x begins no value", first)
		return 0, 0
	}
	b := d.buf[d.pos+1:]
	if len(b) < size {
		d.Fail(ErrShort)
		return 0, 0
	}
	for _, c := range b[:size] {
		n = n<<8 | uint64(c)
	}
	d.pos += 1 + size
	return first, n
}

// peek returns the next byte, 0xff at the end.
func (d *Decoder) peek() byte {
	if d.err != nil || d.pos >= len(d.buf) {
		return 0xff
	}
	return d.buf[d.pos]
}

// is says whether the next item is of a major type, and notes a mismatch if not.
func (d *Decoder) is(major byte, want string) bool {
	if d.err != nil {
		return false
	}
	if d.pos >= len(d.buf) {
		d.Fail(ErrShort)
		return false
	}
	if d.buf[d.pos]&0xe0 != major {
		d.Mismatch(want)
		return false
	}
	return true
}

// Uint reads a number that is not negative.
func (d *Decoder) Uint() uint64 {
	if !d.is(majorUint, "a number that is not negative") {
		return 0
	}
	_, n := d.head()
	return n
}

// Int reads a number.
func (d *Decoder) Int() int64 {
	if d.peek()&0xe0 != majorInt {
		if !d.is(majorUint, "an integer") {
			return 0
		}
	}
	first, n := d.head()
	if n > math.MaxInt64 {
		d.failf("the integer does not fit into 64 bits with a sign")
		return 0
	}
	if first&0xe0 == majorInt {
		return -1 - int64(n)
	}
	return int64(n)
}

// length reads the head of something with n parts of at least one byte each.
func (d *Decoder) length(major byte, want string) int {
	if !d.is(major, want) {
		return 0
	}
	_, n := d.head()
	if n > uint64(len(d.buf)-d.pos) {
		d.Fail(ErrShort)
		return 0
	}
	return int(n)
}

// Bytes reads a byte string, which is part of the input.
func (d *Decoder) Bytes() []byte {
	n := d.length(majorBytes, "bytes")
	b := d.buf[d.pos : d.pos+n : d.pos+n]
	d.pos += n
	return b
}

// Text reads a text string, which is part of the input.
func (d *Decoder) Text() []byte {
	n := d.length(majorText, "text")
	b := d.buf[d.pos : d.pos+n : d.pos+n]
	if !utf8.Valid(b) {
		d.failf("text that is not UTF-8")
		return nil
	}
	d.pos += n
	return b
}

// Array reads the head of an array and returns how many items follow.
func (d *Decoder) Array() int { return d.length(majorArray, "an array") }

// Map reads the head of a map and returns how many pairs follow.
func (d *Decoder) Map() int {
	n := d.length(majorMap, "a map")
	if n > (len(d.buf)-d.pos)/2 {
		d.Fail(ErrShort)
		return 0
	}
	return n
}

// Tag reads a tag if the next item has one.
func (d *Decoder) Tag() (n uint64, ok bool) {
	if d.peek()&0xe0 != majorTag || d.err != nil || d.pos >= len(d.buf) {
		return 0, false
	}
	_, n = d.head()
	return n, d.err == nil
}

// Bool reads true or false.
func (d *Decoder) Bool() bool {
	switch d.peek() {
	case valueFalse:
		d.pos++
		return false
	case valueTrue:
		d.pos++
		return true
	}
	d.Mismatch("a bool")
	return false
}

// Null reads null if it is next, and says whether it was.
func (d *Decoder) Null() bool {
	if d.peek() != valueNull {
		return false
	}
	d.pos++
	return true
}

// Float reads a number of any kind that 64 bits hold exactly.
func (d *Decoder) Float() float64 {
	switch b := d.peek(); {
	case b == valueFloat64:
		_, n := d.head()
		return math.Float64frombits(n)
	case b == valueFloat32:
		_, n := d.head()
		return float64(math.Float32frombits(uint32(n)))
	case b == valueFloat16:
		_, n := d.head()
		return float16(uint16(n))
	case b&0xe0 == majorUint || b&0xe0 == majorInt:
		if v := d.Int(); int64(float64(v)) == v && v != math.MaxInt64 {
			return float64(v)
		}
		d.failf("the integer is none that a floating-point number has exactly")
		return 0
	}
	d.Mismatch("a number")
	return 0
}

// float16 widens a number of 16 bits.
func float16(h uint16) float64 {
	exp, frac := int(h>>10)&31, float64(h&1023)
	var v float64
	switch exp {
	case 0:
		v = math.Ldexp(frac, -24)
	case 31:
		v = math.Inf(1)
		if frac != 0 {
			v = math.NaN()
		}
	default:
		v = math.Ldexp(1024+frac, exp-25)
	}
	if h&0x8000 != 0 {
		return -v
	}
	return v
}

// Skip reads an item of any kind.
func (d *Decoder) Skip() {
	if !d.enter() {
		return
	}
	defer func() { d.depth-- }()
	switch d.peek() & 0xe0 {
	case majorBytes:
		d.Bytes()
	case majorText:
		d.Text()
	case majorArray:
		for n := d.Array(); n > 0 && d.err == nil; n-- {
			d.Skip()
		}
	case majorMap:
		for n := 2 * d.Map(); n > 0 && d.err == nil; n-- {
			d.Skip()
		}
	case majorTag:
		d.head()
		d.Skip()
	default:
		d.head()
	}
}

// Raw reads an item of any kind and returns its bytes, which are part of the input.
func (d *Decoder) Raw() []byte {
	from := d.pos
	d.Skip()
	if d.err != nil {
		return nil
	}
	return d.buf[from:d.pos:d.pos]
}

// End fails if there is input left.
func (d *Decoder) End() {
	if d.err == nil && d.pos != len(d.buf) {
		d.failf("%d bytes follow the value", len(d.buf)-d.pos)
	}
}
