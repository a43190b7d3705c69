// SPDX-License-Identifier: Apache-2.0

package rows

import "math"

// Record is what a snapshot has of a key. There are three sorts: a row; a key that waits
// for its admission, with Young set; and a key that was removed, with neither Row nor
// Young. Lengths of Row and State are those of Table.RecordBytes.
type Record struct {
	Key   int64
	LSN   uint64 // of the last entry that changed it
	Step  uint64 // of that entry, or a later one before it
	Count uint32 // pushes
	Young bool
	Row   []byte // in the table's dtype
	State []byte // little-endian float32
}

// Put takes a record of a snapshot, or of an import. It returns false and changes nothing if
// the key is another server's, or if what the table has of the key is as new as the record
// or newer.
func (t *Table) Put(r Record) (bool, error) {
	if err := t.checkRecord(r); err != nil {
		return false, err
	}
	if t.owns != nil && !t.owns(r.Key) {
		return false, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	hash := Hash(r.Key)
	if r.Row == nil && !r.Young {
		return t.remove(r.Key, r.LSN, uint32(r.Step)), nil
	}
	if t.newest(r.Key, hash) >= r.LSN {
		return false, nil
	}
	t.gone.drop(r.Key, hash)
	var err error
	if r.Young {
		t.removeRow(r.Key, hash)
		_, y := t.young.get(r.Key, hash)
		if y == nil {
			if _, y, err = t.young.add(r.Key, hash); err != nil {
				return false, t.noMemory(r.Key, err)
			}
		}
		y.lsn, y.step, y.count = r.LSN, uint32(r.Step), r.Count
		return true, nil
	}
	t.young.drop(r.Key, hash)
	if t.cold != nil {
		if was, ok := t.cold.drop(r.Key, hash); ok {
			t.stats.end(was.count)
		}
		t.makeRoom(1)
	}
	slot, h := t.rows.get(r.Key, hash)
	if h == nil {
		if slot, h, err = t.rows.add(r.Key, hash); err != nil {
			return false, t.noMemory(r.Key, err)
		}
	} else {
		t.stats.end(h.count)
	}
	t.stats.begin(r.Count)
	h.lsn, h.step, h.count = r.LSN, uint32(r.Step), r.Count
	if t.cold != nil {
		t.cold.took(slot, r.Key)
	}
	record := t.rows.record(slot)
	copy(bytesAt(record, 0, t.rowBytes), r.Row)
	copy(bytesAt(record, t.stateAt, 4*t.stateLen), r.State)
	return true, nil
}

// stores returns those in which a key may be; it is in one of them at a time.
func (t *Table) stores() []*store {
	all := []*store{&t.rows, &t.young, &t.gone}
	if t.cold != nil {
		all = append(all, &t.cold.headers)
	}
	return all
}

// newest returns the number of the last entry that changed a key, 0 if none has.
func (t *Table) newest(key int64, hash uint64) uint64 {
	lsn := uint64(0)
	for _, s := range t.stores() {
		if _, h := s.get(key, hash); h != nil {
			lsn = max(lsn, h.lsn)
		}
	}
	return lsn
}

func (t *Table) checkRecord(r Record) error {
	fail := func(format string, a ...any) error {
		e := t.fail(KindRecord, "the record of key %d "+format, append([]any{r.Key}, a...)...)
		e.Key = r.Key
		return e
	}
	if e := t.checkKey(r.Key); e != nil {
		return e
	}
	switch {
	case r.LSN == 0:
		return fail("has no log number")
	case r.Step > math.MaxUint32:
		return fail("is of step %d: want at most %d", r.Step, uint32(math.MaxUint32))
	case r.Count > maxCount:
		return fail("has %d pushes: want at most %d", r.Count, maxCount)
	case r.Row == nil && len(r.State) > 0:
		return fail("has state and no row")
	case r.Young && r.Row != nil:
		return fail("waits for its admission and has a row")
	case r.Young && int(r.Count) >= t.schema.Admit:
		return fail("waits for its admission and has %d pushes, and the table admits with %d", r.Count, t.schema.Admit)
	case r.Row != nil && (len(r.Row) != t.rowBytes || len(r.State) != 4*t.stateLen):
		return fail("has %d bytes of values and %d of state: want %d and %d", len(r.Row), len(r.State), t.rowBytes, 4*t.stateLen)
	}
	return nil
}

// Remove takes rows out of the table. A row that is as new as the mark or newer stays. The
// table remembers that the keys were removed: Scan says so, until Forget.
func (t *Table) Remove(at Mark, keys []int64) {
	for lo := 0; lo < len(keys); lo += lockRows {
		t.mu.Lock()
		for _, k := range keys[lo:min(lo+lockRows, len(keys))] {
			if t.remove(k, at.LSN, uint32(at.Step)) {
				t.stats.removed++
			}
		}
		t.mu.Unlock()
	}
}

// remove returns false if what there is of the key is as new as lsn or newer.
func (t *Table) remove(key int64, lsn uint64, step uint32) bool {
	hash := Hash(key)
	if t.newest(key, hash) >= lsn {
		return false
	}
	t.removeRow(key, hash)
	t.young.drop(key, hash)
	_, g := t.gone.get(key, hash)
	if g == nil {
		var err error
		if _, g, err = t.gone.add(key, hash); err != nil {
			return true // what cannot be remembered was removed all the same
		}
	}
	g.lsn, g.step = lsn, step
	return true
}

func (t *Table) removeRow(key int64, hash uint64) {
	if t.cold != nil {
		if slot, h := t.rows.get(key, hash); h != nil {
			t.cold.gave(slot)
		} else if was, ok := t.cold.drop(key, hash); ok {
			t.stats.end(was.count)
		}
	}
	if was, ok := t.rows.drop(key, hash); ok {
		t.stats.end(was.count)
	}
}

// Forget drops what the table remembers of keys that were removed by entries up to lsn: a
// snapshot has it.
func (t *Table) Forget(lsn uint64) {
	t.eachHeader([]*store{&t.gone}, func(batch []keyed) {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, k := range batch {
			if _, h := t.gone.get(k.key, Hash(k.key)); h != nil && h.lsn <= lsn {
				t.gone.drop(k.key, Hash(k.key))
			}
		}
	})
}
