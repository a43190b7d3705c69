// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Cut returns the last place in text at which it can be parted so that the
// tokens of what is before, encoded as a text that ends there, and of what is
// after, encoded by a stream of [Tokenizer.NewStreamAfter], are those of the
// whole: parts of a long text can be encoded side by side. It returns 0 if
// there is no such place, and always for a tokenizer that does not part its
// text into words.
func (t *Tokenizer) Cut(text []byte) int {
	if !t.canCut {
		return 0
	}
	letter := func(b byte) bool { return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' }
	marks := t.front.split == splitChars || t.front.split == splitEachMark
	for i := len(text) - 2; i > 1; i-- {
		switch before := text[i-1]; {
		case text[i] == ' ' && letter(before) && (marks || letter(text[i+1])):
			return i // a word with a space before it comes after a word
		case marks && text[i] == ' ' && before >= utf8.RuneSelf && !strings.HasSuffix(string(text[max(i-len(mark), 0):i]), mark):
			return i
		case !marks && before == '\n':
			// After a line's end comes a new word, if it is not a space. In GPT-2's way
			// the end of a text changes how several spaces before it are parted.
			next, _ := t.kinds.at(text, i)
			r, _ := utf8.DecodeLastRune(text[:i-1])
			if next != kindSpace && (t.front.split != SplitGPT2 && t.front.split != splitDigits || int(r) < len(t.kinds) && t.kinds[r] != kindSpace) {
				return i
			}
		}
	}
	return 0
}

// cuts reports whether texts can be cut: not if they are one word, or if added
// tokens might lie on both sides.
func (t *Tokenizer) cuts() bool {
	if t.front.split == splitWhole || t.near != nil && !t.atMarks() {
		return false
	}
	for _, a := range t.added.list {
		if a.LStrip || a.RStrip || strings.ContainsAny(a.Content, " \n"+mark) || a.Normalized && t.front.lead == leadAlways {
			return false
		}
	}
	return true
}

// NewStreamAfter starts in the middle of a text, after a [Tokenizer.Cut]:
// before is what comes before, or the end of it.
func (t *Tokenizer) NewStreamAfter(before []byte) *Stream {
	s := &Stream{t: t, inside: true, begun: true}
	s.prev, _ = utf8.DecodeLastRune(before)
	return s
}
