// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// The whole of a text is looked at, and what is wrong is told with its place.
func TestCorpusChecksAll(t *testing.T) {
	line := strings.Repeat("a line of text, 世界\n", 40_000) // 1 MB
	at := func(n int, bad string) string { return line[:n] + bad + line[n:] }
	cut := strings.LastIndex(line[:600_000], "\n") + 1
	for name, f := range map[string]struct{ text, want string }{
		"invalid":   {at(cut, "caf\xe9!"), fmt.Sprintf("line %d, at byte %d of the file, is not valid UTF-8: 0xe9", strings.Count(line[:cut], "\n")+1, cut+3)},
		"zero":      {at(cut, "\x00"), fmt.Sprintf("line %d, at byte %d of the file, is a zero byte", strings.Count(line[:cut], "\n")+1, cut)},
		"last":      {line + "\xe4\xb8", fmt.Sprintf("at byte %d of the file, is not valid UTF-8: 0xe4", len(line))},
		"surrogate": {at(cut, "\xed\xa0\x80"), "is not valid UTF-8: 0xed"},
		"overlong":  {at(cut, "\xc0\x80"), "is not valid UTF-8: 0xc0"},
		"early":     {"ab\ncd\xff" + line, "line 2, at byte 5 of the file, is not valid UTF-8: 0xff"},
	} {
		dir := write(t, map[string]string{name + ".txt": f.text, "good.txt": line, "other.txt": prose("o", 40_000)})
		_, err := OpenCorpus(t.Context(), filepath.Join(dir, name+".txt"))
		var source *SourceError
		if !errors.As(err, &source) || source.Problem != NotText || !strings.Contains(err.Error(), f.want) {
			t.Errorf("%s: %v, want %q", name, err, f.want)
		}
		// Among others it is left out, and that is told.
		c, err := OpenCorpus(t.Context(), dir)
		if err != nil || c.Skipped != 1 || !strings.Contains(c.Note(), f.want) || !strings.Contains(c.Note(), name+".txt") {
			t.Errorf("%s in a directory: %v", name, err)
		} else if c.Train.Size()+c.Validation.Size() != int64(len(line)+40_000) {
			t.Errorf("%s: %d and %d bytes", name, c.Train.Size(), c.Validation.Size())
		}
	}
	// Where pieces of the file that are read at once end, characters go on.
	r := rand.New(rand.NewPCG(9, 0))
	for range 20 {
		text := strings.Repeat("x", r.IntN(4)) + strings.Repeat("世é😀a", 100_000)
		path := filepath.Join(t.TempDir(), "a.txt")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenCorpus(t.Context(), path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCorpusNamesWhatIsNoText(t *testing.T) {
	rest := prose("rest", 20_000)
	utf16 := func(text string, high int) string {
		b := make([]byte, 2*len(text))
		for i := range text {
			b[2*i+1-high] = text[i]
		}
		return string(b)
	}
	for name, f := range map[string][2]string{
		"gzip":    {"\x1f\x8b\x08\x00\x00" + rest, "compressed by gzip"},
		"zip":     {"PK\x03\x04\x14\x00" + rest, "zip archive"},
		"pdf":     {"%PDF-1.7\n" + rest, "a PDF document"},
		"utf16":   {"\xff\xfe" + utf16(rest, 0), "UTF-16 text"},
		"big":     {"\xfe\xff" + utf16(rest, 1), "UTF-16 text"},
		"bare16":  {utf16(rest, 1), "looks like UTF-16"},
		"bare32":  {utf16(utf16(rest, 0), 0), "looks like UTF-32"},
		"parquet": {"PAR1\x15\x04" + rest + "\x00PAR1", "Parquet"},
		"tar":     {"a" + strings.Repeat("\x00", 256) + "ustar" + rest, "a tar archive"},
		"pickle":  {"\x80\x04\x95" + rest, "pickle"},
	} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(f[0]), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenCorpus(t.Context(), path)
		var source *SourceError
		if !errors.As(err, &source) || source.Problem != NotText || !strings.Contains(err.Error(), f[1]) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A byte order mark is no part of a text.
func TestCorpusByteOrderMark(t *testing.T) {
	text := prose("bom", 30_000)
	dir := write(t, map[string]string{"a.txt": byteOrderMark + text})
	c, err := OpenCorpus(t.Context(), filepath.Join(dir, "a.txt"))
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 10)
	if _, err := c.Train.ReadAt(b, 0); err != nil || string(b) != text[:10] || c.Train.Size()+c.Validation.Size() != int64(len(text)) {
		t.Errorf("%q of %d and %d bytes (%v)", b, c.Train.Size(), c.Validation.Size(), err)
	}
}

func TestCorpusRefusesRecords(t *testing.T) {
	many := func(s string) string { return strings.Repeat(s, 30_000/len(s)+2) }
	chat := `{"messages": [{"role": "user", "content": "six times seven?"}, {"role": "assistant", "content": "42"}]}` + "\n"
	list := func(s string) string { return "[" + strings.TrimSuffix(many(s+",\n"), ",\n") + "]" }
	for name, f := range map[string]struct{ text, kind string }{
		"chat.jsonl":      {many(chat), "lines of JSON"},
		"chat.txt":        {many(chat), "lines of JSON"},
		"chat":            {byteOrderMark + "\n" + many(chat), "lines of JSON"},
		"numbers.jsonl":   {many("{\"a\": 1}\n"), "lines of JSON"},
		"lists.txt":       {many("[\"a\", \"b\"]\n"), "lines of JSON"},
		"pretty.txt":      {many("{\n  \"a\": 1\n}\n"), "lines of JSON"},
		"one.jsonl":       {`{"text": "` + many("x") + `"}`, "lines of JSON"},
		"long.txt":        {`{"text": "` + strings.Repeat("x", 300_000) + `", "messages": []}`, ""},
		"alpaca.json":     {list(`{"instruction": "say", "input": "", "output": "hey"}`), "JSON with conversations"},
		"sharegpt.txt":    {list(`{"id": 1, "conversations": [{"from": "human", "value": "a"}]}`), "JSON with conversations"},
		"lists.json":      {list(`[{"role": "user", "content": "a"}]`), "JSON with conversations"},
		"texts.json":      {list(`{"text": "a", "label": 1}`), "a list of JSON objects"},
		"squad.json":      {`{"version": "1.1", "data": ` + list(`{"paragraphs": [{"context": "c", "qas": [{"question": "q", "answers": []}]}]}`) + `}`, "JSON with conversations"},
		"huge.json":       {"[" + strings.Repeat(`{"prompt": "`+strings.Repeat("p", 5000)+`", "completion": "c"},`, 100) + "{}]", "JSON with conversations"},
		"table.csv":       {"a,b\n" + many("1,2\n"), "a table"},
		"table.tsv":       {"a\tb\n" + many("1\t2\n"), "a table"},
		"questions.txt":   {"question,answer\n" + many("\"a, b\",c\n"), "a table"},
		"config.json":     {`{"name": "x", "list": [` + strings.TrimSuffix(many(`{"port": 1, "hosts": ["a"]},`), ",") + `]}`, ""},
		"program.js":      {"[1, 2].forEach(x => {\n" + many("  f(x);\n") + "})\n", ""},
		"braces.c":        {"{\n" + many("  {1, 2},\n") + "}\n", ""},
		"names.json":      {"[" + strings.TrimSuffix(many(`"a",`), ",") + "]", ""},
		"prose.txt":       {"Text, content and more.\n" + many("A line, with a comma.\nNone here.\n"), ""},
		"dialogue.txt":    {many("User: hi\nAssistant: hello\n\n"), ""},
		"front.md":        {"{#top}\n# Title\n" + many("text\n"), ""},
		"notes.csv.txt":   {many("one line\n"), ""},
		"log.txt":         {many("12:00 {\"a\": 1}\n"), ""},
		"ending.json.txt": {"{\"a\": 1}\n" + many("and now text\n"), ""},
	} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(f.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenCorpus(t.Context(), path)
		var source *SourceError
		switch {
		case f.kind == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case f.kind != "" && (!errors.As(err, &source) || source.Problem != Records || source.Path != path || source.Detail != f.kind || !strings.Contains(err.Error(), "is a file of records")):
			t.Errorf("%s: %v, want %s", name, err, f.kind)
		}
	}
}

// Among source code and documents records are text, and are told of; a
// directory that is mostly records is refused.
func TestCorpusRecordsInADirectory(t *testing.T) {
	chat := strings.Repeat(`{"prompt": "a", "completion": "b"}`+"\n", 600)
	fixtures := "[" + strings.Repeat(`{"port": 1},`, 9000) + "{}]"
	files := map[string]string{"src/a.go": prose("a", 60_000), "package.json": `{"name": "x"}`, "testdata/list.json": fixtures, "testdata/chat.jsonl": chat}
	c, err := OpenCorpus(t.Context(), write(t, files))
	if err != nil || !strings.HasSuffix(c.Note(), "that are read as the text that they are: 1, the first is testdata/chat.jsonl") {
		t.Errorf("a program with some records: %v", err)
	}
	dir := write(t, map[string]string{"train.jsonl": chat, "test.jsonl": chat, "README.md": prose("r", 9000)})
	_, err = OpenCorpus(t.Context(), dir)
	var source *SourceError
	if !errors.As(err, &source) || source.Problem != Records || filepath.Dir(source.Path) != dir {
		t.Errorf("a directory of records: %v", err)
	}
}

// A text of a few kB is enough for a small context, and is parted without loss.
func TestCorpusOfAFewKilobytes(t *testing.T) {
	for _, size := range []int{minCorpus, 2000, 4380, 10_000, smallCorpus - 1, smallCorpus} {
		for name, text := range map[string]string{"lines": prose("small", size), "one line": strings.Repeat("世", size/3+1)} {
			c, err := OpenCorpus(t.Context(), filepath.Join(write(t, map[string]string{"a.txt": text}), "a.txt"))
			if err != nil {
				t.Errorf("%d bytes: %v", size, err)
				continue
			}
			train, val := c.Train.Size(), c.Validation.Size()
			if train+val != int64(len(text)) || val < int64(len(text))/25 || val > int64(len(text))/5 {
				t.Errorf("%s: %d bytes are parted into %d and %d", name, len(text), train, val)
			}
			b := make([]byte, val)
			if _, err := c.Validation.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) || len(text) < smallCorpus && !utf8.Valid(b) {
				t.Errorf("%s: the validation text is cut inside a character (%v)", name, err)
			}
		}
	}
}

func TestCheckTextEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.txt")
	if err := os.WriteFile(path, []byte(prose("a", 400_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &file{name: "a.txt", path: path, size: 500_000} // as it was
	var source *SourceError
	if _, err := f.checkText(t.Context(), []byte("a")); !errors.As(err, &source) || source.Problem != Changed {
		t.Errorf("a file that became shorter: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.size = 400_000
	if _, err := f.checkText(ctx, []byte("a")); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
}
