// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxFile limits what [Read] takes in: Llama 3's file with its 128,000 tokens has
// 9 MB, and the largest known 33 MB.
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

// document is a Hugging Face tokenizer.json.
type document struct {
	Version       string          `json:"version"`
	Truncation    json.RawMessage `json:"truncation"` // for batches: nothing for who asks for neither, as in transformers
	Padding       json.RawMessage `json:"padding"`
	AddedTokens   []AddedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         model           `json:"model"`
}

type model struct {
	Type         string           `json:"type"`
	Dropout      *float64         `json:"dropout"`
	UnkToken     *string          `json:"unk_token"`
	Prefix       *string          `json:"continuing_subword_prefix"`
	Suffix       *string          `json:"end_of_word_suffix"`
	FuseUnk      bool             `json:"fuse_unk"`
	ByteFallback bool             `json:"byte_fallback"`
	IgnoreMerges bool             `json:"ignore_merges"`
	Vocab        map[string]int64 `json:"vocab"`
	Merges       mergeNames       `json:"merges"`

	MaxChars *int64 `json:"max_input_chars_per_word,omitempty"` // of a WordPiece
	UnkID    *int64 `json:"unk_id,omitempty"`                   // of a Unigram

	scores []scored        // the vocabulary of a Unigram
	raw    json.RawMessage // as the file has it, if it is no BPE
}

