// SPDX-License-Identifier: Apache-2.0

package records

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Record is one row: values by the names of fields. A value is a string, int64, float64, bool, nil, a
// Record, a []any of such values, or a []byte.
type Record map[string]any

// Want is what [Set.ReadFields] does with a field.
type Want int

const (
	Leave Want = iota // leave it out
	Take              // take its value
	Raw               // take it as it is written, a json.RawMessage whose keys keep their order
)

// Fields returns the names of the fields, sorted.
func (r Record) Fields() []string { return slices.Sorted(maps.Keys(r)) }

// Error says what is wrong with a file of records, and where.
type Error struct {
	Path   string
	Line   int    // from 1; 0 where the file has no lines
	Record int    // from 1; 0 where the file as a whole is meant
	Field  string // such as messages[2].content; "" where none is meant
	Detail string // what is wrong, and what to do
}

func (e *Error) Error() string {
	s := "records: " + e.Path
	switch {
	case e.Line > 0:
		s += fmt.Sprintf(":%d", e.Line)
	case e.Record > 0:
		s += fmt.Sprintf(", record %d", e.Record)
	}
	if e.Field != "" {
		s += fmt.Sprintf(": field %q", e.Field)
	}
	return s + ": " + e.Detail
}

// FieldError says that a field of a record is not as wanted. [Set.At] makes an *[Error] of it, which
// knows the file.
type FieldError struct {
	Field  string
	Detail string
}

func (e *FieldError) Error() string {
	if e.Field == "" {
		return e.Detail
	}
	return fmt.Sprintf("field %q: %s", e.Field, e.Detail)
}

// Text returns a field that must be a string.
func (r Record) Text(field string) (string, error) {
	v, ok := r[field]
	if !ok {
		return "", &FieldError{field, "is missing; the record has " + r.names()}
	}
	s, ok := v.(string)
	if !ok {
		return "", &FieldError{field, "is " + KindOf(v) + ", want a text"}
	}
	return s, nil
}

// names lists the fields for a message.
func (r Record) names() string {
	const most = 12
	names := r.Fields()
	if len(names) == 0 {
		return "no fields"
	}
	more := ""
	if len(names) > most {
		names, more = names[:most], " …"
	}
	return strings.Join(names, ", ") + more
}

// KindOf names the kind of a value for people.
func KindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return "a text"
	case json.RawMessage:
		return "a value that was not read"
	case bool:
		return "a truth value"
	case int64:
		return "a whole number"
	case float64:
		return "a number"
	case []any:
		return fmt.Sprintf("a list of %d", len(v))
	case []byte:
		return fmt.Sprintf("%d bytes that are no text", len(v))
	case Record:
		return "an object"
	}
	return fmt.Sprintf("a %T", v)
}
