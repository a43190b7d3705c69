// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/data"
)

// write puts a text into a file of a new directory.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// differ shows two values where they are not equal.
func differ(want, got any) string {
	if w, g := fmt.Sprintf("%#v", want), fmt.Sprintf("%#v", got); w != g {
		return "got " + g + ", want " + w
	}
	return ""
}

func compress(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var small = Schema{Label: "click", Numbers: []string{"age"}, Categories: []string{"user", "city"}, Buckets: 100}

const smallText = `user,click,age,city,comment
7,1,31,"New York, NY","he said ""yes"""
8,0,NA,,
7,1,-2.5e1,Paris,"two
lines"
`

func TestRead(t *testing.T) {
	want := []Row{
		{1, []float32{31}, []int32{8, small.Bucket([]byte("New York, NY"))}},
		{0, []float32{nan}, []int32{9, 0}},
		{1, []float32{-25}, []int32{8, small.Bucket([]byte("Paris"))}},
	}
	tabs := strings.ReplaceAll(smallText, "New York, NY", "New York; NY")
	tabs = strings.ReplaceAll(strings.ReplaceAll(tabs, ",", "\t"), "New York; NY", "New York, NY")
	for name, path := range map[string]string{
		"plain":  write(t, "a.csv", smallText),
		"gzip":   write(t, "a.csv.gz", compress(t, smallText)),
		"hidden": write(t, "a.csv", compress(t, smallText)),
		"tabs":   write(t, "a.tsv", tabs),
		"crlf":   write(t, "a.csv", strings.ReplaceAll(smallText, "\n", "\r\n")),
		"mark":   write(t, "a.csv", "\xef\xbb\xbf"+smallText),
	} {
		table, err := Read(t.Context(), path, Format{}, small)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []Row
		for i := range table.Len() {
			got = append(got, table.Row(i))
		}
		if diff := differ(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestReadDirectory: files follow each other by name, each with its own order
// of columns.
func TestReadDirectory(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"1.csv":    "click,x\n0,1\n1,2\n",
		"2.csv.gz": compress(t, "x,more,click\n3,,1\n"),
		"notes":    "not a table",
		"._1.csv":  "\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "old.csv"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := Schema{Label: "click", Numbers: []string{"x"}}
	table, err := Read(t.Context(), dir, Format{}, s)
	if err != nil {
		t.Fatal(err)
	}
	if diff := differ([]float32{1, 2, 3}, table.numbers); diff != "" {
		t.Error(diff)
	}
	if err := os.WriteFile(filepath.Join(dir, "3.csv"), []byte("click,y\n0,1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = Read(t.Context(), dir, Format{}, s)
	if err == nil || !strings.Contains(err.Error(), `3.csv:1: there is no column "x"`) {
		t.Errorf("a file without the column: %v", err)
	}
}

// TestWrongRows: the error has the file, the line and the column.
func TestWrongRows(t *testing.T) {
	positive := 4.0
	rated := Schema{Label: "click", Positive: &positive, Numbers: []string{"age"}}
	for _, c := range []struct {
		text   string
		schema Schema
		want   string
	}{
		{"user,click,age,city\n7,1,31,x\n8,0,old,y\n", small, `:3:5: column "age": "old" is no number`},
		{"user,click,age,city\n\"a\nb\",1,31,x\n8,0, 1e99 ,y\n", small, `:4:5: column "age": "1e99" is no finite number`},
		{"user,click,age,city\n\"a\nb\",1,1e,x\n", small, `:3:6: column "age": "1e" is no number`},
		{"user,click,age,city\n7,1,0x10,x\n", small, `:2:5: column "age": "0x10" is no number`},
		{"user,click,age,city\n7,1,inf,x\n", small, `:2:5: column "age": "inf" is no finite number`},
		{"user,click,age,city\n7,2,31,x\n", small, `:2:3: column "click": the label is "2", want 0 or 1`},
		{"user,click,age,city\n7,,31,x\n", small, `:2:3: column "click": there is no label`},
		{"user,click,age,city\n7,yes,31,x\n", small, `:2:3: column "click": "yes" is no number`},
		{"user,click,age,city\n7,1,31\n", small, `:2:5: the row has 3 fields, the first line 4`},
		{"user,click,age,city\n7,1,31,x,\n", small, `:2:10: the row has 5 fields, the first line 4`},
		{"user,click,age,city\n7,1,31,x\n7,\"1\n", small, `:3:3: a quote is not closed`},
		{"user,click,age,city\n7,1,31,x\n7,1\",\n", small, `:3:4: a quote within a field`},
		{"user,click,age,city\n7,1,31,\"x\"y\n", small, `:2:11: a closing quote is followed by "y"`},
		{"user,click,city\n7,1,x\n", small, `:1: there is no column "age" among ["user" "click" "city"]`},
		{"age,click,age\n1,5,2\n", rated, `:1: there are several columns "age"`},
		{"user,click,age,city\n", small, "has no rows"},
		{"", small, "is empty"},
		{"\n\n", small, "is empty"},
	} {
		_, err := Read(t.Context(), write(t, "a.csv", c.text), Format{}, c.schema)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
		if row := (*RowError)(nil); strings.HasPrefix(c.want, ":") && !errors.As(err, &row) {
			t.Errorf("%q: %T is no RowError", c.text, err)
		}
	}
	if _, err := Read(t.Context(), filepath.Join(t.TempDir(), "none.csv"), Format{}, small); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := Read(t.Context(), t.TempDir(), Format{}, small); err == nil || !strings.Contains(err.Error(), "has no file named .csv") {
		t.Errorf("an empty directory: %v", err)
	}
	if _, err := Read(t.Context(), write(t, "a.csv", smallText), Format{Comma: '"'}, small); err == nil {
		t.Error("a quote is taken for a separator")
	}
	ratings, err := Read(t.Context(), write(t, "a.csv", "click,age\n3.5,1\n4,2\n"), Format{}, rated)
	if err != nil || ratings.labels[0] != 0 || ratings.labels[1] != 1 {
		t.Errorf("ratings from 4: %v, %v", ratings, err)
	}
}

// TestTruncatedGzip: at every length.
func TestTruncatedGzip(t *testing.T) {
	whole := compress(t, smallText)
	for n := range len(whole) {
		if _, err := Read(t.Context(), write(t, "a.csv.gz", whole[:n]), Format{}, small); err == nil {
			t.Fatalf("%d of %d bytes are read without an error", n, len(whole))
		}
	}
}

// TestReaderStays: an error is final, and the file is closed once.
func TestReaderStays(t *testing.T) {
	r, err := Open(write(t, "a.csv", "click,x\n1,a\n1,2\n"), Format{}, Schema{Label: "click", Numbers: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	_, first := r.Next()
	_, second := r.Next()
	if first == nil || first != second {
		t.Errorf("errors %v, then %v", first, second)
	}
	if err := errors.Join(r.Close(), r.Close()); err != nil {
		t.Error(err)
	}
}

func TestReadStops(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrClosedPipe)
	path := write(t, "a.csv", "click,x\n"+strings.Repeat("1,2\n", 100_000))
	_, err := Read(ctx, path, Format{}, Schema{Label: "click", Numbers: []string{"x"}})
	if !errors.Is(err, io.ErrClosedPipe) || !strings.Contains(err.Error(), "stopped after 16384 rows") {
		t.Errorf("a context that has ended: %v", err)
	}
}

func TestSchema(t *testing.T) {
	for want, s := range map[string]Schema{
		"no label":        {Numbers: []string{"x"}},
		"no columns":      {Label: "y"},
		"buckets":         {Label: "y", Categories: []string{"x"}, Buckets: 1},
		`column "x" as`:   {Label: "y", Numbers: []string{"x"}, Categories: []string{"x"}, Buckets: 9},
		`as the label an`: {Label: "y", Numbers: []string{"y"}},
	} {
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
}

// TestBucket holds the places that trained tables depend on.
func TestBucket(t *testing.T) {
	s := Schema{Buckets: 1000}
	for value, want := range map[string]int32{"": 0, "0": 1, "7": 8, "998": 999} {
		if got := s.Bucket([]byte(value)); got != want {
			t.Errorf("bucket of %q is %d, want %d", value, got, want)
		}
	}
	for value, want := range map[string]int32{"999": 131, "07": 81, "Paris": 43, "-1": 457, "12345678901234567890": 483} {
		if got := s.Bucket([]byte(value)); got != want {
			t.Errorf("bucket of %q is %d, want %d", value, got, want)
		}
	}
	// Names spread as evenly as chance would: chi squared of 999 degrees of
	// freedom is 999 ± 45.
	counts := make([]float64, s.Buckets)
	const n = 100_000
	for i := range n {
		counts[s.Bucket([]byte("name "+strconv.Itoa(i)))]++
	}
	chi, mean := 0.0, float64(n)/999
	for _, c := range counts[1:] {
		chi += (c - mean) * (c - mean) / mean
	}
	if counts[0] != 0 || chi < 800 || chi > 1200 {
		t.Errorf("chi squared of the buckets is %.0f, want about 999; %v in bucket 0", chi, counts[0])
	}
}

func TestInfer(t *testing.T) {
	path := write(t, "a.csv", "when,label,user_id,price,city,blank,mixed\n1,1,5,3.5,Rome,,1\n2,0,6,,Oslo,,x\n")
	got, doubts, err := Infer(path, Format{}, "", 50)
	if len(doubts) > 0 {
		t.Errorf("doubts %q", doubts)
	}
	if err != nil {
		t.Fatal(err)
	}
	want := Schema{Label: "label", Numbers: []string{"when", "price"}, Categories: []string{"user_id", "city", "mixed"}, Buckets: 50}
	if diff := differ(want, got); diff != "" {
		t.Error(diff)
	}
	if got, _, err = Infer(path, Format{NoHeader: true}, "2", 50); err != nil || got.Label != "2" || len(got.Categories) != 6 {
		t.Errorf("without a header: %+v, %v", got, err)
	}
	if _, _, err = Infer(path, Format{}, "click", 50); err == nil || !strings.Contains(err.Error(), `no column "click"`) {
		t.Errorf("a label that is not there: %v", err)
	}
}

// TestDoubts: what looks wrong in the first rows is said, with its place.
func TestDoubts(t *testing.T) {
	for text, want := range map[string]string{
		"label,price\n" + strings.Repeat("1,2.5\n0,3\n", 100) + "1,inf\n0,1e300\n": `column "price" is taken for a category, though it is a number in 200 of the first 202 rows that have it; line 202: "inf" is no finite number of 32 bits`,
		"1,3.5\n0,2.5\n": `a.csv names a column "1": is it a row, of a file without a header?`,
	} {
		_, doubts, err := Infer(write(t, "a.csv", text), Format{}, "", 10)
		if err != nil || len(doubts) != 1 || !strings.Contains(doubts[0], want) {
			t.Errorf("doubts %q, %v, want %q", doubts, err, want)
		}
		_, doubts, err = Infer(write(t, "a.csv", strings.ReplaceAll(text, "inf", "7")), Format{NoHeader: true}, "1", 10)
		if strings.HasPrefix(text, "1") && (err != nil || len(doubts) > 0) {
			t.Errorf("without a header: doubts %q, %v", doubts, err)
		}
	}
}

// TestNumbers: as strconv reads them, by way of float64.
func TestNumbers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		text := strconv.FormatFloat(r.NormFloat64()*math.Pow(10, float64(r.IntN(20)-10)), "fge"[r.IntN(3)], r.IntN(18)-1, 64)
		want, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		if got, problem := parseNumber([]byte(text)); problem != "" || got != float32(want) {
			t.Fatalf("%s is read as %v (%s), want %v", text, got, problem, float32(want))
		}
	}
	for _, text := range []string{"", ".", "+", "-", "1-", "1.2.3", "--1", "1e", "0x1", "1_000", "١", "nan", "-Inf", strings.Repeat("9", 500)} {
		if v, problem := parseNumber([]byte(text)); problem == "" {
			t.Errorf("%q is read as %v", text, v)
		}
	}
}

// FuzzRead: any file is rows or an error, the same by both ways of reading.
func FuzzRead(f *testing.F) {
	f.Add([]byte(smallText))
	f.Add([]byte("label,a\n1,2\n0,x\n"))
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "a.csv")
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		s, _, err := Infer(path, Format{}, "", 10)
		if err != nil {
			return
		}
		table, err := Read(t.Context(), path, Format{}, s)
		if err != nil {
			return
		}
		r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))))
		rows, err := r.ReadAll()
		if err != nil && !bytes.HasPrefix(text, []byte("\x1f\x8b")) || err == nil && len(rows)-1 != table.Len() {
			t.Errorf("%q: %d rows; encoding/csv has %d and %v", text, table.Len(), len(rows)-1, err)
		}
	})
}

