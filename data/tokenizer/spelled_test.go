// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

// reread returns the tokenizer of a family whose file was changed.
func reread(t *testing.T, name string, change func(doc, model map[string]any)) (*Tokenizer, error) {
	t.Helper()
	i := slices.IndexFunc(families().Families, func(f *family) bool { return f.Name == name })
	var doc map[string]any
	if err := json.Unmarshal(families().Families[i].file, &doc); err != nil {
		t.Fatal(err)
	}
	change(doc, doc["model"].(map[string]any))
	file, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return Read(bytes.NewReader(file))
}

// An added token in the vocabulary is looked for as it is spelled; what its
// spelling means as bytes stays the token of those bytes. That é, which is how
// the byte 0xe9 is spelled, is looked for does not leave 閕 (e9 96 95) without
// its first byte.
func TestAddedTokenIsAByte(t *testing.T) {
	var id int64
	tok, err := reread(t, "gpt2", func(doc, model map[string]any) {
		id = int64(model["vocab"].(map[string]any)["é"].(float64))
		doc["added_tokens"] = append(doc["added_tokens"].([]any), map[string]any{"id": id, "content": "é"})
	})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := reread(t, "gpt2", func(_, _ map[string]any) {})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := tok.Encode([]byte("閕")), plain.Encode([]byte("閕")); !slices.Equal(got, want) || want[0] != id {
		t.Errorf("got %d, want %d, of which the first is %d", got, want, id)
	}
	if got, err := tok.Decode(plain.Encode([]byte("閕"))); string(got) != "閕" {
		t.Errorf("閕 is decoded to %q (%v)", got, err)
	}
	if got := tok.Encode([]byte("é")); !slices.Equal(got, []int64{id}) {
		t.Errorf("é is %d, want %d", got, id)
	}
}

// Without a token for unknown characters these vanish, and the spaces around
// them merge, as in the Hugging Face library.
func TestUnknownBetweenSpaces(t *testing.T) {
	vocab := map[string]any{"\u2581": 0, "\u2581\u2581": 1, "\u2581\u2581\u2581": 2, "x": 3}
	tok, err := reread(t, "unknown", func(doc, model map[string]any) {
		doc["added_tokens"], doc["normalizer"], doc["pre_tokenizer"], doc["post_processor"] = []any{}, nil, nil, nil
		doc["normalizer"] = map[string]any{"type": "Replace", "pattern": map[string]any{"String": " "}, "content": "\u2581"}
		model["vocab"], model["unk_token"], model["byte_fallback"] = vocab, nil, false
		model["merges"] = []any{"\u2581 \u2581", "\u2581 \u2581\u2581", "\u2581\u2581 \u2581"}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode([]byte(" A  x")); !slices.Equal(got, []int64{2, 3}) {
		t.Errorf("got %d, want [2 3]", got)
	}
}

// Of two tokens that are one after normalization the library takes either, by
// chance.
func TestAddedTokensTheSameAfterNormalization(t *testing.T) {
	_, err := reread(t, "gemma", func(doc, model map[string]any) {
		size := len(model["vocab"].(map[string]any))
		for i, content := range []string{"a b", "a\u2581b"} {
			doc["added_tokens"] = append(doc["added_tokens"].([]any), map[string]any{"id": size + i, "content": content, "normalized": true})
		}
	})
	var format *FormatError
	if !errors.As(err, &format) || !strings.Contains(err.Error(), "the same after normalization") {
		t.Error(err)
	}
}

// Tokens that are looked for after normalization are looked for in what lies
// between the others, where a text begins and ends.
func TestSingleWordBesideAnother(t *testing.T) {
	var size int
	tok, err := reread(t, "gpt2", func(doc, model map[string]any) {
		size = len(model["vocab"].(map[string]any))
		doc["added_tokens"] = []any{
			map[string]any{"id": size, "content": "one\u2603"}, map[string]any{"id": size + 1, "content": "two"},
			map[string]any{"id": size + 2, "content": "<s>", "single_word": true, "normalized": true},
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	one, two, s := int64(size), int64(size+1), int64(size+2)
	for text, want := range map[string][]int64{"one\u2603<s>two": {one, s, two}, "two<s>": {two, s}, "two<s><s>": {two, s, s}} {
		if got := tok.Encode([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("%q is %d, want %d", text, got, want)
		}
		stream, got, pos := tok.NewStream(), []int64(nil), 0
		for end := 1; end <= len(text); end++ {
			var n int
			got, n = stream.Append(got, []byte(text[pos:end]), 1<<30, end == len(text))
			pos += n
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q byte by byte is %d, want %d", text, got, want)
		}
	}
	if got := tok.Encode([]byte("x<s>")); slices.Contains(got, s) {
		t.Errorf("x<s> is %d", got)
	}
}

// A mark that is put before a text is no part of the word after it, also where
// the tokens are taken one by one.
func TestSingleWordAfterTheLead(t *testing.T) {
	for name, content := range map[string]string{"llama2": "read", "gpt2-added": "read"} {
		tok, err := reread(t, name, func(doc, model map[string]any) {
			added, size := doc["added_tokens"].([]any), len(model["vocab"].(map[string]any))
			for _, a := range added {
				if _, ok := model["vocab"].(map[string]any)[a.(map[string]any)["content"].(string)]; !ok {
					size++
				}
			}
			doc["added_tokens"] = append(added,
				map[string]any{"id": size, "content": "one\u2603k"}, map[string]any{"id": size + 1, "content": content + "\u2603", "single_word": true, "normalized": true})
		})
		if err != nil {
			t.Fatal(err)
		}
		text := []byte("one\u2603k read\u2603 one\u2603kread\u2603")
		want := tok.Encode(text)
		stream, got, pos := tok.NewStream(), []int64(nil), 0
		for pos < len(text) {
			var n int
			got, n = stream.Append(got, text[pos:], len(got)+1, true)
			pos += n
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: one by one %d, want %d", name, got, want)
		}
	}
}
