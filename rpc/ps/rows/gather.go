// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"unsafe"

	"github.com/cohort-ml/cohort/tensor"
)

const (
	// lockRows is the number of rows that are read under one lock.
	lockRows = 512
	// wave is the number of rows that are looked up together, so that the memory
	// fetches them at the same time.
	wave = 32
)

// readScratch is the memory of one reader.
type readScratch struct {
	entry  [wave]uint64
	record [wave]*header
	raw    []byte    // a wave of rows in the table's dtype
	floats []float32 // the same as float32
}

func newReadScratch(t *Table) *readScratch {
	return &readScratch{raw: make([]byte, wave*t.rowBytes), floats: make([]float32, wave*t.schema.Width)}
}

// Gather writes the rows of keys in a dtype, one behind the other: len(dst) =
// len(keys)·RowBytes(as). A key without a row has its first value. Keys may repeat.
func (t *Table) Gather(dst []byte, as tensor.DType, keys []int64) error {
	if e := t.isWire(as); e != nil {
		return e
	}
	size := rowBytes(as, t.schema.Width)
	if len(dst) != len(keys)*size {
		return t.fail(KindDType, "%d bytes for %d rows of %d bytes", len(dst), len(keys), size)
	}
	if t.schema.Rows > 0 {
		for _, k := range keys {
			if e := t.checkKey(k); e != nil {
				return e
			}
		}
	}
	r := t.reads.Get().(*readScratch)
	defer t.reads.Put(r)
	for lo := 0; lo < len(keys); lo += lockRows {
		hi := min(lo+lockRows, len(keys))
		t.gatherLocked(r, dst[lo*size:hi*size], as, keys[lo:hi])
	}
	return nil
}

func (t *Table) gatherLocked(r *readScratch, dst []byte, as tensor.DType, keys []int64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	width := t.schema.Width
	size := rowBytes(as, width)
	for len(keys) > 0 {
		n := min(wave, len(keys))
		if as == t.schema.DType {
			t.gatherWave(r, dst[:n*size], keys[:n])
		} else {
			t.gatherWave(r, r.raw[:n*t.rowBytes], keys[:n])
			if as == tensor.Float32 && view[float32](dst) != nil {
				decode(view[float32](dst)[:n*width], r.raw, t.schema.DType, width)
			} else {
				decode(r.floats[:n*width], r.raw, t.schema.DType, width)
				encode(dst[:n*size], r.floats[:n*width], as, width)
			}
		}
		keys, dst = keys[n:], dst[n*size:]
	}
}

// gatherWave copies the rows of at most wave keys in the table's dtype.
func (t *Table) gatherWave(r *readScratch, dst []byte, keys []int64) {
	t.lookUp(r, keys)
	size := t.rowBytes
	for i, key := range keys {
		to := dst[i*size : (i+1)*size]
		if h := r.record[i]; h != nil {
			copy(to, unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(h), headerBytes)), size))
			continue
		}
		f := r.floats[:t.schema.Width]
		t.first.fill(f, key)
		encode(to, f, t.schema.DType, t.schema.Width)
	}
}

// lookUp finds the records of at most wave keys, nil for those without one. The loads of one
// loop do not wait for each other.
func (t *Table) lookUp(r *readScratch, keys []int64) {
	s := &t.rows
	for i, key := range keys {
		hash := Hash(key)
		p := s.index.part(hash)
		r.entry[i] = 0
		if p.live > 0 {
			r.entry[i] = p.entries[tagOf(hash)>>p.shift]
		}
	}
	for i, key := range keys {
		r.record[i] = nil
		if e := r.entry[i]; e != 0 {
			if hash := Hash(key); entryTag(e) == tagOf(hash) {
				r.record[i] = s.header(entrySlot(e))
			} else {
				r.record[i] = s.get(key, hash)
			}
		}
	}
	for i, key := range keys {
		if h := r.record[i]; h != nil && h.key != key {
			r.record[i] = s.get(key, Hash(key))
		}
	}
}
