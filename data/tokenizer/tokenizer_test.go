// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/tokenizer.json anew; run testdata/golden.py afterwards")

// goText makes text that looks like Go, for training.
func goText(seed uint64, size int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	names := []string{"x", "err", "ctx", "buf", "n", "i", "name", "value", "reader", "conn", "resp", "request", "handler", "index", "count", "worldSize", "num_ranks", "世界", "café"}
	lines := []string{
		"\tif %s != nil {\n\t\treturn %s\n\t}\n", "\t%s := %s\n", "\tfor %s := range %s {\n\t\t%s++\n\t}\n", "// %s is the %s of a %s.\n",
		"func %s(%s int, %s string) error {\n", "}\n\n", "\t\treturn fmt.Errorf(\"%s: %%w\", %s)\n", "\t%s, err := %s.Read(%s[:0x%s])\n", "type %s struct {\n\t%s int\n}\n", "\r\n", "    %s = %s + 17\n",
	}
	var b bytes.Buffer
	for b.Len() < size {
		l := lines[r.IntN(len(lines))]
		var args []any
		for range strings.Count(strings.ReplaceAll(l, "%%", ""), "%s") {
			args = append(args, names[r.IntN(len(names))])
		}
		fmt.Fprintf(&b, l, args...)
	}
	return b.Bytes()[:size]
}

var trained = sync.OnceValue(func() *Tokenizer {
	t, err := Train(context.Background(), goText(1, 100_000), 600)
	if err != nil {
		panic(err)
	}
	return t
})

//go:embed testdata/golden.json
var goldenJSON []byte

const goldenTokenizer = "testdata/tokenizer.json"

