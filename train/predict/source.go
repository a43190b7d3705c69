// SPDX-License-Identifier: Apache-2.0

package predict

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/data/records"
	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/train"
)

// The formats of inputs that a file's name does not tell.
const (
	FormatText  = "text"  // one text, or the path of an image, in a line
	FormatJSONL = "jsonl" // one JSON object in a line
	FormatCSV   = "csv"   // a table with a header
)

// Item is one input, and where it comes from.
type Item struct {
	File string // path; "-" is standard input
	Line int    // from 1; 0 where a file is one input, or its lines are not known
	Kept []any  // the values of Options.Keep

	size int // bytes of its text
	load func() (train.Input, error)
	at   func(err error) error // adds the place to an error
}

// Place names the input.
func (i Item) Place() string {
	if i.Line == 0 {
		return i.File
	}
	return fmt.Sprintf("%s:%d", i.File, i.Line)
}

// Source yields inputs. The error is io.EOF after the last. After an error of one input Next
// goes on with the next one, unless it returns a *[finalError].
type Source interface {
	Next() (Item, error)
	Close() error
}

// finalError is an error after which a source has no further inputs.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

// Options say what is read, and how.
type Options struct {
	Paths  []string  // files and directories; "-" is Stdin
	Stdin  io.Reader // nil if there is none
	Format string    // of standard input, and of files whose names tell none; "" is what suits the model
	Field  string    // of records: that with the text, the words, or the path of the image; "" is a usual name
	Keep   []string  // fields of records, or columns, that are copied into the output
	Prompt *string   // of vectors: the name of the prompt that is put before each text; nil is the model's default
	Skip   bool      // leave out what cannot be used, and tell
	Batch  int       // inputs that are computed at once; 0 is what suits the model

	Notice func(text string) // is told what a person should know; may be nil
}

// OpenSource opens the inputs of a model.
func OpenSource(ctx context.Context, m *train.Model, o Options) (Source, error) {
	if len(o.Paths) == 0 {
		return nil, errors.New("there is nothing to predict: name files or folders, or - for standard input")
	}
	if o.Format == "" {
		if o.Format = FormatText; m.Rows != nil {
			o.Format = FormatCSV
		}
	}
	if !slices.Contains([]string{FormatText, FormatJSONL, FormatCSV}, o.Format) {
		return nil, fmt.Errorf("the format of the input is %q, want text, jsonl or csv", o.Format)
	}
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	for _, path := range o.Paths { // before the first is computed
		if path == "-" {
			if o.Stdin == nil {
				return nil, errors.New("there is no standard input")
			}
			continue
		}
		if _, err := os.Stat(path); err != nil {
			return nil, err
		}
	}
	return &sequence{ctx: ctx, m: m, o: o}, nil
}

// sequence is the inputs of one path after the other.
type sequence struct {
	ctx  context.Context
	m    *train.Model
	o    Options
	next int
	from Source
}

func (s *sequence) Next() (Item, error) {
	for {
		if s.from == nil {
			if s.next == len(s.o.Paths) {
				return Item{}, io.EOF
			}
			from, err := s.open(s.o.Paths[s.next])
			if err != nil {
				return Item{}, &finalError{err}
			}
			s.from = from
			s.next++
		}
		item, err := s.from.Next()
		if !errors.Is(err, io.EOF) {
			return item, err
		}
		if err := s.Close(); err != nil {
			return Item{}, &finalError{err}
		}
	}
}

func (s *sequence) Close() error {
	if s.from == nil {
		return nil
	}
	err := s.from.Close()
	s.from = nil
	return err
}

