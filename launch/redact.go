// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode"

	"github.com/cohort-ml/cohort/internal/visible"
)

// cover replaces each digit of the token in the output of ranks.
const cover = '*'

// The token is hexadecimal. A part of the token is covered if it has at least midDigits
// digits, or, at the end of a line, endDigits digits: the rest may be on the next line.
// Eight random digits are a part of a given token once in 75 million times.
const (
	endDigits = 8
	midDigits = 16
)

// secret finds the job's token in what a rank prints. Many programs print their
// environment when they fail; the token must not get into a log or a failure report that
// way. The zero value hides nothing.
type secret struct {
	parts map[uint32]bool // all sequences of endDigits digits in the token
	maybe *[256]bool      // the last two digits of these
	mid   int
}

// has reports whether a sequence of endDigits digits is a part of the token.
func (s *secret) has(digits uint32) bool { return s.maybe[digits&0xff] && s.parts[digits] }

func newSecret(token string) secret {
	s := secret{parts: map[uint32]bool{}, maybe: new([256]bool), mid: min(midDigits, len(token))}
	var last uint32
	for i := range len(token) {
		d := hexDigit(rune(token[i]))
		if d < 0 {
			return secret{}
		}
		if last = last<<4 | uint32(d); i >= endDigits-1 {
			s.parts[last], s.maybe[last&0xff] = true, true
		}
	}
	return s
}

// hexDigit returns the value of a hexadecimal digit, -1 for anything else.
func hexDigit(c rune) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// hide covers the token in b, which is a whole text.
func (s secret) hide(b []byte) { (&hider{secret: s}).hide(b) }

// hideText is hide for a string.
func (s secret) hideText(text string) string {
	b := []byte(text)
	s.hide(b)
	return string(b)
}

// hideJSON covers the token in the texts of a JSON value, however they are escaped. In what
// is not JSON, it does the same as hide.
func (s secret) hideJSON(raw []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if !json.Valid(raw) || d.Decode(&v) != nil {
		s.hide(raw)
		return raw
	}
	found := false
	var walk func(v any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case string:
			hidden := s.hideText(v)
			found = found || hidden != v
			return hidden
		case []any:
			for i := range v {
				v[i] = walk(v[i])
			}
		case map[string]any:
			for k, e := range v {
				if hidden := s.hideText(k); hidden != k {
					found = true
					delete(v, k)
					k = hidden
				}
				v[k] = walk(e)
			}
		}
		return v
	}
	v = walk(v)
	if !found {
		return raw
	}
	out, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return out
}

// hider covers the token in a stream, line by line. It finds the token also if line ends or
// control characters, such as colours, stand between the digits: on a terminal these do not
// show.
type hider struct {
	secret
	all    window // the digits of the whole text
	shown  window // the digits outside of control sequences
	differ bool   // shown differs from all
	state  escape
}

// window holds the last digits of a stream that follow one another.
type window struct {
	last   uint32
	digits int
	run    int     // how many of the last digits are a part of the token
	at     [64]int // where the last digits are in the line, by number
	count  int     // number of all digits so far
	begin  int     // count at the beginning of the line
}

// hide covers parts of the token in the next line.
func (h *hider) hide(line []byte) {
	if h.mid == 0 {
		return
	}
	h.all.begin, h.shown.begin = h.all.count, h.shown.count
	body := bytes.TrimRight(line, "\r\n")
	if h.state == ground && !h.differ && visible.IsPlain(body) {
		h.hidePlain(body)
	} else {
		h.hideAny(body)
	}
	for range line[len(body):] {
		h.state = h.state.after('\n')
	}
	h.all.end(h, body)
	if h.differ {
		h.shown.end(h, body)
	}
}

// hidePlain is for a line outside of sequences that has none: only digits in a row that are
// many, or at an end of the line, are looked at.
func (h *hider) hidePlain(line []byte) {
	n := 0 // before it is nothing to look at
	if h.all.digits > 0 {
		for n < len(line) && hexDigit(rune(line[n])) >= 0 {
			h.all.take(h, hexDigit(rune(line[n])), line, n)
			n++
		}
	}
	for n < len(line) {
		h.all.digits, h.all.run = 0, 0
		// Of endDigits in a row one is here, unless they begin later.
		i := min(n+endDigits-1, len(line)-1)
		if hexDigit(rune(line[i])) < 0 {
			n = i + 1
			continue
		}
		first := i
		for first > n && hexDigit(rune(line[first-1])) >= 0 {
			first--
		}
		for n = first; n < len(line) && hexDigit(rune(line[n])) >= 0; n++ {
			h.all.take(h, hexDigit(rune(line[n])), line, n)
		}
	}
}

func (h *hider) hideAny(line []byte) {
	if !h.differ {
		h.shown, h.differ = h.all, true
	}
	for i := 0; i < len(line); {
		c, size := rune(line[i]), 1
		if c >= 0x80 {
			c, size = visible.Rune(line[i:])
		}
		inside := h.state != ground
		if inside || visible.IsControl(c) {
			h.state = h.state.after(c)
		}
		if c == '\t' || !visible.IsControl(c) && (c < 0x80 || !unicode.Is(unicode.Cf, c)) {
			d := hexDigit(c)
			h.all.take(h, d, line, i)
			if !inside {
				h.shown.take(h, d, line, i)
			}
		}
		i += size
	}
	h.differ = h.all.digits > 0 || h.shown.digits > 0
}

// take takes the next character of a text, at line[i]: d is its value, -1 if it is no digit.
func (w *window) take(h *hider, d int, line []byte, i int) {
	if d < 0 {
		w.digits, w.run = 0, 0
		return
	}
	w.last = w.last<<4 | uint32(d)
	w.digits++
	w.at[w.count%len(w.at)] = i
	w.count++
	switch {
	case w.digits < endDigits || !h.has(w.last):
		w.run = 0
		return
	case w.run == 0:
		w.run = endDigits
	default:
		w.run++
	}
	if w.run == h.mid {
		w.cover(line, w.run)
	} else if w.run > h.mid {
		w.cover(line, 1)
	}
}

// end covers a part of the token at the end of a line, which may go on in the next line.
func (w *window) end(h *hider, line []byte) {
	if w.run >= min(endDigits, h.mid) {
		w.cover(line, w.run)
	}
}

// cover covers the last n digits, if they are in this line.
func (w *window) cover(line []byte, n int) {
	for k := 1; k <= min(n, w.count-w.begin, len(w.at)); k++ {
		line[w.at[(w.count-k)%len(w.at)]] = cover
	}
}

// escape is the state of a stream within a control sequence (ISO 6429).
type escape int

const (
	ground  escape = iota // outside of a sequence
	begun                 // after ESC
	control               // in a control sequence, such as a colour
	text                  // in a sequence with a text, such as a title
)

// after returns the state after the character c.
func (e escape) after(c rune) escape {
	switch {
	case c == 0x1b:
		return begun
	case c == 0x9b:
		return control
	case c == 0x90, c == 0x98, c >= 0x9d && c <= 0x9f:
		return text
	case c == 0x18, c == 0x1a, c == '\n', c >= 0x80 && c <= 0x9f:
		return ground
	}
	switch e {
	case begun:
		switch {
		case c == '[':
			return control
		case strings.ContainsRune("]PX^_", c):
			return text
		case c >= ' ' && c <= '/' || c < ' ':
			return begun
		}
		return ground
	case control:
		if c >= '@' && c <= '~' {
			return ground
		}
	case text:
		if c == '\a' {
			return ground
		}
	}
	return e
}
