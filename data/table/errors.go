// SPDX-License-Identifier: Apache-2.0

package table

import "fmt"

// RowError says what is wrong with a row and where.
type RowError struct {
	Path   string
	Line   int    // from 1
	Column int    // of the byte in the line, from 1; 0 for the line as a whole
	Field  string // the column's name, "" where none is meant
	Detail string // what is wrong
}

func (e *RowError) Error() string {
	s := fmt.Sprintf("table: %s:%d", e.Path, e.Line)
	if e.Column > 0 {
		s += fmt.Sprintf(":%d", e.Column)
	}
	if e.Field != "" {
		s += fmt.Sprintf(": column %q", e.Field)
	}
	return s + ": " + e.Detail
}

// quote shows a field in a message, cut where it is long.
func quote(field []byte) string {
	const most = 40
	if len(field) > most {
		return fmt.Sprintf("%q…", field[:most])
	}
	return fmt.Sprintf("%q", field)
}
