// SPDX-License-Identifier: Apache-2.0

// Package tokenizer turns bytes into tokens and back: byte-pair encoding
// (Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words with
// Subword Units, ACL 2016), over bytes as in GPT-2, or over characters with
// bytes for those that are unknown, as in Llama 2.
//
// Text is first split into words, then each word is merged pair by pair,
// always the pair that was learnt earliest. With a vocabulary over bytes every
// byte string has an encoding and decoding gives it back exactly, valid UTF-8
// or not; tokens may end inside a character.
//
// # Kinds
//
// [Train] makes words by a pattern of our own, for source code with a small
// vocabulary (see [Pattern]): a space goes with the word after it, line ends
// and indentation go with the punctuation before them, so that ") {\n\t\t" can
// be one token. It looks at bytes alone: no version of Unicode's tables can
// change a tokenization. [TrainSplit] takes another split.
//
// [Load] also reads what others have made: tokenizer.json of the Hugging Face
// libraries for the families of GPT-2 and Llama 3 (bytes) and Llama 2
// (characters), with their added tokens, or GPT-2's vocab.json and merges.txt.
// A folder is read as transformers' AutoTokenizer does, with all of its files; a
// file, or what comes from a reader, as the tokenizers package does. What is read
// gives the ids that these give, or is refused with a *[FormatError]: nothing is
// ignored that would change an id. Truncation and padding, which change batches,
// are for who asks for them, and so ignored.
// Letters, numbers and spaces are those of the Unicode version that these
// libraries have (16.0), not of the Go release. Bytes that are no valid UTF-8,
// which the libraries cannot be given at all, count as punctuation.
//
// # Special tokens
//
// [Tokenizer.Encode] finds added tokens such as <|endoftext|> in the text, as
// the Hugging Face libraries do, and adds none. [Tokenizer.EncodeInput] adds
// those that the file asks for around a text, such as Llama's <s>.
//
// A [Tokenizer] is immutable and safe for concurrent use. The zero value is
// not usable: get one from [Train], [Read] or [Load].
package tokenizer

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
)

// Limits of a vocabulary.
const (
	MaxVocab    = 1 << 20 // tokens
	MaxTokenLen = 1024    // bytes in one token
)

// none is no token.
const none = 1<<32 - 1

// Tokenizer is a trained or loaded vocabulary with its merges.
type Tokenizer struct {
	tokens   [][]byte    // by id, the bytes it stands for; nil where no token has the id
	spelled  []string    // by id, where decoding asks for it
	names    []string    // by id, of the model's vocabulary in characters; nil over bytes
	model    int         // ids below it may be of the model; the others are added tokens
	byteID   [256]uint32 // the token of each single byte, none if it has none
	chars    map[rune]uint32
	ascii    [128]uint32       // chars, of ASCII
	whole    map[string]uint32 // tokens that a word is looked up in before it is merged
	unk      uint32            // none if unknown characters are left out
	near     *near             // over characters
	merges   []merge           // by rank
	table    pairTable
	pipeline pipeline
	general  *general // nil if the pipeline is one of this package's own
	added    addedTokens
	special  map[string]string // of a folder: special tokens by what they are for
	kinds    *kindTable
	base     int // Base, 0 if that is Size
	maxLen   int // of a token, in bytes
	canCut   bool

	fingerprint func() string
	encoders    sync.Pool
}

// merge says that the tokens left and right, side by side, become id.
type merge struct{ left, right, id uint32 }

// newTokenizer checks that the parts of a tokenizer over bytes fit together.
// Ids index tokens; merges are in order of rank.
func newTokenizer(tokens [][]byte, merges []merge, f pipeline) (*Tokenizer, error) {
	if len(tokens) > MaxVocab {
		return nil, fmt.Errorf("tokenizer: %d tokens, at most %d are supported", len(tokens), MaxVocab)
	}
	t := &Tokenizer{tokens: tokens, model: len(tokens), merges: merges, pipeline: f, unk: none}
	for b := range t.byteID {
		t.byteID[b] = none
	}
	for id, tok := range tokens {
		if tok == nil {
			continue
		}
		if err := checkLen(id, tok); err != nil {
			return nil, err
		}
		if len(tok) == 1 {
			t.byteID[tok[0]] = uint32(id)
		}
	}
	if err := t.addMerges(func(id uint32) string { return string(tokens[id]) }); err != nil {
		return nil, err
	}
	if f.ignoreMerges {
		t.whole = make(map[string]uint32, len(tokens))
		for id, tok := range tokens {
			if tok != nil {
				t.whole[string(tok)] = uint32(id)
			}
		}
	}
	t.finish()
	return t, nil
}

