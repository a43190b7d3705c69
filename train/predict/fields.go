// SPDX-License-Identifier: Apache-2.0

package predict

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/data/records"
	"github.com/cohort-ml/cohort/train"
)

// fields makes inputs of a model of records, rows and lines.
type fields struct {
	m      *train.Model
	field  string // "" until a record shows it
	keep   []string
	usual  []string
	images bool
}

func (s *sequence) fields() fields {
	f := fields{m: s.m, field: s.o.Field, keep: s.o.Keep, images: s.m.Images != nil, usual: []string{"text", "sentence", "tokens", "words", "query", "question", "content"}}
	if t := s.m.Texts; t != nil && t.Text != "" {
		f.usual = append([]string{t.Text}, f.usual...)
	}
	if f.images {
		f.usual = []string{"image", "path", "file", "file_name", "filename"}
	}
	return f
}

type loader = func() (train.Input, error)

// ofText makes an input of a line.
func (f *fields) ofText(text string) (loader, error) {
	if len(f.keep) > 0 {
		return nil, fmt.Errorf("a line of text has no field %q to keep", f.keep[0])
	}
	if !utf8.ValidString(text) {
		return nil, errors.New("the line is no UTF-8: convert the file")
	}
	if f.images {
		return func() (train.Input, error) { return readImage(text) }, nil
	}
	return func() (train.Input, error) { return train.Input{Text: text}, nil }, nil
}

// ofRecord makes an input of a record, and takes what is copied into the output. Paths are
// relative to dir.
func (f *fields) ofRecord(r records.Record, dir string) (loader, []any, error) {
	kept := make([]any, 0, len(f.keep))
	for _, name := range f.keep {
		v, ok := r[name]
		if !ok {
			return nil, nil, f.missing(name, r)
		}
		kept = append(kept, v)
	}
	if f.m.Rows != nil {
		return func() (train.Input, error) { return train.Input{Row: r}, nil }, kept, nil
	}
	for _, name := range f.usual {
		if _, ok := r[name]; ok && f.field == "" {
			f.field = name
		}
	}
	if f.field == "" {
		return nil, nil, &train.FieldError{Detail: fmt.Sprintf("the record has the fields %s: say with --field which is meant", few(r.Fields()))}
	}
	v, ok := r[f.field]
	if !ok {
		return nil, nil, f.missing(f.field, r)
	}
	in, err := f.of(v)
	if err != nil {
		return nil, nil, err
	}
	if f.images {
		path := in.Text
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		return func() (train.Input, error) { return readImage(path) }, kept, nil
	}
	return func() (train.Input, error) { return in, nil }, kept, nil
}

// of makes an input of the value of the field.
func (f *fields) of(v any) (in train.Input, err error) {
	words := f.m.Kind() == "tags" && f.m.Texts != nil
	switch v := v.(type) {
	case string:
		if words {
			return train.Input{Words: strings.Fields(v)}, nil
		}
		return train.Input{Text: v}, nil
	case []any:
		if !words {
			break
		}
		for i, w := range v {
			text, ok := w.(string)
			if !ok {
				return in, &train.FieldError{Field: fmt.Sprintf("%s[%d]", f.field, i), Detail: fmt.Sprintf("it is %s, want a word", records.KindOf(w))}
			}
			in.Words = append(in.Words, text)
		}
		return in, nil
	}
	want := "text"
	if words {
		want = "a list of words, or text"
	}
	return in, &train.FieldError{Field: f.field, Detail: fmt.Sprintf("it is %s, want %s", records.KindOf(v), want)}
}

func (f *fields) missing(name string, r records.Record) error {
	return &train.FieldError{Field: name, Detail: "it is missing; the record has " + few(r.Fields())}
}

// few prints the first of many names.
func few(names []string) string {
	const most = 12
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}
