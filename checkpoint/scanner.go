// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// scanner reads JSON of a known form from a text, without taking more memory than the text has
// bytes. The first thing that is wrong ends it: err is set and everything read afterwards is
// empty.
type scanner struct {
	text []byte
	at   int
	err  error

	names map[string]string // strings that come often
	ints  []int             // from which slices are cut
	sums  []uint32
}

// maxDepth is how deep values of the program may be nested.
const maxDepth = 200

func (s *scanner) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("is wrong at byte %d: %s", s.at, fmt.Sprintf(format, args...))
		s.at = len(s.text)
	}
}

// peek returns the next byte that is no space, 0 at the end.
func (s *scanner) peek() byte {
	for s.at < len(s.text) {
		switch c := s.text[s.at]; c {
		case ' ', '\n', '\t', '\r':
			s.at++
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) want(c byte) {
	if s.peek() != c {
		s.fail("want %q", c)
		return
	}
	s.at++
}

// object calls member with the name of each member, which reads the value.
func (s *scanner) object(member func(name string)) {
	s.list('{', '}', func() {
		name := s.str()
		s.want(':')
		if s.err == nil {
			member(name)
		}
	})
}

// array calls element for each element, which reads it.
func (s *scanner) array(element func()) { s.list('[', ']', element) }

func (s *scanner) list(open, end byte, element func()) {
	s.want(open)
	if s.peek() == end {
		s.at++
		return
	}
	for s.err == nil {
		element()
		if s.peek() == end {
			s.at++
			return
		}
		s.want(',')
	}
}

// raw returns the bytes of a string, with its quotes.
func (s *scanner) raw() []byte {
	if s.peek() != '"' {
		s.fail("want a string")
		return nil
	}
	for i := s.at + 1; i < len(s.text); i++ {
		switch c := s.text[i]; {
		case c == '"':
			text := s.text[s.at : i+1]
			s.at = i + 1
			return text
		case c == '\\':
			i++
		case c < ' ':
			s.fail("a string with a control character")
			return nil
		}
	}
	s.fail("a string without end")
	return nil
}

// str reads a string.
func (s *scanner) str() string {
	text := s.raw()
	if text == nil {
		return ""
	}
	inner := text[1 : len(text)-1]
	if known, ok := s.names[string(inner)]; ok {
		return known
	}
	plain := string(inner)
	if bytes.IndexByte(inner, '\\') >= 0 || !isASCII(inner) {
		if err := json.Unmarshal(text, &plain); err != nil {
			s.fail("%v", err)
			return ""
		}
	}
	if s.names == nil {
		s.names = map[string]string{}
	}
	if len(s.names) < 1<<16 {
		s.names[string(inner)] = plain
	}
	return plain
}

func isASCII(b []byte) bool {
	for _, c := range b {
		if c >= 0x80 {
			return false
		}
	}
	return true
}

// number reads an integer of at least 0.
func (s *scanner) number() int64 {
	s.peek()
	begin := s.at
	for s.at < len(s.text) && s.text[s.at] >= '0' && s.text[s.at] <= '9' {
		s.at++
	}
	digits := s.text[begin:s.at]
	n, err := strconv.ParseInt(string(digits), 10, 64)
	if err != nil || len(digits) > 1 && digits[0] == '0' {
		s.fail("want a whole number of at least 0")
		return 0
	}
	return n
}

// numbers reads a list of at most maxDims integers.
func (s *scanner) numbers() []int {
	if cap(s.ints)-len(s.ints) < maxDims {
		s.ints = make([]int, 0, 1<<14)
	}
	begin := len(s.ints)
	s.array(func() {
		if len(s.ints)-begin == maxDims {
			s.fail("more than %d dims", maxDims)
			return
		}
		s.ints = append(s.ints, int(s.number()))
	})
	return s.ints[begin:len(s.ints):len(s.ints)]
}

// sum reads a checksum of 8 hexadecimal digits.
func (s *scanner) sum() uint32 {
	text := s.raw()
	var sum uint32
	if len(text) != 10 {
		s.fail("want a checksum of 8 hexadecimal digits")
		return 0
	}
	for _, c := range text[1:9] {
		switch {
		case c >= '0' && c <= '9':
			sum = sum<<4 | uint32(c-'0')
		case c >= 'a' && c <= 'f':
			sum = sum<<4 | uint32(c-'a'+10)
		default:
			s.fail("the checksum %s is not 8 hexadecimal digits", text)
			return 0
		}
	}
	return sum
}

// sumList reads a list of checksums.
func (s *scanner) sumList() []uint32 {
	list := s.sums[len(s.sums):]
	s.array(func() { list = append(list, s.sum()) })
	// The next list goes behind this one, as far as there is room.
	if cap(s.sums)-len(s.sums) >= len(list) && len(list) > 0 && cap(list) == cap(s.sums)-len(s.sums) {
		s.sums = s.sums[:len(s.sums)+len(list)]
	} else {
		s.sums = make([]uint32, 0, 1<<12)
	}
	return list[:len(list):len(list)]
}

// value returns the text of any value.
func (s *scanner) value() json.RawMessage {
	s.peek()
	begin := s.at
	s.skip(0)
	if s.err != nil {
		return nil
	}
	return json.RawMessage(s.text[begin:s.at])
}

func (s *scanner) skip(depth int) {
	if depth > maxDepth {
		s.fail("values nested more than %d deep", maxDepth)
		return
	}
	switch s.peek() {
	case '{':
		s.list('{', '}', func() {
			s.raw()
			s.want(':')
			s.skip(depth + 1)
		})
	case '[':
		s.list('[', ']', func() { s.skip(depth + 1) })
	case '"':
		s.raw()
	default:
		begin := s.at
		for s.at < len(s.text) && bytes.IndexByte([]byte("+-.0123456789eEtrufalsn"), s.text[s.at]) >= 0 {
			s.at++
		}
		if !json.Valid(s.text[begin:s.at]) {
			s.fail("want a value")
		}
	}
}

// decode reads a value into v by package json.
func (s *scanner) decode(v any) {
	text := s.value()
	if s.err != nil {
		return
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		s.fail("%v", err)
	}
}
