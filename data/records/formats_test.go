// SPDX-License-Identifier: Apache-2.0

package records

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// TestGolden: values are those that pyarrow, pandas and webdataset read (testdata/golden.py).
func TestGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden map[string][]json.RawMessage
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden) < 10 {
		t.Fatalf("%d files", len(golden))
	}
	for name, rows := range golden {
		dir := t.TempDir()
		for _, time := range []string{"first", "again"} { // the copy is made, and used
			s, err := Open(t.Context(), filepath.Join("testdata", name), Options{Cache: dir})
			if err != nil {
				t.Errorf("%s, %s: %v", name, time, err)
				break
			}
			if s.Len() != len(rows) {
				t.Errorf("%s: %d records, want %d", name, s.Len(), len(rows))
			}
			for i := len(rows) - 1; i >= 0; i-- {
				want, err := parseRecord(rows[i], nil)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := s.Read(i); err != nil || !equal(got, want) {
					t.Errorf("%s: record %d is\n%#v, %v, want\n%#v", name, i, got, err, want)
					break
				}
			}
			s.Close()
		}
	}
	s, err := Open(t.Context(), "testdata/snappy.parquet", Options{Cache: t.TempDir(), Fields: []string{"text", "i8"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if r, err := s.Read(0); err != nil || !reflect.DeepEqual(r.Fields(), []string{"i8", "text"}) {
		t.Errorf("%v, %v", r, err)
	}
}

// equal compares values; a float that is whole may be read as a whole number of other formats.
func equal(a, b any) bool {
	switch x := a.(type) {
	case []byte:
		return hex.EncodeToString(x) == b
	case Record:
		y, ok := b.(Record)
		if !ok || len(x) != len(y) {
			return false
		}
		for k, v := range x {
			if w, ok := y[k]; !ok || !equal(v, w) {
				return false
			}
		}
		return true
	case []any:
		y, ok := b.([]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for i := range x {
			if !equal(x[i], y[i]) {
				return false
			}
		}
		return true
	case int64:
		if f, ok := b.(float64); ok {
			return float64(x) == f
		}
	case float64:
		if n, ok := b.(int64); ok {
			return x == float64(n)
		}
	}
	return reflect.DeepEqual(a, b)
}

// TestDamagedFiles: every prefix and many changes of a file are an error, or its records; never a panic.
func TestDamagedFiles(t *testing.T) {
	dir := t.TempDir()
	try := func(name string, b []byte) error {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), path, Options{Cache: filepath.Join(dir, "cache")})
		if err != nil {
			return err
		}
		defer s.Close()
		for i := range s.Len() {
			if _, err := s.Read(i); err != nil {
				return err
			}
		}
		return nil
	}
	for _, name := range []string{"lines.jsonl.gz", "lines.jsonl.zst", "snappy.parquet", "zstd.parquet", "shard.tar", "shard.tar.gz"} {
		whole, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "shard.tar" {
			whole = bytes.TrimRight(whole, "\x00")
			whole = append(whole, make([]byte, padded(int64(len(whole)))-int64(len(whole))+1024)...) // two blocks are an end
		}
		for i := range 40 {
			n := i * len(whole) / 40
			err := try(name, whole[:n])
			var bad *Error
			if !errors.As(err, &bad) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), name) {
				t.Errorf("%s, %d of %d bytes: %v", name, n, len(whole), err)
			}
			changed := bytes.Clone(whole)
			changed[n] ^= 0x55
			if err := try(name, changed); err != nil && (!errors.As(err, &bad) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("%s, byte %d changed: %v", name, n, err)
			}
		}
	}
	// A bomb: little that becomes much.
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	line := []byte(`{"a": 1}` + strings.Repeat(" ", 1<<20) + "\n")
	for range bombSize>>20 + 8 {
		z.Write(line)
	}
	z.Close()
	if err := try("bomb.jsonl.zst", b.Bytes()); err == nil || !strings.Contains(err.Error(), "grows to more than 300 times its size") {
		t.Errorf("a bomb: %v", err)
	}
	b.Reset()
	g := gzip.NewWriter(&b)
	g.Write([]byte("{\"a\": 1}\n{\"a\": }\n"))
	g.Close()
	if err := try("bad.jsonl.gz", b.Bytes()); err == nil || !strings.Contains(err.Error(), "bad.jsonl.gz:2: no JSON") {
		t.Errorf("a bad line: %v", err)
	}
}

// FuzzParquet: a file that is no Parquet is an error.
func FuzzParquet(f *testing.F) {
	for _, name := range []string{"snappy.parquet", "none.parquet"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "a.parquet")
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), path, Options{Cache: t.TempDir()})
		if err == nil {
			s.Close()
			return
		}
		if bad := (*Error)(nil); !errors.As(err, &bad) {
			t.Fatal(err)
		}
	})
}
