// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"cmp"
	"slices"
)

// Evict chooses the keys that should leave the table by Schema.Evict, and changes nothing:
// Remove takes them out, after the log has it. If there are too many rows or bytes, the
// rows that were changed longest ago leave, until a sixteenth of the bound is free.
func (t *Table) Evict(at Mark) []int64 {
	e := t.schema.Evict
	if e == (Eviction{}) {
		return nil
	}
	most := e.Rows
	if e.Bytes > 0 {
		if fit := int(e.Bytes / int64(t.rows.stride+headerBytes)); most == 0 || fit < most {
			most = max(fit, 1)
		}
	}
	excess := 0
	n := t.Len()
	rows := []*store{&t.rows}
	if t.cold != nil {
		rows = append(rows, &t.cold.headers)
	}
	if most > 0 && n > most {
		excess = n - most + most/16
	}
	var keys []int64
	var old []keyed // candidates to leave for room
	oldest := func(a, b keyed) int {
		return cmp.Or(cmp.Compare(a.step, b.step), cmp.Compare(a.lsn, b.lsn), cmp.Compare(a.key, b.key))
	}
	aged := func(h keyed) bool {
		return e.Steps > 0 && uint64(h.step)+uint64(e.Steps) < at.Step
	}
	if e.Steps == 0 && excess == 0 {
		return nil
	}
	t.eachHeader(rows, func(batch []keyed) {
		for _, h := range batch {
			if aged(h) {
				keys = append(keys, h.key)
			} else if excess > 0 {
				old = append(old, h)
			}
		}
		if len(old) > 4*excess && len(old) > 1<<16 {
			slices.SortFunc(old, oldest)
			old = old[:excess]
		}
	})
	t.eachHeader([]*store{&t.young}, func(batch []keyed) {
		for _, h := range batch {
			if aged(h) {
				keys = append(keys, h.key)
			}
		}
	})
	if more := excess - len(keys); more > 0 {
		slices.SortFunc(old, oldest)
		for _, h := range old[:min(more, len(old))] {
			keys = append(keys, h.key)
		}
	}
	slices.Sort(keys)
	return keys
}
