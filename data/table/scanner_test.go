// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// scanAll returns the records of a text, and the error that ends them if it is
// not the end of the file.
func scanAll(r io.Reader, comma byte) (records [][]string, err error) {
	s := newScanner(r, "f.csv", comma)
	for {
		if err := s.next(); err != nil {
			if err == io.EOF {
				err = nil
			}
			return records, err
		}
		record := []string{}
		for i := range s.numFields() {
			record = append(record, string(s.field(i)))
		}
		records = append(records, record)
	}
}

// stdAll is scanAll by encoding/csv, the oracle.
func stdAll(text []byte, comma byte) ([][]string, error) {
	// The oracle knows no byte order mark.
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))))
	r.Comma, r.FieldsPerRecord = rune(comma), -1
	var records [][]string
	for {
		record, err := r.Read()
		if err == io.EOF {
			return records, nil
		}
		if err != nil {
			return records, err
		}
		records = append(records, record)
	}
}

func checkAgainstStd(t *testing.T, text []byte) {
	t.Helper()
	for _, comma := range []byte{',', '\t'} {
		want, wantErr := stdAll(text, comma)
		got, err := scanAll(iotest.HalfReader(bytes.NewReader(text)), comma)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%q by %q: error %v, encoding/csv has %v", text, comma, err, wantErr)
		}
		if !slices.EqualFunc(got, want, slices.Equal) {
			t.Fatalf("%q by %q: %q, encoding/csv has %q", text, comma, got, want)
		}
		var at *csv.ParseError
		if row := (*RowError)(nil); errors.As(wantErr, &at) && errors.As(err, &row) && errors.Is(at.Err, csv.ErrBareQuote) {
			if row.Line != at.Line || row.Column != at.Column {
				t.Fatalf("%q: the quote is at %d:%d, encoding/csv has %d:%d", text, row.Line, row.Column, at.Line, at.Column)
			}
		}
	}
}

// texts are fields written in every way.
var texts = []string{
	"", "\n", "\r\n", "\r", "a", "a,b", "a,b\n", "a,b\r\nc,d\r\n", "a,\n", ",\n", ",,", "a\n\n\nb\n", "\xef\xbb\xbfa,b\n",
	`"a"`, `"a,b",c`, "\"a\nb\",c\n", "\"a\r\nb\",c\r\n", `"a""b"`, `""""`, `""`, `"",""`, "\"\"\n", "a\rb,c\n",
	`a"b`, `"a"b`, `"a`, "\"a\n", `"a""`, "x,\"y\nz", `"a" ,b`, ` "a"`, "a\tb\n", "\"a\tb\"\tc",
	strings.Repeat("x", 70<<10) + ",y\nz", "\"" + strings.Repeat("x\n", 50<<10) + "\",y\n",
}

func TestScannerIsEncodingCSVs(t *testing.T) {
	for _, text := range texts {
		checkAgainstStd(t, []byte(text))
	}
}

func FuzzScanner(f *testing.F) {
	for _, text := range texts {
		if len(text) < 100 {
			f.Add([]byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) { checkAgainstStd(t, text) })
}

// TestScannerLimits: a quote that is not closed, or a file without lines, is
// not read into memory whole.
func TestScannerLimits(t *testing.T) {
	endless := func(unit string) io.Reader {
		return io.LimitReader(repeat(unit), 16*maxRecordBytes)
	}
	for text, want := range map[io.Reader]string{
		io.MultiReader(strings.NewReader("a\n\"b"), endless("x\n")): "f.csv:2:1: a quote is not closed within",
		endless("x"): "f.csv:1: the line is longer than",
		strings.NewReader(strings.Repeat(",", maxFields)): "f.csv:1: more than 16384 fields",
		endless("\n"): "",
	} {
		_, err := scanAll(text, ',')
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// repeat is a reader of unit for ever.
type repeat string

func (r repeat) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		c := copy(p[n:], r)
		if c < len(r) && n > 0 {
			break // only whole units, so that the next read begins with one
		}
		n += c
	}
	return n, nil
}

func BenchmarkScanner(b *testing.B) {
	var text bytes.Buffer
	if err := (Generated{Rows: 20_000, Users: 1000, Items: 500}).WriteCSV(&text); err != nil {
		b.Fatal(err)
	}
	b.Run("scanner", func(b *testing.B) {
		b.SetBytes(int64(text.Len()))
		b.ReportAllocs()
		for b.Loop() {
			s := newScanner(bytes.NewReader(text.Bytes()), "f.csv", ',')
			for s.next() == nil {
			}
		}
	})
	b.Run("encoding_csv", func(b *testing.B) {
		b.SetBytes(int64(text.Len()))
		b.ReportAllocs()
		for b.Loop() {
			r := csv.NewReader(bytes.NewReader(text.Bytes()))
			r.ReuseRecord = true
			for {
				if _, err := r.Read(); err != nil {
					break
				}
			}
		}
	})
}
