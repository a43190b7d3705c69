// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxFile limits what [Read] takes in: a vocabulary of MaxVocab tokens is a
// few megabytes.
const maxFile = 64 << 20

// FormatError reports a tokenizer.json that cannot be used: damaged, or of a
// kind that would tokenize in another way than this package does.
type FormatError struct {
	Path  string // "" when not read from a file
	Field string // where in the document, for instance "model.merges[17]"
	Msg   string
}

func (e *FormatError) Error() string {
	path, field := "tokenizer.json", ""
	if e.Path != "" {
		path = e.Path
	}
	if e.Field != "" {
		field = e.Field + ": "
	}
	return fmt.Sprintf("tokenizer: %s: %s%s", path, field, e.Msg)
}

func formatErr(field, format string, args ...any) error {
	return &FormatError{Field: field, Msg: fmt.Sprintf(format, args...)}
}

// document is a Hugging Face tokenizer.json. Fields that must be absent or
// null are read raw, so that they can be refused.
type document struct {
	Version       string           `json:"version"`
	Truncation    *json.RawMessage `json:"truncation"`
	Padding       *json.RawMessage `json:"padding"`
	AddedTokens   []addedToken     `json:"added_tokens"`
	Normalizer    *json.RawMessage `json:"normalizer"`
	PreTokenizer  *preTokenizer    `json:"pre_tokenizer"`
	PostProcessor *json.RawMessage `json:"post_processor"`
	Decoder       *decoder         `json:"decoder"`
	Model         model            `json:"model"`
}

type addedToken struct {
	ID      int64  `json:"id"`
	Content string `json:"content"`
}

type preTokenizer struct {
	Type           string            `json:"type"`
	Pretokenizers  []json.RawMessage `json:"pretokenizers,omitempty"`
	Pattern        *pattern          `json:"pattern,omitempty"`
	Behavior       string            `json:"behavior,omitempty"`
	Invert         *bool             `json:"invert,omitempty"`
	AddPrefixSpace *bool             `json:"add_prefix_space,omitempty"`
	TrimOffsets    *bool             `json:"trim_offsets,omitempty"`
	UseRegex       *bool             `json:"use_regex,omitempty"`
}

type pattern struct {
	Regex string `json:"Regex"`
}

type decoder struct {
	Type           string `json:"type"`
	AddPrefixSpace bool   `json:"add_prefix_space"`
	TrimOffsets    bool   `json:"trim_offsets"`
	UseRegex       bool   `json:"use_regex"`
}

type model struct {
	Type         string            `json:"type"`
	Dropout      *float64          `json:"dropout"`
	UnkToken     *string           `json:"unk_token"`
	Prefix       *string           `json:"continuing_subword_prefix"`
	Suffix       *string           `json:"end_of_word_suffix"`
	FuseUnk      bool              `json:"fuse_unk"`
	ByteFallback bool              `json:"byte_fallback"`
	IgnoreMerges bool              `json:"ignore_merges"`
	Vocab        map[string]int64  `json:"vocab"`
	Merges       []json.RawMessage `json:"merges"`
}

// Write writes the tokenizer as a Hugging Face tokenizer.json, which the
// tokenizers and transformers packages open. The same tokenizer always gives
// the same bytes.
func (t *Tokenizer) Write(w io.Writer) error {
	no, yes := false, true
	raw := func(v any) json.RawMessage {
		b, err := marshal(v, "")
		if err != nil {
			panic(err) // strings and booleans always marshal
		}
		return b
	}
	doc := document{
		Version:     "1.0",
		AddedTokens: []addedToken{},
		PreTokenizer: &preTokenizer{Type: "Sequence", Pretokenizers: []json.RawMessage{
			raw(preTokenizer{Type: "Split", Pattern: &pattern{Pattern}, Behavior: "Isolated", Invert: &no}),
			raw(preTokenizer{Type: "ByteLevel", AddPrefixSpace: &no, TrimOffsets: &yes, UseRegex: &no}),
		}},
		Decoder: &decoder{Type: "ByteLevel", TrimOffsets: true},
		Model:   model{Type: "BPE", Vocab: make(map[string]int64, len(t.tokens))},
	}
	for id, tok := range t.tokens {
		doc.Model.Vocab[visible(tok)] = int64(id)
	}
	for _, m := range t.merges {
		doc.Model.Merges = append(doc.Model.Merges, raw(visible(t.tokens[m.left])+" "+visible(t.tokens[m.right])))
	}
	if doc.Model.Merges == nil {
		doc.Model.Merges = []json.RawMessage{}
	}
	b, err := marshal(doc, " ")
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

func marshal(v any, indent string) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	err := enc.Encode(v)
	return buf.Bytes(), err
}

