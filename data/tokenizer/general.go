// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"errors"
	"unicode/utf8"
)

// general is a pipeline step by step, as the Hugging Face library runs it: for
// files that the pipeline of this package's own, which leaves a text as it is,
// does not cover. It gives a text's tokens only when all of the text is there,
// or up to a place where texts can be cut.
type general struct {
	normal []normalizer
	split  []splitter
	model  wordModel // nil for byte-pair encoding
	bytes  bool      // the vocabulary is over bytes
	fast   bool      // split is what the pipeline's own split does
	canCut bool
}

// wordModel turns a word into tokens.
type wordModel interface {
	appendWord(dst []uint32, word []byte) []uint32
}

// chunk is how many bytes of a text are encoded at a time where it can be cut.
const chunk = 16 << 10

// normalize applies all normalizers. It may return the text itself.
func (g *general) normalize(text []byte) []byte {
	for _, n := range g.normal {
		text = n.apply(text)
	}
	return text
}

// cut returns a place in text, at or after from, at which it can be parted: a
// space between letters of ASCII, which is nothing to any normalizer, and a word
// begins there. It returns 0 if there is none.
func (g *general) cut(text []byte, from int) int {
	letter := func(b byte) bool { return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' }
	if !g.canCut {
		return 0
	}
	for i := max(from, 1); i+1 < len(text); i++ {
		if text[i] == ' ' && letter(text[i-1]) && letter(text[i+1]) {
			return i
		}
	}
	return 0
}

// lastCut is the last of such places.
func (g *general) lastCut(text []byte) int {
	for from := max(len(text)-64, 0); ; from = max(from/2, 0) {
		at := 0
		for i := g.cut(text, from); i > 0; i = g.cut(text, i+1) {
			at = i
		}
		if at > 0 || from == 0 {
			return at
		}
	}
}

// appendGeneral is [Stream.Append] of a general pipeline.
func (s *Stream) appendGeneral(dst []int64, text []byte, limit int, final bool) ([]int64, int) {
	g := s.t.general
	if !final {
		text = text[:g.lastCut(text)]
	}
	e := s.t.encoders.Get().(*encoder)
	defer s.t.encoders.Put(e)
	pos := 0
	for pos < len(text) && len(dst) < limit {
		end := len(text)
		if end-pos > chunk {
			if n := g.cut(text[pos:], chunk/2); n > 0 {
				end = pos + n
			}
		}
		dst = s.section(e, dst, text[pos:end])
		pos = end
		s.begun = true
	}
	return dst, pos
}

// section encodes a part of a text: first added tokens are looked for in the
// text as it is, then in what is between them after normalization.
func (s *Stream) section(e *encoder, dst []int64, text []byte) []int64 {
	t := s.t
	return t.between(dst, t.added.plain, text, func(dst []int64, part []byte, first bool) []int64 {
		first = first && !s.begun
		part = t.general.valid(part)
		norm := t.general.normalize(part)
		if first {
			// To the library a text whose first character is gone does not begin at the
			// beginning.
			_, n := utf8.DecodeRune(part)
			first = len(t.general.normalize(part[:n])) > 0
		}
		return t.between(dst, t.added.normal, norm, func(dst []int64, part []byte, at bool) []int64 {
			return t.general.words(t, e, dst, part, first && at)
		})
	})
}

// between appends the added tokens of text that f has, and what encode makes of
// the rest, of which it says whether it is at the beginning.
func (t *Tokenizer) between(dst []int64, f *finder, text []byte, encode func(dst []int64, part []byte, first bool) []int64) []int64 {
	pos, next := 0, 0
	for pos < len(text) || next < pos {
		h := hit{len(text), len(text), len(text), -1}
		if f.num > 0 {
			h = f.find(&t.added, t.kinds, text, next, pos, len(text), true, 0)
		}
		if pos < h.start {
			dst = encode(dst, text[pos:h.start], pos == 0)
		}
		if h.token < 0 {
			break
		}
		if h.start < h.stop {
			dst = append(dst, t.added.list[h.token].ID)
		}
		pos, next = h.stop, t.added.goOn(h)
	}
	return dst
}

// valid replaces bytes that are no UTF-8, which only a vocabulary over bytes can
// spell.
func (g *general) valid(text []byte) []byte {
	if g.bytes || utf8.Valid(text) {
		return text
	}
	return bytes.ToValidUTF8(text, []byte("\ufffd"))
}

// words encodes what is between added tokens.
func (g *general) words(t *Tokenizer, e *encoder, dst []int64, text []byte, first bool) []int64 {
	if g.fast {
		for pos := 0; pos < len(text); {
			end := t.wordEnd(text, pos, true)
			dst = e.appendWord(dst, text[pos:end])
			pos = end
		}
		return dst
	}
	parts := append(e.parts[:0], text)
	for _, s := range g.split {
		parts = s.apply(t, parts, first)
	}
	for _, p := range parts {
		if len(p) > 0 {
			dst = e.appendWord(dst, p)
		}
	}
	e.parts = parts[:0]
	return dst
}

// generalTokenizer makes the tokenizer of a document step by step.
func (d *document) generalTokenizer() (*Tokenizer, error) {
	f := pipeline{normalizer: d.Normalizer, preTokenizer: d.PreTokenizer, postProcessor: d.PostProcessor, decoder: d.Decoder, model: d.Model.raw, padding: d.Padding}
	g := &general{}
	var err error
	if g.normal, err = parseNormalizers(d.Normalizer); err != nil {
		return nil, err
	}
	if err := g.parseSplitters(&f, d.PreTokenizer); err != nil {
		return nil, err
	}
	f.chars = !g.bytes
	if err := errors.Join(f.parsePostProcessor(d), f.parseDecoder(d)); err != nil {
		return nil, unjoined(err)
	}
	f.norm = func(s string) string { return string(g.normalize([]byte(s))) }
	f.byteFallback, f.fuseUnk, f.ignoreMerges = d.Model.ByteFallback, d.Model.FuseUnk, d.Model.IgnoreMerges
	if d.Model.UnkToken != nil {
		f.unkToken = *d.Model.UnkToken
	}
	t, err := d.generalModel(g, f)
	if err != nil {
		return nil, err
	}
	t.general = g
	g.canCut = g.cuts(t)
	if err := t.setAdded(d.AddedTokens, d.Model.Vocab); err != nil {
		return nil, err
	}
	g.canCut = g.cuts(t)
	return t, t.checkAround()
}

// unjoined is the first of joined errors.
func unjoined(err error) error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()[0]
	}
	return err
}

