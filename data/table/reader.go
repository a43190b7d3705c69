// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Format is how a file is written.
type Format struct {
	Comma    byte     // between fields; 0 for a tab in files named .tsv, else a comma
	NoHeader bool     // the first line is a row, and the columns are named 1, 2, 3, …
	Missing  []string // what stands for a missing value besides an empty field; nil for the usual ones
}

// usual are the ways to write that a value is missing: pandas', and a database's.
var usual = []string{
	"NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "null", "NULL", "None", "<NA>", "#N/A", "#N/A N/A", "#NA",
	"1.#IND", "1.#QNAN", "-1.#IND", "-1.#QNAN", `\N`,
}

func (f Format) isMissing(field []byte) bool {
	if len(field) == 0 {
		return true
	}
	missing := f.Missing
	if missing == nil {
		if c, last := field[0], field[len(field)-1]; c >= '0' && c <= '9' && last <= '9' {
			return false // most fields, and none of the usual ones
		}
		missing = usual
	}
	for _, m := range missing {
		if string(field) == m {
			return true
		}
	}
	return false
}

// files reads the records of one file after the other.
type files struct {
	format Format
	path   string    // as it was given
	paths  []string  // those that were not begun
	stream io.Reader // of the only path, which is no file
	open   *os.File
	text   *scanner
	names  []string // of the columns of the file that is open
	first  bool     // the first record is in text and was not read yet
}

// open finds the files of a path: itself, or those of a directory whose names
// end in .csv or .tsv, perhaps with .gz behind that, in the order of their names.
// Hidden ones do not count.
func open(path string, format Format) (*files, error) {
	if c := format.Comma; c == '"' || c == '\n' || c == '\r' {
		return nil, fmt.Errorf("table: the separator %q cannot stand between fields", c)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("table: %w", err)
	}
	f := &files{format: format, path: path, paths: []string{path}}
	if info.Mode().IsRegular() {
		return f, nil
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("table: %s is neither a file nor a directory: rows are read more than once, which a pipe cannot do", path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("table: %w", err)
	}
	f.paths = nil
	for _, e := range entries {
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue // what is hidden is a system's, as ._clicks.csv beside clicks.csv
		}
		switch filepath.Ext(strings.TrimSuffix(strings.ToLower(e.Name()), ".gz")) {
		case ".csv", ".tsv":
			f.paths = append(f.paths, filepath.Join(path, e.Name()))
		}
	}
	if len(f.paths) == 0 {
		return nil, fmt.Errorf("table: directory %s has no file named .csv or .tsv, or one of these with .gz behind it", path)
	}
	return f, nil
}

// advance begins the next file and reads its header; io.EOF after the last.
func (f *files) advance() error {
	if err := f.Close(); err != nil {
		return err
	}
	if len(f.paths) == 0 {
		return io.EOF
	}
	path := f.paths[0]
	f.paths = f.paths[1:]
	var err error
	r := f.stream
	if r == nil {
		if f.open, err = os.Open(path); err != nil {
			return fmt.Errorf("table: %w", err)
		}
		r = f.open
	}
	// What a file is, its first bytes say: names lie.
	buffered := bufio.NewReaderSize(r, 64<<10)
	r = buffered
	magic, _ := buffered.Peek(4) // a shorter file is none of these
	begins := func(with string) bool { return strings.HasPrefix(string(magic), with) }
	switch {
	case begins("\x1f\x8b"):
		if r, err = gzip.NewReader(buffered); err != nil {
			return fmt.Errorf("table: %s: %w", path, err)
		}
	case begins("PK\x03\x04"):
		return fmt.Errorf("table: %s is a zip archive or a spreadsheet: save it as CSV", path)
	case begins("PAR1"):
		return fmt.Errorf("table: %s is a Parquet file: save it as CSV", path)
	case begins("\xff\xfe") || begins("\xfe\xff"):
		return fmt.Errorf("table: %s is text of 16 bits a character (UTF-16): save it as UTF-8", path)
	}
	comma := f.format.Comma
	if comma == 0 {
		comma = ','
		if strings.HasSuffix(strings.TrimSuffix(strings.ToLower(path), ".gz"), ".tsv") {
			comma = '\t'
		}
	}
	f.text = newScanner(r, path, comma)
	if err := f.text.next(); err != nil {
		if err == io.EOF {
			err = fmt.Errorf("table: %s is empty", path)
		}
		return err
	}
	f.names = nil
	for i := range f.text.numFields() {
		name := strconv.Itoa(i + 1)
		if !f.format.NoHeader {
			name = string(bytes.TrimSpace(f.text.field(i)))
		}
		f.names = append(f.names, name)
	}
	f.first = f.format.NoHeader
	return f.checkHead()
}

