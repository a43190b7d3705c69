// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/tensor"
)

const (
	maxName  = 256
	maxWidth = 1 << 20
	maxRows  = 1 << 31
)

// Schema says what the rows of a table are. In JSON its keys are in lower case and its
// dtypes are names: {"name": "user", "width": 64, "dtype": "bfloat16"}.
type Schema struct {
	Name string
	// Width is the number of values of a row.
	Width int
	// Rows is the number of rows of a dense table, whose keys are 0 to Rows-1. 0 means
	// that any 64-bit number is a key.
	Rows int
	// DType is that of the values in memory: Float32 (also the zero value), BFloat16,
	// Float16, or Int8, which has a float32 scale a row. State is always float32.
	DType tensor.DType
	// Wire is the dtype in which rows travel; zero means DType.
	Wire      tensor.DType
	Init      Init
	Optimizer Optimizer
	// Admit is the number of the push with which a row begins; 0 and 1 mean the first.
	// Earlier pushes of the key are counted and have no other effect.
	Admit int
	Evict Eviction
	// Memory bounds the bytes that rows take in memory; 0 means no bound. Colder rows
	// lie on disk.
	Memory int64
}

// Eviction says when rows leave a table. Zero fields evict nothing.
type Eviction struct {
	Steps int   `json:"steps,omitempty"` // a row leaves when no push has changed it for this many steps
	Rows  int   `json:"rows,omitempty"`  // the table keeps this many rows, those changed last
	Bytes int64 `json:"bytes,omitempty"` // the same, in bytes of rows with their state
}

// schemaText is the JSON of a Schema.
type schemaText struct {
	Name      string    `json:"name"`
	Width     int       `json:"width"`
	Rows      int       `json:"rows,omitempty"`
	DType     string    `json:"dtype,omitempty"`
	Wire      string    `json:"wire,omitempty"`
	Init      Init      `json:"init,omitzero"`
	Optimizer Optimizer `json:"optimizer,omitzero"`
	Admit     int       `json:"admit,omitempty"`
	Evict     Eviction  `json:"evict,omitzero"`
	Memory    int64     `json:"memory,omitempty"`
}

func dtypeName(d tensor.DType) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func dtypeOf(name string) (tensor.DType, error) {
	switch name {
	case "":
		return 0, nil
	case "float32":
		return tensor.Float32, nil
	case "bfloat16":
		return tensor.BFloat16, nil
	case "float16":
		return tensor.Float16, nil
	case "int8":
		return tensor.Int8, nil
	}
	return 0, fmt.Errorf("the dtype is %q: want float32, bfloat16, float16 or int8", name)
}

// MarshalJSON writes the schema with the names of its dtypes.
func (s Schema) MarshalJSON() ([]byte, error) {
	return json.Marshal(schemaText{s.Name, s.Width, s.Rows, dtypeName(s.DType), dtypeName(s.Wire), s.Init, s.Optimizer, s.Admit, s.Evict, s.Memory})
}

// UnmarshalJSON refuses keys that a schema does not have. It does not call Validate.
func (s *Schema) UnmarshalJSON(text []byte) error {
	var t schemaText
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		return fmt.Errorf("schema of a table: %w", err)
	}
	dtype, err := dtypeOf(t.DType)
	if err != nil {
		return fmt.Errorf("table %q: dtype: %w", t.Name, err)
	}
	wire, err := dtypeOf(t.Wire)
	if err != nil {
		return fmt.Errorf("table %q: wire: %w", t.Name, err)
	}
	*s = Schema{t.Name, t.Width, t.Rows, dtype, wire, t.Init, t.Optimizer, t.Admit, t.Evict, t.Memory}
	return nil
}

// Validate returns an error that names the first setting that cannot be.
func (s Schema) Validate() error {
	fail := func(format string, a ...any) error {
		return &Error{Kind: KindSchema, Table: s.Name, Text: fmt.Sprintf(format, a...)}
	}
	switch {
	case s.Name == "":
		return fail("a table has no name: give it one")
	case len(s.Name) > maxName || !utf8.ValidString(s.Name):
		return fail("the name has %d bytes: want at most %d bytes of UTF-8", len(s.Name), maxName)
	case s.Width < 1 || s.Width > maxWidth:
		return fail("width is %d: want 1 to %d", s.Width, maxWidth)
	case s.Rows < 0 || s.Rows > maxRows:
		return fail("rows is %d: want 0 (any 64-bit key) to %d", s.Rows, maxRows)
	case s.Admit < 0 || s.Admit > maxCount:
		return fail("admit is %d: want 0 to %d", s.Admit, maxCount)
	case s.Evict.Steps < 0 || s.Evict.Rows < 0 || s.Evict.Bytes < 0:
		return fail("evict is %+v: want no negative number", s.Evict)
	case s.Evict.Steps > math.MaxUint32:
		return fail("evict.steps is %d: want at most %d", s.Evict.Steps, uint32(math.MaxUint32))
	case s.Memory < 0:
		return fail("memory is %d: want 0 (no bound) or bytes", s.Memory)
	}
	for _, d := range []tensor.DType{s.DType, s.Wire} {
		if d != 0 && !isRowDType(d) {
			return fail("rows of %v: want float32, bfloat16, float16 or int8", d)
		}
	}
	if s.Rows > 0 && (s.Admit > 1 || s.Evict != Eviction{}) {
		return fail("a dense table (rows = %d) keeps all its rows: leave out admit and evict", s.Rows)
	}
	if s.Memory > 0 && s.Optimizer.Kind == Adam {
		return fail("optimizer.kind is adam, which moves all rows at each step, and memory would keep some on disk: use lazy_adam, or leave memory out")
	}
	if problem := s.Init.validate(); problem != "" {
		return fail("%s", problem)
	}
	if problem := s.Optimizer.validate(s.Rows > 0); problem != "" {
		return fail("%s", problem)
	}
	return nil
}

// WithDefaults returns the schema with the defaults in place of zero values. Two schemas
// mean the same table if their results are equal.
func (s Schema) WithDefaults() Schema {
	if s.DType == 0 {
		s.DType = tensor.Float32
	}
	if s.Wire == 0 {
		s.Wire = s.DType
	}
	s.Admit = max(1, s.Admit)
	s.Init = s.Init.withDefaults()
	s.Optimizer = s.Optimizer.withDefaults()
	return s
}

// RowBytes returns the bytes of a row of a dtype: with Int8, the values and then the scale,
// a little-endian float32.
func (s Schema) RowBytes(as tensor.DType) int { return rowBytes(as, s.Width) }

// StateLen returns the number of float32 of a row's state.
func (s Schema) StateLen() int { return s.Optimizer.stateLen(s.Width) }
