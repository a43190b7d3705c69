// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"encoding/binary"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var big = flag.String("big", "", "`directory` that testdata/big.py has filled: compare with the Hugging Face tokenizers on whole vocabularies")

var texts = flag.String("texts", "", "`files` to encode in BenchmarkBig, with commas between")

type bigCase struct {
	text      []byte
	ids, full []int64
}

func readCases(t testing.TB, path string) []bigCase {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	take := func(n int) []byte {
		if n > len(b) {
			t.Fatalf("%s is cut", path)
		}
		head := b[:n]
		b = b[n:]
		return head
	}
	ids := func(n int) []int64 {
		raw := take(4 * n)
		out := make([]int64, n)
		for i := range out {
			out[i] = int64(binary.LittleEndian.Uint32(raw[4*i:]))
		}
		return out
	}
	var cases []bigCase
	for len(b) > 0 {
		head := take(12)
		size := func(i int) int { return int(binary.LittleEndian.Uint32(head[4*i:])) }
		cases = append(cases, bigCase{take(size(0)), ids(size(1)), ids(size(2))})
	}
	return cases
}

// TestBig wants -big DIR and takes a minute.
func TestBig(t *testing.T) {
	if *big == "" {
		t.Skip("needs -big DIR")
	}
	paths, err := filepath.Glob(filepath.Join(*big, "*", "cases.bin"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases in %s (%v)", *big, err)
	}
	for _, path := range paths {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			tok, err := Load(dir)
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if err := tok.Write(&b); err != nil {
				t.Fatal(err)
			}
			again, err := Read(&b)
			if err != nil {
				t.Fatal(err)
			}
			if again.Fingerprint() != tok.Fingerprint() {
				t.Error("written and read, it is another tokenizer")
			}
			failed, size := 0, 0
			for i, c := range readCases(t, path) {
				size += len(c.text)
				got, full := tok.Encode(c.text), tok.EncodeInput(c.text)
				if slices.Equal(got, c.ids) && slices.Equal(full, c.full) {
					continue
				}
				if failed++; failed > 5 {
					t.Fatal("and so on")
				}
				at := 0
				for at < min(len(got), len(c.ids)) && got[at] == c.ids[at] {
					at++
				}
				before, _ := tok.Decode(c.ids[:at])
				t.Errorf("case %d: after %.60q (%d tokens), %.60q: got %v, want %v", i, before[max(0, len(before)-40):], at, c.text[:min(60, len(c.text))], got[at:min(at+6, len(got))], c.ids[at:min(at+6, len(c.ids))])
			}
			t.Logf("%d bytes", size)
		})
	}
}

// BenchmarkBig wants -big DIR and texts to encode:
//
//	go test ./data/tokenizer -run '^$' -bench Big -cpu 1 -big DIR -texts english.txt,code.txt
func BenchmarkBig(b *testing.B) {
	if *big == "" || *texts == "" {
		b.Skip("needs -big DIR and -texts FILE,FILE")
	}
	for _, kind := range []string{"gpt2", "llama3", "llama2"} {
		tok, err := Load(filepath.Join(*big, kind))
		if err != nil {
			b.Fatal(err)
		}
		for _, path := range strings.Split(*texts, ",") {
			text, err := os.ReadFile(path)
			if err != nil {
				b.Fatal(err)
			}
			b.Run(kind+"/"+filepath.Base(path), func(b *testing.B) {
				ids := make([]int64, 0, len(text))
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					ids = tok.Append(ids[:0], text)
				}
				b.ReportMetric(float64(len(text))/float64(len(ids)), "B/token")
			})
		}
	}
}
