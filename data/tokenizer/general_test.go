// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var generalFlag = flag.String("general", "testdata/general/general.json.gz", "what testdata/general/general.py wrote")

type generalFamily struct {
	Name      string
	Tokenizer json.RawMessage
	Parts     [][3]any
	Examples  []map[string]json.RawMessage
}

type generalGolden struct {
	Part     int // characters of a part
	Words    []string
	Blocks   [][2]uint64
	Families []generalFamily
}

func readGeneral(t testing.TB) *generalGolden {
	t.Helper()
	f, err := os.Open(*generalFlag)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	g := new(generalGolden)
	if err := json.Unmarshal(b, g); err != nil {
		t.Fatal(err)
	}
	return g
}

// generatedText is the generator of testdata/general/general.py.
type generatedText struct {
	*generalGolden
	state uint64
}

func (g *generatedText) draw(n int) uint64 {
	g.state = g.state*6364136223846793005 + 1442695040888963407
	return g.state >> 33 % uint64(n)
}

func (g *generatedText) take(chars int) []byte {
	var out []byte
	for n := 0; n < chars; {
		p := ""
		if g.draw(14) == 0 {
			b := g.Blocks[g.draw(len(g.Blocks))]
			p = string(rune(b[0] + g.draw(int(b[1]-b[0]))))
		} else {
			p = g.Words[g.draw(len(g.Words))]
		}
		out = append(out, p...)
		n += utf8.RuneCountInString(p)
	}
	return out
}

func idsDigest(ids []int64) string {
	h := sha256.New()
	for _, id := range ids {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(id)))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// TestGeneral compares ids and decoded texts with those of the Hugging Face
// library, for tokenizers of the kinds of published models.
func TestGeneral(t *testing.T) {
	g := readGeneral(t)
	for _, f := range g.Families {
		t.Run(f.Name, func(t *testing.T) {
			tok, err := Read(bytes.NewReader(f.Tokenizer))
			if err != nil {
				t.Fatal(err)
			}
			for i, x := range f.Examples {
				f.compare(t, tok, i, x)
			}
			text := &generatedText{g, 7}
			for i, want := range f.Parts {
				part := text.take(g.Part)
				ids := tok.EncodeInput(part)
				if len(ids) != int(want[0].(float64)) || idsDigest(ids) != want[1] {
					t.Errorf("part %d has %d ids, %s; want %v", i, len(ids), idsDigest(ids), want)
				}
				back, err := tok.Decode(ids)
				if err != nil {
					t.Fatal(err)
				}
				// The library cannot decode bytes that are no characters.
				sum := sha256.Sum256([]byte(strings.ToValidUTF8(string(back), "\ufffd")))
				if hex.EncodeToString(sum[:8]) != want[2] {
					t.Errorf("part %d is decoded to another text", i)
				}
				if i == 0 {
					f.compareStreams(t, tok, part)
				}
			}
		})
	}
}

func decodeJSON(t *testing.T, raw json.RawMessage, v any) {
	t.Helper()
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatal(err)
	}
}

// compare compares an example: a text, and a pair of texts cut in all ways.
func (f *generalFamily) compare(t *testing.T, tok *Tokenizer, i int, x map[string]json.RawMessage) {
	t.Helper()
	var a, b, text string
	var ids []int64
	decodeJSON(t, x["a"], &a)
	decodeJSON(t, x["ids"], &ids)
	decodeJSON(t, x["text"], &text)
	if got := tok.EncodeInput([]byte(a)); !slices.Equal(got, ids) {
		t.Errorf("example %d, %q: got %v, want %v", i, a, got, ids)
		return
	}
	if back, err := tok.DecodeText(ids); err != nil || strings.ToValidUTF8(string(back), "\ufffd") != text {
		t.Errorf("example %d: decoded to %q, %v, want %q", i, back, err, text)
	}
	if x["b"] == nil {
		return
	}
	decodeJSON(t, x["b"], &b)
	for how, name := range map[Truncation]string{LongestFirst: "longest_first", OnlyFirst: "only_first", OnlySecond: "only_second"} {
		for n, suffix := range map[int]string{0: " 0", 12: " 12", 21: " 21"} {
			var want [][]int64
			decodeJSON(t, x[name+suffix], &want)
			e, err := tok.EncodePair([]byte(a), []byte(b), EncodeOptions{MaxLength: n, Truncation: how})
			if want == nil {
				if err == nil {
					t.Errorf("example %d, %s%s: the library refuses it", i, name, suffix)
				}
				continue
			}
			special := make([]int64, len(e.Special))
			for j, s := range e.Special {
				if s {
					special[j] = 1
				}
			}
			if err != nil || !slices.Equal(e.IDs, want[0]) || !slices.Equal(e.TypeIDs, want[1]) || !slices.Equal(special, want[2]) {
				t.Errorf("example %d, %s%s of %q and %q: got %v %v %v (%v), want %v", i, name, suffix, a, b, e.IDs, e.TypeIDs, special, err, want)
			}
		}
	}
}

