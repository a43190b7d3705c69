// SPDX-License-Identifier: Apache-2.0

package records

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pack makes a tar file of names and contents in turn.
func pack(t testing.TB, members ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(members); i += 2 {
		h := &tar.Header{Name: members[i], Mode: 0o644, Size: int64(len(members[i+1])), Typeflag: tar.TypeReg}
		if strings.HasSuffix(h.Name, "/") {
			h.Typeflag, h.Size = tar.TypeDir, 0
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(members[i+1])[:h.Size]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func openBytes(t testing.TB, name string, b []byte) (*Set, error) {
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return Open(t.Context(), path, Options{Cache: t.TempDir()})
}

// TestShardMembers: which members are a record. WebDataset says the same of the names.
func TestShardMembers(t *testing.T) {
	s, err := openBytes(t, "a.tar", pack(t,
		"./", "", "__meta__/x.txt", "no record", "a.b/", "", "a.b/1.TXT", "one", "a.b/1.seg.json", `{"k": [1]}`, "README", "no field", ".hidden.txt", "no key",
		"a.b/2.cls", " 7\n", "3.txt", "three", "a.b/2.txt", "again"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := []Record{
		{"__key__": "a.b/1", "txt": "one", "k": []any{int64(1)}}, {"__key__": "a.b/2", "cls": int64(7)},
		{"__key__": "3", "txt": "three"}, {"__key__": "a.b/2", "txt": "again"},
	}
	if s.Len() != len(want) {
		t.Fatalf("%d records, want %d", s.Len(), len(want))
	}
	for i, r := range want {
		if got, err := s.Read(i); err != nil || !equal(got, r) {
			t.Errorf("record %d is %v, %v; want %v", i, got, err, r)
		}
	}
	if r, err := s.ReadFields(1, func(f string) Want { return map[string]Want{"cls": Take}[f] }); err != nil || len(r) != 1 {
		t.Errorf("%v, %v", r, err)
	}
}

// TestBadShards: each is one error that names the file, and the record or the member.
func TestBadShards(t *testing.T) {
	whole := pack(t, "1.txt", "one", "2.txt", "two")
	for what, c := range map[string]struct {
		bytes []byte
		want  string
	}{
		"an empty file":       {nil, "is cut off at byte 0"},
		"an end alone":        {make([]byte, 1024), "has no records"},
		"no end":              {whole[:2048], "is cut off at byte 2048: the empty blocks"},
		"two that are joined": {append(bytes.Clone(whole), whole...), "there is more after the end at byte 2048"},
		"no tar file":         {bytes.Repeat([]byte("text "), 400), "is no tar file, or a damaged one, at byte 0"},
		"a field twice":       {pack(t, "1.txt", "one", "1.TXT", "two"), `record 1: field "txt": stands twice, the second time in the member 1.TXT`},
		"twice by an object":  {pack(t, "1.txt", "one", "1.json", `{"txt": 1}`), `record 1: field "txt": stands twice, the second time in the member 1.json`},
		"no number":           {pack(t, "1.txt", "one", "2.cls", "cat"), `record 2: field "cls": the member 2.cls has "cat", want a whole number`},
		"no UTF-8":            {pack(t, "1.txt", "\xff"), `record 1: field "txt": the member 1.txt is no UTF-8`},
		"no object":           {pack(t, "1.json", "[1]"), `record 1: field "json": `},
		"a large record":      {pack(t, "1.a", strings.Repeat("a", maxRecord/2), "1.b", strings.Repeat("b", maxRecord/2), "1.c", "c"), "with the member 1.c it has more than 64 MiB"},
	} {
		s, err := openBytes(t, "bad.tar", c.bytes)
		for i := 0; err == nil && i < s.Len(); i++ {
			_, err = s.Read(i)
		}
		if s != nil {
			s.Close()
		}
		if bad := (*Error)(nil); !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "bad.tar") {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

// TestHoles: 300 MiB that are in 10 KiB, as GNU tar --sparse writes them.
func TestHoles(t *testing.T) {
	_, err := Open(t.Context(), "testdata/hole.tar.gz", Options{Cache: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "the member hole.txt has holes (a sparse file)") {
		t.Error(err)
	}
}

// FuzzTar: a file that is no shard is an error, and of one that is every record can be read or is one.
func FuzzTar(f *testing.F) {
	b, err := os.ReadFile("testdata/shard.tar")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(pack(f, "a/1.txt", "x", "a/1.json", `{"a": {"b": [1, 2.5]}}`, "b.cls", "3"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := openBytes(t, "a.tar", b)
		for i := 0; err == nil && i < s.Len(); i++ {
			_, err = s.Read(i)
		}
		if s != nil {
			s.Close()
		}
		if bad := (*Error)(nil); err != nil && !errors.As(err, &bad) {
			t.Fatal(err)
		}
	})
}