// Load reads a tokenizer.json from a file.
func Load(path string) (*Tokenizer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	defer f.Close()
	t, err := Read(f)
	var format *FormatError
	if errors.As(err, &format) {
		format.Path = path
	} else if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return t, err
}

// Read reads a tokenizer.json: one that [Tokenizer.Write] wrote, or any other
// with a byte-level BPE model, the split [Pattern], no normalizer and no added
// tokens. Anything that would make this package's tokens differ from the
// Hugging Face libraries' is refused with a *[FormatError].
func Read(r io.Reader) (*Tokenizer, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("tokenizer: reading: %w", err)
	}
	if len(b) > maxFile {
		return nil, formatErr("", "longer than %d bytes: is this a tokenizer.json?", maxFile)
	}
	var doc document
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, formatErr("", "not a tokenizer.json: %v", err)
	}
	if err := doc.check(); err != nil {
		return nil, err
	}
	tokens, ids, err := doc.Model.tokens()
	if err != nil {
		return nil, err
	}
	merges, err := doc.Model.mergeList(tokens, ids)
	if err != nil {
		return nil, err
	}
	t, err := newTokenizer(tokens, merges)
	if err != nil {
		return nil, formatErr("model", "%s", strings.TrimPrefix(err.Error(), "tokenizer: "))
	}
	return t, nil
}

// check refuses everything that would change the tokens.
func (d *document) check() error {
	null := func(raw *json.RawMessage) bool { return raw == nil || string(*raw) == "null" }
	switch {
	case !null(d.Truncation):
		return formatErr("truncation", "must be null")
	case !null(d.Padding):
		return formatErr("padding", "must be null")
	case !null(d.Normalizer):
		return formatErr("normalizer", "must be null: normalizers are not supported")
	case len(d.AddedTokens) > 0:
		return formatErr("added_tokens", "must be empty, has %q: added tokens are not supported", d.AddedTokens[0].Content)
	case d.Model.Type != "BPE":
		return formatErr("model.type", "is %q, only \"BPE\" is supported", d.Model.Type)
	case d.Model.Dropout != nil && *d.Model.Dropout != 0:
		return formatErr("model.dropout", "must be null")
	case d.Model.Prefix != nil && *d.Model.Prefix != "":
		return formatErr("model.continuing_subword_prefix", "must be null")
	case d.Model.Suffix != nil && *d.Model.Suffix != "":
		return formatErr("model.end_of_word_suffix", "must be null")
	case d.Model.IgnoreMerges:
		return formatErr("model.ignore_merges", "must be false")
	}
	if !null(d.PostProcessor) {
		var p struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(*d.PostProcessor, &p) != nil || p.Type != "ByteLevel" {
			return formatErr("post_processor", "must be null or ByteLevel")
		}
	}
	return d.PreTokenizer.check()
}

func (p *preTokenizer) check() error {
	const field = "pre_tokenizer"
	const want = "only a Sequence of a Split by this package's pattern and ByteLevel without use_regex is supported"
	if p == nil || p.Type != "Sequence" || len(p.Pretokenizers) != 2 {
		return formatErr(field, "%s", want)
	}
	var parts [2]preTokenizer
	for i, raw := range p.Pretokenizers {
		if err := json.Unmarshal(raw, &parts[i]); err != nil {
			return formatErr(fmt.Sprintf("%s.pretokenizers[%d]", field, i), "%v", err)
		}
	}
	split, level := parts[0], parts[1]
	switch {
	case split.Type != "Split" || level.Type != "ByteLevel":
		return formatErr(field, "is %q and %q; %s", split.Type, level.Type, want)
	case split.Pattern == nil || split.Pattern.Regex != Pattern:
		return formatErr(field+".pretokenizers[0].pattern", "must be %q: other patterns are not supported", Pattern)
	case split.Behavior != "Isolated" || split.Invert != nil && *split.Invert:
		return formatErr(field+".pretokenizers[0]", "behavior must be Isolated and invert false")
	case level.UseRegex == nil || *level.UseRegex || level.AddPrefixSpace == nil || *level.AddPrefixSpace:
		return formatErr(field+".pretokenizers[1]", "use_regex and add_prefix_space must be false")
	}
	return nil
}

