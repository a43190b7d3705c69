// SPDX-License-Identifier: Apache-2.0

package rows

import "fmt"

// Kind is the sort of failure of an [Error].
type Kind string

// KindSchema: a schema has a setting that cannot be.
const KindSchema Kind = "schema"

// KindKey: a key is not one of the table, or stands twice.
const KindKey Kind = "key"

// KindGradient: a gradient is not finite, or has the wrong length.
const KindGradient Kind = "gradient"

// KindRecord: a record of a snapshot does not fit the table.
const KindRecord Kind = "record"

// KindDType: rows were asked for in a dtype that rows do not have.
const KindDType Kind = "dtype"

// KindMemory: there is no memory for a row.
const KindMemory Kind = "memory"

// KindDisk: a row on disk cannot be read or written.
const KindDisk Kind = "disk"

// Error says what is wrong with a request, and in which table.
type Error struct {
	Kind  Kind
	Table string
	Key   int64 // of KindKey, KindGradient and KindDisk, if one key is to blame
	Text  string
	Cause error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("table %q: %s", e.Table, e.Text)
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

func (t *Table) fail(kind Kind, format string, a ...any) *Error {
	return &Error{Kind: kind, Table: t.schema.Name, Text: fmt.Sprintf(format, a...)}
}
