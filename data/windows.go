// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bytes"
	"context"
	"fmt"
	"math/bits"
	"sync"

	"github.com/cohort-ml/cohort/data/tokenizer"
)

const (
	strideBytes = 512 << 10 // of the text, encoded to learn how long a window is
	strideBlock = 8 << 10
	lineSkip    = 256 // bytes in which a window's start looks for a line's start
	vocabBytes  = 2 << 20
	vocabBlock  = 4 << 10
)

// TrainTokenizer trains a tokenizer of size tokens on a sample of the text:
// 2 MiB in evenly spaced blocks. The same text gives the same tokenizer.
func TrainTokenizer(ctx context.Context, text *Text, size int) (*tokenizer.Tokenizer, error) {
	sample, err := text.Sample(vocabBytes, vocabBlock)
	if err != nil {
		return nil, err
	}
	return tokenizer.Train(ctx, sample, size)
}

// TokenWindow is one training sample: a window's tokens, of which all but the
// last are inputs and all but the first are targets.
type TokenWindow struct {
	Tokens []int64 // [length+1]
	Bytes  int     // that the targets stand for
	Start  int64   // of the window in the text

	// Of sequences that are made of records:
	Ignored   []bool  // [length] targets that do not count; nil if all do
	Documents []int64 // [length] which document an input belongs to; nil for one
}

// Windows is the [Dataset] of windows of length+1 tokens of a text, encoded
// when they are asked for.
//
// The text is a ring. Windows start one stride apart, a stride being the
// number of bytes that length tokens cover on average, so that an epoch's
// windows are about as many tokens as the text. Where the text is denser than
// its average a window ends before the next one starts; so that no text is
// lost for good, the windows of each epoch are shifted by another fraction of
// the stride, evenly distributed over the epochs. A window starts at the next
// start of a line, if that is near.
type Windows struct {
	text    *Text
	tok     *tokenizer.Tokenizer
	length  int
	stride  int64
	scratch sync.Pool // *[]byte
}

// NewWindows returns the windows of length input tokens. It reads a sample of
// the text; a text shorter than a few windows is a *[SourceError].
func NewWindows(text *Text, tok *tokenizer.Tokenizer, length int) (*Windows, error) {
	if length < 1 {
		return nil, fmt.Errorf("data: windows of %d tokens, want at least 1", length)
	}
	sample, err := text.Sample(strideBytes, strideBlock)
	if err != nil {
		return nil, err
	}
	tokens := len(tok.Encode(sample))
	if tokens == 0 {
		return nil, tooShort(text, length, 0)
	}
	stride := max(int64(length)*int64(len(sample))/int64(tokens), 1)
	if text.Size() < 2*stride {
		return nil, tooShort(text, length, stride)
	}
	w := &Windows{text: text, tok: tok, length: length, stride: stride}
	w.scratch.New = func() any { return new([]byte) }
	return w, nil
}

func tooShort(text *Text, length int, window int64) error {
	return &SourceError{
		Path: text.name(), Problem: TooSmall, Detail: fmt.Sprintf("%d bytes; a window of %d tokens is about %d", text.Size(), length, window),
		Advice: "give --data more text, or use shorter windows (--context)",
	}
}

// Len is the number of windows in an epoch.
func (w *Windows) Len() int { return int((w.text.size + w.stride - 1) / w.stride) }

// Length is the number of inputs, and of targets, of a window.
func (w *Windows) Length() int { return w.length }

// Stride is the number of bytes from the start of one window to the next.
func (w *Windows) Stride() int64 { return w.stride }

// Fingerprint identifies the windows: with another fingerprint the same keys
// mean other samples.
func (w *Windows) Fingerprint() string {
	return fmt.Sprintf("windows text=%s tokenizer=%s length=%d stride=%d", w.text.Fingerprint(), w.tok.Fingerprint(), w.length, w.stride)
}

// Contents is that of the text.
func (w *Windows) Contents(ctx context.Context) (map[string]string, error) {
	return w.text.Contents(ctx)
}

