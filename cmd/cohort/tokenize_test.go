// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// cohortWith runs a command that reads.
func cohortWith(t *testing.T, input string, args ...string) (stdout string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	root := newRoot(&out, &errs)
	root.SetArgs(args)
	root.SetIn(strings.NewReader(input))
	err = root.Execute()
	return out.String(), err
}

// TestTokenize goes the whole way: train, encode a corpus, decode it.
func TestTokenize(t *testing.T) {
	dir := t.TempDir()
	text := strings.Repeat("Every rank reads its share of the text.\nWörter, 世界 and 😀!\n\n", 2000)
	corpus := filepath.Join(dir, "corpus.txt")
	if err := os.WriteFile(corpus, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tok, shards := filepath.Join(dir, "new", "tokenizer.json"), filepath.Join(dir, "tokens")
	code, stdout, stderr := cohort("tokenize", "train", "--data", corpus, "--vocab", "300", "--split", "llama3", "--out", tok)
	if code != 0 || !strings.Contains(stdout, "300 tokens") {
		t.Fatalf("train: %d %s %s", code, stdout, stderr)
	}
	const line = "Wörter, 世界<|endoftext|> and \x00 more\n"
	ids, err := cohortWith(t, line, "tokenize", "encode", "--tokenizer", tok)
	if err != nil || !strings.Contains(ids, " 299 ") {
		t.Fatalf("encode: %q %v", ids, err)
	}
	if back, err := cohortWith(t, ids, "tokenize", "decode", "--tokenizer", tok); err != nil || back != line {
		t.Errorf("decode: %q %v", back, err)
	}
	if back, err := cohortWith(t, ids, "tokenize", "decode", "--tokenizer", tok, "--skip-special"); err != nil || back != strings.Replace(line, "<|endoftext|>", "", 1) {
		t.Errorf("decode without special tokens: %q %v", back, err)
	}
	code, stdout, stderr = cohort("tokenize", "encode", "--tokenizer", tok, "--data", corpus, "--out", shards, "--shard-tokens", "10000")
	if code != 0 || !strings.Contains(stdout, fmt.Sprintf("%.1f kB of text", float64(len(text))/1e3)) {
		t.Fatalf("encode: %d %s %s", code, stdout, stderr)
	}
	code, stdout, stderr = cohort("tokenize", "decode", "--data", shards, "--tokens", "10000")
	if code != 0 || !strings.HasPrefix(stdout, text[:1000]) || !strings.Contains(stdout, "<|endoftext|>") {
		t.Errorf("decode: %d %.200s %s", code, stdout, stderr)
	}
	// A second encoding does not go over the first.
	if code, _, stderr = cohort("tokenize", "encode", "--tokenizer", tok, "--data", corpus, "--out", shards); code == 0 || !strings.Contains(stderr, "there are tokens already") {
		t.Errorf("encode twice: %d %s", code, stderr)
	}
}

// A part of shards keeps the space that it begins with: only a text's own
// beginning has one too many.
func TestDecodePart(t *testing.T) {
	dir := t.TempDir()
	space := "\u2581"
	file, err := json.Marshal(map[string]any{
		"pre_tokenizer": map[string]any{"type": "Metaspace", "replacement": space, "prepend_scheme": "first"},
		"decoder":       map[string]any{"type": "Metaspace", "replacement": space, "prepend_scheme": "first"},
		"model": map[string]any{
			"type": "BPE", "unk_token": "?", "vocab": map[string]int{"?": 0, space: 1, "a": 2, space + "a": 3}, "merges": []string{space + " a"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	tok, corpus, shards := filepath.Join(dir, "tokenizer.json"), filepath.Join(dir, "corpus.txt"), filepath.Join(dir, "tokens")
	if err := os.WriteFile(tok, file, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(corpus, []byte(strings.Repeat("a ", 20000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := cohort("tokenize", "encode", "--tokenizer", tok, "--data", corpus, "--out", shards); code != 0 {
		t.Fatal(stderr)
	}
	for first, want := range map[string]string{"0": "a a a\n", "5": " a a a\n"} {
		if _, got, stderr := cohort("tokenize", "decode", "--data", shards, "--first", first, "--tokens", "3"); got != want {
			t.Errorf("from token %s: %q, want %q %s", first, got, want, stderr)
		}
	}
}

func TestTokenizeRefuses(t *testing.T) {
	dir := t.TempDir()
	cut := filepath.Join(dir, "tokenizer.json")
	if err := os.WriteFile(cut, []byte(`{"model": {"type": "BPE", "vocab": {"a": 0`), 0o600); err != nil {
		t.Fatal(err)
	}
	small, err := json.Marshal(map[string]any{
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false}, "model": map[string]any{"type": "BPE", "vocab": map[string]int{"a": 0}, "merges": []string{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	tok := filepath.Join(dir, "small.json")
	if err := os.WriteFile(tok, small, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"tokenize encod", "did you mean encode?"},
		{"tokenize train --split gpt", "did you mean gpt2?"},
		{"tokenize train --split foo", `--split is "foo", want gpt2, llama3, code`},
		{"tokenize train --vocab 200", "--vocab is 200"},
		{"tokenize train --sample 0", "--sample is 0"},
		{"tokenize train --data " + filepath.Join(dir, "none"), "none is missing"},
		{"tokenize encode", "--tokenizer must name"},
		{"tokenize encode --tokenizer " + cut, cut + ": not a tokenizer.json"},
		{"tokenize encode --tokenizer " + dir + "/none", "none"},
		{"tokenize encode --tokenizer " + tok + " --data x", "--data needs --out"},
		{"tokenize encode --tokenizer " + tok + " --out x --shard-tokens 0", "--shard-tokens is 0"},
		{"tokenize encode --tokenizer " + tok + " --out x --end-of-text </s>", `--end-of-text is "</s>"`},
		{"tokenize decode", "give either --tokenizer"},
		{"tokenize decode --data " + dir, "there is no shards.json"},
	} {
		if code, _, stderr := cohort(strings.Fields(c.args)...); code == 0 || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: %d %s, want %q", c.args, code, stderr, c.want)
		}
	}
	for input, want := range map[string]string{"0 x": `word 2, "x", is no id`, "0 7": "id 7 at position 1"} {
		if _, err := cohortWith(t, input, "tokenize", "decode", "--tokenizer", tok); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("decode %s: %v, want %q", input, err, want)
		}
	}
}

func TestProgressBar(t *testing.T) {
	var b bytes.Buffer
	p := newProgressBar(&b)
	p.show(50, 100)
	if b.Len() > 0 {
		t.Errorf("a line at once: %q", b.String())
	}
	p.terminal = true
	p.began = p.began.Add(-1e9)
	p.show(50e6, 100e6)
	p.end()
	p.end()
	if got := b.String(); !strings.Contains(got, "[===============               ]  50 %    50.0 of 100.0 MB") || strings.Count(got, "\n") != 1 {
		t.Errorf("%q", got)
	}
}
