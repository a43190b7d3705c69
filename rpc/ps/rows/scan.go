// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"math/bits"
	"unsafe"
)

// scanRows is about the number of records that are copied under one lock.
const scanRows = 256

// eachSpan calls fn, under the read lock, with the slots of some hundred records of stores
// whose keys are neighbours by hash, and then after without the lock. So a record that is
// in one of the stores from the beginning to the end comes once, also if it moves from one
// to another.
func (t *Table) eachSpan(stores []*store, fn func(of int, slots []uint32), after func() error) error {
	var slots []uint32
	for p := range NumPartitions {
		for lo, done := uint64(0), false; !done; {
			t.mu.RLock()
			live := int32(0)
			for _, s := range stores {
				live = max(live, s.index.parts[p].live)
			}
			// A span of tags has about scanRows of the part's entries.
			spans := uint64(1) << bits.Len64(uint64(live)/scanRows)
			hi := lo + 1<<32/spans - 1
			done = live == 0 || hi >= 1<<32-1
			if live > 0 {
				for of, s := range stores {
					slots = s.index.parts[p].within(slots[:0], uint32(lo), uint32(min(hi, 1<<32-1)))
					fn(of, slots)
				}
			}
			t.mu.RUnlock()
			lo = hi + 1
			if err := after(); err != nil {
				return err
			}
		}
	}
	return nil
}

// eachHeader calls fn with copies of all headers of stores, without a lock.
func (t *Table) eachHeader(stores []*store, fn func(batch []header)) {
	var batch []header
	_ = t.eachSpan(stores, func(of int, slots []uint32) {
		for _, slot := range slots {
			batch = append(batch, *stores[of].header(slot))
		}
	}, func() error { fn(batch); batch = batch[:0]; return nil })
}

// Scan calls fn with each row and each waiting key whose LSN is higher than since, and, if
// since is not 0, then with each key that was removed by an entry after since. Updates go
// on meanwhile: a key comes once, with what the table had of it at some time of the scan.
// Row and State are the table's until fn returns. An error of fn ends the scan.
func (t *Table) Scan(since uint64, fn func(Record) error) error {
	var batch []Record
	var values []byte
	size := t.rowBytes + 4*t.stateLen
	emit := func() error {
		for i, r := range batch {
			if r.Row != nil {
				to := values[i*size : (i+1)*size : (i+1)*size]
				r.Row, r.State = to[:t.rowBytes:t.rowBytes], to[t.rowBytes:]
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
	stores := []*store{&t.rows, &t.young, &t.gone}
	err := t.eachSpan(stores, func(of int, slots []uint32) {
		for _, slot := range slots {
			h := stores[of].header(slot)
			if h.lsn <= since || of == 2 && since == 0 {
				continue
			}
			r := Record{Key: h.key, LSN: h.lsn, Step: uint64(h.step), Count: h.pushes(), Young: of == 1}
			if of == 2 {
				removed = append(removed, r)
				continue
			}
			if of == 0 {
				i := len(batch)
				if len(values) < (i+1)*size {
					values = append(values, make([]byte, (i+1)*size)...)
				}
				r.Row = values[i*size:][:size]
				copy(r.Row, bytesAt(h, 0, t.rowBytes))
				copy(r.Row[t.rowBytes:], bytesOf(floatsAt(h, t.stateAt, t.stateLen)))
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

// bytesOf returns the memory of numbers; all systems of Cohort are little-endian.
func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