// open finds out what a path has.
func (s *sequence) open(path string) (Source, error) {
	if path == "-" {
		return s.stream("-", io.NopCloser(s.o.Stdin), s.o.Format)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	name := strings.ToLower(path)
	plain := strings.TrimSuffix(name, ".gz")
	isTable := strings.HasSuffix(plain, ".csv") || strings.HasSuffix(plain, ".tsv")
	switch {
	case info.IsDir() && s.m.Images != nil:
		return s.images(path)
	case info.IsDir() && s.m.Rows != nil && !records.Is(path), !info.IsDir() && isTable:
		r, err := table.OpenText(path, s.m.Format)
		if err != nil {
			return nil, err
		}
		return newRows(s, r), nil
	case strings.HasSuffix(name, ".jsonl") || strings.HasSuffix(name, ".ndjson"):
		return s.file(path, FormatJSONL)
	case records.Is(path):
		set, err := records.Open(s.ctx, path, records.Options{Notice: s.o.Notice})
		if err != nil {
			return nil, err
		}
		return &recordSource{fields: s.fields(), set: set}, nil
	case info.IsDir():
		return nil, fmt.Errorf("%s is a directory without files of records: want files that end in %s", path, strings.Join(append(records.Endings(), ".csv", ".tsv"), ", "))
	case s.m.Images != nil && !strings.HasSuffix(name, ".txt"):
		return &imageFiles{paths: []string{path}}, nil
	case s.m.Rows != nil && s.o.Format == FormatText:
		return nil, fmt.Errorf("%s: a recommender reads rows: want a table (.csv, .tsv) or records (%s)", path, strings.Join(records.Endings(), ", "))
	}
	return s.file(path, s.o.Format)
}

// file reads a file in a format that is known.
func (s *sequence) file(path, format string) (Source, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	src, err := s.stream(path, f, format)
	if err != nil {
		f.Close()
	}
	return src, err
}

// stream reads inputs that come one after the other.
func (s *sequence) stream(name string, r io.ReadCloser, format string) (Source, error) {
	switch {
	case format == FormatCSV:
		t, err := table.NewTextReader(name, r, s.m.Format)
		if err != nil {
			return nil, err
		}
		src := newRows(s, t)
		src.under = r
		return src, nil
	case format == FormatText && s.m.Rows != nil:
		return nil, fmt.Errorf("%s: a recommender reads rows, csv or jsonl, not lines of text", name)
	}
	return &lineSource{fields: s.fields(), stream: records.NewStream(s.ctx, name, r), under: r, name: name, text: format == FormatText}, nil
}

// lineSource reads lines: of text, or of JSON.
type lineSource struct {
	fields
	stream *records.Stream
	under  io.Closer
	name   string
	text   bool
}

func (s *lineSource) Next() (Item, error) {
	var r records.Record
	var err error
	var text string
	if s.text {
		var line []byte
		line, err = s.stream.NextLine()
		text = string(line)
	} else {
		r, err = s.stream.Next()
	}
	size := s.stream.Len()
	line := s.stream.Line()
	if err != nil {
		if bad := (*records.Error)(nil); errors.As(err, &bad) {
			return Item{File: s.name, Line: line}, err
		}
		return Item{}, ended(err)
	}
	at := func(err error) error { return placed(s.name, line, err) }
	if s.text {
		in, err := s.ofText(text)
		return Item{File: s.name, Line: line, size: size, at: at, load: in, Kept: make([]any, len(s.keep))}, at(err)
	}
	in, kept, err := s.ofRecord(r, filepath.Dir(s.name))
	return Item{File: s.name, Line: line, size: size, at: at, load: in, Kept: kept}, at(err)
}

func (s *lineSource) Close() error { return s.under.Close() }

// ended keeps io.EOF, and makes any other error final.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return &finalError{err}
}

// placed adds a file and a line to an error of an input.
func placed(file string, line int, err error) error {
	if err == nil {
		return nil
	}
	e := &records.Error{Path: file, Line: line, Detail: err.Error()}
	if f := (*train.FieldError)(nil); errors.As(err, &f) {
		e.Field, e.Detail = f.Field, f.Detail
	}
	return e
}

// recordSource reads a set of records.
type recordSource struct {
	fields
	set *records.Set
	at  int
}

