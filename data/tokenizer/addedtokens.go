// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
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

	bare    bool // a folder's file has no more than its content
	spelled bool // decoded as if it were normalized, which it once was
}

// addedTokens are the added tokens of a tokenizer. Those that are looked for in
// the text as it is come first; between them, the others.
type addedTokens struct {
	list    []AddedToken
	special []bool // by id
	skipped []bool // by id, in a text without special tokens; as the Hugging Face library, by what is decoded
	plain   *finder
	normal  *finder
	leading *finder // those of normal, where a mark that was put before the text belongs to them
	overlap bool    // a token may begin with spaces that another has taken: it is found none the less
}

// newAddedTokens takes tokens with distinct contents that are not empty, and ids
// below size.
func newAddedTokens(list []AddedToken, size int, f *pipeline) addedTokens {
	a := addedTokens{list: list, special: make([]bool, size), skipped: make([]bool, size), plain: new(finder), normal: new(finder), leading: new(finder)}
	contents := make(map[string]bool)
	for _, tok := range list {
		contents[tok.Content] = contents[tok.Content] || tok.Special
	}
	leads := f.lead == leadAlways
	a.normal.marks, a.leading.marks = f.marks, f.marks
	for i, tok := range list {
		a.special[tok.ID] = tok.Special
		pattern := f.normalized(tok)
		a.skipped[tok.ID] = contents[f.spelled(tok)]
		f := a.plain
		if tok.Normalized {
			f = a.normal
		}
		f.add(i, pattern)
		f.strips, f.words = f.strips || tok.LStrip, f.words || tok.SingleWord
		if tok.Normalized && leads {
			a.leading.add(i, strings.TrimPrefix(pattern, mark))
		}
	}
	a.plain.sort()
	a.normal.sort()
	a.leading.sort()
	return a
}

// overlaps reports whether a token begins with spaces that another may have
// taken.
func (a *addedTokens) overlaps(k *kindTable) bool {
	var takes, spaced [2]bool // of those that are looked for as they are, and after normalization
	for _, tok := range a.list {
		which := 0
		if tok.Normalized {
			which = 1
		}
		r, _ := utf8.DecodeRuneInString(tok.Content)
		takes[which] = takes[which] || tok.RStrip
		spaced[which] = spaced[which] || int(r) < len(k) && k[r] == kindSpace
	}
	return takes[0] && spaced[0] || takes[1] && spaced[1]
}

// spelled is what an added token is decoded from: what it is looked for as, or
// was, for the Hugging Face library keeps the first.
func (f *pipeline) spelled(tok AddedToken) string {
	tok.Normalized = tok.Normalized || tok.spelled
	return f.normalized(tok)
}

// normalized is what an added token is looked for as.
func (f *pipeline) normalized(tok AddedToken) string {
	if !tok.Normalized {
		return tok.Content
	}
	if f.norm != nil {
		return f.norm(tok.Content)
	}
	s := tok.Content
	if f.marks {
		s = strings.ReplaceAll(s, " ", mark)
	}
	if f.lead == leadAlways {
		s = mark + s
	}
	return s
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
	words  bool // one of them wants to be a word of its own
	strips bool // one of them takes the spaces before it
	marks  bool // the spaces of a text count as marks
}

type wanted struct {
	content string
	token   int  // in addedTokens.list
	marks   bool // it has marks that a space of the text may be
}

// add adds a content that is not empty.
func (f *finder) add(token int, content string) {
	if content == "" { // nothing is left of it by normalization
		return
	}
	w := wanted{content: content, token: token, marks: f.marks && strings.Contains(content, mark)}
	f.num++
	// A mark may be a space in the text, as the first or the second character.
	for _, c := range f.spellings(content) {
		if s := f.starts[c[0]]; len(s) == 0 || s[len(s)-1] != w {
			f.starts[c[0]] = append(s, w)
		}
		for second := range 256 {
			if len(c) == 1 || int(c[1]) == second {
				f.pairs[int(c[0])<<8|second] = true
			}
		}
	}
}

// spellings are the ways in which a content may begin in a text.
func (f *finder) spellings(content string) []string {
	all := []string{content}
	if !f.marks {
		return all
	}
	if rest, ok := strings.CutPrefix(content, mark); ok {
		all = append(all, " "+rest)
	}
	for _, c := range all {
		_, n := utf8.DecodeRuneInString(c)
		if rest, ok := strings.CutPrefix(c[n:], mark); ok {
			all = append(all, c[:n]+" "+rest)
		}
	}
	return all
}