// TestSplit: the parts are all rows, each once, and do not move when rows are
// added.
func TestSplit(t *testing.T) {
	make := func(rows int) (a, b *Part) {
		table, err := Generated{Rows: rows, Users: 10, Items: 10}.Table()
		if err != nil {
			t.Fatal(err)
		}
		a, b, err = table.Split(0.1)
		if err != nil {
			t.Fatal(err)
		}
		return a, b
	}
	a, b := make(10_000)
	seen := map[int32]int{}
	for _, p := range []*Part{a, b} {
		for _, row := range p.rows {
			seen[row]++
		}
	}
	if len(seen) != 10_000 || a.Len()+b.Len() != 10_000 || b.Len() < 900 || b.Len() > 1100 {
		t.Errorf("%d rows for training, %d for validation, %d different ones", a.Len(), b.Len(), len(seen))
	}
	c, d := make(20_000)
	if !reflect.DeepEqual(a.rows, c.rows[:a.Len()]) || !reflect.DeepEqual(b.rows, d.rows[:b.Len()]) {
		t.Error("added rows move those before them")
	}
	if a.Fingerprint() == c.Fingerprint() || a.Fingerprint() == b.Fingerprint() {
		t.Errorf("fingerprints %s, %s, %s are not all different", a.Fingerprint(), b.Fingerprint(), c.Fingerprint())
	}
	for _, share := range []float64{0, 1, -1, math.NaN(), 1e-9} {
		table, err := Generated{Rows: 100, Users: 10, Items: 10}.Table()
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := table.Split(share); err == nil {
			t.Errorf("a share of %v makes two parts", share)
		}
	}
	if row, err := b.Get(t.Context(), data.Key{Index: b.Len()}); err == nil {
		t.Errorf("a row behind the last: %v", row)
	}
}

