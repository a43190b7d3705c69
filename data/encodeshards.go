// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/data/tokenizer"
)

// The text is encoded in pieces of about encodePiece bytes. One without any
// place to part it grows to encodeMost, which bounds the memory.
const (
	encodePiece = 1 << 20
	encodeMost  = 1 << 28
)

// EncodeConfig says how [EncodeShards] encodes. The zero value is usable.
type EncodeConfig struct {
	Workers     int   // goroutines that encode; 0 is one for each processor
	ShardTokens int64 // tokens of a file; 0 is 1<<27
	EndOfText   int64 // token put after each document; negative is none

	// Progress is told now and then how many bytes are encoded and how many
	// there are; may be nil.
	Progress func(done, total int64)
}

// EncodeStats is what [EncodeShards] has done.
type EncodeStats struct {
	Bytes, Tokens, Documents int64 // to train on and to validate on
	Shards                   int
	Elapsed                  time.Duration
}

// EncodeShards encodes a corpus, which may be larger than memory, to token
// shards in a directory, which must not have any yet: shards of the text to
// train on and of that to validate on, then tokenizer.json, and at the very end
// shards.json. Every file of the corpus is a document. The tokens are those of
// the documents, one after the other, on any number of workers. (Of a file that
// gives blocks to validation, what is between them are documents too.)
func EncodeShards(ctx context.Context, c *Corpus, tok *tokenizer.Tokenizer, dir string, o EncodeConfig) (EncodeStats, error) {
	began := time.Now()
	if o.Workers < 0 || o.ShardTokens < 0 {
		return EncodeStats{}, fmt.Errorf("data: encoding with %d workers to shards of %d tokens: neither may be negative", o.Workers, o.ShardTokens)
	}
	if o.EndOfText >= 0 && tok.Token(o.EndOfText) == nil {
		return EncodeStats{}, fmt.Errorf("data: there is no token %d to put after each document: the vocabulary has %d", o.EndOfText, tok.Size())
	}
	if o.Workers == 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.ShardTokens == 0 {
		o.ShardTokens = 1 << 27
	}
	if err := claimShards(dir); err != nil {
		return EncodeStats{}, err
	}
	var tokFile bytes.Buffer
	if err := tok.Write(&tokFile); err != nil {
		return EncodeStats{}, err
	}
	list := shardList{Version: shardVersion, Source: c.Name, Tokenizer: tok.Fingerprint()}
	if o.EndOfText >= 0 {
		list.EndOfText = &o.EndOfText
	}
	info := shardInfo{width: 2, vocab: int64(tok.Size()), fingerprint: tok.Fingerprint()}
	if info.vocab > 1<<16 {
		info.width = 4
	}
	p := &encodeProgress{tell: o.Progress, total: c.Train.Size() + c.Validation.Size()}
	for _, part := range []struct {
		name  string
		text  *Text
		files *[]shardFile
	}{{"train", c.Train, &list.Train}, {"validation", c.Validation, &list.Validation}} {
		w := &shardWriter{dir: dir, name: part.name, info: info, max: o.ShardTokens}
		err := encodeText(ctx, part.text, tok, w, o, p)
		if err == nil {
			err = w.finish()
		}
		if err != nil {
			w.abandon()
			return EncodeStats{}, err
		}
		*part.files = w.files
	}
	list.TextBytes = p.done
	text, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return EncodeStats{}, fmt.Errorf("data: %s: %w", ShardsFile, err)
	}
	// Not before the tokens, without which nobody could tell what the directory is.
	if err := writeDurable(filepath.Join(dir, shardsTokenizer), tokFile.Bytes()); err != nil {
		return EncodeStats{}, err
	}
	if err := writeDurable(filepath.Join(dir, ShardsFile), append(text, '\n')); err != nil {
		return EncodeStats{}, err
	}
	stats := EncodeStats{Bytes: p.done, Shards: len(list.Train) + len(list.Validation), Elapsed: time.Since(began)}
	for _, f := range append(list.Train, list.Validation...) {
		stats.Tokens += f.Tokens
		stats.Documents += f.Documents
	}
	return stats, nil
}

