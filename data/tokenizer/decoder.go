// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decodeStep is a part of a decoder: it makes other pieces of the pieces that a
// text consists of, which are its tokens at first.
type decodeStep struct {
	kind   decodeKind
	from   string // replaced by to
	to     string
	strip  rune // taken off the beginning of each piece, up to n times
	n      int
	leads  bool // marks of the first piece vanish
	cleans bool // spaces before punctuation vanish
	mark   rune
}

type decodeKind uint8

const (
	decodeReplace   decodeKind = iota
	decodeBytes                // <0x41> becomes A
	decodeFuse                 // one piece remains
	decodeStrip                // spaces are taken off the beginning
	decodeMetaspace            // marks become spaces
	decodeLevel                // characters that stand for bytes become these; one piece remains
	decodeWords                // a prefix joins a piece to the one before; others have a space before them
	decodeJoin                 // one piece remains, with spaces between what was there
)

// What a decoder may ask for: real ones have at most five parts, and make texts
// shorter.
const (
	maxSteps  = 64
	maxGrowth = 1 << 10 // how many times as long as its tokens a text may get
)

// parseDecoder reads how tokens become a text. The decoders that nearly all
// files have are the concatenation of what the tokens stand for, at most without
// a space at the beginning; steps are for the others.
func (f *pipeline) parseDecoder(d *document) error {
	const field = "decoder"
	parts, err := parseComponent(field, d.Decoder)
	if err != nil {
		return err
	}
	if len(parts) > maxSteps {
		return formatErr(field, "has %d parts, at most %d are supported", len(parts), maxSteps)
	}
	kinds, growth := "", 1
	for _, c := range parts {
		kinds += c.Type + " "
		s := decodeStep{}
		switch c.Type {
		case "ByteLevel":
			s.kind = decodeLevel
		case "ByteFallback":
			s.kind = decodeBytes
			f.spellsBytes = true
		case "Fuse":
			s.kind = decodeFuse
		case "Replace":
			if c.Pattern == nil || c.Pattern.String == nil || *c.Pattern.String == "" {
				return formatErr(field, "only Replace of a String is supported")
			}
			s = decodeStep{kind: decodeReplace, from: *c.Pattern.String, to: c.Content}
			if growth *= max(1, (len(s.to)+len(s.from)-1)/len(s.from)); growth > maxGrowth {
				return formatErr(field, "makes texts more than %d times as long", maxGrowth)
			}
		case "Strip":
			if utf8.RuneCountInString(c.Content) != 1 || c.Start < 0 || c.Stop != 0 {
				return formatErr(field, "only Strip of one character at the beginning is supported")
			}
			s = decodeStep{kind: decodeStrip, strip: []rune(c.Content)[0], n: c.Start}
		case "WordPiece":
			s = decodeStep{kind: decodeWords, from: c.Prefix, cleans: isTrue(c.Cleanup, true)}
			growth *= 2
		case "Metaspace":
			scheme, err := c.prependScheme(field)
			if err != nil {
				return err
			}
			if utf8.RuneCountInString(c.Replacement) != 1 {
				return formatErr(field, "replacement is %q, want one character", c.Replacement)
			}
			s = decodeStep{kind: decodeMetaspace, mark: []rune(c.Replacement)[0], leads: scheme != "never"}
		default:
			return formatErr(field, "%s is not supported: only ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip and WordPiece", c.Type)
		}
		f.steps = append(f.steps, s)
	}
	toSpace := len(parts) > 0 && f.steps[0].kind == decodeReplace && f.steps[0].from == mark && f.steps[0].to == " "
	switch {
	case f.steps == nil:
		f.steps = []decodeStep{{kind: decodeJoin}}
	case !f.chars && (kinds == "ByteLevel " || kinds == "ByteLevel Fuse "), f.chars && toSpace && kinds == "Replace ByteFallback Fuse ":
		f.steps = nil
	case f.chars && toSpace && kinds == "Replace ByteFallback Fuse Strip " && f.steps[3].strip == ' ' && f.steps[3].n == 1:
		f.steps, f.strip = nil, true
	}
	return nil
}

// byteOf returns the byte that a token such as <0x41> stands for.
func byteOf(name string) (b byte, ok bool) {
	if len(name) != len("<0x41>") || !strings.HasPrefix(name, "<0x") || name[5] != '>' {
		return 0, false
	}
	v, err := strconv.ParseUint(strings.TrimPrefix(name[3:5], "+"), 16, 8)
	return byte(v), err == nil
}

