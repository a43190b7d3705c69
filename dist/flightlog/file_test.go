// SPDX-License-Identifier: Apache-2.0

package flightlog

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode"
)

func encode(t testing.TB, d *Dump) []byte {
	t.Helper()
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestWriteAndLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a [b]*")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ds := job(3, 5)
	for _, d := range ds {
		if err := Write(dir, d); err != nil {
			t.Fatal(err)
		}
	}
	ds[1].call("barrier")
	if err := Write(dir, ds[1]); err != nil { // a later one takes its place
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Fatalf("the directory has %v (%v), want three files", entries, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s has mode %v (%v), want 0600", e.Name(), info.Mode(), err)
		}
	}
	got, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, ds) {
		t.Errorf("what is loaded is not what was written:\n%s\n%s", encode(t, got[1]), encode(t, ds[1]))
	}
	if one, err := Load(filepath.Join(dir, FileName(2))); err != nil || len(one) != 1 || one[0].Rank != 2 {
		t.Errorf("loading a file gives %v, %v", one, err)
	}

	if err := os.WriteFile(filepath.Join(dir, "rank-7.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err = Load(dir, filepath.Join(dir, "nothing"))
	if len(got) != 3 || err == nil || !strings.Contains(err.Error(), "rank-7.json") || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("with a torn file and one that is missing there are %d dumps, and the error is %v", len(got), err)
	}
	if err := Write(filepath.Join(dir, "nothing"), ds[0]); err == nil {
		t.Error("writing into a directory that is not there is no error")
	}
}

func TestReadRefuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(d *Dump)
		want   string
	}{
		{"version", func(d *Dump) { d.Version = 2 }, "version 2"},
		{"rank", func(d *Dump) { d.Rank = 2 }, "rank 2 of 2"},
		{"world", func(d *Dump) { d.WorldSize = 1 << 30 }, "rank 0 of"},
		{"group", func(d *Dump) { d.Groups[0].Size = 3 }, "groups[0]: rank 0 of 3"},
		{"ranks", func(d *Dump) { d.Groups[0].Ranks = []int{1} }, "1 numbers of 2"},
		{"other rank", func(d *Dump) { d.Groups[0].Ranks = []int{1, 0} }, "is rank 1 of the job"},
		{"culprit", func(d *Dump) { d.Groups[0].Culprits = []int{-1} }, "names rank -1"},
		{"member", func(d *Dump) { d.Groups[0].Members[1].Rank = 5 }, "has member 5"},
		{"entry's group", func(d *Dump) { d.Entries[1].Group = 1 }, "entries[1] is of group 1 of 1"},
		{"site", func(d *Dump) { d.Entries[1].Site = 2 }, "entries[1] has site 2 of 2"},
		{"root", func(d *Dump) { r := 2; d.Entries[1].Root = &r }, "entries[1] names a rank"},
		{"state", func(d *Dump) { d.Entries[1].State = "odd" }, `state "odd"`},
		{"time", func(d *Dump) { d.Entries[1].EndedNS = -1 }, "before the start"},
	} {
		d := job(2, 3)[0]
		tc.change(d)
		if _, err := Read(bytes.NewReader(encode(t, d))); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: the error is %v, want one with %q", tc.name, err, tc.want)
		}
	}
	for name, text := range map[string]string{
		"a long list":  `{"entries":[` + strings.Repeat("null,", maxCommas+1) + `null]}`,
		"many objects": `{"entries":[` + strings.Repeat("{}", maxObjects+1) + `]}`,
		"a large file": strings.Repeat(" ", maxBytes+1),
		"no JSON":      "rank 0",
	} {
		if _, err := Read(strings.NewReader(text)); err == nil {
			t.Errorf("%s is taken for a dump", name)
		}
	}
}

// TestDocumentedJSON: the package's documentation has every field.
func TestDocumentedJSON(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	words := map[string]bool{}
	for _, w := range strings.FieldsFunc(string(doc), func(r rune) bool { return r != '_' && !unicode.IsLetter(r) }) {
		words[w] = true
	}
	seen := map[reflect.Type]bool{}
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		switch {
		case typ.Kind() == reflect.Slice || typ.Kind() == reflect.Pointer:
			walk(typ.Elem())
		case typ.Kind() == reflect.Struct && typ.PkgPath() == reflect.TypeFor[Dump]().PkgPath() && !seen[typ] && typ != reflect.TypeFor[Span]():
			seen[typ] = true
			for i := range typ.NumField() {
				f := typ.Field(i)
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				if f.IsExported() && !f.Anonymous && !words[name] {
					t.Errorf("the documentation has no %q, the field %s of %s", name, f.Name, typ)
				}
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[Dump]())
	walk(reflect.TypeFor[Report]())
	if len(seen) < 12 {
		t.Errorf("only %d types were looked at", len(seen))
	}
}

// TestNothingForTheTerminal: texts from files cannot act on a terminal.
func TestNothingForTheTerminal(t *testing.T) {
	d := job(2, 3)[0]
	d.Reason, d.Host = "failed: \x1b[2J\u202ehidden", "h\nrank 9"
	d.Sites[1] = strings.Repeat("long", 1<<12) + "\x07"
	d.Groups[0].Error = "\xff\xfe"
	d.call("barrier")
	read, err := Read(bytes.NewReader(encode(t, d)))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range Merge([]*Dump{read}).Lines() {
		if strings.ContainsFunc(l, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("the report has the line %q", l)
		}
	}
}

// FuzzRead: nothing that can be read as a dump breaks the report.
func FuzzRead(f *testing.F) {
	for _, d := range job(2, 3) {
		d.call("all_reduce")
		f.Add(encode(f, d))
	}
	d := job(3, 2)[1]
	zero, two := 0, 2
	d.Groups = append(d.Groups, Group{Name: "sub", Key: "sub", Rank: 0, Size: 2, Ranks: []int{1, 2}, Error: "e", Culprits: []int{2}})
	d.Entries = append(d.Entries, Entry{Op: "send", Peer: &two, Seq: 1, State: Begun}, Entry{Op: "broadcast", Root: &zero, Group: 1, Seq: 1, State: Failed, Layout: "1"})
	f.Add(encode(f, d))
	other := job(2, 3)
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := parse(text)
		if err != nil {
			return
		}
		r := Merge(append(other[1:2:2], d))
		for _, l := range r.Lines() {
			if strings.ContainsFunc(l, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("the report has the line %q", l)
			}
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
	})
}
