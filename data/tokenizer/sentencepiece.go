// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// byteName is how a vocabulary over characters calls the token of a byte.
func byteName(b byte) string { return fmt.Sprintf("<0x%02X>", b) }

// newCharTokenizer is newTokenizer for a vocabulary over characters: names
// are the tokens as the file has them, "" where no token has the id.
func newCharTokenizer(names []string, merges []merge, f pipeline) (*Tokenizer, error) {
	t := &Tokenizer{
		tokens: make([][]byte, len(names)), names: names, model: len(names), merges: merges, pipeline: f, unk: none,
		chars: make(map[rune]uint32),
	}
	ids := make(map[string]uint32, len(names))
	for id, name := range names {
		if name == "" {
			continue
		}
		if err := checkLen(id, []byte(name)); err != nil {
			return nil, err
		}
		ids[name] = uint32(id)
		t.tokens[id] = f.textOf(name)
		if r, n := utf8.DecodeRuneInString(name); n == len(name) && (r != utf8.RuneError || n > 1) {
			t.chars[r] = uint32(id)
		}
	}
	for b := range t.byteID {
		t.byteID[b] = none
		if id, ok := ids[byteName(byte(b))]; ok && f.byteFallback {
			t.byteID[b] = id
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
		switch {
		case ok:
			t.unk = id
		case slices.Contains(t.byteID[:], none): // else it is never needed
			return nil, fmt.Errorf("tokenizer: the unknown token %q is not in the vocabulary", f.unkToken)
		}
	}
	isByte := make([]bool, len(names))
	for _, id := range t.byteID {
		if id != none {
			isByte[id] = true
		}
	}
	for _, m := range merges {
		// Merges of bytes go across characters that no name has side by side.
		if isByte[m.left] || isByte[m.right] {
			t.pipeline.split = splitWhole
			break
		}
	}
	t.setNear(hasMark)
	if err := t.addMerges(func(id uint32) string { return names[id] }); err != nil {
		return nil, err
	}
	t.finish()
	return t, nil
}

// Characters are told apart by class: ASCII, the mark, and all others.
const (
	classMark = utf8.RuneSelf + iota
	classOther
	numClasses
)

// near says which characters may lie side by side in a word: elsewhere words
// are parted, which changes nothing, because no merge goes across.
type near [numClasses][numClasses]bool

func (f *pipeline) class(r rune) uint8 {
	switch {
	case r == markRune || r == ' ' && f.replace:
		return classMark
	case r < utf8.RuneSelf:
		return uint8(r)
	}
	return classOther
}

// setNear finds out where words can be parted.
func (t *Tokenizer) setNear(hasMark bool) {
	f := &t.pipeline
	t.near = new(near)
	for _, name := range t.names {
		last := rune(-1)
		for _, r := range name {
			if last >= 0 {
				t.near[f.class(last)][f.class(r)] = true
			}
			last = r
		}
	}
	// Unknown characters become one token together: only where there are none may
	// words be parted anywhere. A mark is known; but without a token for unknown
	// characters these are left out, and what lay around them is side by side.
	if slices.Contains(t.byteID[:], none) {
		marks := [numClasses]bool{}
		for c := range t.near {
			marks[c] = t.near[c][classMark] || !hasMark || t.unk == none
			for d := range t.near[c] {
				t.near[c][d] = true
			}
			t.near[c][classMark] = marks[c]
		}
		t.near[classMark][classMark] = true
	}
	if f.split == splitEachMark {
		for c := range t.near {
			t.near[c][classMark] = false
		}
	}
}

// atMarks reports whether a word always begins at a mark that comes after
// another character.
func (t *Tokenizer) atMarks() bool {
	for c := range t.near {
		if c != classMark && t.near[c][classMark] {
			return false
		}
	}
	return true
}

// charWord returns where the word of characters that starts at i ends.
func (t *Tokenizer) charWord(text []byte, i int) int {
	last := &t.near[classOther]
	for begin := i; i < len(text); {
		class, n := uint8(classOther), 1
		if b := text[i]; b == ' ' {
			class = t.pipeline.class(' ')
		} else if b < utf8.RuneSelf {
			class = b
		} else {
			var r rune
			r, n = utf8.DecodeRune(text[i:])
			class = t.pipeline.class(r)
		}
		if i > begin && !last[class] {
			break
		}
		last = &t.near[class]
		i += n
	}
	return i
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
		if id == none && char[0] == ' ' && t.pipeline.replace {
			char = []byte(mark)
		}
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
		case t.pipeline.fuseUnk:
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

// hasBytes reports whether there is a token for each byte of a character.
func (t *Tokenizer) hasBytes(char []byte) bool {
	for _, b := range char {
		if t.byteID[b] == none {
			return false
		}
	}
	return true
}
