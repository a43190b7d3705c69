// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

// str is Python's str of a value, as {{ }} writes it.
func (x *exec) str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case markup:
		return string(v)
	case undefined:
		return ""
	}
	var b strings.Builder
	x.repr(&b, v)
	x.make(b.Len())
	return b.String()
}

// repr writes a value as Python does within a list.
func (x *exec) repr(b *strings.Builder, v any) {
	x.step()
	if b.Len() > maxString {
		x.fail("a text of more than %d bytes", maxString)
	}
	defer x.enter()()
	list := func(open, closer string, items []any) {
		b.WriteString(open)
		for i, item := range items {
			if i > 0 {
				b.WriteString(", ")
			}
			x.repr(b, item)
		}
		b.WriteString(closer)
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		if v {
			b.WriteString("True")
		} else {
			b.WriteString("False")
		}
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case *big.Int:
		b.WriteString(v.String())
	case float64:
		b.WriteString(formatFloat(v))
	case string:
		quote(b, v)
	case markup:
		b.WriteString("Markup(")
		quote(b, string(v))
		b.WriteString(")")
	case undefined:
		b.WriteString("Undefined")
	case List:
		list("[", "]", v)
	case tuple:
		if len(v) == 1 {
			list("(", ",)", v)
		} else {
			list("(", ")", v)
		}
	case view:
		list(v.kind+"([", "])", v.items)
	case span:
		if fmt.Fprintf(b, "range(%d, %d", v.start, v.stop); v.step != 1 {
			fmt.Fprintf(b, ", %d", v.step)
		}
		b.WriteString(")")
	case *Dict:
		b.WriteString("{")
		for i, k := range v.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			x.repr(b, k)
			b.WriteString(": ")
			x.repr(b, v.value(k))
		}
		b.WriteString("}")
	default:
		x.fail("a %s cannot be written as text", typeName(v))
	}
}

// formatFloat is Python's repr of a float.
func formatFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	e := strconv.FormatFloat(f, 'e', -1, 64)
	_, exponent, _ := strings.Cut(e, "e")
	if n, _ := strconv.Atoi(exponent); f != 0 && (n < -4 || n >= 16) {
		return e
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// quote writes a string as Python's repr does.
func quote(b *strings.Builder, s string) {
	q := '\''
	if strings.ContainsRune(s, '\'') && !strings.ContainsRune(s, '"') {
		q = '"'
	}
	b.WriteRune(q)
	for _, r := range s {
		switch {
		case r == q || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			fmt.Fprintf(b, `\U%08x`, r)
		}
	}
	b.WriteRune(q)
}

// jsonStyle is how tojson writes.
type jsonStyle struct {
	indent    string
	lines     bool // each item on a line of its own
	item, key string
	ascii     bool
	sorted    bool
}

// json writes a value as Python's json.dumps does.
func (x *exec) json(b *strings.Builder, v any, s *jsonStyle, depth int) {
	x.step()
	if b.Len() > maxString {
		x.fail("JSON of more than %d bytes", maxString)
	}
	defer x.enter()()
	separate := func(i int) {
		if i > 0 {
			b.WriteString(s.item)
		}
		if s.lines {
			b.WriteByte('\n')
			b.WriteString(strings.Repeat(s.indent, depth+1))
		}
	}
	closing := func(n int) {
		if s.lines && n > 0 {
			b.WriteByte('\n')
			b.WriteString(strings.Repeat(s.indent, depth))
		}
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case *big.Int:
		b.WriteString(v.String())
	case float64:
		b.WriteString(jsonFloat(v))
	case string:
		jsonString(b, v, s.ascii)
	case markup:
		jsonString(b, string(v), s.ascii)
	case *Dict:
		b.WriteByte('{')
		for i, k := range x.jsonKeys(v, s.sorted) {
			separate(i)
			jsonString(b, x.jsonKey(k), s.ascii)
			b.WriteString(s.key)
			x.json(b, v.value(k), s, depth+1)
		}
		closing(len(v.keys))
		b.WriteByte('}')
	default:
		items, ok := sequence(v)
		if !ok {
			x.fail("a %s cannot be written as JSON", typeName(v))
		}
		b.WriteByte('[')
		for i, item := range items {
			separate(i)
			x.json(b, item, s, depth+1)
		}
		closing(len(items))
		b.WriteByte(']')
	}
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return formatFloat(f)
}

func (x *exec) jsonKeys(d *Dict, sorted bool) []any {
	if !sorted {
		return d.keys
	}
	return x.sorted(d.keys, func(v any) any { return v }, false)
}

// jsonKey is the text of a key, as json.dumps makes it.
func (x *exec) jsonKey(k any) string {
	switch k := k.(type) {
	case string:
		return k
	case markup:
		return string(k)
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(k)
	case float64:
		return jsonFloat(k)
	case int64, *big.Int:
		return fmt.Sprint(k)
	}
	x.fail("a %s cannot be a key in JSON", typeName(k))
	return ""
}

func jsonString(b *strings.Builder, s string, ascii bool) {
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\b':
			b.WriteString(`\b`)
		case r == '\f':
			b.WriteString(`\f`)
		case r < 0x20 || ascii && r >= 0x7f && r < 0x10000:
			if r == 0x7f {
				b.WriteRune(r)
				break
			}
			fmt.Fprintf(b, `\u%04x`, r)
		case ascii && r >= 0x10000:
			r -= 0x10000
			fmt.Fprintf(b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}
