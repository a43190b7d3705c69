// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/data/tokenizer"
)

// writeCorpus makes a directory of text files with sizes from nothing to
// several pieces.
func writeCorpus(t testing.TB, seed uint64, total int) string {
	t.Helper()
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(seed, 0))
	words := []string{"rank", " group", "\n", "\n\n", " x", "  ", "é", "世界", ".\n", "(", ") {\n\t", "word", " and"}
	for i := 0; total > 0; i++ {
		var b bytes.Buffer
		for size := r.IntN(total/3 + 3000); b.Len() < size; {
			b.WriteString(words[r.IntN(len(words))])
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%03d.txt", i)), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		total -= b.Len() + 500
	}
	return dir
}

func smallTokenizer(t testing.TB, s tokenizer.Split) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.TrainSplit(context.Background(), []byte(strings.Repeat("rank group word and x (世界) {\n\té.\n", 40)), 290, s)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// encoded encodes a corpus and opens the result.
func encoded(t testing.TB, c *Corpus, tok *tokenizer.Tokenizer, o EncodeConfig) (string, *Shards) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tokens")
	if _, err := EncodeShards(t.Context(), c, tok, dir, o); err != nil {
		t.Fatal(err)
	}
	s, err := OpenShards(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return dir, s
}

func allTokens(t testing.TB, tokens *Tokens) []int64 {
	t.Helper()
	ids := make([]int64, tokens.Len())
	if _, err := tokens.ReadAt(ids, 0); err != nil {
		t.Fatal(err)
	}
	return ids
}

// The shards hold the tokens of the files, one after the other, whatever the
// workers and the shards' size.
func TestEncodeShards(t *testing.T) {
	const seed = 4
	corpus, err := OpenCorpus(t.Context(), writeCorpus(t, seed, 6<<20))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		split tokenizer.Split
		o     EncodeConfig
	}{
		{tokenizer.SplitCode, EncodeConfig{Workers: 1, EndOfText: -1}},
		{tokenizer.SplitGPT2, EncodeConfig{Workers: 3, EndOfText: 7, ShardTokens: 100_003}},
		{tokenizer.SplitLlama3, EncodeConfig{Workers: 8, EndOfText: 0, ShardTokens: 1 << 20}},
	} {
		tok := smallTokenizer(t, c.split)
		var want [2][]int64
		for i, text := range []*Text{corpus.Train, corpus.Validation} {
			for _, s := range text.segments {
				b := make([]byte, s.size)
				if _, err := text.ReadAt(b, s.start); err != nil {
					t.Fatal(err)
				}
				want[i] = tok.Append(want[i], b)
				if c.o.EndOfText >= 0 {
					want[i] = append(want[i], c.o.EndOfText)
				}
			}
		}
		var last int64
		c.o.Progress = func(done, total int64) {
			if done < last || done > total {
				t.Errorf("progress %d after %d of %d", done, last, total)
			}
			last = done
		}
		_, s := encoded(t, corpus, tok, c.o)
		if size := corpus.Train.Size() + corpus.Validation.Size(); last != size || s.TextBytes != size {
			t.Errorf("progress ended at %d, the shards say %d, of %d bytes", last, s.TextBytes, size)
		}
		if got := allTokens(t, s.Train); !slices.Equal(got, want[0]) {
			t.Errorf("seed %d, %v: %d tokens to train on, want %d others", seed, c.split, len(got), len(want[0]))
		}
		if got := allTokens(t, s.Validation); !slices.Equal(got, want[1]) {
			t.Errorf("seed %d, %v: %d tokens to validate on, want %d others", seed, c.split, len(got), len(want[1]))
		}
		if got, want := s.Train.NumDocuments(), int64(len(corpus.Train.segments)); got != want {
			t.Errorf("%d documents, want %d", got, want)
		}
		if s.Tokenizer.Fingerprint() != tok.Fingerprint() {
			t.Error("the tokenizer changed on the way")
		}
		// Any part of the row is what it is in the whole.
		r := rand.New(rand.NewPCG(seed, 1))
		for range 300 {
			from := r.IntN(len(want[0]))
			part := make([]int64, 1+r.IntN(min(5000, len(want[0])-from)))
			if _, err := s.Train.ReadAt(part, int64(from)); err != nil || !slices.Equal(part, want[0][from:from+len(part)]) {
				t.Fatalf("seed %d: %d tokens at %d are others (%v)", seed, len(part), from, err)
			}
		}
	}
}

