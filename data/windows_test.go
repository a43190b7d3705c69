// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bytes"
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/data/tokenizer"
)

func trainOn(t testing.TB, text *Text, vocab int) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := TrainTokenizer(context.Background(), text, vocab)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

var windowTexts = map[string]string{
	"prose":     prose("prose", 60_000),
	"dense":     prose("p", 20_000) + strings.Repeat("\x01\x02\x03!@#%^&*~`|", 1500) + prose("q", 20_000), // far from the average
	"long word": prose("r", 5000) + strings.Repeat("abcdefghij", 4000) + prose("s", 5000),
	"no lines":  strings.Repeat("word and word ", 3000),
	"newlines":  strings.Repeat("\n", 30_000),
	"short":     prose("t", 400),
}

// Every window is the text from its start on, encoded, whichever way it is
// asked for.
func TestWindows(t *testing.T) {
	ctx := context.Background()
	epochs := 12
	if testing.Short() {
		epochs = 3
	}
	for name, s := range windowTexts {
		text := NewText(name, []byte(s))
		tok := trainOn(t, NewText("vocabulary", []byte(windowTexts["prose"])), 400)
		length := 64
		if name == "short" {
			length = 16
		}
		w, err := NewWindows(text, tok, length)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if w.Len() < 1 || int64(w.Len())*w.Stride() < text.Size() {
			t.Errorf("%s: %d windows of %d bytes for %d", name, w.Len(), w.Stride(), text.Size())
		}
		ring := s + s + s
		covered := make([]bool, len(s))
		for epoch := range epochs {
			for i := range w.Len() {
				key := Key{epoch, i}
				win, err := w.Get(ctx, key)
				if err != nil {
					t.Fatalf("%s %v: %v", name, key, err)
				}
				got, err := tok.Decode(win.Tokens)
				if err != nil || len(win.Tokens) != length+1 {
					t.Fatalf("%s %v: %d tokens, %v", name, key, len(win.Tokens), err)
				}
				if want := ring[win.Start:][:len(got)]; string(got) != want {
					t.Fatalf("%s %v: window is %q, the text at %d is %q", name, key, got, win.Start, want)
				}
				if first := tok.Len(win.Tokens[0]); win.Bytes != len(got)-first {
					t.Fatalf("%s %v: %d bytes of targets, want %d", name, key, win.Bytes, len(got)-first)
				}
				if name == "prose" {
					// The tokens are those of a longer text from there on.
					if want := tok.Encode([]byte(ring[win.Start:][:2000])); !slices.Equal(win.Tokens, want[:length+1]) {
						t.Fatalf("%s %v: tokens %d, want %d", name, key, win.Tokens, want[:length+1])
					}
				}
				for j := range got {
					covered[(int(win.Start)+j)%len(s)] = true
				}
				if again, _ := w.Get(ctx, key); !reflect.DeepEqual(again, win) {
					t.Fatalf("%s %v: asked again, another window", name, key)
				}
			}
		}
		missed := 0
		for _, c := range covered {
			if !c {
				missed++
			}
		}
		if name == "prose" && missed > 0 && !testing.Short() {
			t.Errorf("%s: %d bytes of %d in no window of %d epochs", name, missed, len(s), epochs)
		}
	}
}

