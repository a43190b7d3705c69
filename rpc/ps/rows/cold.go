// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"os"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	// minHot is the least number of rows that a table keeps in memory.
	minHot = 1024
	// maxRecent bounds the rows that are kept between a pull and its push.
	maxRecent = 4096
	// maxReads bounds the reads of the disk that a call has under way: disks answer many
	// in the time of one.
	maxReads = 64
	// stagedRows bounds the keys of an update whose cold rows are read together.
	stagedRows = 8 * lockRows
)

// coldRows are the rows of a table that lie on disk. Their headers stay in memory. The file
// has no name: what it has comes back from a snapshot and the log.
//
// The writer alone moves rows. A row comes into memory with its first push there, and
// leaves when memory is short and nobody has read it since the hand last came by (the
// CLOCK algorithm).
type coldRows struct {
	segments
	headers store
	places  []uint32        // in the file, of the slots of headers
	most    int             // rows in memory
	keys    []int64         // of the slots in memory
	marks   []atomic.Uint32 // of the slots in memory: slotUsed, slotTaken
	hand    uint32
	staged  map[int64][]byte // values and state of keys of the update under way
	reads   atomic.Int64
	// recent has rows as readers have read them from the file. A push follows most pulls,
	// and needs no further read if the row is still at its place.
	recentMu sync.Mutex
	recent   map[int64]read
	problem  atomic.Pointer[Error] // why rows could not leave the memory
}

const (
	slotTaken = 1 // a row has the slot
	slotUsed  = 2 // it was read since the hand came by
)

func newColdRows(t *Table, dir string) (*coldRows, error) {
	if dir == "" {
		return nil, t.fail(KindSchema, "memory is %d, and rows on disk need a directory: set Options.Dir", t.schema.Memory)
	}
	f, err := os.CreateTemp(dir, "rows-*")
	if err != nil {
		e := t.fail(KindDisk, "no file for cold rows")
		e.Cause = err
		return nil, e
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		e := t.fail(KindDisk, "the file for cold rows keeps its name")
		e.Cause = err
		return nil, e
	}
	size := t.stateAt + 4*t.stateLen
	per := int64(t.rows.stride + headerBytes)
	return &coldRows{
		segments: newSegments(f, size), headers: newStore(0, t.schema.Rows),
		most: max(minHot, int(t.schema.Memory/per)), staged: map[int64][]byte{}, recent: map[int64]read{},
	}, nil
}

func (c *coldRows) close() error {
	err := c.headers.close()
	if e := c.file.Close(); err == nil {
		err = e
	}
	return err
}

// get returns the place and the header of a key's row, nil if it is not on disk.
func (c *coldRows) get(key int64, hash uint64) (uint32, *header) {
	slot, h := c.headers.get(key, hash)
	if h == nil {
		return 0, nil
	}
	return c.places[slot], h
}

// drop forgets the row of a key.
func (c *coldRows) drop(key int64, hash uint64) (header, bool) {
	slot, h := c.headers.get(key, hash)
	if h == nil {
		return header{}, false
	}
	c.leave(c.places[slot])
	return c.headers.drop(key, hash)
}

// put notes that the row of a key lies at a place.
func (c *coldRows) put(key int64, h header, place uint32) error {
	slot, to, err := c.headers.add(key, Hash(key))
	if err != nil {
		return err
	}
	*to = h
	for int(slot) >= len(c.places) {
		c.places = append(c.places, make([]uint32, max(1024, len(c.places)))...)
	}
	c.places[slot] = place
	c.hold(place, slot)
	return nil
}

// took notes that a slot in memory has the row of a key. A row that has just come is the first
// to leave again, unless it is used once more: most rows that come from disk are not.
func (c *coldRows) took(slot uint32, key int64) {
	for int(slot) >= len(c.keys) {
		n := max(1024, 2*len(c.keys))
		keys, marks := make([]int64, n), make([]atomic.Uint32, n)
		copy(keys, c.keys)
		for i := range c.marks {
			marks[i].Store(c.marks[i].Load())
		}
		c.keys, c.marks = keys, marks
	}
	c.keys[slot] = key
	c.marks[slot].Or(slotTaken)
}

func (c *coldRows) gave(slot uint32) { c.marks[slot].Store(0) }

// use notes that rows in memory were read or changed.
func (c *coldRows) use(l *lookup, n int) {
	for _, plus := range l.slot[:n] {
		if plus != 0 {
			if m := &c.marks[plus-1]; m.Load()&slotUsed == 0 {
				m.Or(slotUsed)
			}
		}
	}
}

// read is a row to read from the file.
type read struct {
	key   int64
	place uint32 // in the file
	lsn   uint64
	at    int // where it is wanted
	to    []byte
}

// read reads rows, many at the same time. No lock is held: the caller looks again whether
// the rows are where they were.
func (c *coldRows) read(t *Table, rs []read) error {
	c.reads.Add(int64(len(rs)))
	one := func(rs []read) error {
		for _, r := range rs {
			if _, err := c.file.ReadAt(r.to, c.offset(r.place)); err != nil {
				e := t.fail(KindDisk, "the row of key %d cannot be read from disk", r.key)
				e.Key, e.Cause = r.key, err
				return e
			}
		}
		return nil
	}
	const each = 4
	n := min(maxReads, len(rs)/each)
	if n < 2 {
		return one(rs)
	}
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = one(rs[i*len(rs)/n : (i+1)*len(rs)/n]) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *coldRows) takeRecent(key int64) (read, bool) {
	c.recentMu.Lock()
	defer c.recentMu.Unlock()
	r, ok := c.recent[key]
	delete(c.recent, key)
	return r, ok
}