// start is where the search for a window's first line begins.
func (w *Windows) start(key Key) int64 {
	// The fractions of multiples of the golden ratio fill [0, 1) evenly.
	shift, _ := bits.Mul64(uint64(key.Epoch)*0x9e3779b97f4a7c15, uint64(w.stride))
	return (int64(shift) + int64(key.Index)*w.stride) % w.text.size
}

// Get returns a window. It is a pure function of the key.
func (w *Windows) Get(ctx context.Context, key Key) (TokenWindow, error) {
	if key.Index < 0 || key.Index >= w.Len() || key.Epoch < 0 {
		return TokenWindow{}, fmt.Errorf("data: window %d of epoch %d of a dataset of %d", key.Index, key.Epoch, w.Len())
	}
	if err := ctx.Err(); err != nil {
		return TokenWindow{}, err
	}
	buf := w.scratch.Get().(*[]byte)
	defer w.scratch.Put(buf)
	pos := w.start(key)
	tokens := make([]int64, 0, w.length+64)
	// Read somewhat more than the average, and twice as much again while that
	// is not enough. Tokens are at most MaxLen bytes, so enough is bounded.
	enough := int64(w.length+2)*int64(w.tok.MaxLen()) + lineSkip + 1
	for n := min(w.stride+w.stride/2+2*lineSkip, enough); ; n = min(2*n, enough) {
		if int64(cap(*buf)) < n {
			*buf = make([]byte, n)
		}
		b := (*buf)[:n]
		// One byte more in front tells whether a line starts at pos.
		if err := w.text.readRing(b, pos+w.text.size-1); err != nil {
			return TokenWindow{}, err
		}
		skip := 1
		if i := bytes.IndexByte(b[:min(lineSkip, len(b))], '\n'); i >= 0 {
			skip = i + 1
		}
		tokens, _ = w.tok.AppendPart(tokens[:0], b[skip:], w.length+1, n == enough)
		if len(tokens) > w.length {
			s := TokenWindow{Tokens: tokens[: w.length+1 : w.length+1], Start: (pos + int64(skip) - 1) % w.text.size}
			for _, id := range s.Tokens[1:] {
				s.Bytes += w.tok.Len(id)
			}
			return s, nil
		}
		if n == enough {
			// A tokenizer that was made elsewhere may know no token for much of the text,
			// or take many spaces for one.
			return TokenWindow{}, &SourceError{
				Path: w.text.name(), Problem: NotText, Detail: fmt.Sprintf("%d bytes at %d are %d tokens of the tokenizer, a window needs %d", n, pos, len(tokens), w.length+1),
				Advice: "use a tokenizer for text of this kind",
			}
		}
	}
}

// name is the file at the beginning of the text.
func (t *Text) name() string {
	if len(t.segments) > 0 {
		return t.segments[0].file.path
	}
	return "the text"
}

// TokenBatch is a number of windows as a model takes them.
type TokenBatch struct {
	Rows    int
	Length  int     // tokens in a row
	Inputs  []int64 // [rows, length]
	Targets []int64 // [rows, length]
	Bytes   int64   // that the targets stand for

	Counted   int     // targets that count: those that are not NoTarget
	Documents []int64 // [rows, length] which document an input belongs to; nil for one in each row
}

// CollateTokens makes a batch of windows of one length.
func CollateTokens(windows []TokenWindow) (TokenBatch, error) {
	if len(windows) == 0 || len(windows[0].Tokens) < 2 {
		return TokenBatch{}, fmt.Errorf("data: a batch of %d windows has no targets", len(windows))
	}
	length := len(windows[0].Tokens) - 1
	ids := make([]int64, 2*len(windows)*length)
	b := TokenBatch{Rows: len(windows), Length: length, Inputs: ids[:len(ids)/2], Targets: ids[len(ids)/2:]}
	for i, w := range windows {
		if len(w.Tokens) != length+1 {
			return TokenBatch{}, fmt.Errorf("data: window %d of a batch has %d tokens, the first has %d", i, len(w.Tokens), length+1)
		}
		copy(b.Inputs[i*length:(i+1)*length], w.Tokens)
		copy(b.Targets[i*length:(i+1)*length], w.Tokens[1:])
		b.Bytes += int64(w.Bytes)
	}
	b.Counted = len(b.Targets)
	return b, nil
}
