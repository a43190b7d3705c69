// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"math"
	"strings"
	"unicode/utf8"
)

// Stream encodes a text that comes in pieces, to the tokens that the whole of
// it has. It belongs to one goroutine and to one text.
type Stream struct {
	t      *Tokenizer
	inside bool // an added token is not what was last, nor is this the beginning
	begun  bool
	prev   rune   // the last character that was encoded
	blind  [2]int // bytes to come in which no token is looked for: of those in the text as it is, of the others
	led    bool   // a mark of normalization, which is not in the text, was last
	apart  bool   // a token that is looked for in the text as it is was last: for the others a text begins
}

// NewStream starts a text.
func (t *Tokenizer) NewStream() *Stream { return &Stream{t: t} }

// Append appends tokens of text, which follows what was encoded before, to
// dst, word by word, until dst holds at least limit tokens or what there is of
// the text ends. Unless final, it leaves out the end of text where what is to
// come could change it. It returns dst and the number of bytes encoded: the
// next call begins with the rest.
func (s *Stream) Append(dst []int64, text []byte, limit int, final bool) ([]int64, int) {
	if s.t.general != nil {
		return s.appendGeneral(dst, text, limit, final)
	}
	e := s.t.encoders.Get().(*encoder)
	defer s.t.encoders.Put(e)
	a := &s.t.added
	if a.overlap { // all at once, for what is found may begin in what was taken
		if !final {
			return dst, 0
		}
		limit = math.MaxInt
	}
	pos, next, prev := 0, s.blind[0], s.prev
	for (pos < len(text) || next < pos) && len(dst) < limit {
		outer := a.plain.find(a, s.t.kinds, text, next, pos, len(text), final, prev)
		if pos < outer.start {
			var n int
			closed := final || outer.token >= 0
			dst, n = s.piece(e, dst, a.plain.sure(s.t.kinds, text[pos:outer.start], closed), limit, closed)
			pos += n
		}
		if pos < outer.start || outer.token < 0 || len(dst) >= limit {
			break
		}
		s.blind[1] = 0
		if outer.start < outer.stop {
			dst = s.special(dst, outer.token, text[:outer.stop])
			s.apart = true
		}
		pos, next = outer.stop, a.goOn(outer)
	}
	s.blind[0] = a.plain.blind(a, s.t.kinds, text, next, pos, final, prev)
	return dst, pos
}

// special appends an added token, at the end of text.
func (s *Stream) special(dst []int64, token int, text []byte) []int64 {
	s.inside, s.begun, s.apart, s.led = false, true, false, false
	s.prev, _ = utf8.DecodeLastRune(text)
	return append(dst, s.t.added.list[token].ID)
}

// piece encodes what is between added tokens that are looked for in the text
// as it is.
func (s *Stream) piece(e *encoder, dst []int64, text []byte, limit int, closed bool) ([]int64, int) {
	a := &s.t.added
	if a.normal == nil || a.normal.num == 0 {
		return s.words(e, dst, text, limit, closed)
	}
	pos, next, prev := 0, s.blind[1], s.prev
	if s.apart || s.led {
		prev = 0
	}
	// A mark that normalization puts before the text may be a token's own.
	lead := s.t.pipeline.lead == leadAlways
	if lead && !s.inside && len(text) > 0 {
		first := a.leading.find(a, s.t.kinds, text, 0, 0, 1, closed, prev)
		switch {
		case first.start > 0:
			next = max(next, first.next)
		case first.token < 0:
			return dst, 0
		default:
			dst = s.special(dst, first.token, text[:first.stop])
			s.inside = true
			pos, next = first.stop, a.goOn(first)
		}
	}
	for (pos < len(text) || next < pos) && len(dst) < limit {
		inner := a.normal.find(a, s.t.kinds, text, next, pos, len(text), closed, prev)
		if lead && !s.inside && inner.start == 0 && inner.token >= 0 {
			dst = appendIDs(dst, e.word([]byte{' '})) // the mark alone
			s.inside, s.begun, s.led = true, true, true
		}
		if pos < inner.start {
			var n int
			closed := closed || inner.token >= 0
			dst, n = s.words(e, dst, a.normal.sure(s.t.kinds, text[pos:inner.start], closed), limit, closed)
			pos += n
		}
		if pos < inner.start || inner.token < 0 || len(dst) >= limit {
			break
		}
		if inner.start < inner.stop {
			dst = s.special(dst, inner.token, text[:inner.stop])
			s.inside = lead // what follows belongs to the same normalized text
		}
		pos, next = inner.stop, a.goOn(inner)
	}
	s.blind[1] = a.normal.blind(a, s.t.kinds, text, next, pos, closed, prev)
	return dst, pos
}

