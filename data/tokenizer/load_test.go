// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// writeGPT2 writes a tokenizer as GPT-2's two files.
func writeGPT2(t *testing.T, dir string, f *family) (vocab, merges string) {
	t.Helper()
	model := f.Tokenizer["model"].(map[string]any)
	b, err := json.Marshal(model["vocab"])
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	lines.WriteString("#version: 0.2\n")
	for _, m := range model["merges"].([]any) {
		pair := m.([]any)
		lines.WriteString(pair[0].(string) + " " + pair[1].(string) + "\n")
	}
	vocab, merges = filepath.Join(dir, "vocab.json"), filepath.Join(dir, "merges.txt")
	for path, text := range map[string][]byte{vocab: b, merges: []byte(lines.String())} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return vocab, merges
}

func TestLoadGPT2(t *testing.T) {
	golden := families()
	f := golden.Families[0]
	dir := t.TempDir()
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "neither tokenizer.json nor vocab.json") {
		t.Errorf("an empty folder: %v", err)
	}
	vocab, merges := writeGPT2(t, dir, f)
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range golden.Texts {
		if got := tok.Encode([]byte(text)); !slices.Equal(got, f.Cases[i].IDs) {
			t.Errorf("Encode(%q)\n got %d\nwant %d", text, got, f.Cases[i].IDs)
		}
	}
	if tok.Fingerprint() != f.tok.Fingerprint() {
		t.Error("the same tokenizer as tokenizer.json has another fingerprint")
	}
	if id, ok := tok.EndOfText(); !ok || !tok.Special(id) || tok.Len(id) != 0 || string(tok.Token(id)) != "<|endoftext|>" {
		t.Errorf("the end of a text is %d, %t", id, ok)
	}
	// Both forms in one folder: tokenizer.json says more.
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), golden.Families[1].file, 0o600); err != nil {
		t.Fatal(err)
	}
	if both, err := Load(dir); err != nil || both.Fingerprint() != golden.Families[1].tok.Fingerprint() {
		t.Errorf("both forms: %v", err)
	}

	good := map[string][]byte{}
	for _, path := range []string{vocab, merges} {
		if good[path], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, path, want string
		text             []byte // nil removes the file
	}{
		{"no vocabulary", vocab, "no such file", nil},
		{"no merges", merges, "no such file", nil},
		{"cut vocabulary", vocab, "not a vocab.json", good[vocab][:len(good[vocab])/2]},
		{"a list", vocab, "not a vocab.json", []byte("[]")},
		{"empty vocabulary", vocab, "empty", []byte("{}")},
		{"one id twice", vocab, "given to two tokens", []byte(`{"a": 0, "b": 0}`)},
		{"cut merges", merges, "line 200", good[merges][:lineStart(good[merges], 200)+1]},
		{"three parts", merges, "line 2: \"a b c\"", []byte("#version: 0.2\na b c\n")},
		{"unknown part", merges, "is not in the vocabulary", []byte("#version: 0.2\n世 界\n")},
		{"unknown result", merges, "the result", []byte("#version: 0.2\nZ Z\n")},
		{"twice", merges, "there twice", append(bytes.Clone(good[merges]), good[merges][len("#version: 0.2\n"):lineStart(good[merges], 3)]...)},
		{"no text", merges, "too long", bytes.Repeat([]byte{'x'}, 1<<20)},
	} {
		if err := os.Remove(c.path); err != nil {
			t.Fatal(err)
		}
		if c.text != nil {
			if err := os.WriteFile(c.path, c.text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := LoadGPT2(vocab, merges)
		var format *FormatError
		if err == nil || !strings.Contains(err.Error(), c.want) || c.text != nil && (!errors.As(err, &format) || format.Path != c.path && c.name != "twice") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if err := os.WriteFile(c.path, good[c.path], 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// lineStart returns where line n, counted from 1, begins.
func lineStart(text []byte, n int) int {
	at := 0
	for range n - 1 {
		at += bytes.IndexByte(text[at:], '\n') + 1
	}
	return at
}

func FuzzMerges(f *testing.F) {
	f.Add([]byte("#version: 0.2\na b\nab c\n"))
	f.Add([]byte("a  b\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		pairs, err := readMerges(bytes.NewReader(text))
		if err != nil {
			return
		}
		for _, p := range pairs {
			if strings.ContainsAny(p[0]+p[1], " \n") {
				t.Errorf("a part with a space: %q", p)
			}
		}
	})
}

// Ids without a token, bytes without a token, and a token for them.
func TestReadGaps(t *testing.T) {
	read := func(file string) *Tokenizer {
		t.Helper()
		tok, err := Read(strings.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	const level = `{"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "model": {"type": "BPE", "merges": ["a b"], `
	gaps := read(level + `"vocab": {"a": 0, "b": 3, "ab": 9}}}`)
	if got := gaps.Encode([]byte("abcab?b")); gaps.Size() != 10 || !slices.Equal(got, []int64{9, 9, 3}) {
		t.Errorf("size %d, ids %d", gaps.Size(), got)
	}
	var unknown *UnknownTokenError
	if _, err := gaps.Decode([]int64{0, 5}); !errors.As(err, &unknown) || unknown.ID != 5 || !strings.Contains(err.Error(), "no token") {
		t.Errorf("an id in a gap: %v", err)
	}
	if gaps.Token(5) != nil || gaps.Len(5) != 0 || gaps.Len(9) != 2 {
		t.Errorf("lengths %d and %d", gaps.Len(5), gaps.Len(9))
	}
	unk := read(level + `"unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3}}}`)
	if got := unk.Encode([]byte("abcab")); !slices.Equal(got, []int64{3, 0, 3}) {
		t.Errorf("ids with unknown bytes %d", got)
	}
	fused := read(level + `"unk_token": "<unk>", "fuse_unk": true, "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3}}}`)
	for text, want := range map[string][2][]int64{ // by the Hugging Face library
		"acc":    {{1, 0, 0}, {1, 0}},
		"ac?é b": {{1, 0, 0, 0, 0, 0, 2}, {1, 0, 0, 0, 0, 2}},
	} {
		if got := [2][]int64{unk.Encode([]byte(text)), fused.Encode([]byte(text))}; !slices.Equal(got[0], want[0]) || !slices.Equal(got[1], want[1]) {
			t.Errorf("Encode(%q) = %d, want %d", text, got, want)
		}
	}
	var format *FormatError
	if _, err := Read(strings.NewReader(level + `"byte_fallback": true, "vocab": {"a": 0, "b": 3, "ab": 9}}}`)); !errors.As(err, &format) || format.Field != "model.byte_fallback" {
		t.Errorf("bytes that fall back to bytes: %v", err)
	}
	for _, tok := range []*Tokenizer{gaps, unk, fused} {
		var b bytes.Buffer
		if err := tok.Write(&b); err != nil {
			t.Fatal(err)
		}
		if again := read(b.String()); again.Fingerprint() != tok.Fingerprint() {
			t.Errorf("written and read it is another:\n%s", b.String())
		}
	}
}
