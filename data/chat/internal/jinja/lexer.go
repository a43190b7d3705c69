// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokenData   tokenKind = iota // text outside of tags
	tokenVar                     // {{
	tokenVarEnd                  // }}
	tokenBlock                   // {%
	tokenEnd                     // %}
	tokenName
	tokenString
	tokenInt
	tokenFloat
	tokenOperator
	tokenEOF
)

type token struct {
	kind tokenKind
	text string // of a string what it stands for
	line int
}

// describe names a token in an error.
func (t token) describe() string {
	switch t.kind {
	case tokenEOF:
		return "the end of the template"
	case tokenData:
		return "text"
	case tokenString:
		return fmt.Sprintf("the string %.40q", t.text)
	}
	return fmt.Sprintf("%.40q", t.text)
}

// lexer makes tokens of a template, with the settings of the transformers
// package: trim_blocks, lstrip_blocks, no keep_trailing_newline.
type lexer struct {
	src          string
	pos          int
	line         int
	lineStarting bool // what was last ended with a line's end
	out          []token
}

func lex(source string) []token {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	l := &lexer{src: source, line: 1, lineStarting: true}
	for l.pos < len(l.src) {
		l.root()
	}
	l.emit(tokenEOF, "")
	return l.out
}

func (l *lexer) emit(kind tokenKind, text string) {
	if len(l.out) == maxTokens {
		fail(l.line, "the template has more than %d tokens", maxTokens)
	}
	l.out = append(l.out, token{kind, text, l.line})
}

// advance goes n bytes on and counts lines.
func (l *lexer) advance(n int) {
	l.line += strings.Count(l.src[l.pos:l.pos+n], "\n")
	l.pos += n
}

// root reads text, up to a tag and the tag.
func (l *lexer) root() {
	rest := l.src[l.pos:]
	at := 0
	for {
		i := strings.IndexByte(rest[at:], '{')
		if i < 0 || at+i+1 >= len(rest) {
			l.emit(tokenData, rest)
			l.advance(len(rest))
			return
		}
		at += i
		if c := rest[at+1]; c == '{' || c == '%' || c == '#' {
			break
		}
		at++
	}
	text, opener := rest[:at], rest[at+1]
	open, sign := 2, byte(0)
	if at+2 < len(rest) && (rest[at+2] == '-' || rest[at+2] == '+') {
		open, sign = 3, rest[at+2]
	}
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, isSpace)
	case sign != '+' && opener != '{':
		start := strings.LastIndexByte(text, '\n') + 1
		if (start > 0 || l.lineStarting) && strings.TrimLeftFunc(text[start:], isSpace) == "" {
			text = text[:start]
		}
	}
	if text != "" {
		l.emit(tokenData, text)
	}
	l.advance(at + open)
	l.lineStarting = false
	switch opener {
	case '#':
		l.comment()
	case '{':
		l.emit(tokenVar, "{{")
		l.tag(tokenVarEnd, "}}")
	default:
		if !l.raw() {
			l.emit(tokenBlock, "{%")
			l.tag(tokenEnd, "%}")
		}
	}
}

// closeTag goes on after a tag's end, of which the sign and the two characters
// are at pos, and what the sign takes away.
func (l *lexer) closeTag(sign byte, trim bool) {
	n := 2
	if sign != 0 {
		n = 3
	}
	rest := l.src[l.pos+n:]
	switch {
	case sign == '-':
		n += len(rest) - len(strings.TrimLeftFunc(rest, isSpace))
	case sign == 0 && trim && strings.HasPrefix(rest, "\n"):
		n++
	}
	l.lineStarting = l.src[l.pos+n-1] == '\n'
	l.advance(n)
}

// signBefore returns the sign at s[i-1].
func signBefore(s string, i int) byte {
	if i > 0 && (s[i-1] == '-' || s[i-1] == '+') {
		return s[i-1]
	}
	return 0
}

