// SPDX-License-Identifier: Apache-2.0

// Package visible makes a text of somebody else's safe to show on a terminal. A
// program can write sequences of control characters that move the cursor, change
// the title, fill the clipboard or have the terminal answer as if the user had typed;
// a launcher that shows what other processes say must not hand these on.
//
// Control characters become what they are called: ESC is ^[, as cat -v has it, and
// the controls of ISO 6429 are \u009b in UTF-8 and \x9b as bytes. Characters that
// reverse the order of what follows become \u202e. Tabs and line feeds stay, and so
// does all other text, bytes that are no UTF-8 included.
package visible

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// Text returns s with its control characters made visible.
func Text(s string) string {
	if b := []byte(s); !IsPlain(b) {
		return string(Append(nil, b))
	}
	return s
}

// Append appends b to dst, with its control characters made visible.
func Append(dst, b []byte) []byte {
	if IsPlain(b) {
		return append(dst, b...)
	}
	for len(b) > 0 {
		n := 0
		for n < len(b) && b[n] < utf8.RuneSelf && !IsControl(rune(b[n])) {
			n++
		}
		dst, b = append(dst, b[:n]...), b[n:]
		if len(b) == 0 {
			break
		}
		c, size := Rune(b)
		switch {
		case c == '\t', c == '\n':
			dst = append(dst, b[0])
		case c < ' ' || c == 0x7f:
			dst = append(dst, '^', byte(c)^0x40)
		case IsControl(c) && size == 1:
			dst = fmt.Appendf(dst, `\x%02x`, c)
		case IsControl(c) || c >= 0x202a && c <= 0x202e || c >= 0x2066 && c <= 0x2069:
			dst = fmt.Appendf(dst, `\u%04x`, c)
		default:
			dst = append(dst, b[:size]...)
		}
		b = b[size:]
	}
	return dst
}

// IsPlain reports whether b is ASCII without control characters other than tabs and line
// feeds, as most texts are.
func IsPlain(b []byte) bool {
	const each = 0x0101010101010101
	for len(b) >= 8 {
		x := binary.LittleEndian.Uint64(b)
		del := x ^ 0x7f*each
		// The high bits of bytes that are not ASCII, less than a blank, or DEL.
		if (x|(x-' '*each)|(del-each))&(0x80*each) != 0 && !arePlain(b[:8]) {
			return false
		}
		b = b[8:]
	}
	return arePlain(b)
}

func arePlain(b []byte) bool {
	for _, c := range b {
		if c >= 0x7f || c < ' ' && c != '\t' && c != '\n' {
			return false
		}
	}
	return true
}

// IsControl reports whether a character is one of the controls of ASCII and ISO 6429.
func IsControl(c rune) bool { return c < ' ' || c >= 0x7f && c <= 0x9f }

// Rune returns the first character of b and its length. A byte that begins none in UTF-8
// is one by itself: some terminals take it for the character of that number.
func Rune(b []byte) (c rune, size int) {
	if c, size = utf8.DecodeRune(b); c == utf8.RuneError && size == 1 {
		c = rune(b[0])
	}
	return c, size
}
