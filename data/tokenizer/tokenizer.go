// SPDX-License-Identifier: Apache-2.0

// Package tokenizer turns bytes into tokens and back: byte-level byte-pair
// encoding (Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words
// with Subword Units, ACL 2016, over bytes as in GPT-2).
//
// Text is first split into words, then each word's bytes are merged pair by
// pair, always the pair that was learnt earliest. Every byte string has an
// encoding and decoding gives it back exactly, valid UTF-8 or not; tokens may
// end inside a character.
//
// Words follow one pattern, made for source code with a small vocabulary
// (see [Pattern]): a space goes with the word after it, line ends and
// indentation go with the punctuation before them, so that ") {\n\t\t" can be
// one token. It looks at bytes alone: no version of Unicode's tables can
// change a tokenization. A saved tokenizer.json states the pattern, and the
// Hugging Face libraries give the same tokens for it.
//
// A [Tokenizer] is immutable and safe for concurrent use. The zero value is
// not usable: get one from [Train], [Read] or [Load].
package tokenizer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
)

// Limits of a vocabulary. Tokens are held in 16 bits while encoding.
const (
	MaxVocab    = 1 << 16 // tokens
	MaxTokenLen = 256     // bytes in one token
)

// Tokenizer is a trained or loaded vocabulary with its merges.
type Tokenizer struct {
	tokens   [][]byte    // by id
	byteID   [256]uint16 // the token of each single byte
	merges   []merge     // by rank
	table    pairTable
	maxLen   int // of a token, in bytes
	encoders sync.Pool
}

// merge says that the tokens left and right, side by side, become id.
type merge struct{ left, right, id uint16 }

// newTokenizer checks that the parts fit together. Ids index tokens; merges
// are in order of rank.
func newTokenizer(tokens [][]byte, merges []merge) (*Tokenizer, error) {
	if len(tokens) > MaxVocab {
		return nil, fmt.Errorf("tokenizer: %d tokens, at most %d are supported", len(tokens), MaxVocab)
	}
	t := &Tokenizer{tokens: tokens, merges: merges}
	var seen [256]bool
	for id, tok := range tokens {
		switch {
		case len(tok) == 0:
			return nil, fmt.Errorf("tokenizer: token %d is empty", id)
		case len(tok) > MaxTokenLen:
			return nil, fmt.Errorf("tokenizer: token %d is %d bytes long, at most %d are supported", id, len(tok), MaxTokenLen)
		case len(tok) == 1:
			seen[tok[0]] = true
			t.byteID[tok[0]] = uint16(id)
		}
		t.maxLen = max(t.maxLen, len(tok))
	}
	for b, ok := range seen {
		if !ok {
			return nil, fmt.Errorf("tokenizer: no token for byte %#02x: only byte-level vocabularies are supported", b)
		}
	}
	t.table.init(len(merges))
	for rank, m := range merges {
		if int(m.left) >= len(tokens) || int(m.right) >= len(tokens) || int(m.id) >= len(tokens) {
			return nil, fmt.Errorf("tokenizer: merge %d names a token outside the vocabulary of %d", rank, len(tokens))
		}
		if string(tokens[m.left])+string(tokens[m.right]) != string(tokens[m.id]) {
			return nil, fmt.Errorf("tokenizer: merge %d makes %q of %q and %q", rank, tokens[m.id], tokens[m.left], tokens[m.right])
		}
		if !t.table.add(pairKey(m.left, m.right), uint32(rank), m.id) {
			return nil, fmt.Errorf("tokenizer: merge %d of %q and %q is there twice", rank, tokens[m.left], tokens[m.right])
		}
	}
	t.encoders.New = func() any { return newEncoder(t) }
	return t, nil
}

// Size is the number of tokens; ids are 0 to Size-1.
func (t *Tokenizer) Size() int { return len(t.tokens) }

// MaxLen is the length in bytes of the longest token.
func (t *Tokenizer) MaxLen() int { return t.maxLen }

// Fingerprint identifies the tokens and merges: tokenizers with the same
// fingerprint encode alike.
func (t *Tokenizer) Fingerprint() string {
	h := sha256.New()
	for _, tok := range t.tokens {
		fmt.Fprintf(h, "%q ", tok)
	}
	for _, m := range t.merges {
		fmt.Fprintf(h, "%d %d ", m.left, m.right)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Len is the number of bytes that token id stands for, 0 when there is no
// such token.
func (t *Tokenizer) Len(id int64) int {
	if id < 0 || id >= int64(len(t.tokens)) {
		return 0
	}
	return len(t.tokens[id])
}

// Token returns the bytes of a token, nil when there is no such token. The
// caller must not change them.
func (t *Tokenizer) Token(id int64) []byte {
	if id < 0 || id >= int64(len(t.tokens)) {
		return nil
	}
	return t.tokens[id]
}

// Encode returns the tokens of text.
func (t *Tokenizer) Encode(text []byte) []int64 {
	return t.Append(make([]int64, 0, len(text)/2+1), text)
}

// Append appends the tokens of text to dst.
func (t *Tokenizer) Append(dst []int64, text []byte) []int64 {
	dst, _ = t.AppendPart(dst, text, len(dst)+len(text), true)
	return dst
}

// AppendPart appends tokens of text to dst, word by word, until dst holds at
// least limit tokens or the text ends. Unless final, the last word is left
// out, because text to come could change it. It returns dst and the number of
// bytes encoded: encode on from there. The tokens of pieces encoded so are the
// tokens of the whole.
func (t *Tokenizer) AppendPart(dst []int64, text []byte, limit int, final bool) ([]int64, int) {
	e := t.encoders.Get().(*encoder)
	defer t.encoders.Put(e)
	pos := 0
	for pos < len(text) && len(dst) < limit {
		end := wordEnd(text, pos)
		if end == len(text) && !final {
			break
		}
		dst = e.appendWord(dst, text[pos:end])
		pos = end
	}
	return dst, pos
}

// UnknownTokenError reports an id that is not in the vocabulary: a model with
// more outputs than the tokenizer has tokens, or the wrong tokenizer.
type UnknownTokenError struct {
	ID       int64
	Position int // in the ids
	Size     int // of the vocabulary
}

func (e *UnknownTokenError) Error() string {
	return fmt.Sprintf("tokenizer: id %d at position %d is outside the vocabulary of %d tokens: is this the model's tokenizer?", e.ID, e.Position, e.Size)
}

// Decode returns the bytes of ids. An id outside the vocabulary is an
// *[UnknownTokenError].
func (t *Tokenizer) Decode(ids []int64) ([]byte, error) {
	text := make([]byte, 0, 3*len(ids))
	for i, id := range ids {
		if id < 0 || id >= int64(len(t.tokens)) {
			return nil, &UnknownTokenError{ID: id, Position: i, Size: len(t.tokens)}
		}
		text = append(text, t.tokens[id]...)
	}
	return text, nil
}
