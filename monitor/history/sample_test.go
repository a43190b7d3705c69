// SPDX-License-Identifier: Apache-2.0

package history_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/monitor/history"
)

// TestSamples: texts, pictures and histograms come back as they were, a text is cut where a character
// ends, and a picture that is too large is refused.
func TestSamples(t *testing.T) {
	dir := t.TempDir()
	w := create(t, dir, run(0))
	want := []history.Sample{
		{Step: 1, Time: 2, Name: "text", Text: "</script>\x00\n"},
		{Step: 2, Name: "picture", PNG: []byte{1, 2, 255}, Text: "a cat"},
		{Step: 3, Name: "histogram", Histogram: &history.Histogram{Count: 3, NonFinite: 1, Min: -1, Max: 2, Mean: 0.5, Edges: []float64{-1, 0, 2}, Counts: []float64{1, 2}}},
	}
	for _, s := range want {
		if err := w.Sample(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Sample(history.Sample{Name: "large", PNG: make([]byte, history.MaxSamplePicture+1)}); err == nil || !strings.Contains(err.Error(), `picture "large": its PNG is too large`) {
		t.Errorf("got %v", err)
	}
	if err := w.Sample(history.Sample{Step: 4, Name: "long", Text: strings.Repeat("ä", history.MaxSampleText)}); err != nil {
		t.Fatal(err)
	}
	w.Close(patience)
	got := read(t, dir).Samples
	if !reflect.DeepEqual(got[:3], want) {
		t.Errorf("got %+v, want %+v", got[:3], want)
	}
	if long := got[3].Text; len(got) != 4 || !utf8.ValidString(long) || !strings.HasSuffix(long, "ä…") || len(long) > history.MaxSampleText+3 {
		t.Errorf("the long text has %d bytes", len(long))
	}
}

// TestManySamples: there are at most so many, and so many bytes; the first and the last of each name stay as
// long as others can go, and a process that goes on counts those of before.
func TestManySamples(t *testing.T) {
	dir := t.TempDir()
	for first := 0; first <= 1000; first += 500 {
		w := create(t, dir, run(first))
		for i := first + 1; i <= first+500; i++ {
			s := history.Sample{Step: i, Name: "text", Text: fmt.Sprint(i)}
			if i%5 == 0 {
				s = history.Sample{Step: i, Name: "picture", PNG: bytes.Repeat([]byte{byte(i)}, 60<<10)}
			}
			if err := w.Sample(s); err != nil {
				t.Fatal(err)
			}
		}
		w.Close(patience)
	}
	h := read(t, dir)
	last := map[string]int{}
	for _, s := range h.Samples {
		last[s.Name] = s.Step
	}
	if len(h.Samples) > history.MaxSamples || last["text"] != 1499 || last["picture"] != 1500 {
		t.Errorf("%d samples, the last are %v", len(h.Samples), last)
	}
	if info, err := os.Stat(filepath.Join(dir, history.FileName)); err != nil || info.Size() > 5<<20 {
		t.Errorf("%v bytes, %v", info.Size(), err)
	}
}

// TestBadSamples: records that cannot be are refused.
func TestBadSamples(t *testing.T) {
	for _, line := range []string{
		`{"kind":"sample","png":"!"}`, `{"kind":"sample","text":"a","histogram":{"edges":[1],"counts":[]}}`, `{"kind":"sample","histogram":{"edges":[1],"counts":[1]}}`,
		`{"kind":"sample","histogram":{"edges":[2,1],"counts":[1]}}`, `{"kind":"sample","histogram":{"edges":[1,2],"counts":[-1]}}`, `{"kind":"sample","histogram":{"count":-1,"edges":[0],"counts":[]}}`,
	} {
		if _, err := history.Read(strings.NewReader(`{"kind":"run","version":1}` + "\n" + line + "\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: got %v", line, err)
		}
	}
}
