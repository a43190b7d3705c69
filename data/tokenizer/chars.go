// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// byteName is how a vocabulary over characters calls the token of a byte.
func byteName(b byte) string { return fmt.Sprintf("<0x%02X>", b) }

// newCharTokenizer is newTokenizer for a vocabulary over characters: names
// are the tokens as the file has them, "" where no token has the id.
func newCharTokenizer(names []string, merges []merge, f front) (*Tokenizer, error) {
	t := &Tokenizer{
		tokens: make([][]byte, len(names)), names: names, model: len(names), merges: merges, front: f, unk: none,
		chars: make(map[rune]uint32),
	}
	ids := make(map[string]uint32, len(names))
	apart := true // no token has a mark after something else, so words can begin at marks
	for id, name := range names {
		if name == "" {
			continue
		}
		if err := checkLen(id, []byte(name)); err != nil {
			return nil, err
		}
		ids[name] = uint32(id)
		t.tokens[id] = []byte(strings.ReplaceAll(name, mark, " "))
		apart = apart && !strings.Contains(strings.TrimLeft(name, mark), mark)
		if r, n := utf8.DecodeRuneInString(name); n == len(name) && (r != utf8.RuneError || n > 1) {
			t.chars[r] = uint32(id)
		}
	}
	for b := range t.byteID {
		t.byteID[b] = none
		if id, ok := ids[byteName(byte(b))]; ok && f.byteFallback {
			t.byteID[b] = id
			t.tokens[id] = []byte{byte(b)}
		}
	}
	for b := range t.ascii {
		t.ascii[b] = none
		if id, ok := t.chars[rune(b)]; ok {
			t.ascii[b] = id
		}
	}
	markID, hasMark := t.chars[markRune]
	if f.replace {
		t.ascii[' '] = none
		if hasMark {
			t.ascii[' '] = markID
		}
	}
	if f.unkToken != "" {
		id, ok := ids[f.unkToken]
		if !ok {
			return nil, fmt.Errorf("tokenizer: the unknown token %q is not in the vocabulary", f.unkToken)
		}
		t.unk = id
	}
	if t.front.split == splitMarks && !(apart && hasMark && f.replace) {
		t.front.split = splitWhole
	}
	if err := t.addMerges(func(id uint32) string { return names[id] }); err != nil {
		return nil, err
	}
	t.finish()
	return t, nil
}

// appendChars appends the symbols that a word begins as, before any merge: its
// characters, the bytes of those that have no token, or unknown tokens.
func (t *Tokenizer) appendChars(syms []uint32, word []byte) []uint32 {
	unknown := 0 // unknown tokens that are due
	for i := 0; i < len(word); {
		id, n := uint32(none), 1
		if b := word[i]; b < utf8.RuneSelf {
			id = t.ascii[b]
		} else {
			var r rune
			r, n = utf8.DecodeRune(word[i:])
			if found, ok := t.chars[r]; ok && n > 1 {
				id = found
			}
		}
		char := word[i : i+n]
		i += n
		switch {
		case id != none:
			syms = t.appendUnknown(syms, unknown)
			unknown = 0
			syms = append(syms, id)
		case t.hasBytes(char):
			for _, b := range char {
				syms = append(syms, t.byteID[b])
			}
		case t.unk == none:
		case t.front.fuseUnk:
			unknown = 1
		default:
			syms = t.appendUnknown(syms, unknown)
			unknown = 1
		}
	}
	return t.appendUnknown(syms, unknown)
}

func (t *Tokenizer) appendUnknown(syms []uint32, n int) []uint32 {
	for range n {
		syms = append(syms, t.unk)
	}
	return syms
}

// hasBytes reports whether there is a token for each byte of a character. A
// space is looked for as the mark that it becomes.
func (t *Tokenizer) hasBytes(char []byte) bool {
	for _, b := range char {
		if t.byteID[b] == none {
			return false
		}
	}
	return true
}