func TestWindowsRefuse(t *testing.T) {
	tok := trainOn(t, NewText("v", []byte(windowTexts["prose"])), 300)
	text := NewText("a.txt", []byte(windowTexts["short"]))
	var source *SourceError
	for _, x := range []*Text{text, NewText("empty.txt", nil)} {
		if _, err := NewWindows(x, tok, 512); !errors.As(err, &source) || source.Problem != TooSmall {
			t.Errorf("%v", err)
		}
	}
	if _, err := NewWindows(text, tok, 0); err == nil {
		t.Error("windows of no tokens were accepted")
	}
	w, err := NewWindows(text, tok, 8)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []Key{{0, -1}, {0, w.Len()}, {-1, 0}} {
		if _, err := w.Get(context.Background(), key); err == nil {
			t.Errorf("window %v exists", key)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := w.Get(ctx, Key{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	other, err := NewWindows(text, tok, 9)
	if err != nil || other.Fingerprint() == w.Fingerprint() {
		t.Errorf("windows of 8 and 9 tokens have one fingerprint (%v)", err)
	}
	other, err = NewWindows(text, trainOn(t, text, 300), 8)
	if err != nil || other.Fingerprint() == w.Fingerprint() {
		t.Errorf("windows of two tokenizers have one fingerprint (%v)", err)
	}
}

func TestCollateTokens(t *testing.T) {
	b, err := CollateTokens([]TokenWindow{{Tokens: []int64{1, 2, 3}, Bytes: 5}, {Tokens: []int64{4, 5, 6}, Bytes: 7}})
	want := TokenBatch{Rows: 2, Length: 2, Inputs: []int64{1, 2, 4, 5}, Targets: []int64{2, 3, 5, 6}, Bytes: 12, Counted: 4}
	if err != nil || !reflect.DeepEqual(b, want) {
		t.Errorf("%+v, %v, want %+v", b, err, want)
	}
	for _, bad := range [][]TokenWindow{nil, {{Tokens: []int64{1}}}, {{Tokens: []int64{1, 2}}, {Tokens: []int64{1, 2, 3}}}} {
		if _, err := CollateTokens(bad); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}

// The whole path with ranks and resuming: the same rows as without.
func TestTokensThroughTheLoader(t *testing.T) {
	ctx := t.Context()
	text := NewText("prose", []byte(windowTexts["prose"]))
	w, err := NewWindows(text, trainOn(t, text, 400), 32)
	if err != nil {
		t.Fatal(err)
	}
	run := func(world, batch, steps int, from LoaderState) (rows [][]int64, state LoaderState) {
		parts := make([][]TokenBatch, world)
		for rank := range world {
			s, err := NewStream(StreamConfig{Len: w.Len(), Batch: batch, Rank: rank, World: world, Shuffle: true, Seed: 9})
			if err != nil {
				t.Fatal(err)
			}
			l, err := NewLoader(ctx, w, s, CollateTokens, LoaderConfig{Workers: 1 + rank}, from)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			for range steps {
				b, err := l.Next(ctx)
				if err != nil {
					t.Fatal(err)
				}
				parts[rank] = append(parts[rank], b)
			}
			state = l.State()
		}
		for step := range steps {
			for i := range batch * world {
				b := parts[i%world][step]
				j := i / world
				rows = append(rows, b.Inputs[j*32:(j+1)*32], b.Targets[j*32:(j+1)*32])
			}
		}
		return rows, state
	}
	want, end := run(1, 16, 100, LoaderState{}) // several epochs
	var got [][]int64
	var state LoaderState
	for _, c := range [][3]int{{2, 8, 30}, {4, 4, 25}, {1, 16, 5}, {8, 2, 40}} {
		rows, next := run(c[0], c[1], c[2], state)
		got, state = append(got, rows...), next
	}
	if state != end || !reflect.DeepEqual(got, want) {
		t.Errorf("resumed on other ranks the rows differ (%+v, %+v)", state, end)
	}
}

func TestValidation(t *testing.T) {
	text := NewText("prose", []byte(windowTexts["prose"]+prose("more", 200_000)))
	tok := trainOn(t, text, 400)
	all, err := text.Sample(1<<30, 1)
	if err != nil {
		t.Fatal(err)
	}
	ids := tok.Encode(all)
	for _, c := range []struct{ length, limit int }{{64, 64}, {64, 1000}, {64, 1 << 30}, {1, 5}, {33, 40_000}} {
		v, err := NewValidation(text, tok, c.length, c.limit)
		if err != nil {
			t.Fatal(err)
		}
		if want := (min(len(ids), c.limit/c.length*c.length+1) - 1) / c.length; v.Len() != want {
			t.Fatalf("%+v: %d windows, want %d", c, v.Len(), want)
		}
		var size int64
		for _, id := range ids[1 : v.Len()*c.length+1] {
			size += int64(tok.Len(id))
		}
		if v.Bytes() != size {
			t.Errorf("%+v: %d bytes, want %d", c, v.Bytes(), size)
		}
		for _, world := range []int{1, 2, 3, 7} {
			var inputs, targets []int64
			var bytes int64
			for rank := range world {
				for b := range v.Batches(rank, world, 5) {
					if b.Rows < 1 || b.Rows > 5 || len(b.Inputs) != b.Rows*b.Length || len(b.Targets) != len(b.Inputs) || b.Length != c.length {
						t.Fatalf("%+v: a batch of %d rows with %d inputs", c, b.Rows, len(b.Inputs))
					}
					inputs, targets, bytes = append(inputs, b.Inputs...), append(targets, b.Targets...), bytes+b.Bytes
				}
			}
			n := v.Len() * c.length
			if !slices.Equal(inputs, ids[:n]) || !slices.Equal(targets, ids[1:n+1]) || bytes != size {
				t.Errorf("%+v: the shares of %d ranks are not the text", c, world)
			}
		}
	}
	v, err := NewValidation(text, tok, 64, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if bpb, err := v.GzipBitsPerByte(); err != nil || bpb < 1 || bpb > 4 {
		t.Errorf("gzip %v bits per byte, %v", bpb, err)
	}
	if bpb := BitsPerByte(16*math.Ln2, 8); math.Abs(bpb-2) > 1e-12 {
		t.Errorf("BitsPerByte = %v, want 2", bpb)
	}
	var source *SourceError
	if _, err := NewValidation(NewText("tiny", []byte("abc")), tok, 64, 64); !errors.As(err, &source) || source.Problem != TooSmall {
		t.Errorf("a tiny text: %v", err)
	}
	for _, c := range [][2]int{{0, 5}, {8, 7}} {
		if _, err := NewValidation(text, tok, c[0], c[1]); err == nil {
			t.Errorf("%v was accepted", c)
		}
	}
}

func FuzzWindows(f *testing.F) {
	vocabulary := NewText("v", []byte(windowTexts["prose"]))
	tok, err := TrainTokenizer(context.Background(), vocabulary, 400)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("line one\n\tline two\n"), 7, 0, 3)
	f.Add(bytes.Repeat([]byte{0xff, ' '}, 50), 9, 5, 0)
	f.Fuzz(func(t *testing.T, text []byte, length, epoch, index int) {
		w, err := NewWindows(NewText("fuzz", text), tok, 1+(length&63))
		if err != nil {
			return
		}
		win, err := w.Get(context.Background(), Key{epoch & math.MaxInt32, (index & math.MaxInt32) % w.Len()})
		if err != nil {
			t.Fatal(err)
		}
		got, err := tok.Decode(win.Tokens)
		if err != nil {
			t.Fatal(err)
		}
		ring := bytes.Repeat(text, (len(got)+int(win.Start))/len(text)+1)
		if !bytes.Equal(got, ring[win.Start:][:len(got)]) {
			t.Errorf("window %q is not the text", got)
		}
	})
}

// A tokenizer that has no token for most of a text, or one for a great deal of
// it, is told, and no endless search.
func TestWindowsOfAnotherText(t *testing.T) {
	const file = `{"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}`
	tok, err := tokenizer.Read(strings.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	text := NewText("letters", []byte(strings.Repeat("a", 5000)+strings.Repeat("b", 20_000)))
	w, err := NewWindows(text, tok, 16)
	if err != nil {
		t.Fatal(err)
	}
	var source *SourceError
	failed := false
	for i := range w.Len() {
		if _, err := w.Get(t.Context(), Key{0, i}); err != nil {
			failed = true
			if !errors.As(err, &source) || source.Path != "letters" {
				t.Fatal(err)
			}
		}
	}
	if !failed {
		t.Error("windows of letters without tokens were made")
	}
}
