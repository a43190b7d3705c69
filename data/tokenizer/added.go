// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"
)

// AddedToken is a token that is looked for in a text before the text is split,
// as tokenizer.json has it.
type AddedToken struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only where no letter or digit touches it
	LStrip     bool   `json:"lstrip"`      // takes the spaces before it
	RStrip     bool   `json:"rstrip"`      // takes the spaces after it
	Normalized bool   `json:"normalized"`  // looked for after normalization
	Special    bool   `json:"special"`     // stands for no text
}

// addedTokens are the added tokens of a tokenizer. Those that are looked for in
// the text as it is come first; between them, the others.
type addedTokens struct {
	list    []AddedToken
	special []bool // by id
	plain   *finder
	normal  *finder
	leading *finder // those of normal, where a mark that was put before the text belongs to them
}

// newAddedTokens takes tokens with distinct contents that are not empty, and ids
// below size.
func newAddedTokens(list []AddedToken, size int, f *front) addedTokens {
	a := addedTokens{list: list, special: make([]bool, size), plain: new(finder), normal: new(finder), leading: new(finder)}
	for i, tok := range list {
		if tok.Special {
			a.special[tok.ID] = true
		}
		switch {
		case !tok.Normalized:
			a.plain.add(i, tok.Content)
		case f.lead == leadAlways:
			// Its content is normalized like a text, and so begins with a mark, which
			// is what a space of a text becomes.
			a.normal.add(i, " "+tok.Content)
			a.normal.add(i, mark+tok.Content)
			a.leading.add(i, tok.Content)
		default:
			a.normal.add(i, tok.Content)
		}
	}
	a.plain.sort()
	a.normal.sort()
	a.leading.sort()
	return a
}

// AddedTokens returns the added tokens in the order of the file.
func (t *Tokenizer) AddedTokens() []AddedToken { return slices.Clone(t.added.list) }

// WithSpecial returns the tokenizer with more special tokens, which get the ids
// from its size on. One that it has already stays as it is.
func (t *Tokenizer) WithSpecial(contents ...string) (*Tokenizer, error) {
	var b bytes.Buffer
	if err := t.Write(&b); err != nil {
		return nil, err
	}
	var d document
	if err := json.Unmarshal(b.Bytes(), &d); err != nil {
		return nil, fmt.Errorf("tokenizer: what was just written: %w", err)
	}
	next := int64(len(d.Model.Vocab))
	for _, a := range d.AddedTokens {
		if _, ok := d.Model.Vocab[a.Content]; !ok {
			next++
		}
	}
	for _, content := range contents {
		if slices.ContainsFunc(d.AddedTokens, func(a AddedToken) bool { return a.Content == content }) {
			continue
		}
		id, ok := d.Model.Vocab[content]
		if !ok {
			id = next
			next++
		}
		d.AddedTokens = append(d.AddedTokens, AddedToken{ID: id, Content: content, Special: true})
	}
	return d.tokenizer()
}

// Special reports whether an id is a special token's: one that stands for no
// text, such as <|endoftext|>.
func (t *Tokenizer) Special(id int64) bool {
	return id >= 0 && id < int64(len(t.added.special)) && t.added.special[id]
}

// finder looks for the leftmost, and of those the longest, of some contents.
type finder struct {
	starts [256][]wanted // by first byte, longer ones first
	pairs  [1 << 16]bool // the first two bytes that any begins with: of Llama 3's 256, all by "<|"
	num    int
}

type wanted struct {
	content string
	token   int // in addedTokens.list
}

func (f *finder) add(token int, content string) {
	f.starts[content[0]] = append(f.starts[content[0]], wanted{content, token})
	f.num++
	for second := range 256 {
		if len(content) == 1 || int(content[1]) == second {
			f.pairs[int(content[0])<<8|second] = true
		}
	}
}

func (f *finder) sort() {
	for _, s := range f.starts {
		slices.SortStableFunc(s, func(a, b wanted) int { return cmp.Compare(len(b.content), len(a.content)) })
	}
}

// hit is a place in a text where there is an added token; token is -1 if there
// is none up to start, from where on it cannot be told unless the text is
// closed.
type hit struct {
	start, stop int
	token       int
}

// find returns the first hit in text at or after from. The text before from is
// looked at by tokens that want to be single words; prev is the character
// before the text.
func (f *finder) find(a *addedTokens, k *kindTable, text []byte, from int, closed bool, prev rune) hit {
	if f == nil || f.num == 0 {
		return hit{len(text), len(text), -1}
	}
	for i := from; i < len(text); i++ {
		starts := f.starts[text[i]]
		if len(starts) == 0 || i+1 < len(text) && !f.pairs[int(text[i])<<8|int(text[i+1])] {
			continue
		}
		for _, p := range starts {
			rest := text[i:]
			if len(rest) < len(p.content) {
				if !closed && p.content[:len(rest)] == string(rest) {
					return hit{i, i, -1}
				}
				continue
			}
			if string(rest[:len(p.content)]) != p.content {
				continue
			}
			h := hit{i, i + len(p.content), p.token}
			tok := &a.list[p.token]
			if !closed && (tok.SingleWord || tok.RStrip) && len(text)-h.stop < utf8.UTFMax {
				return hit{i, i, -1}
			}
			if tok.SingleWord {
				if i > 0 {
					prev, _ = utf8.DecodeLastRune(text[:i])
				}
				next, n := utf8.DecodeRune(text[h.stop:])
				if k.isWord(prev) || n > 0 && k.isWord(next) {
					i = h.stop - 1 // what it covers is not looked at again
					break
				}
			}
			if tok.LStrip {
				for h.start > from {
					r, n := utf8.DecodeLastRune(text[from:h.start])
					if int(r) >= len(k) || k[r] != kindSpace {
						break
					}
					h.start -= n
				}
			}
			if tok.RStrip {
				stop := k.run(text, h.stop, kindSpace)
				if !closed && len(text)-stop < utf8.UTFMax {
					return hit{i, i, -1}
				}
				h.stop = stop
			}
			return h
		}
	}
	return hit{len(text), len(text), -1}
}
