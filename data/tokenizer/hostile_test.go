// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/loaded"
)

// What a small file may ask for, of time and of memory, is bounded.
func TestDecodersThatAskForMuch(t *testing.T) {
	const file = `{"decoder": %s, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "model": {"type": "BPE", "merges": [], "vocab": {"a": 0, "b": 1}}}`
	sequence := func(n int, part string) string {
		return `{"type": "Sequence", "decoders": [` + strings.TrimSuffix(strings.Repeat(part+",", n), ",") + `]}`
	}
	tok, err := Read(strings.NewReader(fmt.Sprintf(file, `{"type": "Strip", "content": "a", "start": 9000000000000000000, "stop": 0}`)))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := tok.Decode([]int64{0, 1, 0}); err != nil || string(b) != "b" {
		t.Errorf("%q, %v", b, err)
	}
	for decoder, want := range map[string]string{
		sequence(40, `{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}`): "times as long",
		sequence(65, `{"type": "Fuse"}`):                                                 "65 parts",
	} {
		_, err := Read(strings.NewReader(fmt.Sprintf(file, decoder)))
		var format *FormatError
		if !errors.As(err, &format) || format.Field != "decoder" || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A folder may list as many tokens as there is room for.
func TestFolderOfManyTokens(t *testing.T) {
	const num = 60_000
	list, object := make([]string, num), make([]string, num)
	for i := range num {
		list[i], object[i] = fmt.Sprintf(`"t%06d"`, i), fmt.Sprintf(`"n%06d": "t%06d"`, i, i)
	}
	for name, extra := range map[string]string{"list": "[" + strings.Join(list, ",") + "]", "object": "{" + strings.Join(object, ",") + "}"} {
		dir := t.TempDir()
		for name, content := range map[string]string{jsonFile: string(families().Families[0].file), settingsFile: `{"extra_special_tokens": ` + extra + `}`} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		tok, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(tok.Encode([]byte("t000000t059999"))); n != 2 {
			t.Errorf("%s: %d tokens, want 2", name, n)
		}
		if took, most := time.Since(began), loaded.Allow(5*time.Second); took > most {
			t.Errorf("%s: %v, want at most %v", name, took, most)
		}
	}
}