func TestScale(t *testing.T) {
	table := &Table{Schema: Schema{Label: "y", Numbers: []string{"a", "b", "c"}, Categories: []string{"k"}, Buckets: 9}}
	for i, a := range []float32{1e6 + 1, 1e6 + 3, nan, 1e6 + 5} {
		table.append(Row{float32(i % 2), []float32{a, 7, nan}, []int32{int32(i)}})
	}
	p := &Part{table: table, name: "training", rows: []int32{0, 1, 2, 3}}
	s, err := Measure(p)
	if err != nil {
		t.Fatal(err)
	}
	root := math.Sqrt(8.0 / 3)
	if diff := differ(Scale{Mean: []float64{1e6 + 3, 7, 0}, Width: []float64{root, 1, 1}}, s); diff != "" {
		t.Error(diff)
	}
	b, err := s.Collate([]Row{p.At(3), p.At(2), p.At(0)})
	if err != nil {
		t.Fatal(err)
	}
	x := float32(2 / root)
	want := Batch{Rows: 3, Labels: []float32{1, 0, 0}, Numbers: []float32{x, 0, 0, 0, 0, 0, -x, 0, 0}, IDs: [][]int64{{3, 2, 0}}}
	if diff := differ(want, b); diff != "" {
		t.Error(diff)
	}
	if err := s.Check(table.Schema); err != nil {
		t.Error(err)
	}
	for _, bad := range []Scale{{}, {Mean: []float64{0, 0, 0}, Width: []float64{1, 0, 1}}, {Mean: []float64{0, math.NaN(), 0}, Width: []float64{1, 1, 1}}} {
		if err := bad.Check(table.Schema); err == nil {
			t.Errorf("%+v fits", bad)
		}
	}
	if _, err := s.Collate(nil); err == nil {
		t.Error("no rows make a batch")
	}
}