// Every token is a target once an epoch, but for the rest at the end.
func TestShardWindows(t *testing.T) {
	corpus, err := OpenCorpus(t.Context(), writeCorpus(t, 5, 200_000))
	if err != nil {
		t.Fatal(err)
	}
	tok := smallTokenizer(t, tokenizer.SplitGPT2)
	dir, s := encoded(t, corpus, tok, EncodeConfig{EndOfText: -1, ShardTokens: 1000})
	all := allTokens(t, s.Train)
	const length = 48
	w, err := NewShardWindows(s, length)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(all) / length; w.Len() != want {
		t.Errorf("%d windows of %d tokens, want %d", w.Len(), len(all), want)
	}
	for epoch := range 3 {
		targets := make(map[int64]bool)
		for i := range w.Len() {
			got, err := w.Get(t.Context(), Key{epoch, i})
			if err != nil {
				t.Fatal(err)
			}
			size := 0
			for j, id := range got.Tokens {
				at := (got.Start + int64(j)) % int64(len(all))
				if id != all[at] {
					t.Fatalf("window %d of epoch %d: token %d is %d, want %d", i, epoch, j, id, all[at])
				}
				if j > 0 {
					if targets[at] {
						t.Fatalf("window %d of epoch %d: token %d is a target twice", i, epoch, at)
					}
					targets[at] = true
					size += tok.Len(id)
				}
			}
			if got.Bytes != size || len(got.Tokens) != length+1 {
				t.Fatalf("window %d: %d tokens of %d bytes, want %d of %d", i, len(got.Tokens), got.Bytes, length+1, size)
			}
		}
		if len(targets) <= len(all)-length {
			t.Errorf("%d of %d tokens are targets", len(targets), len(all))
		}
	}
	v, err := NewShardValidation(s, length, 10*length)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := v.tokens, allTokens(t, s.Validation)[:10*length+1]; !slices.Equal(got, want) || v.Len() != 10 {
		t.Errorf("%d validation windows, %d tokens", v.Len(), len(got))
	}
	for _, length := range []int{0, len(all)} {
		if _, err := NewShardWindows(s, length); err == nil {
			t.Errorf("windows of %d tokens were made", length)
		}
	}
	if _, err := EncodeShards(t.Context(), corpus, tok, dir, EncodeConfig{EndOfText: -1}); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("encoded over other tokens: %v", err)
	}
}

