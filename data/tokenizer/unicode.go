// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// kind is what the patterns of GPT-2 and Llama 3 ask about a character.
type kind uint8

const (
	kindOther kind = iota
	kindLetter
	kindNumber
	kindSpace
)

// kindTable has the kinds of the characters below its length, which are nearly
// all; the rest are looked up.
type kindTable [1 << 17]kind

// Characters that Unicode 16.0 has, by which the Hugging Face libraries split,
// and the Unicode 15.0 of Go's tables has not. A table that has them already is
// not changed by them. (Spaces are the same in both.)
var (
	newLetters = []unicode.Range32{
		{Lo: 0x1c89, Hi: 0x1c8a}, {Lo: 0xa7cb, Hi: 0xa7cd}, {Lo: 0xa7da, Hi: 0xa7dc}, {Lo: 0x105c0, Hi: 0x105f3}, {Lo: 0x10d4a, Hi: 0x10d65},
		{Lo: 0x10d6f, Hi: 0x10d85}, {Lo: 0x10ec2, Hi: 0x10ec4}, {Lo: 0x11380, Hi: 0x11389}, {Lo: 0x1138b, Hi: 0x1138b}, {Lo: 0x1138e, Hi: 0x1138e},
		{Lo: 0x11390, Hi: 0x113b5}, {Lo: 0x113b7, Hi: 0x113b7}, {Lo: 0x113d1, Hi: 0x113d1}, {Lo: 0x113d3, Hi: 0x113d3}, {Lo: 0x11bc0, Hi: 0x11be0},
		{Lo: 0x13460, Hi: 0x143fa}, {Lo: 0x16100, Hi: 0x1611d}, {Lo: 0x16d40, Hi: 0x16d6c}, {Lo: 0x18cff, Hi: 0x18cff}, {Lo: 0x1e5d0, Hi: 0x1e5ed},
		{Lo: 0x1e5f0, Hi: 0x1e5f0}, {Lo: 0x2ebf0, Hi: 0x2ee5d},
	}
	newWords = []unicode.Range32{ // besides letters
		{Lo: 0x897, Hi: 0x897}, {Lo: 0x10d40, Hi: 0x10d49}, {Lo: 0x10d69, Hi: 0x10d6d}, {Lo: 0x10efc, Hi: 0x10efc}, {Lo: 0x113b8, Hi: 0x113c0},
		{Lo: 0x113c2, Hi: 0x113c2}, {Lo: 0x113c5, Hi: 0x113c5}, {Lo: 0x113c7, Hi: 0x113ca}, {Lo: 0x113cc, Hi: 0x113d0}, {Lo: 0x113d2, Hi: 0x113d2},
		{Lo: 0x113e1, Hi: 0x113e2}, {Lo: 0x116d0, Hi: 0x116e3}, {Lo: 0x11bf0, Hi: 0x11bf9}, {Lo: 0x11f5a, Hi: 0x11f5a}, {Lo: 0x1611e, Hi: 0x16139},
		{Lo: 0x16d70, Hi: 0x16d79}, {Lo: 0x1ccf0, Hi: 0x1ccf9}, {Lo: 0x1e5ee, Hi: 0x1e5ef}, {Lo: 0x1e5f1, Hi: 0x1e5fa}, {Lo: 0x2ebf0, Hi: 0x2ee5d},
	}
	newNumbers = []unicode.Range32{
		{Lo: 0x10d40, Hi: 0x10d49}, {Lo: 0x116d0, Hi: 0x116e3}, {Lo: 0x11bf0, Hi: 0x11bf9}, {Lo: 0x16130, Hi: 0x16139}, {Lo: 0x16d70, Hi: 0x16d79},
		{Lo: 0x1ccf0, Hi: 0x1ccf9}, {Lo: 0x1e5f1, Hi: 0x1e5fa},
	}
)

var unicodeKinds = sync.OnceValue(func() *kindTable {
	t := new(kindTable)
	fill := func(lo, hi, stride rune, k kind) {
		for r := lo; r <= hi && int(r) < len(t); r += stride {
			t[r] = k
		}
	}
	for _, s := range []struct {
		table *unicode.RangeTable
		more  []unicode.Range32
		k     kind
	}{{unicode.L, newLetters, kindLetter}, {unicode.N, newNumbers, kindNumber}, {unicode.White_Space, nil, kindSpace}} {
		for _, r := range s.table.R16 {
			fill(rune(r.Lo), rune(r.Hi), rune(r.Stride), s.k)
		}
		for _, r := range s.table.R32 {
			fill(rune(r.Lo), rune(r.Hi), rune(r.Stride), s.k)
		}
		for _, r := range s.more {
			fill(rune(r.Lo), rune(r.Hi), 1, s.k)
		}
	}
	return t
})

// at returns the kind and the length of the character at text[i]. A byte that
// is no valid UTF-8 is a character of its own.
func (t *kindTable) at(text []byte, i int) (kind, int) {
	if b := text[i]; b < utf8.RuneSelf {
		return t[b], 1
	}
	r, n := utf8.DecodeRune(text[i:])
	switch {
	case n == 1:
		return kindOther, 1
	case int(r) < len(t):
		return t[r], n
	case unicode.IsLetter(r) || r >= 0x2ebf0 && r <= 0x2ee5d:
		return kindLetter, n
	}
	return kindOther, n // above the table there are no numbers and no spaces
}

// run returns where the characters of a kind end that begin at text[i].
func (t *kindTable) run(text []byte, i int, want kind) int {
	for i < len(text) {
		if b := text[i]; b < utf8.RuneSelf {
			if t[b] != want {
				return i
			}
			i++
			continue
		}
		k, n := t.at(text, i)
		if k != want {
			return i
		}
		i += n
	}
	return i
}

// isWord tells characters of \w: letters, marks, digits, and what joins words.
func (t *kindTable) isWord(r rune) bool {
	if int(r) < len(t) && t[r] == kindLetter {
		return true
	}
	for _, new := range newWords {
		if rune(new.Lo) <= r && r <= rune(new.Hi) {
			return true
		}
	}
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}