// match returns how many bytes of text the content takes at its beginning, 0 if
// it is not there, and whether more of the text could make it be there.
func (w *wanted) match(text []byte) (n int, more bool) {
	for i := 0; i < len(w.content); i++ {
		switch {
		case n == len(text):
			return 0, true
		case w.marks && text[n] == ' ' && strings.HasPrefix(w.content[i:], mark):
			i += len(mark) - 1
		case text[n] != w.content[i]:
			return 0, false
		}
		n++
	}
	return n, false
}

// isSpace tells the characters that a token takes which strips spaces.
func (f *finder) isSpace(k *kindTable, r rune) bool {
	return int(r) < len(k) && k[r] == kindSpace && !(f.marks && r == ' ')
}

func (f *finder) sort() {
	for _, s := range f.starts {
		slices.SortStableFunc(s, func(a, b wanted) int { return cmp.Compare(len(b.content), len(a.content)) })
	}
}

// hit is a place in a text where there is an added token; token is -1 if there
// is none up to start, from where on it cannot be told unless the text is
// closed. The search goes on at next, which is before stop if the token has
// taken spaces. What begins at or after stop is nothing: the spaces that it
// takes before it, which are another's, are all that it is.
type hit struct {
	start, stop, next int
	token             int
}

// sure returns the part of a text that no token takes which may follow.
func (f *finder) sure(k *kindTable, text []byte, closed bool) []byte {
	for f != nil && f.strips && !closed && len(text) > 0 {
		r, n := utf8.DecodeLastRune(text)
		cut := r == utf8.RuneError && n == 1 // perhaps a space of which the rest is to come
		if !cut && !f.isSpace(k, r) {
			break
		}
		text = text[:len(text)-n]
	}
	return text
}

// blind returns how much of what follows text[:pos] is within a token that was
// there but is no word of its own: nothing is looked for there.
func (f *finder) blind(a *addedTokens, k *kindTable, text []byte, next, pos int, closed bool, prev rune) int {
	if f == nil || !f.words || next >= pos || pos == len(text) && closed {
		return max(0, next-pos)
	}
	return max(0, f.find(a, k, text, next, pos, pos, closed, prev).next-pos)
}

// goOn returns where the search goes on after a hit.
func (a *addedTokens) goOn(h hit) int {
	if a.overlap {
		return h.next
	}
	return h.stop
}

// find returns the first hit in text that begins, without the spaces that it
// takes, at or after from and before limit. It takes none before taken. The
// text before from is looked at by tokens that want to be single words; prev is
// the character before the text.
func (f *finder) find(a *addedTokens, k *kindTable, text []byte, from, taken, limit int, closed bool, prev rune) hit {
	none := hit{len(text), len(text), len(text), -1}
	if f == nil || f.num == 0 {
		return none
	}
	unknown := func(i int) hit { return hit{i, i, i, -1} }
	after := from
	for i := from; i < limit; i++ {
		starts := f.starts[text[i]]
		if len(starts) == 0 || i+1 < len(text) && !f.pairs[int(text[i])<<8|int(text[i+1])] {
			continue
		}
		for s := range starts {
			p := &starts[s]
			rest := text[i:]
			n, more := len(p.content), false
			if p.marks || len(rest) < n {
				n, more = p.match(rest)
			} else if string(rest[:n]) != p.content {
				continue
			}
			if n == 0 {
				if more && !closed {
					return unknown(i)
				}
				continue
			}
			h := hit{i, i + n, i + n, p.token}
			tok := &a.list[p.token]
			if !closed && (tok.SingleWord || tok.RStrip) && len(text)-h.stop < utf8.UTFMax {
				return unknown(i)
			}
			if tok.SingleWord {
				if i > 0 {
					prev, _ = utf8.DecodeLastRune(text[:i])
				}
				next, n := utf8.DecodeRune(text[h.stop:])
				if k.isWord(prev) || n > 0 && k.isWord(next) {
					i, after = h.stop-1, h.stop // what it covers is not looked at again
					break
				}
			}
			if tok.LStrip {
				h.start = max(h.start, taken)
				for h.start > taken {
					r, n := utf8.DecodeLastRune(text[taken:h.start])
					if !f.isSpace(k, r) {
						break
					}
					h.start -= n
				}
			}
			if tok.RStrip {
				for h.stop < len(text) {
					r, n := utf8.DecodeRune(text[h.stop:])
					if !f.isSpace(k, r) {
						break
					}
					h.stop += n
				}
				if !closed && len(text)-h.stop < utf8.UTFMax {
					return unknown(i)
				}
			}
			return h
		}
	}
	none.next = after
	return none
}