// textOf returns the bytes that a token stands for within a text.
func (f *pipeline) textOf(name string) []byte {
	if f.chars {
		if b, ok := byteOf(name); ok && f.spellsBytes {
			return []byte{b}
		}
		return []byte(strings.ReplaceAll(name, mark, " "))
	}
	if b, ok := fromVisible(name); ok {
		return b
	}
	return []byte(name)
}

// setSpelled notes how tokens are spelled, if decoding wants to know.
func (t *Tokenizer) setSpelled() {
	if t.pipeline.steps == nil {
		return
	}
	t.spelled = make([]string, len(t.tokens))
	for id, tok := range t.tokens {
		switch {
		case t.names != nil && id < len(t.names):
			t.spelled[id] = t.names[id]
		case uint32(id) == t.unk:
			t.spelled[id] = t.pipeline.unkToken
		case tok != nil:
			t.spelled[id] = visible(tok)
		}
	}
	for _, a := range t.added.list {
		t.spelled[a.ID] = t.pipeline.spelled(a)
	}
}

func (t *Tokenizer) decode(ids []int64, skip bool) ([]byte, error) {
	var pieces [][]byte
	text := make([]byte, 0, 3*len(ids))
	for i, id := range ids {
		if id < 0 || id >= int64(len(t.tokens)) || t.tokens[id] == nil {
			return nil, &UnknownTokenError{ID: id, Position: i, Size: len(t.tokens)}
		}
		switch {
		case skip && id < int64(len(t.added.skipped)) && t.added.skipped[id]:
		case t.spelled != nil:
			pieces = append(pieces, []byte(t.spelled[id]))
		default:
			text = append(text, t.tokens[id]...)
		}
	}
	if t.spelled != nil {
		for _, s := range t.pipeline.steps {
			pieces = s.apply(pieces)
		}
		return bytes.Join(pieces, nil), nil
	}
	if t.pipeline.strip && len(text) > 0 && text[0] == ' ' {
		text = text[1:]
	}
	return text, nil
}

// apply makes the pieces after a step. It may change those before.
func (s *decodeStep) apply(pieces [][]byte) [][]byte {
	switch s.kind {
	case decodeReplace:
		for i, p := range pieces {
			pieces[i] = bytes.ReplaceAll(p, []byte(s.from), []byte(s.to))
		}
	case decodeBytes:
		return fuseBytes(pieces)
	case decodeFuse:
		return [][]byte{bytes.Join(pieces, nil)}
	case decodeJoin:
		return [][]byte{bytes.Join(pieces, []byte{' '})}
	case decodeStrip:
		for i, p := range pieces {
			mark := []byte(string(s.strip))
			for n := 0; n < s.n && bytes.HasPrefix(p, mark); n++ {
				p = p[len(mark):]
			}
			pieces[i] = p
		}
	case decodeWords:
		for i, p := range pieces {
			if rest, ok := bytes.CutPrefix(p, []byte(s.from)); i > 0 && ok {
				p = rest
			} else if i > 0 {
				p = append([]byte{' '}, p...)
			}
			if s.cleans {
				p = []byte(cleanSpaces.clean(string(p)))
			}
			pieces[i] = p
		}
	case decodeMetaspace:
		for i, p := range pieces {
			space := []byte{' '}
			if i == 0 && s.leads {
				space = nil
			}
			pieces[i] = bytes.ReplaceAll(p, []byte(string(s.mark)), space)
		}
	case decodeLevel:
		var text []byte
		for _, p := range pieces {
			if b, ok := fromVisible(string(p)); ok {
				p = b
			}
			text = append(text, p...)
		}
		return [][]byte{text}
	}
	return pieces
}

// fuseBytes makes a piece of the bytes that lie side by side, if together they
// are UTF-8, else one of each.
func fuseBytes(pieces [][]byte) [][]byte {
	var out [][]byte
	var run []byte
	flush := func() {
		if utf8.Valid(run) && len(run) > 0 {
			out = append(out, run)
		} else {
			for i := range run {
				out = append(out, run[i:i+1])
			}
		}
		run = nil
	}
	for _, p := range pieces {
		if b, ok := byteOf(string(p)); ok {
			run = append(run, b)
			continue
		}
		flush()
		out = append(out, p)
	}
	flush()
	return out
}

// spaceCleaner takes away the spaces that the decoder of BERT takes away.
type spaceCleaner [][2]string

var cleanSpaces = spaceCleaner{
	{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"}, {" 'm", "'m"}, {" do not", " don't"},
	{" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
}

// clean makes one replacement after the other.
func (c spaceCleaner) clean(s string) string {
	for _, r := range c {
		s = strings.ReplaceAll(s, r[0], r[1])
	}
	return s
}