// TestGenerated: the file of a generated table reads into an equal one, and
// its labels are as likely as the truth says.
func TestGenerated(t *testing.T) {
	g := Generated{Rows: 50_000, Users: 300, Items: 200, Seed: 3}
	table, err := g.Table()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := g.WriteCSV(&text); err != nil {
		t.Fatal(err)
	}
	again, err := Read(t.Context(), write(t, "a.csv", text.String()), Format{}, g.Schema())
	if err != nil {
		t.Fatal(err)
	}
	if again.digest != table.digest || again.Len() != table.Len() {
		t.Errorf("%d rows of digest %x are read as %d of %x", table.Len(), table.digest, again.Len(), again.digest)
	}
	// In each tenth of the probabilities as many click as it says, to 4 deviations.
	var clicks, expected, variance [10]float64
	for i, logit := range table.truth {
		p := sigmoid(float64(logit))
		bin := min(int(p*10), 9)
		clicks[bin] += float64(table.labels[i])
		expected[bin] += p
		variance[bin] += p * (1 - p)
	}
	for i := range clicks {
		if d := clicks[i] - expected[i]; d*d > 16*variance[i] {
			t.Errorf("%v clicks of probability %.1f to %.1f, want %.0f", clicks[i], float64(i)/10, float64(i+1)/10, expected[i])
		}
	}
	for _, bad := range []Generated{{}, {Rows: 1, Users: 1}, {Rows: 1, Users: -1, Items: 1}} {
		if _, err := bad.Table(); err == nil {
			t.Errorf("%+v makes a table", bad)
		}
	}
}