func (l *lexer) comment() {
	i := strings.Index(l.src[l.pos:], "#}")
	if i < 0 {
		fail(l.line, "a comment {# has no end #}")
	}
	sign := signBefore(l.src[l.pos:], i)
	if sign != 0 {
		i--
	}
	l.advance(i)
	l.closeTag(sign, true)
}

// raw reads {% raw %} to {% endraw %} if that is what the block at pos is.
func (l *lexer) raw() bool {
	rest := strings.TrimLeftFunc(l.src[l.pos:], isSpace)
	rest, ok := strings.CutPrefix(rest, "raw")
	if !ok {
		return false
	}
	rest = strings.TrimLeftFunc(rest, isSpace)
	cut, ok := strings.CutPrefix(rest, "-%}")
	if ok {
		cut = strings.TrimLeftFunc(cut, isSpace)
	} else if cut, ok = strings.CutPrefix(rest, "%}"); !ok {
		return false
	}
	l.advance(len(l.src) - l.pos - len(cut))
	for at := 0; ; at += 2 {
		i := strings.Index(cut[at:], "{%")
		if i < 0 {
			fail(l.line, "{%% raw %%} has no {%% endraw %%}")
		}
		at += i
		body, end := cut[:at], cut[at+2:]
		minus := strings.HasPrefix(end, "-")
		plus := strings.HasPrefix(end, "+")
		if minus || plus {
			end = end[1:]
		}
		end, ok := strings.CutPrefix(strings.TrimLeftFunc(end, isSpace), "endraw")
		if !ok {
			continue
		}
		end = strings.TrimLeftFunc(end, isSpace)
		sign := byte(0)
		if strings.HasPrefix(end, "-%}") || strings.HasPrefix(end, "+%}") {
			sign = end[0]
		} else if !strings.HasPrefix(end, "%}") {
			continue
		}
		if minus {
			body = strings.TrimRightFunc(body, isSpace)
		} else if start := strings.LastIndexByte(body, '\n') + 1; !plus && start > 0 && strings.TrimLeftFunc(body[start:], isSpace) == "" {
			body = body[:start]
		}
		if body != "" {
			l.emit(tokenData, body)
		}
		l.advance(len(l.src) - l.pos - len(end))
		l.closeTag(sign, true)
		return true
	}
}

