// SPDX-License-Identifier: Apache-2.0

package table

import (
	"errors"
	"io"
	"slices"
)

// TextReader streams the rows of a file, or of the files of a directory, as they are
// written: for models that predict from text, and for rows that have no label.
type TextReader struct {
	files  *files
	failed error
	values []string
}

// OpenText opens a file or a directory as [Open] does. Close the reader after use.
func OpenText(path string, f Format) (*TextReader, error) {
	source, err := open(path, f)
	if err != nil {
		return nil, err
	}
	return newTextReader(source)
}

// NewTextReader reads rows from r, such as standard input; name is for errors.
func NewTextReader(name string, r io.Reader, f Format) (*TextReader, error) {
	return newTextReader(&files{format: f, path: name, paths: []string{name}, stream: r})
}

func newTextReader(source *files) (*TextReader, error) {
	r := &TextReader{files: source}
	if err := r.advance(); err != nil {
		source.Close()
		return nil, err
	}
	return r, nil
}

func (r *TextReader) advance() error {
	if err := r.files.advance(); err != nil {
		return err
	}
	for i, name := range r.files.names {
		if slices.Contains(r.files.names[i+1:], name) {
			return &RowError{Path: r.files.text.path, Line: 1, Detail: "there are several columns " + quote([]byte(name))}
		}
	}
	return nil
}

// Names are those of the columns of the file that is being read. The caller must not
// change them.
func (r *TextReader) Names() []string { return r.files.names }

// Next returns the values of the next row, in the order of Names, which hold until the next
// call. The error is io.EOF after the last row, and a *[RowError] for a wrong one. After it
// Next goes on with the row behind, unless nobody can know where that begins ([TextReader.Ended]).
func (r *TextReader) Next() ([]string, error) {
	if r.failed != nil {
		return nil, r.failed
	}
	err := r.files.record()
	for err == io.EOF {
		if r.failed = r.advance(); r.failed != nil {
			return nil, r.failed
		}
		err = r.files.record()
	}
	text := r.files.text
	if err != nil {
		if bad := (*RowError)(nil); !errors.As(err, &bad) || text.lost {
			r.failed = err
		}
		return nil, err
	}
	r.values = r.values[:0]
	for i := range text.numFields() {
		r.values = append(r.values, string(text.field(i)))
	}
	return r.values, nil
}

// Ended says whether there are no further rows.
func (r *TextReader) Ended() bool { return r.failed != nil }

// Place returns the file of the row that Next has returned, and the line in which it begins.
func (r *TextReader) Place() (path string, line int) {
	text := r.files.text
	if line = text.numLines; text.numFields() > 0 {
		line = text.fields[0].line
	}
	return text.path, line
}

// Close closes the file that is open.
func (r *TextReader) Close() error {
	if r.failed == nil {
		r.failed = errors.New("table: the reader is closed")
	}
	return r.files.Close()
}

// RowOf makes a row of text values, as a [Reader] does: value returns what a column has,
// "" where it is missing. The row has no label. The error is a *[RowError] without a file.
func (s Schema) RowOf(f Format, value func(column string) string) (Row, error) {
	row := Row{Label: nan, Numbers: make([]float32, len(s.Numbers)), Categories: make([]int32, len(s.Categories))}
	for i, name := range s.Numbers {
		row.Numbers[i] = nan
		field := []byte(value(name))
		if f.isMissing(field) {
			continue
		}
		v, problem := parseNumber(field)
		if problem != "" {
			return Row{}, &RowError{Field: name, Detail: problem}
		}
		row.Numbers[i] = v
	}
	for i, name := range s.Categories {
		if field := []byte(value(name)); !f.isMissing(field) {
			row.Categories[i] = s.Bucket(field)
		}
	}
	return row, nil
}