func (c *coldRows) keepRecent(rs []read) {
	c.recentMu.Lock()
	defer c.recentMu.Unlock()
	if len(c.recent)+len(rs) > maxRecent {
		clear(c.recent)
	}
	for _, r := range rs {
		c.recent[r.key] = r
	}
}

// stage reads the cold rows among the keys of an update, before the writer takes the lock.
func (t *Table) stage(keys []int64) error {
	c := t.cold
	clear(c.staged)
	var rs []read
	t.mu.RLock()
	for _, key := range keys {
		if place, h := c.get(key, Hash(key)); h != nil {
			if r, ok := c.takeRecent(key); ok && r.place == place && r.lsn == h.lsn {
				c.staged[key] = r.to
				continue
			}
			rs = append(rs, read{key: key, place: place})
		}
	}
	t.mu.RUnlock()
	bytes := make([]byte, len(rs)*c.size)
	for i := range rs {
		rs[i].to = bytes[i*c.size : (i+1)*c.size]
		c.staged[rs[i].key] = rs[i].to
	}
	return c.read(t, rs)
}

// warm brings the cold row of a key into memory, under the write lock. It returns nil if the
// key has no cold row.
func (t *Table) warm(key int64, hash uint64) (uint32, *header, error) {
	c := t.cold
	if c == nil {
		return 0, nil, nil
	}
	from, h := c.get(key, hash)
	if h == nil {
		return 0, nil, nil
	}
	values, ok := c.staged[key]
	if !ok {
		values = make([]byte, c.size)
		if err := c.read(t, []read{{key: key, place: from, to: values}}); err != nil {
			return 0, nil, err
		}
	}
	slot, warm, err := t.rows.add(key, hash)
	if err != nil {
		return 0, nil, t.noMemory(key, err)
	}
	*warm = *h
	copy(bytesAt(t.rows.record(slot), 0, c.size), values)
	c.drop(key, hash)
	c.took(slot, key)
	return slot, warm, nil
}

// makeRoom lets rows leave the memory until it has room for n more, under the write lock. If
// the disk takes none, rows stay, and the table takes more memory than it should.
func (t *Table) makeRoom(n int) {
	c := t.cold
	if c == nil || t.rows.live()+n <= c.most {
		return
	}
	slots := c.victims(max(segmentRows, t.rows.live()+n-c.most), t.rows.next)
	for len(slots) > 0 {
		run := slots[:min(segmentRows, len(slots))]
		if err := t.spill(run); err != nil {
			e := t.fail(KindDisk, "rows cannot leave the memory")
			e.Cause = err
			c.problem.Store(e)
			for _, slot := range slots {
				if b, i := t.rows.find(c.keys[slot], Hash(c.keys[slot])); b != nil && b.slots[i]-1 == slot {
					c.marks[slot].Store(slotTaken)
				}
			}
			return
		}
		slots = slots[len(run):]
	}
	c.problem.Store(nil)
}

// victims chooses the slots of at most n rows that nobody has read for longest.
func (c *coldRows) victims(n int, slots uint32) []uint32 {
	var out []uint32
	for range 2 * int(slots) {
		if c.hand >= slots {
			c.hand = 0
		}
		slot := c.hand
		c.hand++
		switch m := &c.marks[slot]; m.Load() {
		case slotTaken | slotUsed:
			m.Store(slotTaken)
		case slotTaken:
			m.Store(0) // not to be chosen twice
			if out = append(out, slot); len(out) == n {
				return out
			}
		}
	}
	return out
}

// spill writes rows, at most segmentRows, to the file.
func (t *Table) spill(slots []uint32) error {
	c := t.cold
	c.buffer = c.buffer[:0]
	for _, slot := range slots {
		c.buffer = append(c.buffer, bytesAt(t.rows.record(slot), 0, c.size)...)
	}
	place, err := c.write(c.buffer)
	if err != nil {
		return err
	}
	for i, slot := range slots {
		key := c.keys[slot]
		if err := c.put(key, *t.rows.header(slot), place+uint32(i)); err != nil {
			return err
		}
		t.rows.drop(key, Hash(key))
	}
	if c.sparse() { // one for each spill keeps up
		return c.compact(func(slot, place uint32) { c.places[slot] = place })
	}
	return nil
}

// gatherCold writes the values of cold rows. The rows may move while the file is read: what
// is not where it was is looked for again.
func (t *Table) gatherCold(rs []read) error {
	c := t.cold
	for len(rs) > 0 {
		if err := c.read(t, rs); err != nil {
			return err
		}
		t.mu.RLock()
		var left, kept []read
		for _, r := range rs {
			hash := Hash(r.key)
			place, h := c.get(r.key, hash)
			if h != nil && place == r.place && h.lsn == r.lsn {
				kept = append(kept, r)
				continue
			}
			if h != nil {
				r.place, r.lsn = place, h.lsn
				left = append(left, r)
			} else if slot, h := t.rows.get(r.key, hash); h != nil {
				copy(r.to, unsafe.Slice((*byte)(t.rows.record(slot)), len(r.to)))
			} else {
				f := make([]float32, t.schema.Width)
				t.first.fill(f, r.key)
				encode(r.to[:t.rowBytes], f, t.schema.DType, t.schema.Width)
			}
		}
		t.mu.RUnlock()
		c.keepRecent(kept)
		rs = left
	}
	return nil
}