func checkLen(id int, tok []byte) error {
	switch {
	case len(tok) == 0:
		return fmt.Errorf("tokenizer: token %d is empty", id)
	case len(tok) > MaxTokenLen:
		return fmt.Errorf("tokenizer: token %d is %d bytes long, at most %d are supported", id, len(tok), MaxTokenLen)
	}
	return nil
}

// addMerges fills the table of pairs. name gives what a token is called.
func (t *Tokenizer) addMerges(name func(id uint32) string) error {
	t.table.init(len(t.merges))
	n := uint32(t.model)
	for rank, m := range t.merges {
		if m.left >= n || m.right >= n || m.id >= n {
			return fmt.Errorf("tokenizer: merge %d names a token outside the vocabulary of %d", rank, n)
		}
		if name(m.left)+name(m.right) != name(m.id) {
			return fmt.Errorf("tokenizer: merge %d makes %q of %q and %q", rank, name(m.id), name(m.left), name(m.right))
		}
		if !t.table.add(pairKey(m.left, m.right), uint32(rank), m.id) {
			return fmt.Errorf("tokenizer: merge %d of %q and %q is there twice", rank, name(m.left), name(m.right))
		}
	}
	return nil
}

// finish sets what follows from the rest.
func (t *Tokenizer) finish() {
	t.maxLen = 1
	for _, tok := range t.tokens {
		t.maxLen = max(t.maxLen, len(tok))
	}
	t.kinds = unicodeKinds()
	t.canCut = t.cuts()
	t.fingerprint = sync.OnceValue(t.digest)
	t.encoders.New = func() any { return newEncoder(t) }
}

// Size is the number of ids: they are 0 to Size-1. In a vocabulary that was
// read some of them may have no token.
func (t *Tokenizer) Size() int { return len(t.tokens) }

// Base is Size without the tokens that are in a folder's other files, not in its
// tokenizer.json or vocab.json: those that somebody added, which a model may have
// no rows for.
func (t *Tokenizer) Base() int {
	if t.base > 0 {
		return t.base
	}
	return t.Size()
}

// MaxLen is the length in bytes of the longest token.
func (t *Tokenizer) MaxLen() int { return t.maxLen }

// Fingerprint identifies the tokenizer: those with the same fingerprint encode
// alike.
func (t *Tokenizer) Fingerprint() string { return t.fingerprint() }

