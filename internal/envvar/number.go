// SPDX-License-Identifier: Apache-2.0

package envvar

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ParseInt reads an integer as Python's int() does, because what works with torchrun has to
// work here. The text may have blanks around it, a sign, single underscores between digits,
// leading zeros, and the decimal digits of any script.
func ParseInt(text string) (int, error) {
	return strconv.Atoi(plainNumber(text))
}

// ParseFloat reads a number as Python's float() does: as ParseInt does, and also with a point
// and an exponent, and inf or nan.
func ParseFloat(text string) (float64, error) {
	text = plainNumber(text)
	if strings.ContainsAny(text, "xX") { // Python's float() reads no hexadecimal numbers
		text = ""
	}
	return strconv.ParseFloat(text, 64)
}

// plainNumber writes a number in ASCII, without the blanks and underscores that Python
// allows. A text that is no number becomes another text that is none.
func plainNumber(text string) string {
	text = strings.TrimSpace(text)
	var b strings.Builder
	b.Grow(len(text))
	digit := false // the last character was one
	for i, c := range text {
		if c == '_' {
			next, _ := utf8.DecodeRuneInString(text[i+1:])
			if !digit || digitOf(next) < 0 {
				return text
			}
			continue
		}
		value := digitOf(c)
		if digit = value >= 0; digit {
			c = '0' + rune(value)
		}
		b.WriteRune(c)
	}
	return b.String()
}

// digitOf returns the value of a decimal digit of any script; -1 for anything else. The ten
// digits of a script follow one another, from zero on.
func digitOf(c rune) int {
	if c < 0x80 {
		if c >= '0' && c <= '9' {
			return int(c - '0')
		}
		return -1
	}
	for _, r := range unicode.Nd.R16 {
		if c >= rune(r.Lo) && c <= rune(r.Hi) {
			return int(c-rune(r.Lo)) % 10
		}
	}
	for _, r := range unicode.Nd.R32 {
		if c >= rune(r.Lo) && c <= rune(r.Hi) {
			return int(c-rune(r.Lo)) % 10
		}
	}
	return -1
}
