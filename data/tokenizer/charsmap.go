// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// charsMap is the table of a sentencepiece model that says what characters
// become: a double array (a trie in an array of units), then the texts that its
// values point to, each ended by a zero byte.
type charsMap struct {
	units []uint32
	texts []byte
}

// maxCharsMap limits the bytes of a table.
const maxCharsMap = 16 << 20

func newCharsMap(text string) (*charsMap, error) {
	if len(text) > 2*maxCharsMap {
		return nil, fmt.Errorf("has more than %d bytes", maxCharsMap)
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("is no base64: %v", err)
	}
	if len(b) == 0 {
		return &charsMap{}, nil
	}
	if len(b) < 4 {
		return nil, fmt.Errorf("is cut off")
	}
	size := binary.LittleEndian.Uint32(b)
	b = b[4:]
	if uint64(size) > uint64(len(b)) || size%4 != 0 {
		return nil, fmt.Errorf("says that its trie has %d bytes, and %d follow", size, len(b))
	}
	m := &charsMap{units: make([]uint32, size/4), texts: b[size:]}
	for i := range m.units {
		m.units[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return m, nil
}

// find returns what the shortest beginning of text that has a value becomes.
func (m *charsMap) find(text []byte) ([]byte, bool) {
	at := uint32(0)
	offset := func(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }
	if len(m.units) == 0 {
		return nil, false
	}
	at ^= offset(m.units[0])
	for _, b := range text {
		if b == 0 {
			return nil, false
		}
		at ^= uint32(b)
		if at >= uint32(len(m.units)) {
			return nil, false
		}
		unit := m.units[at]
		if unit&(1<<31|0xff) != uint32(b) {
			return nil, false
		}
		at ^= offset(unit)
		if at >= uint32(len(m.units)) {
			return nil, false
		}
		if unit>>8&1 == 1 {
			value := m.units[at] & (1<<31 - 1)
			if value > uint32(len(m.texts)) {
				return nil, false
			}
			end := value
			for end < uint32(len(m.texts)) && m.texts[end] != 0 {
				end++
			}
			return m.texts[value:end], true
		}
	}
	return nil, false
}

// apply replaces what readers see as one character, if it is short, and else
// each character.
func (m *charsMap) apply(text []byte) []byte {
	out := make([]byte, 0, len(text)+8)
	for i := 0; i < len(text); {
		n := cluster(text[i:])
		if n < 6 {
			if to, ok := m.find(text[i : i+n]); ok {
				out = append(out, to...)
				i += n
				continue
			}
		}
		for end := i + n; i < end; {
			_, size := utf8.DecodeRune(text[i:])
			if to, ok := m.find(text[i : i+size]); ok {
				out = append(out, to...)
			} else {
				out = append(out, text[i:i+size]...)
			}
			i += size
		}
	}
	return out
}

// cluster returns the length of what readers see as the first character: a
// character with the marks that follow it.
func cluster(text []byte) int {
	r, n := rune(text[0]), 1
	if r >= utf8.RuneSelf {
		r, n = utf8.DecodeRune(text)
	}
	if r == '\r' && len(text) > 1 && text[1] == '\n' {
		return 2
	}
	if len(text) == n || unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp) || unicode.Is(unicode.Cf, r) && !joins(r) && !before(r) {
		return n
	}
	for before(r) && n < len(text) {
		next, size := utf8.DecodeRune(text[n:])
		if unicode.In(next, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) && !joins(next) {
			break
		}
		r = next
		n += size
	}
	for n < len(text) && text[n] >= utf8.RuneSelf {
		next, size := utf8.DecodeRune(text[n:])
		if !unicode.IsMark(next) && !joins(next) {
			break
		}
		n += size
	}
	return n
}

// joins tells characters that belong to the one before, besides marks.
func joins(r rune) bool {
	return r == 0x200c || r == 0x200d || r >= 0x1f3fb && r <= 0x1f3ff || r == 0xff9e || r == 0xff9f || r >= 0xe0020 && r <= 0xe007f
}

// before tells characters that belong to the one after.
func before(r rune) bool {
	return r >= 0x600 && r <= 0x605 || r == 0x6dd || r == 0x70f || r == 0x890 || r == 0x891 || r == 0x8e2 || r == 0xd4e || r == 0x110bd || r == 0x110cd
}
