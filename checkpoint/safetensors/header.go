// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// MaxHeaderBytes is the longest header that is read or written, the
// reference's own limit.
const MaxHeaderBytes = 100_000_000

// maxNesting limits the depth of values that the reader skips.
const maxNesting = 64

const metadataKey = "__metadata__"

// Info names and describes one tensor.
type Info struct {
	Name  string
	DType DType
	Shape []int // empty for a scalar, which has one element
}

// NumBytes returns the bytes of the tensor, -1 if dtype and shape make no sense.
func (i Info) NumBytes() int64 {
	n, problem := numBytes(i.DType, i.Shape)
	if problem != "" {
		return -1
	}
	return n
}

// Entry is one tensor of a file.
type Entry struct {
	Info
	Offset int64 // of its first byte in the file
	Size   int64 // bytes
}

// compareLayout orders tensors as the reference lays them out: higher dtypes
// first, so that every tensor is aligned, then by name.
func compareLayout(a, b Info) int {
	return cmp.Or(cmp.Compare(b.DType, a.DType), cmp.Compare(a.Name, b.Name))
}

// encodeHeader returns the length and the header of a file that holds infos,
// which are in layout order, padded so that the data begins at a multiple of 8.
func encodeHeader(infos []Info, metadata map[string]string) ([]byte, error) {
	fail := func(name, format string, args ...any) ([]byte, error) {
		return nil, &FormatError{Tensor: name, Offset: -1, Problem: fmt.Sprintf(format, args...)}
	}
	h := make([]byte, 8, 8+128+96*len(infos))
	h = append(h, '{')
	if len(metadata) > 0 {
		h = appendString(h, metadataKey)
		h = append(h, ":{"...)
		for i, k := range slices.Sorted(maps.Keys(metadata)) {
			if !utf8.ValidString(k) || !utf8.ValidString(metadata[k]) {
				return fail("", "metadata %q is not valid UTF-8", k)
			}
			if i > 0 {
				h = append(h, ',')
			}
			h = appendString(h, k)
			h = append(h, ':')
			h = appendString(h, metadata[k])
		}
		h = append(h, '}')
	}
	var begin int64
	for i, t := range infos {
		switch {
		case t.Name == metadataKey:
			return fail(t.Name, "has the name that the format keeps for metadata: rename it")
		case !utf8.ValidString(t.Name):
			return fail(t.Name, "has a name that is not valid UTF-8: rename it")
		}
		n, problem := numBytes(t.DType, t.Shape)
		if problem != "" {
			return fail(t.Name, "%s", problem)
		}
		if begin > math.MaxInt64-MaxHeaderBytes-8-n {
			return fail(t.Name, "makes the file longer than can be counted")
		}
		if i > 0 || len(metadata) > 0 {
			h = append(h, ',')
		}
		h = appendString(h, t.Name)
		h = append(h, `:{"dtype":"`...)
		h = append(h, t.DType.String()...)
		h = append(h, `","shape":[`...)
		for j, s := range t.Shape {
			if j > 0 {
				h = append(h, ',')
			}
			h = strconv.AppendInt(h, int64(s), 10)
		}
		h = append(h, `],"data_offsets":[`...)
		h = strconv.AppendInt(h, begin, 10)
		h = append(h, ',')
		begin += n
		h = strconv.AppendInt(h, begin, 10)
		h = append(h, "]}"...)
	}
	h = append(h, '}')
	for len(h)%8 != 0 {
		h = append(h, ' ')
	}
	if len(h)-8 > MaxHeaderBytes {
		return fail("", "the header would have %d bytes, more than the format's %d: split the tensors over several files", len(h)-8, MaxHeaderBytes)
	}
	binary.LittleEndian.PutUint64(h, uint64(len(h)-8))
	return h, nil
}

// appendString appends s as the reference's encoder writes it: nothing is
// escaped that JSON does not ask for.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ':
			b = append(b, c)
		case c == '\b':
			b = append(b, '\\', 'b')
		case c == '\f':
			b = append(b, '\\', 'f')
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\r':
			b = append(b, '\\', 'r')
		case c == '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(b, '"')
}

// parser reads a header. The grammar is small and fixed, and reading it by
// hand finds what encoding/json forgives: names given twice, keys in another
// case, unpaired surrogates; and it knows the byte of every problem.
type parser struct {
	file string
	text []byte
	pos  int
}

// syntaxError unwinds the parser; parseHeader returns what it carries.
type syntaxError struct{ *FormatError }

func (p *parser) fail(tensor, format string, args ...any) {
	panic(syntaxError{&FormatError{File: p.file, Tensor: tensor, Offset: int64(8 + p.pos), Problem: fmt.Sprintf(format, args...)}})
}