func TestGoldenHuggingFace(t *testing.T) {
	if *update {
		var b bytes.Buffer
		if err := trained().Write(&b); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(goldenTokenizer, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := Load(goldenTokenizer)
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Cases []struct {
			Text string  `json:"text"`
			IDs  []int64 `json:"ids"`
		} `json:"cases"`
	}
	if err := json.Unmarshal(goldenJSON, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Cases) < 400 {
		t.Fatalf("%d cases", len(golden.Cases))
	}
	for _, c := range golden.Cases {
		if got := tok.Encode([]byte(c.Text)); !slices.Equal(got, c.IDs) {
			t.Errorf("Encode(%q)\n got %d\nwant %d", c.Text, got, c.IDs)
		}
	}
}

// TestSplitIsThePattern compares the hand-written splitter with Go's regexp on
// the same pattern (regexp wants UTF-8, so does this test).
func TestSplitIsThePattern(t *testing.T) {
	re := regexp.MustCompile(`^(?:` + Pattern + `)`)
	check := func(text []byte) {
		for pos := 0; pos < len(text); {
			loc := re.FindIndex(text[pos:])
			if loc == nil || loc[1] == 0 {
				t.Fatalf("the pattern does not match %q", text[pos:])
			}
			if got, want := text[pos:wordEnd(text, pos)], text[pos:pos+loc[1]]; !bytes.Equal(got, want) {
				t.Fatalf("in %q the word at %d is %q, want %q", text, pos, got, want)
			}
			pos += loc[1]
		}
	}
	check(goText(3, 5000))
	const seed = 9
	r := rand.New(rand.NewPCG(seed, 0))
	alphabet := []string{" ", " ", "\n", "\t", "\r", "a", "Z", "0", "_", ".", "(", "é", "世", "\u00a0", "\x00", "\x7f", "\v"}
	for range 5000 {
		var s strings.Builder
		for range r.IntN(12) {
			s.WriteString(alphabet[r.IntN(len(alphabet))])
		}
		check([]byte(s.String()))
	}
}

// naiveEncode is the definition: split, then merge the pair of lowest rank,
// leftmost first, until none is left.
func naiveEncode(t *Tokenizer, text []byte) []int64 {
	rank := map[[2]uint32]int{}
	for i, m := range t.merges {
		rank[[2]uint32{m.left, m.right}] = i
	}
	var ids []int64
	for pos := 0; pos < len(text); {
		end := wordEnd(text, pos)
		var syms []uint32
		for _, b := range text[pos:end] {
			syms = append(syms, t.byteID[b])
		}
		for {
			best, at := len(t.merges), -1
			for i := 1; i < len(syms); i++ {
				if r, ok := rank[[2]uint32{syms[i-1], syms[i]}]; ok && r < best {
					best, at = r, i-1
				}
			}
			if at < 0 {
				break
			}
			syms[at] = t.merges[best].id
			syms = slices.Delete(syms, at+1, at+2)
		}
		for _, s := range syms {
			ids = append(ids, int64(s))
		}
		pos = end
	}
	return ids
}

// rounds is fewer in a short run, with the race detector for instance.
func rounds(n int) int {
	if testing.Short() {
		return n / 10
	}
	return n
}

func randomText(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	switch r.IntN(4) {
	case 0: // any bytes
		for i := range b {
			b[i] = byte(r.Uint32())
		}
	case 1: // long words
		for i := range b {
			b[i] = "eeetrun"[r.IntN(7)]
		}
	case 2: // few letters
		for i := range b {
			b[i] = " \t\n(ab"[r.IntN(6)]
		}
	default:
		copy(b, goText(r.Uint64(), max(n, 1)))
	}
	return b
}

func TestEncodeAgainstNaive(t *testing.T) {
	tok := trained()
	const seed = 77
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range rounds(3000) {
		text := randomText(r, r.IntN(200))
		got := tok.Encode(text)
		if want := naiveEncode(tok, text); !slices.Equal(got, want) {
			t.Fatalf("seed %d, case %d: Encode(%q)\n got %d\nwant %d", seed, i, text, got, want)
		}
		back, err := tok.Decode(got)
		if err != nil || !bytes.Equal(back, text) {
			t.Fatalf("seed %d, case %d: Decode gives %q, want %q (%v)", seed, i, back, text, err)
		}
	}
}

// Pieces encoded one after the other give the tokens of the whole, wherever
// the text is cut and whatever the limit.
func TestAppendPart(t *testing.T) {
	tok := trained()
	const seed = 78
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range rounds(500) {
		text := randomText(r, 1+r.IntN(300))
		want := tok.Encode(text)
		var got []int64
		stream := tok.NewStream()
		pos, avail := 0, 0
		for pos < len(text) {
			avail = min(avail+1+r.IntN(60), len(text))
			var n int
			got, n = stream.Append(got, text[pos:avail], len(got)+1+r.IntN(30), avail == len(text))
			pos += n
			if pos > avail {
				t.Fatalf("encoded %d of %d bytes", pos, avail)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d, case %d: pieces of %q\n got %d\nwant %d", seed, i, text, got, want)
		}
	}
}

// A word of a megabyte must not take quadratic time.
func TestLongWord(t *testing.T) {
	tok := trained()
	text := bytes.Repeat([]byte("returnerr"), 1<<17)
	ids := tok.Encode(text)
	back, err := tok.Decode(ids)
	if err != nil || !bytes.Equal(back, text) {
		t.Fatal("a long word does not come back")
	}
	if len(ids) > len(text)/2 {
		t.Errorf("%d tokens for %d bytes", len(ids), len(text))
	}
}

func TestTrainIsDeterministicAndFrequent(t *testing.T) {
	sample := goText(1, 100_000)
	for range 3 {
		again, err := Train(context.Background(), sample, 600)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(again.merges, trained().merges) {
			t.Fatal("the same sample gave two tokenizers")
		}
	}
	// The first merges against counting anew each time.
	text := slices.Clone(sample[:20_000])
	tok, err := Train(context.Background(), text, 256+rounds(50))
	if err != nil {
		t.Fatal(err)
	}
	partial, err := newTokenizer(slices.Clone(tok.tokens[:256]), nil, pipeline{})
	if err != nil {
		t.Fatal(err)
	}
	for rank, m := range tok.merges {
		counts := map[uint64]int{}
		for pos := 0; pos < len(text); {
			end := wordEnd(text, pos)
			if end-pos <= trainWord {
				syms := naiveEncode(partial, text[pos:end])
				for i := 1; i < len(syms); i++ {
					counts[pairKey(uint32(syms[i-1]), uint32(syms[i]))]++
				}
			}
			pos = end
		}
		var best uint64
		for key, n := range counts {
			if n > counts[best] || n == counts[best] && key < best {
				best = key
			}
		}
		if got := pairKey(m.left, m.right); got != best {
			t.Fatalf("merge %d is of %d and %d (%d times), want %d and %d (%d times)", rank, m.left, m.right, counts[got], best>>32, best&(1<<32-1), counts[best])
		}
		if partial, err = newTokenizer(tok.tokens[:256+rank+1], tok.merges[:rank+1], pipeline{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTrainLimits(t *testing.T) {
	for _, size := range []int{-1, 0, 255, MaxVocab + 1} {
		if _, err := Train(context.Background(), []byte("abc"), size); err == nil {
			t.Errorf("a vocabulary of %d was accepted", size)
		}
	}
	tok, err := Train(context.Background(), nil, 1000)
	if err != nil || tok.Size() != 256 {
		t.Errorf("an empty sample gave %d tokens and %v, want 256", tok.Size(), err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Train(ctx, goText(1, 1000), 1000); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled training returned %v", err)
	}
}

func TestDecodeUnknown(t *testing.T) {
	tok := trained()
	for _, id := range []int64{-1, int64(tok.Size()), 1 << 40} {
		_, err := tok.Decode([]int64{1, id})
		var unknown *UnknownTokenError
		if !errors.As(err, &unknown) || unknown.ID != id || unknown.Position != 1 {
			t.Errorf("Decode of %d: %v", id, err)
		}
		if tok.Len(id) != 0 || tok.Token(id) != nil {
			t.Errorf("token %d exists", id)
		}
	}
}

func TestWriteRead(t *testing.T) {
	tok := trained()
	var b bytes.Buffer
	if err := tok.Write(&b); err != nil {
		t.Fatal(err)
	}
	again, err := Read(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(again.merges, tok.merges) || !slices.EqualFunc(again.tokens, tok.tokens, bytes.Equal) || again.MaxLen() != tok.MaxLen() || again.Fingerprint() != tok.Fingerprint() {
		t.Error("the tokenizer changed on the way")
	}
	var c bytes.Buffer
	if err := again.Write(&c); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), c.Bytes()) {
		t.Error("written twice, the file differs")
	}
	// Merges as pairs, the newer form.
	var doc map[string]any
	if err := json.Unmarshal(b.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	m := doc["model"].(map[string]any)
	for i, v := range m["merges"].([]any) {
		l, r, _ := strings.Cut(v.(string), " ")
		m["merges"].([]any)[i] = []any{l, r}
	}
	pairs, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	if again, err = Read(bytes.NewReader(pairs)); err != nil || !slices.Equal(again.merges, tok.merges) {
		t.Errorf("merges as pairs: %v", err)
	}
}

func TestReadRefuses(t *testing.T) {
	var b bytes.Buffer
	if err := trained().Write(&b); err != nil {
		t.Fatal(err)
	}
	type object = map[string]any
	model := func(d object) object { return d["model"].(object) }
	pre := func(d object, i int) object {
		return d["pre_tokenizer"].(object)["pretokenizers"].([]any)[i].(object)
	}
	for _, c := range []struct {
		field  string // of the error
		damage func(object)
	}{
		{"model.type", func(d object) { model(d)["type"] = "Other" }},
		{"pre_tokenizer", func(d object) { model(d)["type"] = "WordPiece" }}, // after ByteLevel
		{"model.unk_token", func(d object) { model(d)["type"] = "WordPiece"; d["pre_tokenizer"] = nil }},
		{"model", func(d object) { model(d)["type"] = "Unigram"; model(d)["vocab"] = []any{}; d["pre_tokenizer"] = nil }},
		{"model.vocab[0]", func(d object) { model(d)["type"] = "Unigram"; model(d)["vocab"] = []any{"a"} }},
		{"model.dropout", func(d object) { model(d)["dropout"] = 0.1 }},
		{"model.continuing_subword_prefix", func(d object) { model(d)["continuing_subword_prefix"] = "##" }},
		{"model.end_of_word_suffix", func(d object) { model(d)["end_of_word_suffix"] = "</w>" }},
		{"model.vocab", func(d object) { model(d)["vocab"].(object)["é世"] = 600 }},
		{"model.vocab", func(d object) { model(d)["vocab"].(object)["a"] = 98 }},
		{"model.vocab", func(d object) { model(d)["vocab"].(object)["a"] = 1e7 }},
		{"model.vocab", func(d object) { model(d)["vocab"].(object)["a"] = -1 }},
		{"model.merges[0]", func(d object) { delete(model(d)["vocab"].(object), "e"); model(d)["merges"].([]any)[0] = "e r" }},
		{"model", func(d object) { model(d)["vocab"] = object{}; model(d)["merges"] = []any{} }},
		{"model", func(d object) { m := model(d); m["merges"] = append(m["merges"].([]any), m["merges"].([]any)[3]) }},
		{"model.merges[0]", func(d object) { model(d)["merges"].([]any)[0] = "a" }},
		{"model.merges[1]", func(d object) { model(d)["merges"].([]any)[1] = 7 }},
		{"model.merges[2]", func(d object) { model(d)["merges"].([]any)[2] = "世 b" }},
		{"model.merges[3]", func(d object) { model(d)["merges"].([]any)[3] = []any{"Z", "Z"} }},
		{"normalizer", func(d object) { d["normalizer"] = object{"type": "ByteLevel"} }},
		{"post_processor", func(d object) { d["post_processor"] = object{"type": "TemplateProcessing"} }},
		{"added_tokens[0]", func(d object) { d["added_tokens"] = []any{object{"id": 5, "content": "<s>"}} }},
		{"added_tokens[0]", func(d object) { d["added_tokens"] = []any{object{"id": trained().Size(), "content": ""}} }},
		{"added_tokens[1]", func(d object) {
			d["added_tokens"] = []any{object{"id": trained().Size(), "content": "x y"}, object{"id": trained().Size() + 1, "content": "x y"}}
		}},
		{"pre_tokenizer", func(d object) { d["pre_tokenizer"] = object{"type": "UnicodeScripts"} }},
		{"pre_tokenizer.pattern", func(d object) { pre(d, 0)["pattern"] = object{"Regex": "x(?=y)"} }},
		{"pre_tokenizer.pattern", func(d object) { pre(d, 0)["pattern"] = object{"Regex": "(x+)+"} }},
		{"pre_tokenizer.pattern", func(d object) { pre(d, 0)["pattern"] = object{"Regex": `\bx`} }},
		{"pre_tokenizer", func(d object) { pre(d, 0)["behavior"] = "Other" }},
		{"pre_tokenizer", func(d object) { pre(d, 0)["type"] = "ByteLevel" }},
	} {
		var doc object
		if err := json.Unmarshal(b.Bytes(), &doc); err != nil {
			t.Fatal(err)
		}
		c.damage(doc)
		bad, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Read(bytes.NewReader(bad))
		var format *FormatError
		if !errors.As(err, &format) || format.Field != c.field {
			t.Errorf("%s: got %v", c.field, err)
		}
	}
	for _, bad := range []string{"", "{", "[]", "null", b.String()[:b.Len()/2]} {
		var format *FormatError
		if _, err := Read(strings.NewReader(bad)); !errors.As(err, &format) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tokenizer.json")
	if _, err := Load(path); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("missing file: %v", err)
	}
	if err := os.WriteFile(path, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	var format *FormatError
	if _, err := Load(path); !errors.As(err, &format) || format.Path != path {
		t.Errorf("damaged file: %v", err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a directory: %v", err)
	}
}

func TestConcurrentEncode(t *testing.T) {
	tok := trained()
	text := goText(8, 3000)
	want := tok.Encode(text)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if !slices.Equal(tok.Encode(text), want) {
					t.Error("tokens differ between goroutines")
					return
				}
			}
		})
	}
	wg.Wait()
}

func FuzzRead(f *testing.F) {
	small, err := Train(context.Background(), goText(1, 3000), 260)
	if err != nil {
		f.Fatal(err)
	}
	var b bytes.Buffer
	if err := small.Write(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","a"]]}}`))
	for _, fam := range families().Families {
		short := maps.Clone(fam.Tokenizer)
		short["model"] = map[string]any{"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "vocab": map[string]int{"<unk>": 0, "a": 1, "\u2581": 2, "\u2581a": 3}, "merges": []string{"\u2581 a"}}
		b, err := json.Marshal(short)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		tok, err := Read(bytes.NewReader(file))
		if err != nil {
			return
		}
		text := goText(2, 200)
		back, err := tok.Decode(tok.Encode(text))
		if err != nil || tok.lossless() && !bytes.Equal(back, text) {
			t.Errorf("an accepted tokenizer does not round-trip (%v)", err)
		}
		var b bytes.Buffer
		if err := tok.Write(&b); err != nil {
			t.Fatal(err)
		}
		if again, err := Read(&b); err != nil || again.Fingerprint() != tok.Fingerprint() {
			t.Errorf("an accepted tokenizer is not the same when it is written and read (%v)", err)
		}
	})
}

// lossless reports whether every text has tokens that it can be decoded from.
func (t *Tokenizer) lossless() bool {
	f := &t.pipeline
	for _, a := range t.added.list {
		if a.LStrip || a.RStrip {
			return false
		}
	}
	return !slices.Contains(t.byteID[:], none) && f.lead != leadUnlessSpace && f.strip == (f.lead == leadAlways)
}

func FuzzEncode(f *testing.F) {
	f.Add([]byte("func main() {\n\t\tx  := 1\n"))
	f.Add([]byte("\xff\xfe \x00"))
	f.Add(bytes.Repeat([]byte("ab"), 60))
	f.Fuzz(func(t *testing.T, text []byte) {
		tok := trained()
		ids := tok.Encode(text)
		if len(text) < 2000 && !slices.Equal(ids, naiveEncode(tok, text)) {
			t.Errorf("Encode(%q) = %d, want %d", text, ids, naiveEncode(tok, text))
		}
		back, err := tok.Decode(ids)
		if err != nil || !bytes.Equal(back, text) {
			t.Errorf("Decode(Encode(%q)) = %q, %v", text, back, err)
		}
	})
}

func BenchmarkTrain1024(b *testing.B) {
	sample := goText(1, 2<<20)
	b.SetBytes(int64(len(sample)))
	for b.Loop() {
		if _, err := Train(context.Background(), sample, 1024); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	text := goText(5, 1<<20)
	tok := trained()
	dst := make([]int64, 0, len(text))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		dst = tok.Append(dst[:0], text)
	}
}