// UnmarshalJSON reads a model. The vocabulary of a Unigram is a list of tokens
// with scores.
func (m *model) UnmarshalJSON(b []byte) error {
	type plain model
	var head struct {
		Type  string          `json:"type"`
		Vocab json.RawMessage `json:"vocab"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return err
	}
	if head.Type != "Unigram" {
		err := json.Unmarshal(b, (*plain)(m))
		if head.Type != "BPE" {
			m.raw = bytes.Clone(b)
		}
		return err
	}
	var fields struct {
		Vocab        []json.RawMessage `json:"vocab"`
		UnkID        *int64            `json:"unk_id"`
		ByteFallback bool              `json:"byte_fallback"`
	}
	if err := json.Unmarshal(b, &fields); err != nil {
		return formatErr("model", "%v", err)
	}
	*m = model{Type: head.Type, UnkID: fields.UnkID, ByteFallback: fields.ByteFallback, raw: bytes.Clone(b), Vocab: make(map[string]int64, len(fields.Vocab))}
	for i, raw := range fields.Vocab {
		var s scored
		if pair := [2]any{&s.name, &s.score}; json.Unmarshal(raw, &pair) != nil || bytes.Count(raw, []byte{','}) == 0 {
			return formatErr(fmt.Sprintf("model.vocab[%d]", i), "must be a token and its score")
		}
		m.Vocab[s.name] = int64(i)
		m.scores = append(m.scores, s)
	}
	return nil
}

// mergeNames are merges by the names of their tokens. Files have them as "a b"
// or, newer, as ["a", "b"].
type mergeNames struct {
	pairs [][2]string
	asOne bool // written as "a b"
}

func (m *mergeNames) UnmarshalJSON(b []byte) error {
	var lines []string
	if json.Unmarshal(b, &lines) == nil {
		m.pairs = make([][2]string, len(lines))
		for i, line := range lines {
			left, right, ok := strings.Cut(line, " ")
			if !ok || strings.Contains(right, " ") {
				return mergeErr(i, "%q must have two parts with a space between", line)
			}
			m.pairs[i] = [2]string{left, right}
		}
		return nil
	}
	var lists []json.RawMessage
	if err := json.Unmarshal(b, &lists); err != nil {
		return formatErr("model.merges", "%v", err)
	}
	var pair, one []string
	m.pairs = make([][2]string, len(lists))
	for i, raw := range lists {
		if json.Unmarshal(raw, &pair) != nil || len(pair) != 2 {
			if json.Unmarshal(append(append([]byte{'['}, raw...), ']'), &one) == nil {
				pair = strings.Split(one[0], " ")
			}
			if len(pair) != 2 {
				return mergeErr(i, "must be a string of two parts or a pair of strings")
			}
		}
		m.pairs[i] = [2]string(pair)
		pair = pair[:0]
	}
	return nil
}

func mergeErr(i int, format string, args ...any) error {
	return formatErr(fmt.Sprintf("model.merges[%d]", i), format, args...)
}

func (m mergeNames) MarshalJSON() ([]byte, error) {
	if !m.asOne {
		if m.pairs == nil {
			return []byte("[]"), nil
		}
		return marshal(m.pairs, "")
	}
	lines := make([]string, len(m.pairs))
	for i, p := range m.pairs {
		lines[i] = p[0] + " " + p[1]
	}
	return marshal(lines, "")
}

// Write writes the tokenizer as a Hugging Face tokenizer.json, which the
// tokenizers and transformers packages open. The same tokenizer always gives
// the same bytes.
func (t *Tokenizer) Write(w io.Writer) error {
	f := &t.pipeline
	doc := document{
		Version: "1.0", AddedTokens: t.added.list,
		Normalizer: f.normalizer, PreTokenizer: f.preTokenizer, PostProcessor: f.postProcessor, Decoder: f.decoder,
		Model: model{
			Type: "BPE", FuseUnk: f.fuseUnk, ByteFallback: f.byteFallback, IgnoreMerges: f.ignoreMerges,
			Vocab: make(map[string]int64, t.model), Merges: mergeNames{asOne: t.names == nil},
		},
	}
	if doc.AddedTokens == nil {
		doc.AddedTokens = []AddedToken{}
	}
	if f.unkToken != "" {
		doc.Model.UnkToken = &f.unkToken
	}
	if f.preTokenizer == nil && !f.chars && t.general == nil {
		doc.PreTokenizer, doc.Decoder = f.split.sections()
	}
	if f.model != nil {
		t = &Tokenizer{unk: none} // its vocabulary is in the model
	}
	spelled := make(map[uint32]string) // tokens over bytes that are called by what they are
	for _, a := range t.added.list {
		spelled[uint32(a.ID)] = a.Content
	}
	if t.unk != none {
		spelled[t.unk] = f.unkToken
	}
	name := func(id uint32) string {
		if t.names != nil {
			return t.names[id]
		}
		if n, ok := spelled[id]; ok {
			return n
		}
		return visible(t.tokens[id])
	}
	for id := range uint32(t.model) {
		if n := name(id); n != "" {
			doc.Model.Vocab[n] = int64(id)
		}
	}
	for _, m := range t.merges {
		doc.Model.Merges.pairs = append(doc.Model.Merges.pairs, [2]string{name(m.left), name(m.right)})
	}
	var written any = doc
	if f.model != nil {
		written = struct {
			document
			Model json.RawMessage `json:"model"`
		}{doc, f.model}
	}
	b, err := marshal(written, " ")
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// sections returns the pre_tokenizer and the decoder of a tokenizer over bytes
// that was trained.
func (s Split) sections() (preTokenizer, decoder json.RawMessage) {
	regex := map[Split]string{SplitCode: Pattern, SplitGPT2: patternGPT2, SplitLlama3: patternLlama3}[s]
	text, err := marshal(regex, "")
	if err != nil {
		panic(err) // a string always marshals
	}
	const level = `{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": `
	pre := level + `true}`
	if s != SplitGPT2 {
		pre = `{"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": ` + string(bytes.TrimSpace(text)) +
			`}, "behavior": "Isolated", "invert": false}, ` + level + `false}]}`
	}
	return json.RawMessage(pre), json.RawMessage(`{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}`)
}

func marshal(v any, indent string) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	err := enc.Encode(v)
	return buf.Bytes(), err
}

// Read reads a tokenizer.json: one that [Tokenizer.Write] wrote, or one of the
// kinds that the package comment lists. Anything that would make this
// package's tokens differ from the Hugging Face libraries' is refused with a
// *[FormatError].
func Read(r io.Reader) (*Tokenizer, error) {
	d, err := readDocument(r)
	if err != nil {
		return nil, err
	}
	return d.tokenizer()
}

func readDocument(r io.Reader) (*document, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("tokenizer: reading: %w", err)
	}
	if len(b) > maxFile {
		return nil, formatErr("", "longer than %d bytes: is this a tokenizer.json?", maxFile)
	}
	var doc document
	if err := json.Unmarshal(b, &doc); err != nil {
		if format, ok := err.(*FormatError); ok {
			return nil, format
		}
		return nil, formatErr("", "not a tokenizer.json: %v", err)
	}
	return &doc, nil
}

