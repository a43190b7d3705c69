// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"sync"

	"github.com/cohort-ml/cohort/tensor"
)

// Options of a table that are no part of what it means.
type Options struct {
	// Dir is the directory of cold rows. A table with Schema.Memory needs it.
	Dir string
	// Owns says which keys are this process's; nil means all.
	Owns func(key int64) bool
}

// Mark says where in the log and in the training an update is.
type Mark struct {
	LSN uint64 // of the log entry, from 1
	// Step is the number of the update in the training, from 1. Bias corrections,
	// decays of the learning rate and evictions by age count with it.
	Step uint64
	// LR takes the place of the optimizer's, unless it is 0.
	LR float64
}

// Table is the rows of one table in this process. The package's documentation says which
// methods may run beside each other.
type Table struct {
	schema   Schema // with defaults
	owns     func(int64) bool
	rowBytes int
	stateAt  int // offset of the state in a record
	stateLen int // float32 of it
	first    filler

	mu    sync.RWMutex // the writer holds it for some hundred rows at a time
	rows  store
	young store     // keys that have fewer pushes than Admit: headers alone
	gone  store     // keys that were removed: headers alone
	cold  *coldRows // nil without Schema.Memory
	stats counters

	update updateScratch
	helper *updateScratch // of who shares an update; nil before the first one
	reads  sync.Pool      // of *readScratch
}

// New returns an empty table.
func New(s Schema, o Options) (*Table, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s = s.WithDefaults()
	t := &Table{schema: s, owns: o.Owns, rowBytes: rowBytes(s.DType, s.Width)}
	t.stateAt = (t.rowBytes + 3) &^ 3
	t.stateLen = s.Optimizer.stateLen(s.Width)
	t.first = newFiller(s.Name, s.Init)
	t.rows = newStore(t.stateAt+4*t.stateLen, s.Rows)
	t.young, t.gone = newStore(0, 0), newStore(0, 0)
	t.reads.New = func() any { return newReadScratch(t) }
	t.update.init(t)
	if s.Memory > 0 {
		var err error
		if t.cold, err = newColdRows(t, o.Dir); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Schema returns the schema with its defaults.
func (t *Table) Schema() Schema { return t.schema }

// RecordBytes returns the lengths of Row and State of a record.
func (t *Table) RecordBytes() (row, state int) { return t.rowBytes, 4 * t.stateLen }

// Len returns the number of rows.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.numRows()
}

func (t *Table) numRows() int {
	n := t.rows.live()
	if t.cold != nil {
		n += t.cold.headers.live()
	}
	return n
}

// Close gives the memory of the table back.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var first error
	for _, s := range []*store{&t.rows, &t.young, &t.gone} {
		if err := s.close(); err != nil && first == nil {
			first = err
		}
	}
	if t.cold != nil {
		if err := t.cold.close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// checkKey returns what is wrong with a key, nil if nothing.
func (t *Table) checkKey(key int64) *Error {
	if n := int64(t.schema.Rows); n > 0 && uint64(key) >= uint64(n) {
		e := t.fail(KindKey, "key %d is not one of the table's %d rows (0 to %d)", key, n, n-1)
		e.Key = key
		return e
	}
	return nil
}

func (t *Table) isWire(d tensor.DType) *Error {
	if !isRowDType(d) {
		return t.fail(KindDType, "rows as %v: want float32, bfloat16, float16 or int8", d)
	}
	return nil
}