// cuts reports whether texts can be cut.
func (g *general) cuts(t *Tokenizer) bool {
	for _, n := range g.normal {
		if !n.cuts {
			return false
		}
	}
	for _, a := range t.added.list {
		if a.LStrip || a.RStrip || a.SingleWord || bytes.ContainsAny([]byte(a.Content), " \u2581") {
			return false
		}
	}
	if g.fast {
		return true
	}
	apart := false
	for _, s := range g.split {
		if !s.cuts && !s.neutral {
			return false
		}
		apart = apart || s.cuts
	}
	return apart
}

// generalModel makes the tokenizer with the model alone.
func (d *document) generalModel(g *general, f pipeline) (*Tokenizer, error) {
	if d.Model.Type == "BPE" {
		if f.chars && f.ignoreMerges {
			return nil, formatErr("model.ignore_merges", "must be false for a vocabulary over characters")
		}
		names, err := d.Model.names()
		if err != nil {
			return nil, err
		}
		merges, err := d.Model.mergeList()
		if err != nil {
			return nil, err
		}
		if f.chars {
			f.split = splitWhole
			return newCharTokenizer(names, merges, f)
		}
		return d.byteTokenizer(names, merges, f)
	}
	if g.bytes {
		return nil, formatErr("pre_tokenizer", "ByteLevel before a %s is not supported", d.Model.Type)
	}
	var names []string
	var err error
	switch d.Model.Type {
	case "Unigram":
		names, err = d.Model.unigramNames()
	default:
		names, err = d.Model.names()
	}
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{tokens: make([][]byte, len(names)), names: names, model: len(names), pipeline: f, unk: none, chars: map[rune]uint32{}}
	for id, name := range names {
		if name == "" {
			continue
		}
		if err := checkLen(id, []byte(name)); err != nil {
			return nil, err
		}
		t.tokens[id] = f.textOf(name)
	}
	switch d.Model.Type {
	case "WordPiece":
		g.model, err = newWordPiece(&d.Model)
	case "Unigram":
		g.model, err = newUnigram(&d.Model)
	case "WordLevel":
		g.model, err = newWordLevel(&d.Model)
	}
	if err != nil {
		return nil, err
	}
	for b := range t.byteID {
		t.byteID[b] = none
	}
	t.near = new(near)
	t.finish()
	return t, nil
}

// wants reports whether a document needs a general pipeline.
func (d *document) wants() bool {
	switch d.Model.Type {
	case "WordPiece", "Unigram", "WordLevel":
		return true
	case "BPE":
	default:
		return false
	}
	var own pipeline
	if own.parseNormalizer(d) == nil && own.parsePreTokenizer(d) == nil {
		return false
	}
	return true
}