// tokenizer makes the tokenizer that a document describes.
func (d *document) tokenizer() (*Tokenizer, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	if d.wants() {
		return d.generalTokenizer()
	}
	f, err := parsePipeline(d)
	if err != nil {
		return nil, err
	}
	names, err := d.Model.names()
	if err != nil {
		return nil, err
	}
	merges, err := d.Model.mergeList()
	if err != nil {
		return nil, err
	}
	var t *Tokenizer
	if f.chars {
		t, err = newCharTokenizer(names, merges, f)
	} else {
		t, err = d.byteTokenizer(names, merges, f)
	}
	if err != nil {
		return nil, asFormat("model", err)
	}
	if err := t.setAdded(d.AddedTokens, d.Model.Vocab); err != nil {
		return nil, err
	}
	return t, t.checkAround()
}

// byteTokenizer makes the tokenizer of a vocabulary over bytes.
func (d *document) byteTokenizer(names []string, merges []merge, f pipeline) (*Tokenizer, error) {
	tokens, err := d.byteTokens(names)
	if err != nil {
		return nil, err
	}
	t, err := newTokenizer(tokens, merges, f)
	switch {
	case err != nil:
		return nil, asFormat("model", err)
	case f.byteFallback && slices.Contains(t.byteID[:], none):
		return nil, formatErr("model.byte_fallback", "must be false for a vocabulary over bytes that has not all of them")
	case f.unkToken != "":
		id, ok := d.Model.Vocab[f.unkToken]
		if !ok {
			return nil, formatErr("model.unk_token", "%q is not in the vocabulary", f.unkToken)
		}
		t.unk = uint32(id)
		t.tokens[id] = f.textOf(f.unkToken)
		t.maxLen = max(t.maxLen, len(f.unkToken))
	}
	return t, nil
}

// asFormat makes a *FormatError of any error.
func asFormat(field string, err error) error {
	if _, ok := err.(*FormatError); ok {
		return err
	}
	return formatErr(field, "%s", strings.TrimPrefix(err.Error(), "tokenizer: "))
}

// check refuses what would change the tokens and is in no part that is read.
func (d *document) check() error {
	switch d.Model.Type {
	case "WordPiece", "Unigram", "WordLevel":
		return nil
	}
	switch {
	case d.Model.Type != "BPE":
		return formatErr("model.type", "is %q, only BPE, WordPiece, Unigram and WordLevel are supported", d.Model.Type)
	case d.Model.Dropout != nil && *d.Model.Dropout != 0:
		return formatErr("model.dropout", "must be null")
	case d.Model.Prefix != nil && *d.Model.Prefix != "":
		return formatErr("model.continuing_subword_prefix", "must be null")
	case d.Model.Suffix != nil && *d.Model.Suffix != "":
		return formatErr("model.end_of_word_suffix", "must be null")
	}
	return nil
}

// names returns the names of the vocabulary by id, "" where no token has it.
func (m *model) names() ([]string, error) {
	if len(m.Vocab) == 0 {
		return nil, formatErr("model", "the vocabulary is empty")
	}
	if len(m.Vocab) > MaxVocab {
		return nil, formatErr("model.vocab", "has %d tokens, at most %d are supported", len(m.Vocab), MaxVocab)
	}
	size := int64(0)
	// Of several mistakes the same is told always: that of the first name.
	bad, why := "", ""
	blame := func(name, format string, args ...any) {
		if why == "" || name < bad {
			bad, why = name, fmt.Sprintf(format, args...)
		}
	}
	for name, id := range m.Vocab {
		switch {
		case id < 0 || id >= MaxVocab:
			blame(name, "token %q has id %d, want 0..%d", name, id, MaxVocab-1)
		case name == "":
			blame(name, "token %d is empty", id)
		default:
			size = max(size, id+1)
		}
	}
	if why != "" {
		return nil, formatErr("model.vocab", "%s", why)
	}
	names := make([]string, size)
	for name, id := range m.Vocab {
		if names[id] != "" {
			blame(min(name, names[id]), "id %d is given to two tokens, %q and %q", id, min(name, names[id]), max(name, names[id]))
		}
		names[id] = name
	}
	if why != "" {
		return nil, formatErr("model.vocab", "%s", why)
	}
	return names, nil
}

