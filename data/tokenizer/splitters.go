// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// splitter is a step that parts a text into words. first says that the text is
// at its beginning. cuts says that a word ends before each space between
// letters, neutral that what is before such a space changes nothing after it.
type splitter struct {
	apply   func(t *Tokenizer, parts [][]byte, first bool) [][]byte
	cuts    bool
	neutral bool
}

// parseSplitters reads pre-tokenizers of all kinds.
func (g *general) parseSplitters(f *pipeline, raw json.RawMessage) error {
	const field = "pre_tokenizer"
	// What this package has a way of its own for is fastest.
	var own pipeline
	if own.parsePreTokenizer(&document{PreTokenizer: raw}) == nil && !own.chars && own.lead == leadNone && own.split != splitWhole {
		g.fast, g.bytes, f.split = true, true, own.split
		return nil
	}
	parts, err := parseComponent(field, raw)
	if err != nil {
		return err
	}
	if len(parts) > maxParts {
		return formatErr(field, "has %d parts, at most %d are supported", len(parts), maxParts)
	}
	for i, c := range parts {
		if g.bytes {
			return formatErr(field, "%s after ByteLevel is not supported", c.Type)
		}
		if c.Type == "ByteLevel" {
			g.bytes = true
			g.split = append(g.split, byteLevel(isTrue(c.AddPrefixSpace, true), isTrue(c.UseRegex, true), i == 0)...)
			continue
		}
		s, err := c.splitter(field)
		if err != nil {
			return err
		}
		g.split = append(g.split, s)
	}
	return nil
}

// byteLevel puts a space before a text and splits it as GPT-2 does.
func byteLevel(prefix, split, alone bool) []splitter {
	var out []splitter
	if prefix {
		out = append(out, splitter{neutral: true, apply: each(func(t *Tokenizer, out [][]byte, text []byte, _ bool) [][]byte {
			if text[0] != ' ' {
				text = append([]byte{' '}, text...)
			}
			return append(out, text)
		})})
	}
	if split {
		out = append(out, splitter{cuts: !prefix || alone, apply: each(func(t *Tokenizer, out [][]byte, text []byte, _ bool) [][]byte {
			for pos := 0; pos < len(text); {
				end, _ := t.kinds.wordGPT2(text, pos)
				out = append(out, text[pos:end])
				pos = end
			}
			return out
		})})
	}
	return out
}

// each makes a step of what is done to each part that is not empty.
func each(f func(t *Tokenizer, out [][]byte, text []byte, first bool) [][]byte) func(*Tokenizer, [][]byte, bool) [][]byte {
	return func(t *Tokenizer, parts [][]byte, first bool) [][]byte {
		out := make([][]byte, 0, 2*len(parts)+8)
		for i, p := range parts {
			if len(p) > 0 {
				out = f(t, out, p, first && i == 0)
			}
		}
		return out
	}
}

// by makes a step of characters that part a text.
func by(behavior string, invert bool, is func(t *Tokenizer, r rune) bool) splitter {
	return splitter{neutral: true, apply: each(func(t *Tokenizer, out [][]byte, text []byte, _ bool) [][]byte {
		if behavior == "Removed" && !invert { // the quickest, and the most common
			begin := 0
			for i := 0; i < len(text); {
				r, n := rune(text[i]), 1
				if r >= utf8.RuneSelf {
					r, n = utf8.DecodeRune(text[i:])
				}
				if is(t, r) {
					if i > begin {
						out = append(out, text[begin:i])
					}
					begin = i + n
				}
				i += n
			}
			return append(out, text[begin:])
		}
		var hits [][2]int
		for i := 0; i < len(text); {
			r, n := rune(text[i]), 1
			if r >= utf8.RuneSelf {
				r, n = utf8.DecodeRune(text[i:])
			}
			if is(t, r) {
				hits = append(hits, [2]int{i, i + n})
			}
			i += n
		}
		return splitAt(out, text, hits, behavior, invert)
	})}
}

func (c component) splitter(field string) (splitter, error) {
	behavior := c.Behavior
	switch c.Type {
	case "BertPreTokenizer":
		return splitter{apply: each(bertWords), cuts: true}, nil
	case "WhitespaceSplit":
		s := by("Removed", false, func(_ *Tokenizer, r rune) bool { return unicode.IsSpace(r) })
		s.cuts = true
		return s, nil
	case "Whitespace":
		return splitter{apply: each(wordsAndOthers), cuts: true}, nil
	case "Punctuation":
		if behavior == "" {
			behavior = "Isolated"
		}
		if err := checkBehavior(field, behavior); err != nil {
			return splitter{}, err
		}
		return by(behavior, false, func(_ *Tokenizer, r rune) bool { return isPunct(r) }), nil
	case "Digits":
		behavior = "Contiguous"
		if c.IndividualDigits {
			behavior = "Isolated"
		}
		return by(behavior, false, func(t *Tokenizer, r rune) bool { return t.kinds.isNumber(r) }), nil
	case "CharDelimiterSplit":
		r, n := utf8.DecodeRuneInString(c.Delimiter)
		if n == 0 || n != len(c.Delimiter) {
			return splitter{}, formatErr(field, "CharDelimiterSplit needs one character as delimiter")
		}
		return by("Removed", false, func(_ *Tokenizer, q rune) bool { return q == r }), nil
	case "Metaspace":
		return c.metaspaceSplitter(field)
	case "Split":
		return c.splitSplitter(field)
	}
	return splitter{}, formatErr(field, "%q is not supported", c.Type)
}

