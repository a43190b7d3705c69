// SPDX-License-Identifier: Apache-2.0

package table

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
)

// exchanger lets goroutines tell each other what they have.
type exchanger struct {
	mu     sync.Mutex
	own    [][]byte
	came   int
	result chan [][]byte
}

func (e *exchanger) share(i int) Share {
	return Share{Index: i, Count: len(e.own), Exchange: func(own []byte) ([][]byte, error) {
		e.mu.Lock()
		e.own[i] = slices.Clone(own)
		result := e.result
		if e.came++; e.came == len(e.own) {
			all := slices.Clone(e.own)
			for range e.own {
				result <- all
			}
			e.came, e.result = 0, make(chan [][]byte, len(e.own))
		}
		e.mu.Unlock()
		return <-result, nil
	}}
}

// together runs f as each of count readers.
func together[T any](count int, f func(s Share) (T, error)) ([]T, []error) {
	e := exchanger{own: make([][]byte, count), result: make(chan [][]byte, count)}
	all, errs := make([]T, count), make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() { all[i], errs[i] = f(e.share(i)) })
	}
	wg.Wait()
	return all, errs
}

// drawTable writes files of rows with all that makes it hard to find where rows begin.
func drawTable(t *testing.T, r *rand.Rand) (path string, f Format) {
	t.Helper()
	dir := t.TempDir()
	f.NoHeader = r.IntN(4) == 0
	ends := []string{"\n", "\r\n"}[r.IntN(2)]
	pieces := []string{"a", "b,", `""`, "\n", "\r\n", "1", " ", "ü", "\n\n"}
	for file := range 1 + r.IntN(3) {
		var text strings.Builder
		if r.IntN(4) == 0 {
			text.WriteString("\xef\xbb\xbf")
		}
		if !f.NoHeader {
			text.WriteString("1,\"2\",3" + ends)
		}
		for row := range 1 + r.IntN(60) {
			field := fmt.Sprint(r.IntN(5))
			if r.IntN(3) == 0 {
				field = `"`
				for range r.IntN(12) {
					field += pieces[r.IntN(len(pieces))]
				}
				field += `"`
			}
			number := fmt.Sprint(r.IntN(1 << 26))
			if r.IntN(9) == 0 {
				number = ""
			}
			fmt.Fprintf(&text, "%d,%s,%s", row%2, number, field)
			text.WriteString(strings.Repeat(ends, 1+r.IntN(2)))
		}
		body := text.String()
		if r.IntN(2) == 0 {
			body = strings.TrimRight(body, "\r\n")
		}
		name := fmt.Sprintf("%d.csv", file)
		if r.IntN(4) == 0 {
			name, body = name+".gz", compress(t, body)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir, f
}

// TestReadShare: the shares of any number of readers are, one after the other, the table
// that one reader reads, with its digest, notes, parts and scale.
func TestReadShare(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 0))
	schema := Schema{Label: "1", Numbers: []string{"2"}, Categories: []string{"3"}, Buckets: 1000}
	type read struct {
		table                *Table
		training, validation *Part
		scale                Scale
	}
	do := func(path string, f Format) func(s Share) (read, error) {
		return func(s Share) (got read, err error) {
			if got.table, err = ReadShare(t.Context(), path, f, schema, s); err != nil {
				return got, err
			}
			if got.training, got.validation, err = got.table.Split(0.3); err != nil {
				return got, err
			}
			got.scale, err = Measure(got.training)
			return got, err
		}
	}
	for draw := range 150 {
		path, f := drawTable(t, r)
		want, wantErr := do(path, f)(Share{})
		count := 1 + r.IntN(9)
		all, errs := together(count, do(path, f))
		var labels, numbers []float32
		var categories []int32
		rows := 0
		for i, got := range all {
			if fmt.Sprint(errs[i]) != fmt.Sprint(wantErr) {
				t.Fatalf("draw %d: reader %d of %d: %v, one reader: %v", draw, i, count, errs[i], wantErr)
			}
			if wantErr != nil {
				continue
			}
			labels, numbers, categories = append(labels, got.table.labels...), append(numbers, got.table.numbers...), append(categories, got.table.categories...)
			if got.training.Fingerprint() != want.training.Fingerprint() || !slices.Equal(got.table.Notes(), want.table.Notes()) {
				t.Fatalf("draw %d: reader %d of %d: %s %q, one reader: %s %q", draw, i, count, got.training.Fingerprint(), got.table.Notes(), want.training.Fingerprint(), want.table.Notes())
			}
			if diff := differ(want.scale, got.scale); diff != "" {
				t.Fatalf("draw %d: reader %d of %d: %s", draw, i, count, diff)
			}
			if got.training.Counts()[i] != got.training.Len() {
				t.Fatalf("draw %d: reader %d has %d rows, and counts %v", draw, i, got.training.Len(), got.training.Counts())
			}
			rows += got.training.Len() + got.validation.Len()
		}
		if wantErr != nil {
			continue
		}
		if diff := differ([]any{want.table.labels, want.table.numbers, want.table.categories}, []any{labels, numbers, categories}); diff != "" || rows != want.table.Len() {
			t.Fatalf("draw %d, %d readers: %d rows, want %d: %s", draw, count, rows, want.table.Len(), diff)
		}
	}
}

