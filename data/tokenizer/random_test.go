// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unicode/utf8"
)

var randomFile = flag.String("tokenizers", filepath.Join("testdata", "random.json"), "`file` that testdata/random.py wrote")

// randomCase is a tokenizer drawn at random, and what the Hugging Face library
// does with it.
type randomCase struct {
	Base  string                     `json:"base"` // the family whose vocabulary it has
	Model map[string]json.RawMessage `json:"model"`
	Parts map[string]json.RawMessage `json:"parts"`
	Texts [][4]json.RawMessage       `json:"texts"` // text, ids, decoded, decoded without special tokens
	IDs   [][3]json.RawMessage       `json:"ids"`
}

func (c *randomCase) read(t *testing.T) *Tokenizer {
	t.Helper()
	i := slices.IndexFunc(families().Families, func(f *family) bool { return f.Name == c.Base })
	var doc, model map[string]json.RawMessage
	if err := json.Unmarshal(families().Families[i].file, &doc); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(doc["model"], &model); err != nil {
		t.Fatal(err)
	}
	for k, v := range c.Model {
		model[k] = v
	}
	for k, v := range c.Parts {
		doc[k] = v
	}
	var err error
	if doc["model"], err = json.Marshal(model); err != nil {
		t.Fatal(err)
	}
	file, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Read(bytes.NewReader(file))
	if err != nil {
		t.Errorf("%v: %s", err, c.Parts)
	}
	return tok
}

// Added tokens of every kind, in tokenizers of every kind, are found and
// decoded as by the Hugging Face library, also where the text comes in pieces.
func TestRandomTokenizers(t *testing.T) {
	b, err := os.ReadFile(*randomFile)
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Cases []*randomCase `json:"cases"`
	}
	if err := json.Unmarshal(b, &golden); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(83, 0))
	texts, wrong := 0, 0
	for _, c := range golden.Cases {
		tok := c.read(t)
		if tok == nil {
			wrong++
			continue
		}
		fail := func(format string, args ...any) {
			if wrong++; wrong < 20 {
				t.Errorf(format, args...)
				parts, _ := json.Marshal(c.Parts)
				t.Logf("of %s with %s and %s", c.Base, c.Model, parts)
			}
		}
		for _, want := range c.Texts {
			texts++
			var text string
			var ids []int64
			unmarshal(t, want[0], &text)
			unmarshal(t, want[1], &ids)
			if got := tok.Encode([]byte(text)); !slices.Equal(got, ids) {
				fail("Encode(%q)\n got %d\nwant %d", text, got, ids)
			}
			checkDecoded(t, fail, tok, ids, want[2], want[3])
			stream, got := tok.NewStream(), []int64(nil)
			for pos, avail := 0, 0; pos < len(text); {
				avail = min(avail+1+r.IntN(20), len(text))
				var n int
				got, n = stream.Append(got, []byte(text[pos:avail]), len(got)+1+r.IntN(8), avail == len(text))
				pos += n
			}
			if !slices.Equal(got, ids) {
				fail("in pieces, Encode(%q)\n got %d\nwant %d", text, got, ids)
			}
		}
		for _, want := range c.IDs {
			var ids []int64
			unmarshal(t, want[0], &ids)
			checkDecoded(t, fail, tok, ids, want[1], want[2])
		}
	}
	t.Logf("%d tokenizers, %d texts, %d wrong", len(golden.Cases), texts, wrong)
	if texts < 100 {
		t.Errorf("%d texts", texts)
	}
}

func checkDecoded(t *testing.T, fail func(string, ...any), tok *Tokenizer, ids []int64, all, plain json.RawMessage) {
	t.Helper()
	for i, decode := range []func([]int64) ([]byte, error){tok.Decode, tok.DecodeText} {
		var want string
		unmarshal(t, [...]json.RawMessage{all, plain}[i], &want)
		// The library decodes bytes that are no valid UTF-8 to U+FFFD, one or several.
		if got, err := decode(ids); err != nil || string(got) != want && utf8.Valid(got) {
			fail("without special tokens: %t, %d is decoded to\n     %q\nwant %q (%v)", i == 1, ids, got, want, err)
		}
	}
}

func unmarshal(t *testing.T, raw json.RawMessage, v any) {
	t.Helper()
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatal(err)
	}
}