func (c component) metaspaceSplitter(field string) (splitter, error) {
	if utf8.RuneCountInString(c.Replacement) != 1 {
		return splitter{}, formatErr(field, "replacement is %q, want one character", c.Replacement)
	}
	scheme, err := c.prependScheme(field)
	if err != nil {
		return splitter{}, err
	}
	sign, parts := []byte(c.Replacement), isTrue(c.Split, true)
	return splitter{apply: each(func(t *Tokenizer, out [][]byte, text []byte, first bool) [][]byte {
		spaces := bytes.Count(text, []byte{' '})
		leads := scheme == "always" || scheme == "first" && first
		word := make([]byte, 0, len(text)+(spaces+1)*len(sign))
		if leads && text[0] != ' ' && !bytes.HasPrefix(text, sign) {
			word = append(word, sign...)
		}
		for _, b := range text {
			if b == ' ' {
				word = append(word, sign...)
			} else {
				word = append(word, b)
			}
		}
		for parts {
			i := bytes.Index(word[1:], sign)
			if i < 0 {
				break
			}
			out = append(out, word[:i+1])
			word = word[i+1:]
		}
		return append(out, word)
	}), cuts: parts}, nil
}

func (c component) splitSplitter(field string) (splitter, error) {
	if err := checkBehavior(field, c.Behavior); err != nil {
		return splitter{}, err
	}
	switch {
	case c.Pattern == nil || c.Pattern.String == nil && c.Pattern.Regex == nil:
		return splitter{}, formatErr(field, "Split has no pattern")
	case c.Pattern.String != nil:
		sep := []byte(*c.Pattern.String)
		if len(sep) == 0 {
			return splitter{}, formatErr(field, "Split at an empty string is not supported")
		}
		return splitter{apply: each(func(t *Tokenizer, out [][]byte, text []byte, _ bool) [][]byte {
			var hits [][2]int
			for pos := 0; ; {
				i := bytes.Index(text[pos:], sep)
				if i < 0 {
					return splitAt(out, text, hits, c.Behavior, c.Invert)
				}
				hits = append(hits, [2]int{pos + i, pos + i + len(sep)})
				pos += i + len(sep)
			}
		})}, nil
	}
	re, err := compilePattern(*c.Pattern.Regex)
	if err != nil {
		return splitter{}, formatErr(field+".pattern", "%v", err)
	}
	cuts, known := knownPatterns[*c.Pattern.Regex]
	return splitter{apply: each(func(t *Tokenizer, out [][]byte, text []byte, _ bool) [][]byte {
		return splitAt(out, text, re.matches(text), c.Behavior, c.Invert)
	}), cuts: known && cuts, neutral: known}, nil
}

func checkBehavior(field, behavior string) error {
	switch behavior {
	case "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous":
		return nil
	}
	return formatErr(field, "behavior %q is not known", behavior)
}

// splitAt parts a text at hits. What becomes of these is the behavior; with
// invert they are what is between them.
func splitAt(out [][]byte, text []byte, hits [][2]int, behavior string, invert bool) [][]byte {
	type part struct {
		begin, end int
		hit        bool
	}
	var parts []part
	pos := 0
	for _, h := range hits {
		if pos < h[0] {
			parts = append(parts, part{pos, h[0], invert})
		}
		if h[0] < h[1] {
			parts = append(parts, part{h[0], h[1], !invert})
		}
		pos = h[1]
	}
	if pos < len(text) {
		parts = append(parts, part{pos, len(text), invert})
	}
	last, begin := false, len(out) // the part before was a hit
	for i, p := range parts {
		joins := false
		switch behavior {
		case "Removed":
			if p.hit {
				continue
			}
		case "Contiguous":
			joins = i > 0 && p.hit == last
		case "MergedWithPrevious":
			joins = p.hit && !last && i > 0
		case "MergedWithNext":
			joins = i > 0 && last && !p.hit
		}
		last = p.hit
		if joins && len(out) > begin {
			n := len(out[len(out)-1])
			out[len(out)-1] = text[p.begin-n : p.end]
			continue
		}
		out = append(out, text[p.begin:p.end])
	}
	return out
}

// bertWords parts a text at spaces, and around punctuation.
func bertWords(_ *Tokenizer, out [][]byte, text []byte, _ bool) [][]byte {
	begin := 0
	for i := 0; i < len(text); {
		r, n := rune(text[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRune(text[i:])
		}
		space := unicode.IsSpace(r)
		if !space && !isPunct(r) {
			i += n
			continue
		}
		if i > begin {
			out = append(out, text[begin:i])
		}
		if !space {
			out = append(out, text[i:i+n])
		}
		i += n
		begin = i
	}
	if begin < len(text) {
		out = append(out, text[begin:])
	}
	return out
}

// wordsAndOthers parts a text into runs of \w and runs of what is neither that
// nor a space.
func wordsAndOthers(t *Tokenizer, out [][]byte, text []byte, _ bool) [][]byte {
	class := func(r rune) int {
		switch {
		case unicode.IsSpace(r):
			return 0
		case t.kinds.isWord(r):
			return 1
		}
		return 2
	}
	begin, last := 0, 0
	for i, r := range string(text) {
		c := class(r)
		if c != last {
			if last != 0 {
				out = append(out, text[begin:i])
			}
			begin, last = i, c
		}
	}
	if last != 0 {
		out = append(out, text[begin:])
	}
	return out
}

// isNumber tells the characters of \p{N}.
func (t *kindTable) isNumber(r rune) bool { return int(r) < len(t) && t[r] == kindNumber }

// spaceClass is \s of Unicode as a part of a class.
const spaceClass = `\t-\r\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000} `

// rangesOf writes ranges as a part of a class.
func rangesOf(list []unicode.Range32) string {
	var b strings.Builder
	for _, r := range list {
		fmt.Fprintf(&b, `\x{%x}-\x{%x}`, r.Lo, r.Hi)
	}
	return b.String()
}