// compareStreams checks that a text that comes in pieces has the tokens of the
// whole, and that what was written is the same tokenizer.
func (f *generalFamily) compareStreams(t *testing.T, tok *Tokenizer, text []byte) {
	t.Helper()
	text = text[:min(len(text), 40_000)]
	for !utf8.Valid(text) {
		text = text[:len(text)-1]
	}
	want := tok.Encode(text)
	s := tok.NewStream()
	var got []int64
	for done, have := 0, 0; done < len(text); {
		have = min(have+3000, len(text))
		n := 0
		got, n = s.Append(got, text[done:have], len(got)+200, have == len(text))
		done += n
	}
	if !slices.Equal(got, want) {
		t.Error("a text that comes in pieces has other tokens")
	}
	if at := tok.Cut(text); at > 0 {
		parts := tok.Encode(text[:at])
		parts, _ = tok.NewStreamAfter(text[:at]).Append(parts, text[at:], len(text)+len(parts), true)
		if !slices.Equal(parts, want) {
			t.Errorf("a text that is cut at %d has other tokens", at)
		}
	}
	var b bytes.Buffer
	if err := tok.Write(&b); err != nil {
		t.Fatal(err)
	}
	again, err := Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(again.Encode(text), want) || again.Fingerprint() != tok.Fingerprint() {
		t.Error("what was written is another tokenizer")
	}
}

// TestEncoderFolders compares folders of encoders and of Qwen with AutoTokenizer
// of the Hugging Face library.
func TestEncoderFolders(t *testing.T) {
	b, err := os.ReadFile("testdata/general/encoders.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Cases []struct {
			Base, Kind, Class string
			Config            json.RawMessage
			Texts             [][4]json.RawMessage
			Pairs             [][4]json.RawMessage
			Pad               *int64
		}
	}
	if err := json.Unmarshal(b, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Cases) < 10 {
		t.Fatalf("%d cases", len(golden.Cases))
	}
	families := readGeneral(t).Families
	for _, c := range golden.Cases {
		file := families[slices.IndexFunc(families, func(f generalFamily) bool { return f.Name == c.Base })].Tokenizer
		files := map[string][]byte{settingsFile: c.Config, jsonFile: file}
		if c.Kind == "vocab" {
			var d document
			decodeJSON(t, file, &d)
			words := make([]string, len(d.Model.Vocab))
			for w, id := range d.Model.Vocab {
				words[id] = w + "\n"
			}
			files = map[string][]byte{settingsFile: c.Config, wordsFile: []byte(strings.Join(words, "")), modelFile: []byte(`{"model_type": "bert"}`)}
		}
		dir := t.TempDir()
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		tok, err := Load(dir)
		if err != nil {
			t.Errorf("%s %s: %v", c.Base, c.Config, err)
			continue
		}
		if pad, ok := tok.PadID(); c.Pad != nil && (!ok || pad != *c.Pad) {
			t.Errorf("%s %s: pads with %d, want %d", c.Base, c.Config, pad, *c.Pad)
		}
		for _, x := range c.Texts {
			var text, back string
			var plain, full []int64
			for i, into := range []any{&text, &plain, &full, &back} {
				decodeJSON(t, x[i], into)
			}
			if got := tok.Encode([]byte(text)); !slices.Equal(got, plain) {
				t.Errorf("%s %s (%s), %q: got %v, want %v", c.Base, c.Config, c.Class, text, got, plain)
			}
			if got := tok.EncodeInput([]byte(text)); !slices.Equal(got, full) {
				t.Errorf("%s %s (%s), %q: got %v around it, want %v", c.Base, c.Config, c.Class, text, got, full)
			}
			if got, err := tok.DecodeText(full); err != nil || string(got) != back {
				t.Errorf("%s %s (%s): decoded %q (%v), want %q", c.Base, c.Config, c.Class, got, err, back)
			}
		}
		for _, x := range c.Pairs {
			var first, second string
			var ids, types []int64
			for i, into := range []any{&first, &second, &ids, &types} {
				decodeJSON(t, x[i], into)
			}
			e, err := tok.EncodePair([]byte(first), []byte(second), EncodeOptions{})
			if err != nil || !slices.Equal(e.IDs, ids) || !slices.Equal(e.TypeIDs, types) {
				t.Errorf("%s %s (%s): pair %v %v (%v), want %v %v", c.Base, c.Config, c.Class, e.IDs, e.TypeIDs, err, ids, types)
			}
		}
	}
}

func FuzzPattern(f *testing.F) {
	for p := range knownPatterns {
		f.Add(p, "I'LL see HTTPServer, 12345!\n\n  世界")
	}
	f.Add(` {2,}|(?i:'s)|[^\s\p{N}]?`, "a  b's")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		e, err := compilePattern(pattern)
		if err != nil || len(text) > 200 {
			return
		}
		last := 0
		for _, m := range e.matches([]byte(text)) {
			if m[0] < last || m[1] <= m[0] || m[1] > len(text) {
				t.Fatalf("%q in %q: match %v", pattern, text, m)
			}
			last = m[1]
		}
	})
}

func FuzzCharsMap(f *testing.F) {
	f.Add([]byte{4, 0, 0, 0, 0, 4, 0, 0, 'x', 0}, "a b e\u0301")
	f.Fuzz(func(t *testing.T, table []byte, text string) {
		m, err := newCharsMap(base64.StdEncoding.EncodeToString(table))
		if err == nil && len(text) < 1000 {
			m.apply([]byte(text))
		}
	})
}

// FuzzGeneral reads changed tokenizers, and encodes and decodes with what is
// accepted.
func FuzzGeneral(f *testing.F) {
	for _, family := range readGeneral(f).Families {
		f.Add([]byte(family.Tokenizer), "The fox, un-happy 世界 <mask>")
	}
	f.Fuzz(func(t *testing.T, file []byte, text string) {
		tok, err := Read(bytes.NewReader(file))
		if err != nil || len(text) > 1000 {
			return
		}
		if _, err := tok.Decode(tok.EncodeInput([]byte(text))); err != nil {
			t.Fatal(err)
		}
	})
}