func (t *Tokenizer) digest() string {
	h := sha256.New()
	// What tokens are called, for what they are decoded to does not change ids.
	called := slices.Clone(t.tokens)
	for id, name := range t.names {
		if _, ok := byteOf(name); name != "" && !(ok && t.pipeline.byteFallback) {
			called[id] = []byte(strings.ReplaceAll(name, mark, " "))
		}
	}
	for _, a := range t.added.list {
		if t.names != nil || a.ID >= int64(t.model) {
			called[a.ID] = []byte(a.Content)
		}
	}
	for _, tok := range called {
		fmt.Fprintf(h, "%q ", tok)
	}
	for _, m := range t.merges {
		fmt.Fprintf(h, "%d %d ", m.left, m.right)
	}
	if t.general != nil {
		for _, raw := range []json.RawMessage{t.pipeline.normalizer, t.pipeline.preTokenizer, t.pipeline.model} {
			var plain bytes.Buffer
			if raw != nil && json.Compact(&plain, raw) != nil {
				plain.Reset() // what was read is JSON
			}
			fmt.Fprintf(h, "%s ", plain.Bytes())
		}
	}
	// A tokenizer of our own kind is its tokens and merges.
	if t.pipeline.split != SplitCode || len(t.added.list) > 0 {
		type written struct { // without what no file has
			ID                                              int64
			Content                                         string
			SingleWord, LStrip, RStrip, Normalized, Special bool
		}
		list := make([]written, len(t.added.list))
		for i, a := range t.added.list {
			list[i] = written{a.ID, a.Content, a.SingleWord, a.LStrip, a.RStrip, a.Normalized, a.Special}
		}
		fmt.Fprintf(h, "%s %+v", t.pipeline.describe(), list)
		for _, name := range t.names {
			fmt.Fprintf(h, " %q", name)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Len is the number of bytes that token id stands for: 0 when there is no such
// token, or it is a special one, which stands for no text.
func (t *Tokenizer) Len(id int64) int {
	if id < 0 || id >= int64(len(t.tokens)) || t.Special(id) {
		return 0
	}
	return len(t.tokens[id])
}

// Token returns the bytes of a token, nil when there is no such token. In a
// vocabulary over characters these are the bytes that it has within a text,
// with a space for the mark ▁; [Tokenizer.Decode] takes the space off that
// was put before a text. The caller must not change them.
func (t *Tokenizer) Token(id int64) []byte {
	if id < 0 || id >= int64(len(t.tokens)) {
		return nil
	}
	return t.tokens[id]
}

// ID returns the id of the token with a name: the content of an added token
// such as "<|endoftext|>", or a token as the file spells it.
func (t *Tokenizer) ID(name string) (int64, bool) {
	for _, a := range t.added.list {
		if a.Content == name {
			return a.ID, true
		}
	}
	if t.names != nil {
		for id, n := range t.names {
			if n == name && n != "" {
				return int64(id), true
			}
		}
		return 0, false
	}
	want, ok := fromVisible(name)
	if !ok || len(want) == 0 {
		return 0, false
	}
	for id, tok := range t.tokens[:t.model] {
		if string(tok) == string(want) {
			return int64(id), true
		}
	}
	return 0, false
}

// EndOfText returns the token that ends a document, by the names that models
// of the families of GPT-2 and Llama give it.
func (t *Tokenizer) EndOfText() (int64, bool) {
	for _, name := range []string{"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"} {
		for _, a := range t.added.list {
			if a.Content == name {
				return a.ID, true
			}
		}
	}
	return 0, false
}

// Encode returns the tokens of text.
func (t *Tokenizer) Encode(text []byte) []int64 {
	return t.Append(make([]int64, 0, len(text)/2+1), text)
}

// EncodeInput returns the tokens of text with those that the tokenizer's file
// puts around a text, such as <s>: what the Hugging Face libraries give where
// nothing else is asked for.
func (t *Tokenizer) EncodeInput(text []byte) []int64 {
	ids := append(make([]int64, 0, len(text)/2+2), t.pipeline.before...)
	return append(t.Append(ids, text), t.pipeline.after...)
}

// Append appends the tokens of text to dst.
func (t *Tokenizer) Append(dst []int64, text []byte) []int64 {
	dst, _ = t.AppendPart(dst, text, math.MaxInt, true)
	return dst
}

// AppendPart appends tokens of the beginning of a text to dst, word by word,
// until dst holds at least limit tokens or what there is of the text ends.
// Unless final, the last word is left out, because text to come could change
// it. It returns dst and the number of bytes encoded. To go on from there, use
// a [Stream].
func (t *Tokenizer) AppendPart(dst []int64, text []byte, limit int, final bool) ([]int64, int) {
	s := Stream{t: t}
	return s.Append(dst, text, limit, final)
}

// UnknownTokenError reports an id that is not in the vocabulary: a model with
// more outputs than the tokenizer has tokens, or the wrong tokenizer.
type UnknownTokenError struct {
	ID       int64
	Position int // in the ids
	Size     int // of the vocabulary
}

func (e *UnknownTokenError) Error() string {
	if e.ID >= 0 && e.ID < int64(e.Size) {
		return fmt.Sprintf("tokenizer: id %d at position %d has no token in the vocabulary of %d: is this the model's tokenizer?", e.ID, e.Position, e.Size)
	}
	return fmt.Sprintf("tokenizer: id %d at position %d is outside the vocabulary of %d tokens: is this the model's tokenizer?", e.ID, e.Position, e.Size)
}

// Decode returns the bytes of ids, special tokens among them: the text that the
// Hugging Face libraries give, but for bytes that are no valid UTF-8, which stay
// as they are. An id outside the vocabulary is an *[UnknownTokenError].
func (t *Tokenizer) Decode(ids []int64) ([]byte, error) { return t.decode(ids, false) }

// DecodeText is Decode without the special tokens. Those that are looked for
// after normalization, and become other than they are by it, stay, as in the
// Hugging Face libraries.
func (t *Tokenizer) DecodeText(ids []int64) ([]byte, error) { return t.decode(ids, true) }
