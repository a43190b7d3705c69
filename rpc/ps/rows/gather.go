// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"unsafe"

	"github.com/cohort-ml/cohort/tensor"
)

const (
	// lockRows is the number of rows that are read under one lock.
	lockRows = 512
	// wave is the number of rows that are looked up together.
	wave = 8
	// prefetchBytes bounds what is fetched ahead of a row; the processor fetches the rest
	// of a long row by itself.
	prefetchBytes = 512
)

// lookup is a wave of keys on its way to their rows.
type lookup struct {
	bucket [wave]unsafe.Pointer // where to look first
	slot   [wave]uint32         // plus one, 0 for keys without a row
	record [wave]unsafe.Pointer // nil for keys without a row
	header [wave]unsafe.Pointer // the same; for the writer
}

// readScratch is the memory of one reader.
type readScratch struct {
	ahead  [3]lookup // the wave that is done in this turn, and the two behind it
	raw    []byte    // a wave of rows in the table's dtype
	floats []float32 // the same as float32
	cold   []read    // of the call under way
	spare  []byte    // memory for cold rows
	writes bool      // headers are fetched too
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
	r.cold = r.cold[:0]
	for lo := 0; lo < len(keys); lo += lockRows {
		hi := min(lo+lockRows, len(keys))
		n := len(r.cold)
		t.gatherLocked(r, dst[lo*size:hi*size], as, keys[lo:hi])
		for i := range r.cold[n:] {
			r.cold[n+i].at += lo
		}
		// Rows on disk are read together: a disk answers many in the time of one.
		if len(r.cold) == 0 || len(r.cold) < maxRecent-lockRows && hi < len(keys) {
			continue
		}
		if err := t.gatherCold(r.cold); err != nil {
			return err
		}
		for _, c := range r.cold {
			t.convert(r, dst[c.at*size:][:size], as, c.to)
		}
		clear(r.cold) // whose memory is for recent rows, or for nobody
		r.cold = r.cold[:0]
	}
	return nil
}

// convert writes rows, at most a wave, in a dtype.
func (t *Table) convert(r *readScratch, to []byte, as tensor.DType, raw []byte) {
	width := t.schema.Width
	n := len(to) / rowBytes(as, width)
	raw = raw[:n*t.rowBytes]
	if as == t.schema.DType {
		copy(to, raw)
	} else if floats := view[float32](to); as == tensor.Float32 && floats != nil {
		decode(floats, raw, t.schema.DType, width)
	} else {
		decode(r.floats[:n*width], raw, t.schema.DType, width)
		encode(to, r.floats[:n*width], as, width)
	}
}

func (t *Table) gatherLocked(r *readScratch, dst []byte, as tensor.DType, keys []int64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	size := rowBytes(as, t.schema.Width)
	t.eachWave(r, keys, func(l *lookup, at, n int) {
		run, to := keys[at:at+n], dst[at*size:(at+n)*size]
		if t.cold != nil {
			t.cold.use(l, n)
			t.findCold(r, l, run, at)
		}
		if as == t.schema.DType {
			t.copyWave(r, l, to, run)
			return
		}
		t.copyWave(r, l, r.raw[:n*t.rowBytes], run)
		t.convert(r, to, as, r.raw)
	})
}

// findCold notes which keys of a wave without a row in memory have one on disk.
func (t *Table) findCold(r *readScratch, l *lookup, keys []int64, at int) {
	for i, key := range keys {
		if l.slot[i] != 0 {
			continue
		}
		place, h := t.cold.get(key, Hash(key))
		if h == nil {
			continue
		}
		if len(r.spare) < t.cold.size { // few rows together, for the memory lasts as long as one of them
			r.spare = make([]byte, wave*t.cold.size)
		}
		to := r.spare[:t.cold.size:t.cold.size]
		r.spare = r.spare[t.cold.size:]
		l.record[i] = unsafe.Pointer(unsafe.SliceData(to)) // anything, for now
		r.cold = append(r.cold, read{key: key, place: place, lsn: h.lsn, at: at + i, to: to})
	}
}

// eachWave looks keys up in waves, and calls fn with each, the position of its first key and
// the number of its keys. Each wave is three turns on its way: its buckets are fetched in the
// first, its rows in the second, and fn has it in the third. So nobody waits for the memory, if
// there is enough to do. fn may move buckets, but not rows that waves have found.
func (t *Table) eachWave(r *readScratch, keys []int64, fn func(l *lookup, at, n int)) {
	s := &t.rows
	waves := (len(keys) + wave - 1) / wave
	part := func(k int) []int64 { return keys[k*wave : min((k+1)*wave, len(keys))] }
	for k := range waves + 2 {
		if k < waves {
			l := &r.ahead[k%3]
			s.seek(l, part(k))
			prefetch(&l.bucket[0], len(part(k)), bucketBytes)
		}
		if k > 0 && k <= waves {
			l, keys := &r.ahead[(k-1)%3], part(k-1)
			if r.writes { // fn may have moved the buckets
				s.seek(l, keys)
			}
			s.resolve(l, keys, t.rowBytes)
			if r.writes {
				s.fetchHeaders(l, len(keys))
			}
		}
		if k > 1 {
			fn(&r.ahead[(k-2)%3], (k-2)*wave, len(part(k-2)))
		}
	}
}

// noBucket is where a search ends that has nowhere to begin.
var noBucket bucket

// seek finds the buckets of keys.
func (s *store) seek(l *lookup, keys []int64) {
	for i, key := range keys {
		hash := Hash(key)
		b := &noBucket
		if p := s.part(hash); p.live > 0 {
			b = p.home(hash)
		}
		l.bucket[i%wave] = unsafe.Pointer(b)
	}
}

// resolve finds the slots and records of keys in their buckets.
func (s *store) resolve(l *lookup, keys []int64, rowBytes int) {
	for i, key := range keys {
		i %= wave
		b := (*bucket)(l.bucket[i])
		at := b.find(key)
		if at == bucketKeys && b.n == bucketKeys {
			b, at = search(b.next(), key)
			if b == nil {
				at = bucketKeys
			}
		}
		l.slot[i], l.record[i] = 0, nil
		if at < bucketKeys {
			l.slot[i] = b.slots[at]
			l.record[i] = s.record(b.slots[at] - 1)
		}
	}
	prefetch(&l.record[0], len(keys), min(rowBytes, prefetchBytes))
}

// fetchHeaders fetches the headers of the records that resolve has found.
func (s *store) fetchHeaders(l *lookup, n int) {
	for i, slot := range l.slot[:n] {
		l.header[i] = nil
		if slot != 0 {
			l.header[i] = unsafe.Pointer(s.header(slot - 1))
		}
	}
	prefetch(&l.header[0], n, headerBytes)
}

// copyWave copies the rows of a wave in the table's dtype.
func (t *Table) copyWave(r *readScratch, l *lookup, dst []byte, keys []int64) {
	size := t.rowBytes
	for i, key := range keys {
		to := dst[i*size : (i+1)*size]
		if record := l.record[i]; record != nil {
			copy(to, unsafe.Slice((*byte)(record), size))
			continue
		}
		f := r.floats[:t.schema.Width]
		t.first.fill(f, key)
		encode(to, f, t.schema.DType, t.schema.Width)
	}
}
