// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"math/bits"
	"unsafe"
)

// scanRows is about the number of records that are copied under one lock.
const scanRows = 256

// eachSpan calls fn with the slots of all records of a store, some hundred at a time, under
// the read lock, and then after without it. A record that is there from the beginning to
// the end comes once.
func (t *Table) eachSpan(s *store, fn func(slots []uint32), after func() error) error {
	var slots []uint32
	for p := range NumPartitions {
		for lo, done := uint64(0), false; !done; {
			t.mu.RLock()
			part := &s.index.parts[p]
			if part.live == 0 {
				done = true
			} else {
				// A span of tags has about scanRows of the part's entries.
				spans := uint64(1) << bits.Len64(uint64(part.live)/scanRows)
				hi := lo + 1<<32/spans - 1
				done = hi >= 1<<32-1
				slots = part.within(slots[:0], uint32(lo), uint32(min(hi, 1<<32-1)))
				fn(slots)
				lo = hi + 1
			}
			t.mu.RUnlock()
			if err := after(); err != nil {
				return err
			}
		}
	}
	return nil
}

// eachHeader calls fn with copies of all headers of a store, without a lock.
func (t *Table) eachHeader(s *store, fn func(batch []header)) {
	var batch []header
	_ = t.eachSpan(s, func(slots []uint32) {
		batch = batch[:0]
		for _, slot := range slots {
			batch = append(batch, *s.header(slot))
		}
	}, func() error { fn(batch); batch = batch[:0]; return nil })
}

// Scan calls fn with each row and each waiting key whose LSN is higher than since, and, if
// since is not 0, then with each key that was removed by an entry after since. Updates go
// on meanwhile: a row is seen once, as it is at some time of the scan. Row and State are
// the table's until fn returns. An error of fn ends the scan.
func (t *Table) Scan(since uint64, fn func(Record) error) error {
	var batch []Record
	var bytes []byte
	size := t.rowBytes + 4*t.stateLen
	emit := func() error {
		for _, r := range batch {
			if err := fn(r); err != nil {
				return err
			}
		}
		batch = batch[:0]
		return nil
	}
	err := t.eachSpan(&t.rows, func(slots []uint32) {
		if len(bytes) < len(slots)*size {
			bytes = make([]byte, len(slots)*size)
		}
		for _, slot := range slots {
			h := t.rows.header(slot)
			if h.lsn <= since {
				continue
			}
			to := bytes[len(batch)*size:][:size:size]
			copy(to, bytesAt(h, 0, t.rowBytes))
			if t.stateLen > 0 {
				copy(to[t.rowBytes:], bytesOf(floatsAt(h, t.stateAt, t.stateLen)))
			}
			batch = append(batch, Record{Key: h.key, LSN: h.lsn, Step: uint64(h.step), Count: h.pushes(), Row: to[:t.rowBytes:t.rowBytes], State: to[t.rowBytes:]})
		}
	}, emit)
	if err != nil {
		return err
	}
	headers := func(s *store, young bool) error {
		return t.eachSpan(s, func(slots []uint32) {
			for _, slot := range slots {
				if h := s.header(slot); h.lsn > since {
					batch = append(batch, Record{Key: h.key, LSN: h.lsn, Step: uint64(h.step), Count: h.count, Young: young})
				}
			}
		}, emit)
	}
	if err := headers(&t.young, true); err != nil || since == 0 {
		return err
	}
	return headers(&t.gone, false)
}

// bytesOf returns the memory of numbers; all systems of Cohort are little-endian.
func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