// checkHead says what the first line shows of a file that is no UTF-8 text of lines.
// Names are kept with what is trained, as UTF-8.
func (f *files) checkHead() error {
	for i := range f.text.numFields() {
		field := f.text.field(i)
		switch {
		case bytes.IndexByte(field, 0) >= 0:
			return f.text.fail(1, 0, "there are zero bytes in the first line: if this is text of 16 bits a character (UTF-16), save it as UTF-8")
		case bytes.IndexByte(field, '\r') >= 0 && f.text.numLines == 1:
			return f.text.fail(1, 0, "lines seem to end with a carriage return alone: have them end with a line feed")
		case !f.format.NoHeader && !utf8.Valid(field):
			return f.text.fail(1, f.text.fields[i].column, "the name %q is no UTF-8: save the file as UTF-8", field)
		}
	}
	return nil
}

// record reads the next record of the open file. It has as many fields as there
// are names.
func (f *files) record() error {
	if f.first {
		f.first = false
		return nil
	}
	if err := f.text.next(); err != nil {
		return err
	}
	if n := f.text.numFields(); n != len(f.names) {
		extra := f.text.fields[min(n, len(f.names)+1)-1]
		return f.text.fail(extra.line, extra.column, "the row has %d fields, the first line %d", n, len(f.names))
	}
	return nil
}

// noColumn says that a column is missing, and which there are.
func (f *files) noColumn(name string) error {
	have := slices.Clone(f.names)
	const most = 20
	more := ""
	if len(have) > most {
		have, more = have[:most], fmt.Sprintf(" and %d others", len(have)-most)
	}
	if f.format.NoHeader {
		return fmt.Errorf("table: %s has no column %q: it has %d, named by their numbers", f.text.path, name, len(f.names))
	}
	return &RowError{Path: f.text.path, Line: 1, Detail: fmt.Sprintf("there is no column %q among %q%s", name, have, more)}
}

// Close closes the file that is open.
func (f *files) Close() error {
	if f.open == nil {
		return nil
	}
	err := f.open.Close()
	f.open = nil
	return err
}

// Reader streams the rows of a file, or of the files of a directory.
type Reader struct {
	files  *files
	schema Schema
	places []int // of the schema's columns among the fields
	row    Row
	rounds []int    // of each number: how many values have digits that it loses
	first  []string // of them
	failed error

	numbers    []float32 // memory for rows to come
	categories []int32
}

// Open opens a file, or all files of a directory whose names end in .csv or
// .tsv, in the order of their names, each with a header of its own. Any of them
// may be compressed by gzip. Close the reader after use.
func Open(path string, f Format, s Schema) (*Reader, error) {
	if err := s.validateColumns(); err != nil {
		return nil, err
	}
	source, err := open(path, f)
	if err != nil {
		return nil, err
	}
	r := newReader(source, s)
	if err := r.advance(); err != nil {
		source.Close()
		return nil, err
	}
	return r, nil
}

// newReader returns a reader that has begun no file.
func newReader(source *files, s Schema) *Reader {
	return &Reader{
		files: source, schema: s,
		row:    Row{Label: nan, Numbers: make([]float32, len(s.Numbers)), Categories: make([]int32, len(s.Categories))},
		rounds: make([]int, len(s.Numbers)), first: make([]string, len(s.Numbers)),
	}
}