func (s *recordSource) Next() (Item, error) {
	if s.at == s.set.Len() {
		return Item{}, io.EOF
	}
	i := s.at
	s.at++
	// The place is in the error of a record, which is asked for one.
	where := (*records.Error)(nil)
	errors.As(s.set.At(i, errors.New("")), &where)
	item := Item{File: where.Path, Line: where.Line, at: func(err error) error { return s.place(i, err) }}
	if item.Line == 0 {
		item.Line = where.Record
	}
	r, err := s.set.Read(i)
	if err == nil {
		item.load, item.Kept, err = s.ofRecord(r, filepath.Dir(where.Path))
	}
	return item, s.place(i, err)
}

func (s *recordSource) place(i int, err error) error {
	if f := (*train.FieldError)(nil); errors.As(err, &f) {
		err = &records.FieldError{Field: f.Field, Detail: f.Detail}
	}
	return s.set.At(i, err)
}

func (s *recordSource) Close() error { return s.set.Close() }

// rowSource reads the rows of tables.
type rowSource struct {
	fields
	rows  *table.TextReader
	under io.Closer // of a stream
}

func newRows(s *sequence, r *table.TextReader) *rowSource {
	return &rowSource{fields: s.fields(), rows: r}
}

func (s *rowSource) Next() (Item, error) {
	values, err := s.rows.Next()
	if err != nil {
		bad := (*table.RowError)(nil)
		switch {
		case errors.Is(err, io.EOF):
			return Item{}, io.EOF
		case s.rows.Ended() || !errors.As(err, &bad):
			return Item{}, &finalError{err}
		}
		return Item{File: bad.Path, Line: bad.Line}, err
	}
	path, line := s.rows.Place()
	at := func(err error) error { return placed(path, line, err) }
	r := make(records.Record, len(values))
	for i, name := range s.rows.Names() {
		r[name] = values[i]
	}
	in, kept, err := s.ofRecord(r, filepath.Dir(path))
	return Item{File: path, Line: line, at: at, load: in, Kept: kept}, at(err)
}

func (s *rowSource) Close() error {
	err := s.rows.Close()
	if s.under != nil {
		err = errors.Join(err, s.under.Close())
	}
	return err
}

// imageFiles are images, each in a file of its own.
type imageFiles struct {
	paths []string
	keep  int
}

// images finds the images of a directory and below it, in the order of their paths.
func (s *sequence) images(dir string) (Source, error) {
	src := &imageFiles{keep: len(s.o.Keep)}
	others := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path != dir && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.IsDir():
		case slices.Contains([]string{".jpg", ".jpeg", ".png"}, strings.ToLower(filepath.Ext(path))):
			src.paths = append(src.paths, path)
		default:
			others++
		}
		return context.Cause(s.ctx)
	})
	if err != nil {
		return nil, err
	}
	if others > 0 {
		s.o.Notice(fmt.Sprintf("%s: files that end neither in .jpg, .jpeg nor .png are left out: %d", dir, others))
	}
	if len(src.paths) == 0 {
		return nil, fmt.Errorf("%s has no images: want files that end in .jpg, .jpeg or .png", dir)
	}
	return src, nil
}

func (s *imageFiles) Next() (Item, error) {
	if len(s.paths) == 0 {
		return Item{}, io.EOF
	}
	path := s.paths[0]
	s.paths = s.paths[1:]
	return Item{
		File: path, Kept: make([]any, s.keep), at: func(err error) error { return fmt.Errorf("%s: %w", path, err) },
		load: func() (train.Input, error) { return readImage(path) },
	}, nil
}

func (s *imageFiles) Close() error { return nil }

// maxImageFile bounds the file of an image.
const maxImageFile = 1 << 30

// readImage reads an image.
func readImage(path string) (in train.Input, err error) {
	f, err := os.Open(path)
	if err != nil {
		return in, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxImageFile+1))
	if err == nil && len(text) > maxImageFile {
		err = fmt.Errorf("the file has more than the %d bytes allowed", maxImageFile)
	}
	if err != nil {
		return in, err
	}
	in.Image, err = vision.Decode(text)
	return in, err
}
