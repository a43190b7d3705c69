// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// TOML returns all settings as a TOML file. The lines of header come first, as
// comments. A comment behind each setting says where its value came from.
func (s *Settings) TOML(header ...string) []byte {
	lines, width := make([]string, len(s.fields)), 0
	for i, f := range s.fields {
		lines[i] = f.Name + " = " + f.toml()
		if n := utf8.RuneCountInString(lines[i]); n <= 40 {
			width = max(width, n)
		}
	}
	var b bytes.Buffer
	for _, h := range header {
		fmt.Fprintf(&b, "# %s\n", oneLine(h))
	}
	for i, f := range s.fields {
		pad := max(0, width-utf8.RuneCountInString(lines[i]))
		fmt.Fprintf(&b, "%s%s  # %s\n", lines[i], strings.Repeat(" ", pad), oneLine(f.From))
	}
	return b.Bytes()
}

// oneLine makes a text fit for a comment: TOML allows no control characters
// there, and a line break would end the comment.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
}

// toml returns the value in TOML's notation.
func (f *Field) toml() string {
	switch v := f.Value().(type) {
	case float64:
		switch {
		case math.IsNaN(v):
			return "nan"
		case math.IsInf(v, 1):
			return "inf"
		case math.IsInf(v, -1):
			return "-inf"
		}
		text := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(text, ".e") {
			text += ".0" // else it is an integer
		}
		return text
	case string:
		return TOMLString(v)
	case []string:
		texts := make([]string, len(v))
		for i, text := range v {
			texts[i] = TOMLString(text)
		}
		return "[" + strings.Join(texts, ", ") + "]"
	default:
		return fmt.Sprint(v)
	}
}

// TOMLString returns a basic string of TOML. Bytes that are not UTF-8 become
// U+FFFD, because TOML cannot hold them.
func TOMLString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
