// SPDX-License-Identifier: Apache-2.0

package records

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds how deep lists and objects of a record lie in each other.
const maxDepth = 64

// parser reads a JSON value as RFC 8259 says. It refuses what readers disagree about: a key that an
// object has twice, half a surrogate pair, bytes that are no UTF-8, numbers that are infinite.
type parser struct {
	text  []byte
	pos   int
	depth int
	want  func(field string) Want // of top fields; nil for Take of all
}

// parseRecord reads a JSON object. What follows it must be spaces.
func parseRecord(text []byte, want func(field string) Want) (Record, error) {
	if at := invalidUTF8(text); at >= 0 {
		return nil, fmt.Errorf("byte %d is no UTF-8 (0x%02x): convert the file", at+1, text[at])
	}
	p := &parser{text: text, want: want}
	p.spaces()
	if p.pos == len(text) || text[p.pos] != '{' {
		return nil, p.fail("want a JSON object, {…}")
	}
	r, err := p.object()
	if err != nil {
		return nil, err
	}
	p.spaces()
	if p.pos < len(text) {
		return nil, p.fail("there is more after the JSON object: write one record a line")
	}
	return r, nil
}

func invalidUTF8(b []byte) int {
	if utf8.Valid(b) {
		return -1
	}
	for i := 0; i < len(b); {
		c, n := utf8.DecodeRune(b[i:])
		if c == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

func (p *parser) fail(format string, args ...any) error {
	at := fmt.Sprintf("no JSON at byte %d", p.pos+1)
	if p.pos >= len(p.text) {
		at = "no JSON: it ends too early"
	}
	return errors.New(at + ": " + fmt.Sprintf(format, args...))
}

func (p *parser) spaces() {
	for p.pos < len(p.text) && isSpace(p.text[p.pos]) {
		p.pos++
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

func (p *parser) take(c byte) bool {
	p.spaces()
	if p.pos < len(p.text) && p.text[p.pos] == c {
		p.pos++
		return true
	}
	return false
}

func (p *parser) enter() error {
	if p.depth++; p.depth > maxDepth {
		return p.fail("lists and objects lie more than %d deep", maxDepth)
	}
	p.pos++
	return nil
}

func (p *parser) object() (Record, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	r, top := Record{}, p.depth == 1
	var left map[string]bool // fields that are not kept
	for !p.take('}') {
		if len(r)+len(left) > 0 && !p.take(',') {
			return nil, p.fail("want , or } after a field")
		}
		if p.spaces(); p.pos == len(p.text) || p.text[p.pos] != '"' {
			return nil, p.fail("want the name of a field, in double quotes")
		}
		name, err := p.str()
		if err != nil {
			return nil, err
		}
		if _, twice := r[name]; twice || left[name] {
			return nil, p.fail("the field %q is there twice", short(name))
		}
		if !p.take(':') {
			return nil, p.fail("want : after the name of a field")
		}
		p.spaces()
		begin := p.pos
		v, err := p.value()
		if err != nil {
			return nil, err
		}
		how := Take
		if top && p.want != nil {
			how = p.want(name)
		}
		switch how {
		case Leave:
			if left == nil {
				left = make(map[string]bool)
			}
			left[name] = true
			continue
		case Raw:
			v = json.RawMessage(bytes.Clone(p.text[begin:p.pos]))
		}
		r[name] = v
	}
	p.depth--
	return r, nil
}

func (p *parser) list() ([]any, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	l := []any{}
	for !p.take(']') {
		if len(l) > 0 && !p.take(',') {
			return nil, p.fail("want , or ] after an element")
		}
		v, err := p.value()
		if err != nil {
			return nil, err
		}
		l = append(l, v)
	}
	p.depth--
	return l, nil
}

// words are the values that are words.
var words = []struct {
	text  string
	value any
}{{"true", true}, {"false", false}, {"null", nil}}

func (p *parser) value() (any, error) {
	p.spaces()
	if p.pos == len(p.text) {
		return nil, p.fail("want a value")
	}
	switch c := p.text[p.pos]; {
	case c == '{':
		return p.object()
	case c == '[':
		return p.list()
	case c == '"':
		return p.str()
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	}
	for _, w := range words {
		if bytes.HasPrefix(p.text[p.pos:], []byte(w.text)) {
			p.pos += len(w.text)
			return w.value, nil
		}
	}
	for _, word := range []string{"NaN", "Infinity"} {
		if bytes.HasPrefix(p.text[p.pos:], []byte(word)) {
			return nil, p.fail("%s is no JSON, though Python writes it: write null", word)
		}
	}
	return nil, p.fail("want a value")
}

// number reads a number: an int64 if it is whole and fits, and else the nearest float64.
func (p *parser) number() (any, error) {
	begin, whole := p.pos, true
	digits := func() bool {
		from := p.pos
		for p.pos < len(p.text) && p.text[p.pos] >= '0' && p.text[p.pos] <= '9' {
			p.pos++
		}
		return p.pos > from
	}
	is := func(set string) bool {
		if p.pos < len(p.text) && strings.IndexByte(set, p.text[p.pos]) >= 0 {
			p.pos++
			return true
		}
		return false
	}
	if is("-"); bytes.HasPrefix(p.text[p.pos:], []byte("Infinity")) {
		return nil, p.fail("-Infinity is no JSON, though Python writes it: write null")
	}
	first := p.pos
	if !digits() {
		return nil, p.fail("want a digit")
	}
	if p.text[first] == '0' && p.pos > first+1 {
		return nil, p.fail("a number begins with 0")
	}
	if is(".") {
		if whole = false; !digits() {
			return nil, p.fail("want a digit after the point")
		}
	}
	if is("eE") {
		whole = false
		if is("+-"); !digits() {
			return nil, p.fail("want a digit in the exponent")
		}
	}
	text := string(p.text[begin:p.pos])
	if whole {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n, nil
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(f, 0) {
		return nil, p.fail("the number %s is too large", short(text))
	}
	return f, nil
}

// str reads a string that begins at pos.
func (p *parser) str() (string, error) {
	p.pos++
	begin := p.pos
	for p.pos < len(p.text) {
		switch c := p.text[p.pos]; {
		case c == '"':
			s := string(p.text[begin:p.pos])
			p.pos++
			return s, nil
		case c == '\\':
			return p.escaped(append(make([]byte, 0, 2*(p.pos-begin)+64), p.text[begin:p.pos]...))
		case c < ' ':
			return "", p.fail("a string has the control character 0x%02x: write it as an escape", c)
		}
		p.pos++
	}
	return "", p.fail("a string has no end")
}

// escaped reads the rest of a string, from its first escape on.
func (p *parser) escaped(s []byte) (string, error) {
	for p.pos < len(p.text) {
		c := p.text[p.pos]
		switch {
		case c == '"':
			p.pos++
			return string(s), nil
		case c < ' ':
			return "", p.fail("a string has the control character 0x%02x: write it as an escape", c)
		case c != '\\':
			from := p.pos
			for p.pos < len(p.text) && p.text[p.pos] >= ' ' && p.text[p.pos] != '"' && p.text[p.pos] != '\\' {
				p.pos++
			}
			s = append(s, p.text[from:p.pos]...)
			continue
		}
		if p.pos++; p.pos == len(p.text) {
			break
		}
		const from, to = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
		if i := strings.IndexByte(from, p.text[p.pos]); i >= 0 {
			s = append(s, to[i])
			p.pos++
			continue
		}
		c16, err := p.hex()
		if err != nil {
			return "", err
		}
		if utf16.IsSurrogate(c16) {
			var low rune
			if p.pos+1 < len(p.text) && p.text[p.pos] == '\\' {
				p.pos++
				if low, err = p.hex(); err != nil {
					return "", err
				}
			}
			if c16 = utf16.DecodeRune(c16, low); c16 == utf8.RuneError {
				return "", p.fail("half a surrogate pair is no character")
			}
		}
		s = utf8.AppendRune(s, c16)
	}
	return "", p.fail("a string has no end")
}

// hex reads uXXXX.
func (p *parser) hex() (rune, error) {
	if p.text[p.pos] != 'u' || p.pos+5 > len(p.text) {
		return 0, p.fail("an escape that JSON does not have")
	}
	n, err := strconv.ParseUint(string(p.text[p.pos+1:p.pos+5]), 16, 16)
	if err != nil {
		return 0, p.fail("an escape \\u wants four hexadecimal digits")
	}
	p.pos += 5
	return rune(n), nil
}

// short cuts a text for a message.
func short(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