// byteTokens returns what the names stand for in a vocabulary over bytes. An
// added token, and the token for unknown bytes, may be spelled as they like:
// nil, if it is not as bytes are spelled, for then no bytes lead to it. (The
// added token é still is what the byte 0xe9 becomes.)
func (d *document) byteTokens(names []string) ([][]byte, error) {
	literal := make(map[string]bool)
	for _, a := range d.AddedTokens {
		literal[a.Content] = true
	}
	if d.Model.UnkToken != nil {
		literal[*d.Model.UnkToken] = true
	}
	tokens := make([][]byte, len(names))
	for id, name := range names {
		if name == "" {
			continue
		}
		tok, ok := fromVisible(name)
		if !ok && !literal[name] {
			return nil, formatErr("model.vocab", "token %q is not in byte-level form", name)
		}
		tokens[id] = tok
	}
	return tokens, nil
}

func (m *model) mergeList() ([]merge, error) {
	if len(m.Merges.pairs) > 2*MaxVocab {
		return nil, formatErr("model.merges", "has %d entries, at most %d are supported", len(m.Merges.pairs), 2*MaxVocab)
	}
	merges := make([]merge, len(m.Merges.pairs))
	for i, pair := range m.Merges.pairs {
		left, ok := m.Vocab[pair[0]]
		if !ok {
			return nil, mergeErr(i, "%q is not in the vocabulary", pair[0])
		}
		right, ok := m.Vocab[pair[1]]
		if !ok {
			return nil, mergeErr(i, "%q is not in the vocabulary", pair[1])
		}
		id, ok := m.Vocab[pair[0]+pair[1]]
		if !ok {
			return nil, mergeErr(i, "the result %q is not in the vocabulary", pair[0]+pair[1])
		}
		merges[i] = merge{uint32(left), uint32(right), uint32(id)}
	}
	return merges, nil
}

// setAdded gives the tokenizer its added tokens, which may be in the model's
// vocabulary or not.
func (t *Tokenizer) setAdded(list []AddedToken, vocab map[string]int64) error {
	next := int64(len(vocab)) // the id that the Hugging Face library gives to a new token
	seen := make(map[string]bool, len(list))
	patterns := make(map[string]string)
	for i, a := range list {
		field := fmt.Sprintf("added_tokens[%d]", i)
		want, inModel := vocab[a.Content]
		switch {
		case a.Content == "":
			return formatErr(field, "is empty")
		case len(a.Content) > MaxTokenLen:
			return formatErr(field, "is %d bytes long, at most %d are supported", len(a.Content), MaxTokenLen)
		case !utf8.ValidString(a.Content):
			return formatErr(field, "%q is not UTF-8", a.Content)
		case seen[a.Content]:
			return formatErr(field, "%q is there twice", a.Content)
		case a.Normalized && patterns[t.pipeline.normalized(a)] != "":
			return formatErr(field, "%q and %q are the same after normalization", a.Content, patterns[t.pipeline.normalized(a)])
		case !inModel:
			want = next
			next++
		}
		if a.ID != want {
			return formatErr(field, "%q has id %d, the Hugging Face libraries would make it %d", a.Content, a.ID, want)
		}
		if a.ID >= MaxVocab {
			return formatErr(field, "id %d, at most %d are supported", a.ID, MaxVocab-1)
		}
		seen[a.Content] = true
		if a.Normalized {
			patterns[t.pipeline.normalized(a)] = a.Content
		}
		for a.ID >= int64(len(t.tokens)) {
			t.tokens = append(t.tokens, nil)
		}
		if !inModel && t.tokens[a.ID] != nil {
			return formatErr(field, "id %d is that of %q as well", a.ID, t.tokens[a.ID])
		}
		// What it is looked for as is what it is decoded from.
		t.tokens[a.ID] = t.pipeline.textOf(t.pipeline.spelled(a))
		t.maxLen = max(t.maxLen, len(t.tokens[a.ID]))
	}
	t.added = newAddedTokens(list, len(t.tokens), &t.pipeline)
	t.added.overlap = t.added.overlaps(t.kinds)
	t.canCut = t.cuts()
	t.setSpelled()
	return nil
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