// TestScores against their definitions.
func TestScores(t *testing.T) {
	const seed = 5
	r := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		n := 2 + r.IntN(60)
		scores, labels := make([]float64, n), make([]float32, n)
		for i := range scores {
			scores[i], labels[i] = float64(r.IntN(10)-5)/2, float32(r.IntN(2))
		}
		var wins, pairs, loss float64
		for i := range scores {
			loss -= math.Log(sigmoid(scores[i])*float64(labels[i]*2-1) + float64(1-labels[i]))
			for j := range scores {
				if labels[i] > labels[j] {
					pairs++
					switch {
					case scores[i] > scores[j]:
						wins++
					case scores[i] == scores[j]:
						wins += 0.5
					}
				}
			}
		}
		if got, want := AUC(scores, labels), wins/pairs; math.Abs(got-want) > 1e-12 || (got != got) != (want != want) {
			t.Fatalf("seed %d: auc %v, want %v, of %v and %v", seed, got, want, scores, labels)
		}
		if got, want := LogLoss(scores, labels), loss/float64(n); math.Abs(got-want) > 1e-12 {
			t.Fatalf("seed %d: log loss %v, want %v", seed, got, want)
		}
	}
	if v := LogLoss([]float64{1000, -1000}, []float32{1, 1}); v != 500 {
		t.Errorf("log loss of far logits is %v, want 500", v)
	}
}

func BenchmarkRead(b *testing.B) {
	var text bytes.Buffer
	g := Generated{Rows: 200_000, Users: 1000, Items: 500}
	if err := g.WriteCSV(&text); err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), "a.csv")
	if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		r, err := Open(path, Format{}, g.Schema())
		if err != nil {
			b.Fatal(err)
		}
		for {
			if _, err := r.Next(); err != nil {
				break
			}
		}
		r.Close()
	}
}
