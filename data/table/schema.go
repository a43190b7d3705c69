// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Schema says what the columns of a file are to a model. Columns that it does
// not name are left out.
type Schema struct {
	Label      string   `json:"label"`              // the column that is predicted
	Positive   *float64 `json:"positive,omitempty"` // a label of this and more is 1, of less 0; nil for labels that are 0 or 1
	Numbers    []string `json:"numbers"`            // columns of numbers
	Categories []string `json:"categories"`         // columns of names and ids
	Buckets    int      `json:"buckets"`            // rows of the embedding table of each category
}

// maxBuckets is how many rows a bucket's int32 can name.
const maxBuckets = 1 << 31

// Validate reports a schema that no file can have.
func (s Schema) Validate() error {
	if s.Label == "" {
		return fmt.Errorf("table: the schema has no label: name the column that is to be predicted")
	}
	if len(s.Numbers)+len(s.Categories) == 0 {
		return fmt.Errorf("table: the schema has no columns besides the label %q: name numbers or categories", s.Label)
	}
	if len(s.Categories) > 0 && (s.Buckets < 2 || s.Buckets > maxBuckets) {
		return fmt.Errorf("table: %d buckets for a category: want 2 to %d", s.Buckets, maxBuckets)
	}
	seen := map[string]string{s.Label: "the label"}
	for i, name := range slices.Concat(s.Numbers, s.Categories) {
		kind := "a number"
		if i >= len(s.Numbers) {
			kind = "a category"
		}
		if was, ok := seen[name]; ok {
			return fmt.Errorf("table: the schema has column %q as %s and as %s: name it once", name, was, kind)
		}
		seen[name] = kind
	}
	return nil
}

// columns returns the names of all columns that the schema uses.
func (s Schema) columns() []string {
	return slices.Concat([]string{s.Label}, s.Numbers, s.Categories)
}

// Bucket returns the row of an embedding table that a category's value has: 0 if
// it is missing, 1+n for a whole number n that is small enough, else one of
// 1..Buckets-1 by the FNV-1a hash of its bytes. It is the same on every machine
// and in every release, for trained tables depend on it.
func (s Schema) Bucket(value []byte) int32 {
	if len(value) == 0 {
		return 0
	}
	rest := uint64(s.Buckets - 1)
	if n, ok := wholeNumber(value); ok && n < rest {
		return int32(1 + n)
	}
	h := uint64(0xcbf29ce484222325)
	for _, c := range value {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	// The low bits of FNV-1a depend on the low bits of the bytes alone.
	return int32(1 + scramble(h)%rest)
}

// wholeNumber reads what is written as a number from 0 without zeros before it,
// so that two spellings of a number stay two values.
func wholeNumber(value []byte) (n uint64, ok bool) {
	if len(value) > 10 || value[0] == '0' && len(value) > 1 {
		return 0, false
	}
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + uint64(c-'0')
	}
	return n, true
}

// inferRows is how many rows [Infer] looks at.
const inferRows = 10_000

// Infer proposes a schema for a file or directory from its first rows: columns
// of which every value is a number or missing are numbers, except where their
// names say that they are ids ("id", "user_id", "userId"); the others are
// categories. The label is the column of that name, or else the first. Columns
// that are empty in all of the rows are left out. doubts are sentences about what
// a person should look at: names of columns that are numbers, and columns that
// would be numbers but for some values.
func Infer(path string, f Format, label string, buckets int) (s Schema, doubts []string, err error) {
	files, err := open(path, f)
	if err != nil {
		return Schema{}, nil, err
	}
	defer files.Close()
	if err := files.advance(); err != nil {
		return Schema{}, nil, err
	}
	names := slices.Clone(files.names)
	if len(names) == 1 {
		return Schema{}, nil, &RowError{Path: files.text.path, Line: 1, Detail: fmt.Sprintf("there is one column, %q: are fields separated by another character than %q?", names[0], files.text.comma)}
	}
	if i := slices.IndexFunc(names, func(name string) bool { _, problem := parseNumber([]byte(name)); return problem == "" }); i >= 0 && !f.NoHeader {
		doubts = append(doubts, fmt.Sprintf("the first line of %s names a column %q: is it a row, of a file without a header?", files.text.path, names[i]))
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return Schema{}, nil, &RowError{Path: files.text.path, Line: 1, Detail: fmt.Sprintf("there are several columns %q", name)}
		}
	}
	s = Schema{Label: label, Buckets: buckets}
	switch {
	case label == "" && slices.Contains(names, "label"):
		s.Label = "label"
	case label == "":
		s.Label = names[0]
	case !slices.Contains(names, label):
		return Schema{}, nil, files.noColumn(label)
	}
	filled, words, first := make([]int, len(names)), make([]int, len(names)), make([]string, len(names))
	for rows := 0; rows < inferRows; rows++ {
		if err := files.record(); err != nil {
			if err == io.EOF {
				break
			}
			return Schema{}, nil, err
		}
		for i := range names {
			value := files.text.field(i)
			if f.isMissing(value) {
				continue
			}
			filled[i]++
			if _, problem := parseNumber(value); problem != "" {
				if words[i]++; words[i] == 1 {
					first[i] = fmt.Sprintf("line %d: %s", files.text.fields[i].line, problem)
				}
			}
		}
	}
	for i, name := range names {
		switch {
		case name == s.Label || filled[i] == 0:
		case words[i] > 0 || namesIDs(name):
			s.Categories = append(s.Categories, name)
			if words[i] > 0 && words[i] <= filled[i]/10 && !namesIDs(name) {
				doubts = append(doubts, fmt.Sprintf("column %q is taken for a category, though it is a number in %d of the first %d rows that have it; %s", name, filled[i]-words[i], filled[i], first[i]))
			}
		default:
			s.Numbers = append(s.Numbers, name)
		}
	}
	return s, doubts, s.Validate()
}

// namesIDs says whether a column's name ends in the word id.
func namesIDs(name string) bool {
	lower := strings.ToLower(name)
	return lower == "id" || strings.HasSuffix(lower, "_id") || strings.HasSuffix(lower, "-id") || strings.HasSuffix(lower, " id") || strings.HasSuffix(name, "Id") || strings.HasSuffix(name, "ID")
}
