// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"slices"
)

// Schema says what the columns of a file are to a model. Columns that it does
// not name are left out.
type Schema struct {
	Label      string   `json:"label"`              // the column that is predicted; "" reads rows without one
	Positive   *float64 `json:"positive,omitempty"` // a label of this and more is 1, of less 0; nil for labels that are 0 or 1
	Numbers    []string `json:"numbers"`            // columns of numbers
	Categories []string `json:"categories"`         // columns of names and ids
	Buckets    int      `json:"buckets"`            // rows of the embedding table of each category
}

// maxBuckets is how many rows a bucket's int32 can name.
const maxBuckets = 1 << 31

// Validate reports a schema that nothing can be learnt by.
func (s Schema) Validate() error {
	if s.Label == "" {
		return fmt.Errorf("table: the schema has no label: name the column that is to be predicted")
	}
	return s.validateColumns()
}

// validateColumns reports a schema that no file can have. It may do without a
// label.
func (s Schema) validateColumns() error {
	if len(s.Numbers)+len(s.Categories) == 0 {
		return fmt.Errorf("table: the schema has no columns besides the label %q: name numbers or categories", s.Label)
	}
	if len(s.Categories) > 0 && (s.Buckets < 2 || s.Buckets > maxBuckets) {
		return fmt.Errorf("table: %d buckets for a category: want 2 to %d", s.Buckets, maxBuckets)
	}
	seen := map[string]string{}
	if s.Label != "" {
		seen[s.Label] = "the label"
	}
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

// columns returns the names of all columns that the schema uses: the label, if it
// has one, numbers and categories.
func (s Schema) columns() []string {
	if s.Label == "" {
		return slices.Concat(s.Numbers, s.Categories)
	}
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