// words encodes what is between added tokens.
func (s *Stream) words(e *encoder, dst []int64, text []byte, limit int, closed bool) ([]int64, int) {
	pos := 0
	if !s.inside && len(text) > 0 && s.leads(text) {
		end := s.t.leadEnd(e, text, closed)
		if end < 0 {
			return dst, 0
		}
		dst = appendIDs(dst, e.word(e.text))
		pos, s.inside, s.begun, s.led = end, true, true, s.t.pipeline.lead == leadAlways
	}
	if s.t.pipeline.split == SplitCode { // the loop below, by the shortest way
		for pos < len(text) && len(dst) < limit {
			end := wordEnd(text, pos)
			if end == len(text) && !closed {
				break
			}
			dst = e.appendWord(dst, text[pos:end])
			pos = end
		}
	} else {
		for pos < len(text) && len(dst) < limit {
			end := s.t.wordEnd(text, pos, closed)
			if end < 0 {
				break
			}
			dst = e.appendWord(dst, text[pos:end])
			pos = end
		}
	}
	if pos > 0 {
		s.inside, s.begun, s.apart, s.led = true, true, false, false
		s.prev, _ = utf8.DecodeLastRune(text[:pos])
	}
	return dst, pos
}

// leads reports whether a space goes before a text that does not go on from
// another word.
func (s *Stream) leads(text []byte) bool {
	f := &s.t.pipeline
	switch f.lead {
	case leadAlways:
		return true
	case leadUnlessSpace:
		return text[0] != ' ' && (s.t.names == nil || markAt(text, 0) == 0) && !(f.leadFirst && s.begun)
	}
	return false
}

// leadEnd puts the first word, with a space before it, in e.text and returns
// where it ends in text, or -1 if that cannot be told.
func (t *Tokenizer) leadEnd(e *encoder, text []byte, closed bool) int {
	// Nearly always a short beginning of the text tells.
	for n := 256; ; n *= 16 {
		all := n >= len(text)
		e.text = append(append(e.text[:0], ' '), text[:min(n, len(text))]...)
		end := t.wordEnd(e.text, 0, closed && all)
		if end >= 0 {
			e.text = e.text[:end]
			return end - 1
		}
		if all {
			return -1
		}
	}
}

// Cut returns the last place in text at which it can be parted so that the
// tokens of what is before, encoded as a text that ends there, and of what is
// after, encoded by a stream of [Tokenizer.NewStreamAfter], are those of the
// whole: parts of a long text can be encoded side by side. It returns 0 if
// there is no such place, and always for a tokenizer that does not part its
// text into words.
func (t *Tokenizer) Cut(text []byte) int {
	if t.general != nil {
		return t.general.lastCut(text)
	}
	if !t.canCut {
		return 0
	}
	letter := func(b byte) bool { return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' }
	marks := t.pipeline.split == splitChars || t.pipeline.split == splitEachMark
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
			if next != kindSpace && (t.pipeline.split != SplitGPT2 && t.pipeline.split != splitDigits || int(r) < len(t.kinds) && t.kinds[r] != kindSpace) {
				return i
			}
		}
	}
	return 0
}

// cuts reports whether texts can be cut: not if they are one word, or if added
// tokens might lie on both sides.
func (t *Tokenizer) cuts() bool {
	if t.pipeline.split == splitWhole || t.near != nil && !t.atMarks() {
		return false
	}
	for _, a := range t.added.list {
		if a.LStrip || a.RStrip || strings.ContainsAny(a.Content, " \n"+mark) || a.Normalized && t.pipeline.lead == leadAlways {
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
