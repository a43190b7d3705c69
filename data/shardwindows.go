// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"
	"sync"

	"github.com/cohort-ml/cohort/data/tokenizer"
)

// TokenSource is a [Dataset] of windows of tokens: [Windows] of a text, or
// [ShardWindows] of tokens that were encoded before.
type TokenSource interface {
	Dataset[TokenWindow]

	// Fingerprint identifies the windows: with another fingerprint the same keys
	// mean other samples.
	Fingerprint() string
}

// ShardWindows is the [Dataset] of windows of length+1 tokens of a row of
// tokens.
//
// The row is a ring. Windows follow each other, the last token of one being
// the first of the next, so that in an epoch every token is a target once,
// except fewer than length that are left over at the end. The windows of each
// epoch are shifted by another fraction of their length, as those of [Windows]
// are. Windows do not stop at the ends of documents.
type ShardWindows struct {
	tokens  *Tokens
	tok     *tokenizer.Tokenizer
	length  int
	scratch sync.Pool // *[]byte
}

// NewShardWindows returns the windows of length input tokens of the tokens to
// train on. Fewer tokens than a window needs are a *[SourceError].
func NewShardWindows(s *Shards, length int) (*ShardWindows, error) {
	if length < 1 {
		return nil, fmt.Errorf("data: windows of %d tokens, want at least 1", length)
	}
	w := &ShardWindows{tokens: s.Train, tok: s.Tokenizer, length: length}
	if w.tokens.Len() < int64(length)+1 {
		return nil, fewTokens(s, "to train on", w.tokens, length)
	}
	w.scratch.New = func() any { return new([]byte) }
	return w, nil
}

func fewTokens(s *Shards, what string, t *Tokens, length int) error {
	return &SourceError{
		Path: s.Dir, Problem: TooSmall, Detail: fmt.Sprintf("%d tokens %s; a window needs %d", t.Len(), what, length+1),
		Advice: "encode more text, or use shorter windows (--context)",
	}
}

// Len is the number of windows in an epoch.
func (w *ShardWindows) Len() int { return int(w.tokens.Len() / int64(w.length)) }

// Length is the number of inputs, and of targets, of a window.
func (w *ShardWindows) Length() int { return w.length }

// Contents returns a checksum of some of the tokens: other tokens have another one.
func (w *ShardWindows) Contents(context.Context) (map[string]string, error) {
	const windows = 64
	h := crc32.NewIEEE()
	n := w.tokens.Len()
	tokens := make([]int64, min(n, 1024))
	for i := range int64(windows) {
		if _, err := w.tokens.ReadAt(tokens, (n-int64(len(tokens)))*i/(windows-1)); err != nil {
			return nil, err
		}
		if err := binary.Write(h, binary.LittleEndian, tokens); err != nil {
			return nil, err
		}
	}
	return map[string]string{"tokens": fmt.Sprintf("%d tokens, checksum %08x", n, h.Sum32())}, nil
}

// Fingerprint implements [TokenSource].
func (w *ShardWindows) Fingerprint() string {
	return fmt.Sprintf("tokens=%d tokenizer=%s length=%d", w.tokens.Len(), w.tok.Fingerprint(), w.length)
}

// Get returns a window. It is a pure function of the key.
func (w *ShardWindows) Get(ctx context.Context, key Key) (TokenWindow, error) {
	if key.Index < 0 || key.Index >= w.Len() || key.Epoch < 0 {
		return TokenWindow{}, fmt.Errorf("data: window %d of epoch %d of a dataset of %d", key.Index, key.Epoch, w.Len())
	}
	if err := ctx.Err(); err != nil {
		return TokenWindow{}, err
	}
	// The fractions of multiples of the golden ratio fill [0, 1) evenly.
	shift, _ := bits.Mul64(uint64(key.Epoch)*0x9e3779b97f4a7c15, uint64(w.length))
	n := w.tokens.Len()
	s := TokenWindow{Tokens: make([]int64, w.length+1), Start: (int64(shift) + int64(key.Index)*int64(w.length)) % n}
	buf := w.scratch.Get().(*[]byte)
	defer w.scratch.Put(buf)
	timer := Reading(ctx)
	defer timer.Done()
	for got, pos := 0, s.Start; got < len(s.Tokens); pos = 0 { // the beginning follows the end
		m, err := w.tokens.readAt(s.Tokens[got:min(int64(len(s.Tokens)), int64(got)+n-pos)], pos, buf)
		if err != nil {
			return TokenWindow{}, err
		}
		got += m
	}
	for _, id := range s.Tokens[1:] {
		s.Bytes += w.tok.Len(id)
	}
	return s, nil
}

// NewShardValidation is [NewValidation] of the tokens for validation: the
// beginning of them.
func NewShardValidation(s *Shards, length, maxTokens int) (*Validation, error) {
	if length < 1 || maxTokens < length {
		return nil, fmt.Errorf("data: validation on %d tokens in windows of %d: want at least one window of at least one token", maxTokens, length)
	}
	windows := min(int64(maxTokens), s.Validation.Len()-1) / int64(length)
	if windows < 1 {
		return nil, fewTokens(s, "to validate on", s.Validation, length)
	}
	v := &Validation{tok: s.Tokenizer, length: length, tokens: make([]int64, windows*int64(length)+1)}
	if _, err := s.Validation.ReadAt(v.tokens, 0); err != nil {
		return nil, err
	}
	for _, id := range v.tokens[1:] {
		v.bytes += int64(s.Tokenizer.Len(id))
	}
	return v, nil
}