// advance begins the next file and finds the schema's columns in it.
func (r *Reader) advance() error {
	if err := r.files.advance(); err != nil {
		return err
	}
	r.places = r.places[:0]
	for _, name := range r.schema.columns() {
		i := slices.Index(r.files.names, name)
		switch {
		case i < 0:
			return r.files.noColumn(name)
		case slices.Contains(r.files.names[i+1:], name):
			return &RowError{Path: r.files.text.path, Line: 1, Detail: fmt.Sprintf("there are several columns %q", name)}
		}
		r.places = append(r.places, i)
	}
	return nil
}

// Next returns the next row, which is the caller's. The error is io.EOF after the
// last, and a *[RowError] for a row that is wrong; any error is final.
func (r *Reader) Next() (Row, error) {
	row, err := r.shared()
	if err != nil {
		return Row{}, err
	}
	return Row{Label: row.Label, Numbers: copied(&r.numbers, row.Numbers), Categories: copied(&r.categories, row.Categories)}, nil
}

// copied copies values to memory that is taken for many rows at a time.
func copied[T any](spare *[]T, values []T) []T {
	n := len(values)
	if len(*spare) < n {
		*spare = make([]T, 64*n)
	}
	own := (*spare)[:n:n]
	*spare = (*spare)[n:]
	copy(own, values)
	return own
}

// shared is Next with slices that hold until the next call.
func (r *Reader) shared() (Row, error) {
	if r.failed == nil {
		r.failed = r.next()
	}
	return r.row, r.failed
}

func (r *Reader) next() error {
	err := r.files.record()
	for err == io.EOF {
		if err = r.advance(); err != nil {
			return err
		}
		err = r.files.record()
	}
	if err != nil {
		return err
	}
	text, s := r.files.text, r.schema
	before := 0 // columns that are not numbers
	if s.Label != "" {
		before = 1
	}
	for i, at := range r.places {
		field := text.field(at)
		missing, problem := r.files.format.isMissing(field), ""
		switch number, category := i-before, i-before-len(s.Numbers); {
		case number < 0 && missing:
			problem = "there is no label"
		case number < 0:
			r.row.Label, problem = s.label(field)
		case category >= 0 && missing:
			r.row.Categories[category] = 0
		case category >= 0:
			r.row.Categories[category] = s.Bucket(field)
		case missing:
			r.row.Numbers[number] = nan
		default:
			v, wrong := parseNumber(field)
			if (v >= exactWhole || v <= -exactWhole) && isWhole(field) {
				if r.rounds[number]++; r.rounds[number] == 1 {
					r.first[number] = quote(field)
				}
			}
			r.row.Numbers[number], problem = v, wrong
		}
		if problem != "" {
			place := text.fields[at]
			return &RowError{Path: text.path, Line: place.line, Column: place.column, Field: r.files.names[at], Detail: problem}
		}
	}
	return nil
}

// Notes are sentences about what a person should look at in the rows that were
// read: columns of numbers with whole numbers that lose digits, as ids do. Those
// whose names say that they are times or amounts are none.
func (r *Reader) Notes() (notes []string) {
	for i, n := range r.rounds {
		if n > 0 && !namesQuantity(r.schema.Numbers[i]) {
			notes = append(notes, fmt.Sprintf("%d values of column %q, such as %s, are whole numbers of more digits than a number has here (24 bits): if they are ids, make it a category", n, r.schema.Numbers[i], r.first[i]))
		}
	}
	return notes
}

// label reads the label of a row.
func (s Schema) label(field []byte) (v float32, problem string) {
	switch string(field) { // as pandas writes and reads them
	case "True", "TRUE", "true":
		return 1, ""
	case "False", "FALSE", "false":
		return 0, ""
	}
	v, problem = parseNumber(field)
	switch {
	case problem != "":
		return 0, problem
	case s.Positive != nil && float64(v) >= *s.Positive:
		return 1, ""
	case s.Positive != nil:
		return 0, ""
	case v != 0 && v != 1:
		return 0, "the label is " + quote(bytes.TrimSpace(field)) + ", want 0 or 1; or say from which value on it counts as 1"
	}
	return v, ""
}

// Close closes the file that is open.
func (r *Reader) Close() error {
	if r.failed == nil {
		r.failed = errors.New("table: the reader is closed")
	}
	return r.files.Close()
}
