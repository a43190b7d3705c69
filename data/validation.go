// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"

	"github.com/cohort-ml/cohort/data/tokenizer"
)

// Validation is the beginning of a text in windows that follow each other:
// the last token of one is the first of the next, so every token but the very
// first is a target once. It is immutable.
type Validation struct {
	tok    *tokenizer.Tokenizer
	tokens []int64 // windows·length + 1
	length int
	bytes  int64
}

// NewValidation encodes as much of the text as fills windows of length input
// tokens, at most maxTokens targets. A text too short for one window is a
// *[SourceError].
func NewValidation(text *Text, tok *tokenizer.Tokenizer, length, maxTokens int) (*Validation, error) {
	if length < 1 || maxTokens < length {
		return nil, fmt.Errorf("data: validation on %d tokens in windows of %d: want at least one window of at least one token", maxTokens, length)
	}
	want := maxTokens/length*length + 1
	v := &Validation{tok: tok, length: length}
	// Encode in pieces: what AppendPart leaves of one goes before the next.
	const piece = 64 << 10
	stream := tok.NewStream()
	var rest []byte
	for pos := int64(0); len(v.tokens) < want && pos < text.Size(); {
		n := min(piece, text.Size()-pos)
		at := len(rest)
		rest = append(rest, make([]byte, n)...)
		if _, err := text.ReadAt(rest[at:], pos); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		pos += n
		var used int
		v.tokens, used = stream.Append(v.tokens, rest, want, pos == text.Size())
		rest = append(rest[:0], rest[used:]...)
	}
	windows := (min(len(v.tokens), want) - 1) / length
	if windows < 1 {
		return nil, tooShort(text, length, int64(length)*3)
	}
	v.tokens = v.tokens[:windows*length+1]
	for _, id := range v.tokens[1:] {
		v.bytes += int64(tok.Len(id))
	}
	return v, nil
}

// Len is the number of windows.
func (v *Validation) Len() int { return (len(v.tokens) - 1) / v.length }

// Bytes is the number of bytes that all targets stand for.
func (v *Validation) Bytes() int64 { return v.bytes }

// Batch returns windows first to first+rows-1. It shares memory with v and
// must not be changed.
func (v *Validation) Batch(first, rows int) TokenBatch {
	from, to := first*v.length, (first+rows)*v.length
	b := TokenBatch{Rows: rows, Length: v.length, Inputs: v.tokens[from:to:to], Targets: v.tokens[from+1 : to+1 : to+1]}
	b.Counted = len(b.Targets)
	for _, id := range b.Targets {
		b.Bytes += int64(v.tok.Len(id))
	}
	return b
}

// Batches yields the windows of one rank in batches of at most rows: every
// window belongs to exactly one rank, and the shares differ by at most one
// window. A rank may have none. The batches share memory with v and must not
// be changed.
func (v *Validation) Batches(rank, world, rows int) iter.Seq[TokenBatch] {
	from, to := v.Len()*rank/world, v.Len()*(rank+1)/world
	return func(yield func(TokenBatch) bool) {
		for i := from; i < to; i += rows {
			if !yield(v.Batch(i, min(rows, to-i))) {
				return
			}
		}
	}
}

// GzipBitsPerByte is what gzip -9 needs for the bytes of the targets: the
// figure to beat.
func (v *Validation) GzipBitsPerByte() (float64, error) {
	text, err := v.tok.DecodeText(v.tokens[1:])
	if err != nil {
		return 0, err
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return 0, err
	}
	if _, err := w.Write(text); err != nil {
		return 0, err
	}
	if err := w.Close(); err != nil {
		return 0, err
	}
	return BitsPerByte(8*math.Ln2*float64(packed.Len()), int64(len(text))), nil
}

// BitsPerByte turns a sum of negative log-likelihoods in nats over targets
// that stand for a number of bytes into bits per byte.
func BitsPerByte(nats float64, bytes int64) float64 {
	return nats / math.Ln2 / float64(bytes)
}