// parseHeader reads the header's text and returns the tensors in the order of
// their offsets, which it has checked to cover numData bytes exactly.
func parseHeader(file string, text []byte, numData int64) (entries []Entry, metadata map[string]string, err error) {
	if !utf8.Valid(text) {
		return nil, nil, &FormatError{File: file, Offset: 8, Problem: "has a header that is not valid UTF-8"}
	}
	p := &parser{file: file, text: text}
	defer func() {
		if r := recover(); r != nil {
			s, ok := r.(syntaxError)
			if !ok {
				panic(r)
			}
			entries, metadata, err = nil, nil, s.FormatError
		}
	}()
	if len(text) == 0 || text[0] != '{' {
		p.fail("", "has a header that does not begin with '{'")
	}
	seen := map[string]bool{}
	p.object(func(key string) {
		if seen[key] {
			p.fail(key, "is there twice")
		}
		seen[key] = true
		if key == metadataKey {
			metadata = p.metadata()
			return
		}
		entries = append(entries, p.tensor(key))
	})
	p.space()
	if p.pos != len(text) {
		p.fail("", "has something after the end of its header's object")
	}
	return entries, metadata, checkLayout(file, entries, int64(8+len(text)), numData)
}

// checkLayout sorts the entries by offset, checks that they follow each other
// without holes and overlaps and end where the file ends, and makes their
// offsets those of the file, whose data begins at base.
func checkLayout(file string, entries []Entry, base, numData int64) error {
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Size, b.Size), cmp.Compare(a.Name, b.Name))
	})
	var next int64
	for i := range entries {
		e := &entries[i]
		fail := func(format string, args ...any) error {
			return &FormatError{File: file, Tensor: e.Name, Offset: -1, Problem: fmt.Sprintf(format, args...)}
		}
		if e.Offset != next {
			return fail("begins at byte %d of the data, but the one before it ends at %d", e.Offset, next)
		}
		want, problem := numBytes(e.DType, e.Shape)
		if problem != "" {
			return fail("%s", problem)
		}
		if e.Size != want {
			return fail("has %d bytes, but shape %v of %v has %d", e.Size, e.Shape, e.DType, want)
		}
		next += e.Size
		if next > numData {
			return &FormatError{File: file, Tensor: e.Name, Offset: -1, Truncated: true,
				Problem: fmt.Sprintf("ends at byte %d of the file, which has only %d", base+next, base+numData)}
		}
		e.Offset += base
	}
	if next != numData {
		return &FormatError{File: file, Offset: base + next,
			Problem: fmt.Sprintf("has %d bytes after its last tensor", numData-next)}
	}
	return nil
}

// metadata reads the object of strings under "__metadata__".
func (p *parser) metadata() map[string]string {
	p.space()
	if p.peek() == 'n' { // the reference takes null for none
		p.skip(0)
		return nil
	}
	m := map[string]string{}
	p.object(func(key string) {
		if _, dup := m[key]; dup {
			p.fail("", "has metadata %q twice", key)
		}
		m[key] = p.str()
	})
	return m
}

// tensor reads the object of one tensor. Offset and Size are as the header
// says them, relative to the data and not yet checked against other tensors.
func (p *parser) tensor(name string) Entry {
	e := Entry{Info: Info{Name: name}}
	var hasDType, hasShape, hasOffsets bool
	once := func(has *bool, key string) {
		if *has {
			p.fail(name, "has %q twice", key)
		}
		*has = true
	}
	p.object(func(key string) {
		switch key {
		case "dtype":
			once(&hasDType, key)
			s := p.str()
			d, ok := ParseDType(s)
			if !ok {
				p.fail(name, "has the unknown dtype %q", s)
			}
			e.DType = d
		case "shape":
			once(&hasShape, key)
			e.Shape = []int{}
			p.array(func(n uint64) {
				if n > math.MaxInt {
					p.fail(name, "has a size of %d in its shape", n)
				}
				e.Shape = append(e.Shape, int(n))
			})
		case "data_offsets":
			once(&hasOffsets, key)
			var ends []uint64
			p.array(func(n uint64) {
				if ends = append(ends, n); len(ends) > 2 {
					p.fail(name, "has more than two data_offsets")
				}
			})
			if len(ends) != 2 || ends[0] > ends[1] || ends[1] > math.MaxInt64 {
				p.fail(name, "has data_offsets %v, not a begin and an end", ends)
			}
			e.Offset, e.Size = int64(ends[0]), int64(ends[1]-ends[0])
		default:
			p.skip(0)
		}
	})
	if !hasDType || !hasShape || !hasOffsets {
		p.fail(name, "lacks one of dtype, shape and data_offsets")
	}
	return e
}