// claimShards makes the directory. What an encoding that did not end has left
// in it goes.
func claimShards(dir string) error {
	if IsShards(dir) {
		return &ShardError{dir, "there are tokens already: give another directory, or remove it"}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("data: directory for tokens: %w", err)
	}
	old, err := filepath.Glob(filepath.Join(dir, "*"+shardSuffix))
	if err != nil {
		return fmt.Errorf("data: directory for tokens: %w", err)
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("data: directory for tokens: %w", err)
		}
	}
	return nil
}

// writeDurable writes a file whole or not at all.
func writeDurable(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	_, err = f.Write(b)
	if err == nil {
		err = errors.Join(f.Chmod(0o644), f.Sync())
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("data: writing %s: %w", path, err)
	}
	return nil
}

// encodeProgress counts bytes, for one goroutine.
type encodeProgress struct {
	tell        func(done, total int64)
	done, total int64
	last        time.Time
}

func (p *encodeProgress) add(n int) {
	p.done += int64(n)
	if now := time.Now(); p.tell != nil && (p.done == p.total || now.Sub(p.last) > 100*time.Millisecond) {
		p.last = now
		p.tell(p.done, p.total)
	}
}

// encodeJob is a piece of a document on its way from the reader through a
// worker to the writer.
type encodeJob struct {
	text  []byte
	after []byte // the end of what comes before text in its document; nil at the beginning
	last  bool   // the document ends with it
	ids   []int64
	done  chan struct{} // closed when ids is set
}

// encodeText encodes a text: this goroutine writes, in order, what workers
// encode and a reader reads.
func encodeText(ctx context.Context, text *Text, tok *tokenizer.Tokenizer, w *shardWriter, o EncodeConfig, p *encodeProgress) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	jobs := make(chan *encodeJob)
	order := make(chan *encodeJob, 2*o.Workers) // bounds what is read ahead
	var readErr error
	wg.Go(func() {
		defer close(order)
		defer close(jobs)
		readErr = readPieces(text, tok, func(j *encodeJob) error {
			j.done = make(chan struct{})
			for _, to := range []chan *encodeJob{order, jobs} {
				select {
				case to <- j:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			return nil
		})
	})
	for range o.Workers {
		wg.Go(func() {
			for j := range jobs {
				s := tok.NewStream()
				if j.after != nil {
					s = tok.NewStreamAfter(j.after)
				}
				j.ids, _ = s.Append(make([]int64, 0, len(j.text)/3+16), j.text, len(j.text)+2, true)
				close(j.done)
			}
		})
	}
	for j := range order {
		select {
		case <-j.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := w.append(j.ids); err != nil {
			return err
		}
		if j.last {
			if o.EndOfText >= 0 {
				if err := w.append([]int64{o.EndOfText}); err != nil {
					return err
				}
			}
			w.endDocument()
		}
		p.add(len(j.text))
	}
	return readErr
}

// readPieces reads the documents of a text in pieces that can be encoded
// apart.
func readPieces(text *Text, tok *tokenizer.Tokenizer, emit func(*encodeJob) error) error {
	for _, s := range text.segments {
		pos, end := s.start, s.start+s.size
		var before []byte // the end of what has been encoded
		var rest []byte   // read, not encoded
		for want := int64(encodePiece); pos < end || len(rest) > 0; {
			n := max(0, min(want-int64(len(rest)), end-pos)) // what is left may be longer than a piece
			buf := make([]byte, len(rest)+int(n))
			copy(buf, rest)
			if _, err := text.ReadAt(buf[len(rest):], pos); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			pos += n
			at := len(buf)
			if pos < end {
				if at = tok.Cut(buf); at == 0 {
					if want *= 2; want > encodeMost {
						return &SourceError{
							Path: s.file.path, Problem: NotText, Detail: fmt.Sprintf("%d bytes without a place to part words", len(buf)),
							Advice: "split the file, or leave it out",
						}
					}
					rest = buf
					continue
				}
			}
			want = encodePiece
			j := &encodeJob{text: buf[:at:at], after: before, last: pos == end && at == len(buf)}
			before = buf[max(0, at-8):at]
			rest = buf[at:]
			if err := emit(j); err != nil {
				return err
			}
		}
	}
	return nil
}