func (m *model) tokens() ([][]byte, map[string]uint16, error) {
	if len(m.Vocab) > MaxVocab {
		return nil, nil, formatErr("model.vocab", "has %d tokens, at most %d are supported", len(m.Vocab), MaxVocab)
	}
	tokens := make([][]byte, len(m.Vocab))
	ids := make(map[string]uint16, len(m.Vocab))
	// In the order of the names, so that a bad file always gets the same error.
	names := make([]string, 0, len(m.Vocab))
	for name := range m.Vocab {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		id := m.Vocab[name]
		tok, ok := fromVisible(name)
		switch {
		case !ok:
			return nil, nil, formatErr("model.vocab", "token %q is not in byte-level form", name)
		case id < 0 || id >= int64(len(tokens)):
			return nil, nil, formatErr("model.vocab", "token %q has id %d, want 0..%d without gaps", name, id, len(tokens)-1)
		case tokens[id] != nil:
			return nil, nil, formatErr("model.vocab", "id %d is given to two tokens, one is %q", id, name)
		case len(tok) == 0:
			return nil, nil, formatErr("model.vocab", "token %d is empty", id)
		}
		tokens[id] = tok
		ids[string(tok)] = uint16(id)
	}
	return tokens, ids, nil
}

// mergeList reads merges in the older form "a b" and the newer ["a", "b"].
func (m *model) mergeList(tokens [][]byte, ids map[string]uint16) ([]merge, error) {
	if len(m.Merges) > MaxVocab {
		return nil, formatErr("model.merges", "has %d entries, at most %d are supported", len(m.Merges), MaxVocab)
	}
	merges := make([]merge, 0, len(m.Merges))
	for i, raw := range m.Merges {
		field := fmt.Sprintf("model.merges[%d]", i)
		var pair []string
		var line string
		if json.Unmarshal(raw, &line) == nil {
			pair = strings.Split(line, " ")
		} else if err := json.Unmarshal(raw, &pair); err != nil {
			return nil, formatErr(field, "must be a string or a pair of strings")
		}
		if len(pair) != 2 {
			return nil, formatErr(field, "has %d parts, want 2", len(pair))
		}
		var part [2]uint16
		for j, name := range pair {
			tok, ok := fromVisible(name)
			id, known := ids[string(tok)]
			if !ok || !known {
				return nil, formatErr(field, "%q is not in the vocabulary", name)
			}
			part[j] = id
		}
		joined := string(tokens[part[0]]) + string(tokens[part[1]])
		id, ok := ids[joined]
		if !ok {
			return nil, formatErr(field, "the result %q is not in the vocabulary", joined)
		}
		merges = append(merges, merge{part[0], part[1], id})
	}
	return merges, nil
}

// Byte-level form: each byte as one printable character, as GPT-2's files have
// it. Bytes that are printable in Latin-1 stand for themselves, the others for
// the characters from U+0100 on, in order.
var byteRune, runeByte = func() (to [256]rune, from map[rune]byte) {
	from = make(map[rune]byte, 256)
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad {
			r = next
			next++
		}
		to[b] = r
		from[r] = byte(b)
	}
	return to, from
}()

func visible(tok []byte) string {
	var sb strings.Builder
	for _, b := range tok {
		sb.WriteRune(byteRune[b])
	}
	return sb.String()
}

func fromVisible(s string) ([]byte, bool) {
	tok := make([]byte, 0, len(s))
	for _, r := range s {
		b, ok := runeByte[r]
		if !ok || r == utf8.RuneError {
			return nil, false
		}
		tok = append(tok, b)
	}
	return tok, true
}