// object reads an object and calls member with each key, at its value.
func (p *parser) object(member func(key string)) {
	p.want('{')
	if p.space(); p.peek() == '}' {
		p.pos++
		return
	}
	for {
		key := p.str()
		p.want(':')
		member(key)
		if p.space(); p.peek() != ',' {
			break
		}
		p.pos++
	}
	p.want('}')
}

// array reads an array of unsigned integers.
func (p *parser) array(element func(n uint64)) {
	p.want('[')
	if p.space(); p.peek() == ']' {
		p.pos++
		return
	}
	for {
		element(p.uint())
		if p.space(); p.peek() != ',' {
			break
		}
		p.pos++
	}
	p.want(']')
}

func (p *parser) uint() uint64 {
	p.space()
	start := p.pos
	for p.pos < len(p.text) && p.text[p.pos] >= '0' && p.text[p.pos] <= '9' {
		p.pos++
	}
	digits := string(p.text[start:min(p.pos, start+32)])
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || p.pos-start > 20 || digits[0] == '0' && p.pos-start > 1 {
		p.pos = start
		p.fail("", "has a header with %q where a whole number should be", p.around())
	}
	return n
}

func (p *parser) str() string {
	p.space()
	start := p.pos
	p.want('"')
	for escaped := false; ; p.pos++ {
		if p.pos >= len(p.text) {
			p.fail("", "has a header that ends inside a string")
		}
		switch c := p.text[p.pos]; {
		case c == '"':
			p.pos++
			raw := p.text[start:p.pos]
			if !escaped {
				return string(raw[1 : len(raw)-1])
			}
			return p.unescape(start, raw)
		case c == '\\':
			escaped = true
			p.pos++
		case c < ' ':
			p.fail("", "has a header with an unescaped control character in a string")
		}
	}
}

// unescape decodes a string with escapes. encoding/json replaces unpaired
// surrogates, by which two names could become one; they are refused here.
func (p *parser) unescape(start int, raw []byte) string {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		p.pos = start
		p.fail("", "has a header with a malformed string (%v)", err)
	}
	for i := 0; i+6 <= len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if raw[i+1] != 'u' {
			i++
			continue
		}
		v, _ := strconv.ParseUint(string(raw[i+2:i+6]), 16, 32)
		i += 5
		if v < 0xD800 || v > 0xDFFF {
			continue
		}
		var low uint64
		if v < 0xDC00 && i+7 <= len(raw) && raw[i+1] == '\\' && raw[i+2] == 'u' {
			low, _ = strconv.ParseUint(string(raw[i+3:i+7]), 16, 32)
		}
		if low < 0xDC00 || low > 0xDFFF {
			p.pos = start
			p.fail("", "has a header with half a surrogate pair in a string")
		}
		i += 6
	}
	return s
}

// skip reads over any value: later versions of the format may say more about a tensor.
func (p *parser) skip(depth int) {
	if depth > maxNesting {
		p.fail("", "has a header nested deeper than %d", maxNesting)
	}
	p.space()
	switch c := p.peek(); {
	case c == '"':
		p.str()
	case c == '{':
		p.object(func(string) { p.skip(depth + 1) })
	case c == '[':
		p.pos++
		if p.space(); p.peek() == ']' {
			p.pos++
			return
		}
		for {
			p.skip(depth + 1)
			if p.space(); p.peek() != ',' {
				break
			}
			p.pos++
		}
		p.want(']')
	default:
		start := p.pos
		for p.pos < len(p.text) && isScalar(p.text[p.pos]) {
			p.pos++
		}
		if !json.Valid(p.text[start:p.pos]) {
			p.pos = start
			p.fail("", "has a header with %q where a value should be", p.around())
		}
	}
}

func isScalar(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == 'E' || c == '+' || c == '-' || c == '.'
}

func (p *parser) space() {
	for p.pos < len(p.text) {
		switch p.text[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

// peek returns the next byte, 0 at the end.
func (p *parser) peek() byte {
	if p.pos >= len(p.text) {
		return 0
	}
	return p.text[p.pos]
}

func (p *parser) want(c byte) {
	p.space()
	if p.peek() != c {
		p.fail("", "has a header with %q where %q should be", p.around(), c)
	}
	p.pos++
}

// around returns a few bytes at the reader's place, for an error.
func (p *parser) around() string {
	return string(p.text[min(p.pos, len(p.text)):min(p.pos+12, len(p.text))])
}
