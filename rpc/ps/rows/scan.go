// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"math/bits"
	"runtime"
	"unsafe"
)

// scanRows is about the number of records that are copied under one lock.
const scanRows = 256

// eachSpan calls fn, under the read lock, with the entries of some hundred keys of stores
// whose keys are neighbours by hash, and then after without the lock. So a record that is
// in one of the stores from the beginning to the end comes once, also if it moves from one
// to another.
func (t *Table) eachSpan(stores []*store, fn func(of int, entries []entry), after func() error) error {
	var entries []entry
	for p := range NumPartitions {
		for lo, done := uint64(0), false; !done; {
			t.mu.RLock()
			live := uint32(0)
			for _, s := range stores {
				live = max(live, s.parts[p].live)
			}
			// A span of tags has about scanRows of the part's entries.
			spans := uint64(1) << bits.Len64(uint64(live)/scanRows)
			hi := lo + 1<<32/spans - 1
			done = live == 0 || hi >= 1<<32-1
			if live > 0 {
				for of, s := range stores {
					entries = s.parts[p].within(entries[:0], uint32(lo), uint32(min(hi, 1<<32-1)))
					fn(of, entries)
				}
			}
			t.mu.RUnlock()
			lo = hi + 1
			if err := after(); err != nil {
				return err
			}
			// A scan never waits, so a request would have its turn only after some milliseconds.
			runtime.Gosched()
		}
	}
	return nil
}

// keyed is a header with its key.
type keyed struct {
	header
	key int64
}

// eachHeader calls fn with copies of all headers of stores, without a lock.
func (t *Table) eachHeader(stores []*store, fn func(batch []keyed)) {
	var batch []keyed
	_ = t.eachSpan(stores, func(of int, entries []entry) {
		for _, e := range entries {
			batch = append(batch, keyed{*stores[of].header(e.slot), e.key})
		}
	}, func() error { fn(batch); batch = batch[:0]; return nil })
}

// fetch lets the processor fetch the headers of entries, at most a wave, and their values.
func (s *store) fetch(entries []entry, values bool) {
	var at [wave]unsafe.Pointer
	for i, e := range entries {
		at[i] = unsafe.Pointer(s.header(e.slot))
	}
	prefetch(&at[0], len(entries), headerBytes)
	if !values || s.stride == 0 {
		return
	}
	for i, e := range entries {
		at[i] = s.record(e.slot)
	}
	prefetch(&at[0], len(entries), min(s.stride, prefetchBytes))
}

// Scan calls fn with each row and each waiting key whose LSN is higher than since, and, if
// since is not 0, then with each key that was removed by an entry after since. Updates go
// on meanwhile: a key comes once, with what the table had of it at some time of the scan.
// Row and State are the table's until fn returns. An error of fn ends the scan.
func (t *Table) Scan(since uint64, fn func(Record) error) error {
	var batch []Record
	var values []byte
	var cold []read
	size := t.rowBytes + 4*t.stateLen
	emit := func() error {
		if err := t.scanCold(batch, cold); err != nil {
			return err
		}
		cold = cold[:0]
		for _, r := range batch {
			if r.LSN == 0 {
				continue
			}
			if r.Row != nil {
				whole := r.Row[:size:size]
				r.Row, r.State = whole[:t.rowBytes:t.rowBytes], whole[t.rowBytes:]
			}
			if err := fn(r); err != nil {
				return err
			}
		}
		batch = batch[:0]
		return nil
	}
	// Removed keys are looked at together with the rows, for a key that begins anew is
	// neither among the rows behind the scan nor among the removed ones before it.
	var removed []Record
	const isYoung, isGone, isCold = 1, 2, 3
	stores := t.stores()
	err := t.eachSpan(stores, func(of int, entries []entry) {
		for i, e := range entries {
			if i%wave == 0 {
				stores[of].fetch(entries[min(i+wave, len(entries)):min(i+2*wave, len(entries))], since == 0)
			}
			h := stores[of].header(e.slot)
			if h.lsn <= since || of == isGone && since == 0 {
				continue
			}
			r := Record{Key: e.key, LSN: h.lsn, Step: uint64(h.step), Count: h.count, Young: of == isYoung}
			if of == isGone {
				removed = append(removed, r)
				continue
			}
			if of != isYoung {
				i := len(batch)
				if len(values) < (i+1)*size {
					values = make([]byte, 2*(i+1)*size) // earlier records keep the memory that they have
				}
				r.Row = values[i*size:][:size]
			}
			switch of {
			case 0:
				record := t.rows.record(e.slot)
				copy(r.Row, bytesAt(record, 0, t.rowBytes))
				copy(r.Row[t.rowBytes:], bytesAt(record, t.stateAt, 4*t.stateLen))
			case isCold:
				cold = append(cold, read{key: e.key, place: t.cold.places[e.slot], lsn: h.lsn, at: len(batch)})
			}
			batch = append(batch, r)
		}
	}, emit)
	if err != nil {
		return err
	}
	batch = removed
	return emit()
}

// scanCold reads the cold rows of a batch. A row that has moved meanwhile is taken as it is
// now, under the lock.
func (t *Table) scanCold(batch []Record, cold []read) error {
	if len(cold) == 0 {
		return nil
	}
	c := t.cold
	bytes := make([]byte, len(cold)*c.size)
	for i := range cold {
		cold[i].to = bytes[i*c.size : (i+1)*c.size]
	}
	if err := c.read(t, cold); err != nil {
		return err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, r := range cold {
		hash := Hash(r.key)
		place, h := c.get(r.key, hash)
		record := &batch[r.at]
		switch {
		case h != nil && place == r.place && h.lsn == r.lsn:
		case h != nil:
			if err := c.read(t, []read{{key: r.key, place: place, to: r.to}}); err != nil {
				return err
			}
		default:
			var slot uint32
			if slot, h = t.rows.get(r.key, hash); h == nil {
				*record = Record{} // it was removed: the log says so behind the scan's beginning
				continue
			}
			copy(r.to, bytesAt(t.rows.record(slot), 0, c.size))
		}
		record.LSN, record.Step, record.Count = h.lsn, uint64(h.step), h.count
		copy(record.Row, r.to[:t.rowBytes])
		copy(record.Row[t.rowBytes:], r.to[t.stateAt:t.stateAt+4*t.stateLen])
	}
	return nil
}