// tag reads what is in a tag, and its end.
func (l *lexer) tag(end tokenKind, closer string) {
	opened := l.line
	var brackets []byte
	for {
		rest := l.src[l.pos:]
		if rest == "" {
			fail(opened, "a tag has no end %s", closer)
		}
		if len(brackets) == 0 {
			sign := byte(0)
			if rest[0] == '-' || rest[0] == '+' && end == tokenEnd {
				sign = rest[0]
			}
			if sign != 0 && strings.HasPrefix(rest[1:], closer) || strings.HasPrefix(rest, closer) {
				if strings.HasPrefix(rest, closer) {
					sign = 0
				}
				l.emit(end, closer)
				l.closeTag(sign, end == tokenEnd)
				return
			}
		}
		r, n := utf8.DecodeRuneInString(rest)
		switch {
		case isSpace(r):
			l.advance(n)
		case r >= '0' && r <= '9':
			l.number(rest)
		case r == '_' || unicode.IsLetter(r):
			n = strings.IndexFunc(rest, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
			if n < 0 {
				n = len(rest)
			}
			l.emit(tokenName, rest[:n])
			l.advance(n)
		case r == '\'' || r == '"':
			l.quoted(rest)
		default:
			brackets = l.operator(rest, brackets)
		}
	}
}

func (l *lexer) operator(rest string, brackets []byte) []byte {
	n := 1
	for _, op := range []string{"**", "//", "==", "!=", ">=", "<="} {
		if strings.HasPrefix(rest, op) {
			n = 2
		}
	}
	c := rest[0]
	if n == 1 && !strings.ContainsRune("+-*/%~<>=.:|,;()[]{}", rune(c)) {
		r, _ := utf8.DecodeRuneInString(rest)
		fail(l.line, "unexpected character %q", r)
	}
	switch c {
	case '(', '[', '{':
		brackets = append(brackets, c)
	case ')', ']', '}':
		want := map[byte]byte{')': '(', ']': '[', '}': '{'}[c]
		if len(brackets) == 0 || brackets[len(brackets)-1] != want {
			fail(l.line, "unexpected %q", c)
		}
		brackets = brackets[:len(brackets)-1]
	}
	l.emit(tokenOperator, rest[:n])
	l.advance(n)
	return brackets
}

// digits returns the length of digits with single underscores between.
func digits(s string) int {
	n := 0
	for n < len(s) && (s[n] >= '0' && s[n] <= '9' || s[n] == '_' && n > 0 && s[n-1] != '_' && n+1 < len(s) && s[n+1] >= '0' && s[n+1] <= '9') {
		n++
	}
	return n
}

func (l *lexer) number(rest string) {
	if len(rest) > 1 && rest[0] == '0' && strings.ContainsRune("bBoOxX", rune(rest[1])) {
		fail(l.line, "the number %.8q is not supported: only decimal numbers", rest)
	}
	afterDot := len(l.out) > 0 && l.out[len(l.out)-1].text == "." && l.out[len(l.out)-1].kind == tokenOperator
	n := digits(rest)
	kind := tokenInt
	if !afterDot {
		if n < len(rest) && rest[n] == '.' {
			if m := digits(rest[n+1:]); m > 0 {
				kind, n = tokenFloat, n+1+m
			}
		}
		if n < len(rest) && (rest[n] == 'e' || rest[n] == 'E') {
			m := n + 1
			if m < len(rest) && (rest[m] == '+' || rest[m] == '-') {
				m++
			}
			if k := digits(rest[m:]); k > 0 {
				kind, n = tokenFloat, m+k
			}
		}
	}
	text := strings.ReplaceAll(rest[:n], "_", "")
	if kind == tokenInt && len(text) > 1 && text[0] == '0' && strings.Trim(text, "0") != "" {
		fail(l.line, "the number %q begins with a zero", text)
	}
	l.emit(kind, text)
	l.advance(n)
}

// quoted reads a string with its escapes.
func (l *lexer) quoted(rest string) {
	quote := rest[0]
	var b strings.Builder
	i := 1
	for {
		if i >= len(rest) {
			fail(l.line, "a string has no end %c", quote)
		}
		switch c := rest[i]; c {
		case quote:
			l.emit(tokenString, b.String())
			l.advance(i + 1)
			return
		case '\\':
			i += l.escape(&b, rest[i:])
		default:
			b.WriteByte(c)
			i++
		}
	}
}

var escapes = map[byte]string{
	'n': "\n", 't': "\t", 'r': "\r", 'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v", '\\': "\\", '\'': "'", '"': "\"", '\n': "",
}

// escape writes what an escape stands for and returns its length.
func (l *lexer) escape(b *strings.Builder, s string) int {
	if len(s) < 2 {
		fail(l.line, "a string has no end")
	}
	c := s[1]
	if text, ok := escapes[c]; ok {
		b.WriteString(text)
		return 2
	}
	width := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
	switch {
	case c == 'N':
		fail(l.line, "the escape \\N in a string is not supported")
	case width > 0:
		if len(s) < 2+width {
			fail(l.line, "the escape %q is cut off", s)
		}
		n, err := strconv.ParseUint(s[2:2+width], 16, 32)
		if err != nil || !utf8.ValidRune(rune(n)) {
			fail(l.line, "the escape %q is no character", s[:2+width])
		}
		b.WriteRune(rune(n))
		return 2 + width
	case c >= '0' && c <= '7':
		n := 1
		for n < 4 && n < len(s) && s[n] >= '0' && s[n] <= '7' {
			n++
		}
		v, _ := strconv.ParseUint(s[1:n], 8, 32)
		b.WriteRune(rune(v))
		return n
	}
	b.WriteByte('\\') // as Python leaves what is no escape
	return 1
}

// isSpace is Python's str.isspace and the regular expression \s.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
