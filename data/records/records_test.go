// SPDX-License-Identifier: Apache-2.0

package records

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// write makes a file of a test.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// open opens records with a cache of their own.
func open(t *testing.T, path string) *Set {
	t.Helper()
	s, err := Open(t.Context(), path, Options{Cache: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// all reads every record.
func all(t *testing.T, s *Set) []Record {
	t.Helper()
	rows := make([]Record, s.Len())
	for i := range rows {
		var err error
		if rows[i], err = s.Read(i); err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

func TestLinesAndLists(t *testing.T) {
	want := []Record{
		{"text": "one\n", "n": int64(1), "f": 0.5, "b": true, "z": nil},
		{"text": "zwei ü 😀", "l": []any{int64(1), "x", Record{"y": []any{}}}, "n": int64(math.MinInt64)},
		{"text": "", "n": 1e30},
	}
	lines := []string{
		`{"text": "one\n", "n": 1, "f": 5e-1, "b": true, "z": null}`,
		`  {"text":"zwei \u00fc \ud83d\ude00","l":[1,"x",{"y":[]}],"n":-9223372036854775808}  `,
		`{"text": "", "n": 1000000000000000000000000000000}`,
	}
	for name, text := range map[string]string{
		"a.jsonl":        strings.Join(lines, "\n") + "\n",
		"end.jsonl":      strings.Join(lines, "\n"),
		"crlf.ndjson":    strings.Join(lines, "\r\n") + "\r\n",
		"blank.jsonl":    "\n \t\n" + strings.Join(lines, "\n\r\n\n") + "\n\n",
		"mark.jsonl":     byteOrderMark + strings.Join(lines, "\n"),
		"lines.json":     strings.Join(lines, "\n"),
		"list.json":      "[" + strings.Join(lines, ",") + "]",
		"indented.json":  " [\n" + strings.Join(lines, "\n ,\n") + "\n]\n",
		"marklist.json":  byteOrderMark + "[" + strings.Join(lines, ",\n") + "]",
		"blankmark.JSON": byteOrderMark + "\n" + strings.Join(lines, "\n\n"),
	} {
		s := open(t, write(t, name, text))
		if got := all(t, s); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\nwant %v", name, got, want)
		}
	}
}

func TestRaw(t *testing.T) {
	s := open(t, write(t, "a.jsonl", `{"a": {"z": 1, "b" : [2 ]}, "c": 1, "d": 2}`))
	r, err := s.ReadFields(0, func(field string) Want { return map[string]Want{"a": Raw, "c": Take}[field] })
	if want := (Record{"a": json.RawMessage(`{"z": 1, "b" : [2 ]}`), "c": int64(1)}); err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("%v, %v, want %v", r, err, want)
	}
}

// TestLargeFile: the index of a large file lies in the cache, is used again, and notices another file.
func TestLargeFile(t *testing.T) {
	var b bytes.Buffer
	n := 0
	for ; b.Len() <= smallFile; n++ {
		fmt.Fprintf(&b, "{\"i\": %d, \"text\": %q}\n", n, strings.Repeat("word ", n*37%2000))
		if n%1000 == 0 {
			b.WriteString("\n")
		}
	}
	path := write(t, "large.jsonl", b.String())
	dir := t.TempDir()
	var told []string
	opened := func() *Set {
		s, err := Open(t.Context(), path, Options{Cache: dir, Notice: func(text string) { told = append(told, text) }})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := opened()
	if s.Len() != n {
		t.Fatalf("%d records, want %d", s.Len(), n)
	}
	for _, i := range []int{0, 1, 999, 1000, 1001, n - 1, n / 2} {
		r, err := s.ReadFields(i, func(field string) Want {
			if field == "i" {
				return Take
			}
			return Leave
		})
		if err != nil || !reflect.DeepEqual(r, Record{"i": int64(i)}) {
			t.Errorf("record %d is %v, %v", i, r, err)
		}
	}
	print1 := s.Fingerprint()
	s.Close()
	s = opened()
	if len(told) != 1 || s.Fingerprint() != print1 {
		t.Errorf("told %q, the fingerprint is %s, was %s", told, s.Fingerprint(), print1)
	}
	// The file changes under the set: what stands before a record tells.
	if err := os.WriteFile(path, append([]byte("{\"new\": 1}"), b.Bytes()[5:]...), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(n / 2); err == nil || !strings.Contains(err.Error(), "has changed since it was opened") {
		t.Errorf("a changed file: %v", err)
	}
	s.Close()
	if s = opened(); s.Fingerprint() == print1 {
		t.Error("another file has the same fingerprint")
	}
	s.Close()
	// A damaged index is made anew.
	at, err := filepath.Glob(filepath.Join(dir, "*"+indexEnding))
	if err != nil || len(at) != 1 {
		t.Fatal(at, err)
	}
	if err := os.Truncate(at[0], 1000); err != nil {
		t.Fatal(err)
	}
	s = opened()
	defer s.Close()
	if left, _ := os.ReadDir(dir); len(left) != 1 || s.Len() != n {
		t.Errorf("%d records, the cache has %v", s.Len(), left)
	}
}

func TestBadFiles(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a.jsonl", "{\"a\": 1}\n{\"a\": \n", "a.jsonl:2: no JSON: it ends too early: want a value"},
		{"a.jsonl", "\n\n[1]\n", "a.jsonl:3: no JSON at byte 1: want a JSON object"},
		{"a.jsonl", "{\"a\": 1, \"a\": 2}", `a.jsonl:1: no JSON at byte 13: the field "a" is there twice`},
		{"a.jsonl", "{\"a\": \"\xff\"}", "a.jsonl:1: byte 8 is no UTF-8 (0xff)"},
		{"a.jsonl", `{"a": "\ud800"}`, "half a surrogate pair"},
		{"a.jsonl", `{"a": NaN}`, "NaN is no JSON, though Python writes it"},
		{"a.jsonl", `{"a": -Infinity}`, "-Infinity is no JSON"},
		{"a.jsonl", `{"a": 1e999}`, "too large"},
		{"a.jsonl", `{"a": 01}`, "begins with 0"},
		{"a.jsonl", "{\"a\": \"\t\"}", "control character 0x09"},
		{"a.jsonl", `{"a": 1} {"b": 2}`, "there is more after the JSON object"},
		{"a.jsonl", `{"a": ` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "}", "more than 64 deep"},
		{"a.jsonl", `{'a': 1}`, "in double quotes"},
		{"a.jsonl", "", "has no records: it is empty"},
		{"a.jsonl", "\n \n", "has no records"},
		{"a.json", "[]", "has no records"},
		{"a.json", "[{\"a\": 1}", "a.json: no list of JSON objects at byte 9: want , or ] after element 1; the file ends too early"},
		{"a.json", "[{\"a\": 1}, 2]", "element 2 of the list is no object"},
		{"a.json", "[{\"a\": 1}] x", "there is more after the list"},
		{"a.json", "{\"data\": [{}]\n}", "a.json:1: no JSON: it ends too early"},
		{"a.csv", "a,b\n", "is of no known format: its name must end with one of .jsonl"},
		{"a.json", `[{"a": tru}]`, "a.json, record 1: no JSON at byte 7: want a value"},
	} {
		s, err := Open(t.Context(), write(t, c.name, c.text), Options{Cache: t.TempDir()})
		for i := 0; err == nil && i < s.Len(); i++ {
			_, err = s.Read(i)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text[:min(40, len(c.text))], err, c.want)
		}
		if bad := (*Error)(nil); err != nil && (!errors.As(err, &bad) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q: %v is no *Error of one line", c.text, err)
		}
		if s != nil {
			s.Close()
		}
	}
	path := write(t, "long.jsonl", "{}\n{\"a\": \""+strings.Repeat("x", maxRecord)+"\"}\n")
	if _, err := Open(t.Context(), path, Options{Cache: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "long.jsonl:2: the line has more than 64 MiB") {
		t.Errorf("a long line: %v", err)
	}
}

func TestFolders(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("b.jsonl", "{\"i\": 2}\n{\"i\": 3}\n")
	put("a/z.jsonl", "{\"i\": 1}\n")
	put(".hidden/z.jsonl", "{\"i\": 9}\n")
	put("empty.jsonl", "")
	put("README.md", "about")
	if !Is(dir) || !Is(filepath.Join(dir, "b.jsonl")) || Is(t.TempDir()) || Is("") {
		t.Error("Is does not know records from others")
	}
	want := []Record{{"i": int64(1)}, {"i": int64(2)}, {"i": int64(3)}}
	s := open(t, dir)
	if got := all(t, s); !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
	if s = open(t, filepath.Join(dir, "*.jsonl")); s.Len() != 2 {
		t.Errorf("the glob has %d records", s.Len())
	}
	err := s.At(1, &FieldError{"x.y", "is odd"})
	if want := filepath.Join(dir, "b.jsonl") + `:2: field "x.y": is odd`; err == nil || err.Error() != "records: "+want {
		t.Errorf("%v, want %s", err, want)
	}
	put("c.json", "[{}]")
	if _, err := Open(t.Context(), dir, Options{Cache: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "name the files of one of them") {
		t.Errorf("two formats: %v", err)
	}
	put("main.c", "int x;")
	if Is(dir) {
		t.Error("a directory of a program is one of records")
	}
}

// FuzzRecord compares the parser with encoding/json.
func FuzzRecord(f *testing.F) {
	for _, s := range []string{`{"a": [1, 2.5, "x\u00e4\n", null, {"b": false}]}`, `{}`, `{"a":-0}`, `{"":1e5}`, `{"a":"\ud83d\ude00"}`, `{"a":1}x`, `{"a":1,"a":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := parseRecord(text, nil)
		var want map[string]any
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		ok := json.Valid(text) && utf8.Valid(text) && d.Decode(&want) == nil && want != nil
		if err != nil {
			if ok && !strings.Contains(err.Error(), "twice") && !strings.Contains(err.Error(), "surrogate") && !strings.Contains(err.Error(), "deep") && !strings.Contains(err.Error(), "large") {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if !ok {
			t.Fatalf("%q is no JSON, but was read as %v", text, got)
		}
		if !same(got, want) {
			t.Fatalf("%q: %#v, want %#v", text, got, want)
		}
	})
}

// same compares a value with that of encoding/json.
func same(got, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		r, ok := got.(Record)
		if !ok || len(r) != len(want) {
			return false
		}
		for k, v := range want {
			if g, ok := r[k]; !ok || !same(g, v) {
				return false
			}
		}
		return true
	case []any:
		l, ok := got.([]any)
		if !ok || len(l) != len(want) {
			return false
		}
		for i := range l {
			if !same(l[i], want[i]) {
				return false
			}
		}
		return true
	case json.Number:
		if n, ok := got.(int64); ok {
			w, err := want.Int64()
			return err == nil && w == n
		}
		w, err := want.Float64()
		return err == nil && got == w
	}
	return reflect.DeepEqual(got, want)
}