// TestReadShareErrors: all readers return the error of the first wrong row, with its
// line, and that of a reader without the files.
func TestReadShareErrors(t *testing.T) {
	schema := Schema{Label: "y", Numbers: []string{"x"}}
	good := "y,x\n" + strings.Repeat("0,1\n1,\"2\n\"\n", 50)
	for text, want := range map[string]string{
		good + "3,1\n" + strings.Repeat("1,2\n", 50) + "4,1\n": `a.csv:152:1: column "y": the label is "3"`,
		good + strings.Repeat("1,2\n", 50) + "1,a\"b\n1,2\n":   "a.csv:202:4: a quote within a field",
		good + "1,2,3\n": "a.csv:152:5: the row has 3 fields",
		good + "1,\"2" + strings.Repeat("\n1,2", 40): "a.csv:152:3: a quote is not closed",
		"y,x\n":      "has no rows",
		"":           "is empty",
		"y,z\n1,2\n": `there is no column "x"`,
	} {
		path := write(t, "a.csv", text)
		for _, count := range []int{2, 3, 8} {
			_, errs := together(count, func(s Share) (*Table, error) { return ReadShare(t.Context(), path, Format{}, schema, s) })
			for i, err := range errs {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("reader %d of %d: %v, want %q", i, count, err, want)
				}
				if row := (*RowError)(nil); strings.Contains(want, ":152:") && !errors.As(err, &row) {
					t.Errorf("reader %d of %d: %T is no *RowError", i, count, err)
				}
			}
		}
	}
	path, other := write(t, "a.csv", good), write(t, "a.csv", good+"1,1\n")
	for want, second := range map[string]string{"no such file": path + "s", "give all of them the same files": other} {
		_, errs := together(2, func(s Share) (*Table, error) {
			return ReadShare(t.Context(), []string{path, second}[s.Index], Format{}, schema, s)
		})
		for i, err := range errs {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("reader %d: %v, want %q", i, err, want)
			}
		}
	}
}

// TestTableShare: shares of a generated table are the whole.
func TestTableShare(t *testing.T) {
	g := Generated{Rows: 1000, Users: 30, Items: 20, Seed: 3}
	want, err := g.Table()
	if err != nil {
		t.Fatal(err)
	}
	all, errs := together(3, g.TableShare)
	var truth, numbers []float32
	for i, got := range all {
		if errs[i] != nil || got.digest != want.digest {
			t.Fatalf("reader %d: %v, digest %x, want %x", i, errs[i], got.digest, want.digest)
		}
		truth, numbers = append(truth, got.truth...), append(numbers, got.numbers...)
	}
	if diff := differ([]any{want.truth, want.numbers}, []any{truth, numbers}); diff != "" {
		t.Error(diff)
	}
}
