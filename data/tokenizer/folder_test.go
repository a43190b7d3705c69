// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var foldersFile = flag.String("folders", filepath.Join("testdata", "folders.json"), "`file` that testdata/folders.py wrote")

// folderCase is a folder drawn at random, and what AutoTokenizer gives for it.
type folderCase struct {
	Base  string                     `json:"base"`
	File  bool                       `json:"file"` // it has a tokenizer.json
	Parts map[string]json.RawMessage `json:"parts"`
	Files map[string]json.RawMessage `json:"files"`
	Class string                     `json:"class"`
	Texts [][5]json.RawMessage       `json:"texts"` // text, ids, ids with what is around it, these decoded, without special tokens
}

func (c *folderCase) write(t *testing.T, dir string) {
	t.Helper()
	i := slices.IndexFunc(families().Families, func(f *family) bool { return f.Name == c.Base })
	f := families().Families[i]
	for name, content := range c.Files {
		writeFolder(t, dir, name, content)
	}
	if !c.File {
		writeGPT2(t, dir, f)
		return
	}
	var doc map[string]json.RawMessage
	unmarshal(t, f.file, &doc)
	for k, v := range c.Parts {
		doc[k] = v
	}
	writeFolder(t, dir, jsonFile, doc)
}

func writeFolder(t *testing.T, dir, name string, v any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A folder's files, all of them, make the tokenizer that AutoTokenizer makes.
func TestFolders(t *testing.T) {
	b, err := os.ReadFile(*foldersFile)
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Cases []*folderCase `json:"cases"`
	}
	unmarshal(t, b, &golden)
	wrong, texts, dir := 0, 0, t.TempDir()
	for _, c := range golden.Cases {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		c.write(t, dir)
		bad := false
		fail := func(format string, args ...any) {
			if wrong < 12 {
				t.Errorf(format, args...)
			}
			bad = true
		}
		tok, err := Load(dir)
		if err != nil {
			fail("%v", err)
		} else {
			for _, want := range c.Texts {
				texts++
				var text string
				var ids, full []int64
				unmarshal(t, want[0], &text)
				unmarshal(t, want[1], &ids)
				unmarshal(t, want[2], &full)
				if got := tok.Encode([]byte(text)); !slices.Equal(got, ids) {
					fail("Encode(%q)\n got %d\nwant %d", text, got, ids)
				}
				if got := tok.EncodeInput([]byte(text)); !slices.Equal(got, full) {
					fail("EncodeInput(%q)\n got %d\nwant %d", text, got, full)
				}
				checkDecoded(t, fail, tok, full, want[3], want[4])
			}
		}
		if bad {
			wrong++
			files, _ := json.Marshal(c.Files)
			if wrong < 12 {
				parts, _ := json.Marshal(c.Parts)
				t.Logf("%s of %s (tokenizer.json: %t) with %s and %s", c.Class, c.Base, c.File, parts, files)
			}
		}
	}
	t.Logf("%d folders, %d texts, %d folders wrong", len(golden.Cases), texts, wrong)
	if texts < 100 {
		t.Errorf("%d texts", texts)
	}
}

// What would change ids and is not known is refused by name.
func TestFolderRefused(t *testing.T) {
	for _, c := range []struct{ file, content, want string }{
		{settingsFile, `{"tokenizer_class": "WhisperTokenizer"}`, `tokenizer_class: "WhisperTokenizer" is not supported`},
		{settingsFile, `{"tokenizer_class": "BertTokenizer"}`, `a BertTokenizer needs a WordPiece, not a BPE`},
		{settingsFile, `{"split_special_tokens": true}`, "split_special_tokens"},
		{settingsFile, `{"auto_map": {"AutoTokenizer": ["a.B", null]}}`, "auto_map"},
		{settingsFile, `{"fast_tokenizer_files": ["tokenizer.json", "tokenizer.4.0.json"]}`, "fast_tokenizer_files"},
		{settingsFile, `{"clean_up_tokenization_spaces": true, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": true}`, "clean_up"},
		{settingsFile, `{"added_tokens_decoder": {"9": {"content": "x", "strange": 1}}}`, `added_tokens_decoder["9"]`},
		{settingsFile, `{"added_tokens_decoder": {"x": {"content": "x"}}}`, "is no id"},
		{settingsFile, `{"bos_token": 3}`, "bos_token: 3 is no token"},
		{settingsFile, `[]`, "must be an object"},
		{settingsFile, `{`, "not a tokenizer_config.json"},
		{specialsFile, `{"pad_token": []}`, "pad_token"},
		{addedFile, `{"<x>": "one"}`, "<x>: must be a number"},
		{addedFile, `{"<x>": 900, "<y>": 900}`, "two tokens"},
		{modelFile, `{"model_type": "bert"}`, `a BertTokenizer needs a WordPiece`},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, jsonFile), families().Families[0].file, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(dir)
		var format *FormatError
		if !errors.As(err, &format) || !strings.Contains(err.Error(), c.want) || filepath.Dir(format.Path) != dir {
			t.Errorf("%s %s: %v", c.file, c.content, err)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.model"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "has a tokenizer.model, but no tokenizer.json") {
		t.Error(err)
	}
}

func FuzzFolder(f *testing.F) {
	f.Add([]byte(`{"tokenizer_class": "GPT2Tokenizer", "bos_token": {"__type": "AddedToken", "content": "<x>", "lstrip": true}}`), []byte(`{"pad_token": "<pad>"}`), []byte(`{"<y>": 900}`))
	f.Add([]byte(`{"added_tokens_decoder": {"900": {"content": "a"}}, "extra_special_tokens": {"a_token": "b"}}`), []byte(`{}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, settings, specials, added []byte) {
		dir := t.TempDir()
		for name, b := range map[string][]byte{settingsFile: settings, specialsFile: specials, addedFile: added, jsonFile: families().Families[0].file} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		tok, err := Load(dir)
		if err != nil {
			return
		}
		if _, err := tok.DecodeText(tok.EncodeInput([]byte("a <x> b"))); err != nil {
			t.Error(err)
		}
	})
}
