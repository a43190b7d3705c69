// SPDX-License-Identifier: Apache-2.0

package errorfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	at := time.Unix(1763634466, 0)
	for text, want := range map[string]*Error{
		`{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "a\nb", "timestamp": "1763634466"}}}`: {"ValueError: boom", "a\nb", at, false},
		`{"message": {"message": "m", "extraInfo": {"timestamp": 1763634466.7}}, "more": 1}`:                             {"m", "", at, false},
		`{"message": "boom", "timestamp": 1763634466}`:                                                                   {"boom", "", at, false},
		`{"message": "boom", "timestamp": "1763634466"}`:                                                                 {"boom", "", at, false},
		`{"message": "boom", "timestamp": -5}`:                                                                           {"boom", "", time.Time{}, false},
		`{"message": "boom", "timestamp": "99999999999999999999"}`:                                                       {"boom", "", time.Time{}, false},
		`{"message": {"message": "m", "extraInfo": {"cohort_final": true}}}`:                                             {"m", "", time.Time{}, true},
		`{"message": {"message": "m", "extraInfo": {"cohort_final": "maybe"}}}`:                                          {"m", "", time.Time{}, false},
		`{"message": {}}`:             {},
		`{"message": null}`:           {},
		`{}`:                          nil,
		`{"message": 7}`:              nil,
		`panic: not JSON`:             nil,
		``:                            nil,
		`{"message": ["x"]}`:          nil,
		`{"message": {"message": 3}}`: nil,
	} {
		got, err := Parse([]byte(text))
		if (err != nil) != (want == nil) || want != nil && *want != *got {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
	}
}

func TestWriteRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "error.json")
	if _, _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	want := &Error{"it \"broke\"", "line 1\nline 2", time.Unix(1763634466, 0), true}
	if err := Write(path, *want); err != nil {
		t.Fatal(err)
	}
	got, raw, err := Read(path)
	if err != nil || *want != *got {
		t.Errorf("read %+v, %v", got, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if text := string(WithCode(raw, -9)); !strings.Contains(text, `"errorCode":-9`) || !strings.Contains(text, `"timestamp":"1763634466"`) {
		t.Errorf("with a code: %s", text)
	}
	for _, plain := range []string{`{"message":"x","timestamp":1}`, "no JSON", `{"message":null}`} {
		if text := string(WithCode([]byte(plain), 3)); text != plain {
			t.Errorf("%s became %s", plain, text)
		}
	}
	// Texts of any size make a file that can be read.
	if err := Write(path, Error{Message: strings.Repeat("\x01", MaxSize), Callstack: strings.Repeat("x", MaxSize)}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Read(path); err != nil {
		t.Error(err)
	}
}

func TestRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "error.json")
	t.Setenv("TORCHELASTIC_ERROR_FILE", path)
	Record(nil, "")
	if _, _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("recorded that there was no error: %v", err)
	}
	if err := Write(path, Error{Message: "one", Time: time.Unix(5, 0)}); err != nil {
		t.Fatal(err)
	}
	Record(errors.New("one"), "")
	if e, _, err := Read(path); err != nil || !e.Time.Equal(time.Unix(5, 0)) {
		t.Errorf("what was said is said again: %+v, %v", e, err)
	}
	Record(errors.New("two"), "here")
	if e, _, err := Read(path); err != nil || e.Message != "two" || e.Callstack != "here" || time.Since(e.Time) > time.Minute {
		t.Errorf("recorded %+v, %v", e, err)
	}
	t.Setenv("TORCHELASTIC_ERROR_FILE", "")
	Record(errors.New("three"), "")
	t.Setenv("TORCHELASTIC_ERROR_FILE", "/no/such/place")
	Record(errors.New("four"), "")
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, MaxSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{fifo: "not a regular file", dir: "not a regular file", big: "more than"} {
		if _, _, err := Read(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := Write(filepath.Join(dir, "no", "where"), Error{}); err == nil {
		t.Error("written into a directory that does not exist")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"message": {"message": "m", "extraInfo": {"py_callstack": "c", "timestamp": "1"}}}`))
	f.Add([]byte(`{"message": "m", "timestamp": 1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := Parse(b)
		if (e == nil) == (err == nil) {
			t.Fatalf("%v and %v", e, err)
		}
		with := WithCode(b, 7)
		again, err2 := Parse(with)
		if (err == nil) != (err2 == nil) || err == nil && *again != *e {
			t.Fatalf("%q with a code is %q: %+v, %v; was %+v, %v", b, with, again, err2, e, err)
		}
	})
}
