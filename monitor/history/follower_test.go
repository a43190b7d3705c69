// SPDX-License-Identifier: Apache-2.0

package history_test

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/monitor/history"
)

// TestFollowerReadsWhatReadReads: cut at any bytes, a history that grows is what Read makes of the
// whole of it, and its generation stays.
func TestFollowerReadsWhatReadReads(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 0))
	whole := t.TempDir()
	w := create(t, whole, run(0))
	for i := 1; i <= 200; i++ {
		w.Step(step(i))
		if i%20 == 0 {
			w.Evaluation(history.Evaluation{Step: i, Metrics: []history.Metric{{Name: "loss", Value: 1}}})
			w.Note(history.Note{Step: i, Text: "a note"})
		}
	}
	w.End(history.End{Step: 200})
	w.Close(patience)
	text, err := os.ReadFile(filepath.Join(whole, history.FileName))
	if err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	f := history.Follow(dir)
	defer f.Close()
	if _, err := f.Poll(); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("there is no file, and Poll says %v", err)
	}
	grows, err := os.Create(filepath.Join(dir, history.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer grows.Close()
	for rest := text; len(rest) > 0; {
		n := min(len(rest), r.IntN(2000))
		if _, err := grows.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
		if _, err := f.Poll(); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := f.History(), read(t, whole); !reflect.DeepEqual(got, want) || f.Generation() != 1 {
		t.Errorf("generation %d: got %d steps, want %d", f.Generation(), len(got.Steps), len(want.Steps))
	}
	if changed, err := f.Poll(); changed || err != nil {
		t.Errorf("nothing is new, and Poll says %v, %v", changed, err)
	}
}

// TestFollowerOfAnotherFile: where the file is replaced, as thinning and restarts do, it is read
// anew; a broken one is an error until it is replaced.
func TestFollowerOfAnotherFile(t *testing.T) {
	dir := t.TempDir()
	w := create(t, dir, run(0))
	w.Step(step(1))
	w.Step(step(2))
	w.Close(patience)
	f := history.Follow(dir)
	defer f.Close()
	if changed, err := f.Poll(); !changed || err != nil || f.History().Done() != 2 {
		t.Fatalf("got %v, %v, %+v", changed, err, f.History())
	}
	w = create(t, dir, run(1)) // step 2 is lost
	w.Close(patience)
	if changed, err := f.Poll(); !changed || err != nil || f.Generation() != 2 || f.History().Done() != 1 || len(f.History().Lost) != 1 {
		t.Fatalf("got %v, %v, generation %d, %+v", changed, err, f.Generation(), f.History())
	}
	path := filepath.Join(dir, history.FileName)
	for name, c := range map[string]struct{ text, want string }{
		"no JSON":   {`{"kind":"run","version":1}` + "\nhello\n", "line 2"},
		"long line": {`{"kind":"run","version":1}` + "\n" + strings.Repeat("x", 2<<20), "line 2 has more"},
		"other":     {`{"kind":"step"}` + "\n", "begins with a record of the kind run"},
	} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := f.Poll(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v", name, err)
			}
		}
	}
}