func TestEncodeShardsEnds(t *testing.T) {
	corpus, err := OpenCorpus(t.Context(), writeCorpus(t, 6, 3<<20))
	if err != nil {
		t.Fatal(err)
	}
	tok := smallTokenizer(t, tokenizer.SplitCode)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	dir := t.TempDir()
	_, err = EncodeShards(ctx, corpus, tok, dir, EncodeConfig{Workers: 2, EndOfText: -1, Progress: func(done, _ int64) { cancel(stop) }})
	if !errors.Is(err, stop) {
		t.Errorf("stopped, it returned %v", err)
	}
	var broken *ShardError
	if _, err := OpenShards(dir); !errors.As(err, &broken) || !strings.Contains(err.Error(), "did not end") {
		t.Errorf("half of the tokens were opened: %v", err)
	}
	if _, err := OpenCorpus(t.Context(), dir); !errors.As(err, &broken) || !strings.Contains(err.Error(), "did not end") {
		t.Errorf("half of the tokens were opened as text: %v", err)
	}
	// What is left is no obstacle.
	if _, err := EncodeShards(t.Context(), corpus, tok, dir, EncodeConfig{EndOfText: -1}); err != nil {
		t.Error(err)
	}
	for _, o := range []EncodeConfig{{Workers: -1}, {ShardTokens: -1}, {EndOfText: 1 << 30}} {
		if _, err := EncodeShards(t.Context(), corpus, tok, t.TempDir(), o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

// Damage of every kind is told, with the file's name, before a wrong token is
// used.
func TestShardsDamaged(t *testing.T) {
	corpus, err := OpenCorpus(t.Context(), writeCorpus(t, 7, 300_000))
	if err != nil {
		t.Fatal(err)
	}
	dir, _ := encoded(t, corpus, smallTokenizer(t, tokenizer.SplitCode), EncodeConfig{EndOfText: -1, ShardTokens: 50_000})
	const first = "train-00000.tokens"
	good := make(map[string][]byte)
	for _, name := range []string{first, ShardsFile, "tokenizer.json"} {
		if good[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	header := func(b []byte, change func(le binary.ByteOrder, b []byte)) []byte {
		change(binary.LittleEndian, b)
		binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
		return b
	}
	for _, c := range []struct {
		name, file, want string
		change           func(b []byte) []byte // nil removes the file
	}{
		{"missing", first, "missing; encode the text again", nil},
		{"no list", ShardsFile, "did not end", nil},
		{"no tokenizer", "tokenizer.json", "tokenizer.json", nil},
		{"empty", first, "empty; encode the text again", func(b []byte) []byte { return nil }},
		{"another file", first, "not a file of tokens", func(b []byte) []byte { return []byte(strings.Repeat("text", 100)) }},
		{"cut header", first, "not a file of tokens", func(b []byte) []byte { return b[:40] }},
		{"cut", first, "cut off", func(b []byte) []byte { return b[:len(b)-1] }},
		{"longer", first, "its header says", func(b []byte) []byte { return append(b, 0) }},
		{"version", first, "version 9", func(b []byte) []byte { b[8] = 9; return b }},
		{"header", first, "header is damaged", func(b []byte) []byte { b[17] ^= 1; return b }},
		{"width", first, "3 bytes", func(b []byte) []byte {
			return header(b, func(le binary.ByteOrder, b []byte) { le.PutUint32(b[12:], 3) })
		}},
		{"huge", first, "at most", func(b []byte) []byte {
			return header(b, func(le binary.ByteOrder, b []byte) { le.PutUint64(b[16:], 1<<62) })
		}},
		{"vocabulary", first, "vocabulary of 65537", func(b []byte) []byte {
			return header(b, func(le binary.ByteOrder, b []byte) { le.PutUint64(b[32:], 65537) })
		}},
		{"other vocabulary", first, "vocabulary of 280", func(b []byte) []byte {
			return header(b, func(le binary.ByteOrder, b []byte) { le.PutUint64(b[32:], 280) })
		}},
		{"fingerprint", first, "another tokenizer", func(b []byte) []byte {
			return header(b, func(_ binary.ByteOrder, b []byte) { copy(b[40:], "0123456789abcdef") })
		}},
		{"index", first, "checksum of its index", func(b []byte) []byte { b[len(b)-6] ^= 1; return b }},
		{"tokens", first, "checksum of tokens", func(b []byte) []byte { b[shardHeader+70_000] ^= 1; return b }},
		{"list", ShardsFile, "not a list of shards", func(b []byte) []byte { return b[:len(b)/2] }},
		{"list's version", ShardsFile, "version 7", func(b []byte) []byte { return bytes.Replace(b, []byte(`"version": 1`), []byte(`"version": 7`), 1) }},
		{"escape", ShardsFile, "no name of a shard", func(b []byte) []byte {
			return bytes.Replace(b, []byte(first), []byte("../"+first), 1)
		}},
		{"count", ShardsFile, "tokens of", func(b []byte) []byte { return bytes.Replace(b, []byte(`50000`), []byte(`50001`), 1) }},
		{"tokenizer", "tokenizer.json", "not the tokenizer of the shards", func(b []byte) []byte {
			var w bytes.Buffer
			if err := smallTokenizer(t, tokenizer.SplitGPT2).Write(&w); err != nil {
				t.Fatal(err)
			}
			return w.Bytes()
		}},
	} {
		path := filepath.Join(dir, c.file)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if c.change != nil {
			if err := os.WriteFile(path, c.change(bytes.Clone(good[c.file])), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := OpenShards(dir)
		if err == nil {
			ids := make([]int64, s.Train.Len())
			_, err = s.Train.ReadAt(ids, 0)
			s.Close()
		}
		var broken *ShardError
		if !errors.As(err, &broken) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: got %v, want an error with %q", c.name, err, c.want)
		}
		if err := os.WriteFile(path, good[c.file], 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzShard(f *testing.F) {
	w := &shardWriter{dir: f.TempDir(), name: "x", info: shardInfo{width: 2, vocab: 300, fingerprint: "0123456789abcdef"}, max: 1 << 20}
	if err := w.append([]int64{1, 2, 299, 0}); err != nil {
		f.Fatal(err)
	}
	w.endDocument()
	if err := w.finish(); err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(w.dir, "x-00000.tokens"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:70])
	f.Fuzz(func(t *testing.T, b []byte) {
		// The checksums are put right, so that what they guard is reached.
		if len(b) >= shardHeader {
			b = bytes.Clone(b)
			binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
			if info, err := parseShardHeader(b); err == nil && info.size() == int64(len(b)) {
				at := shardHeader + info.tokens*int64(info.width)
				binary.LittleEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[at:len(b)-4], castagnoli))
			}
		}
		s, err := readShard("x", bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		ids := make([]int64, s.tokens)
		var scratch []byte
		if s.tokens == 0 || s.read(ids, 0, &scratch) != nil {
			return
		}
		for _, id := range ids {
			if id < 0 || id >= s.vocab {
				t.Fatalf("token %d of a vocabulary of %d", id, s.vocab)
			}
		}
	})
}

func FuzzShardList(f *testing.F) {
	f.Add([]byte(`{"version": 1, "tokenizer": "0123456789abcdef", "train": [{"name": "train-00000.tokens", "tokens": 5, "documents": 1}], "validation": []}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := parseShardList(b)
		if err != nil {
			return
		}
		for _, file := range l.Train {
			if filepath.Dir(filepath.Join("d", file.Name)) != "d" {
				t.Errorf("%q leaves the directory", file.Name)
			}
		}
	})
}

func BenchmarkShardWindows(b *testing.B) {
	corpus, err := OpenCorpus(b.Context(), writeCorpus(b, 8, 4<<20))
	if err != nil {
		b.Fatal(err)
	}
	_, s := encoded(b, corpus, smallTokenizer(b, tokenizer.SplitGPT2), EncodeConfig{EndOfText: 5})
	w, err := NewShardWindows(s, 1024)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(1025 * 2)
	for i := 0; b.Loop(); i++ {
		if _, err := w.Get(b.Context(), Key{0, i % w.Len()}); err != nil {
			b.Fatal(err)
		}
	}
}
