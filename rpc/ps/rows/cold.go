// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	// minHot is the least number of rows that a table keeps in memory.
	minHot = 1024
	// spillRows is the number of rows that leave the memory together.
	spillRows = 256
	// maxReads bounds the reads of the disk that a call has under way: disks answer many
	// in the time of one.
	maxReads = 32
)

// coldRows are the rows of a table that lie on disk. Their headers stay in memory. The file
// has no name: what it has comes back from a snapshot and the log.
//
// The writer alone moves rows. A row comes into memory with its first push there, and
// leaves when memory is short and nobody has read it since the hand last came by (the
// CLOCK algorithm).
type coldRows struct {
	file    *os.File
	headers store           // slot i has its values and state at i·size of the file
	size    int             // bytes of values and state
	most    int             // rows in memory
	keys    []int64         // of the slots in memory
	marks   []atomic.Uint32 // of the slots in memory: slotUsed, slotTaken
	hand    uint32
	staged  map[int64][]byte // values and state of keys of the update under way
	reads   atomic.Int64
	problem atomic.Pointer[Error] // why rows could not leave the memory
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
		file: f, headers: newStore(0, t.schema.Rows), size: size,
		most: max(minHot, int(t.schema.Memory/per)), staged: map[int64][]byte{},
	}, nil
}

func (c *coldRows) close() error {
	err := c.headers.close()
	if e := c.file.Close(); err == nil {
		err = e
	}
	return err
}

// took notes that a slot in memory has the row of a key.
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
	c.marks[slot].Store(slotTaken | slotUsed)
}

func (c *coldRows) gave(slot uint32) { c.marks[slot].Store(0) }

// use notes that rows in memory were read.
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
	key  int64
	slot uint32
	lsn  uint64
	at   int // where it is wanted
	to   []byte
}

// read reads rows, many at the same time. No lock is held: the caller looks again whether
// the rows are where they were.
func (c *coldRows) read(t *Table, rs []read) error {
	c.reads.Add(int64(len(rs)))
	one := func(rs []read) error {
		for _, r := range rs {
			if _, err := c.file.ReadAt(r.to, int64(r.slot)*int64(c.size)); err != nil {
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

// stage reads the cold rows among the keys of an update, before the writer takes the lock.
func (t *Table) stage(keys []int64) error {
	c := t.cold
	clear(c.staged)
	var rs []read
	t.mu.RLock()
	for _, key := range keys {
		if slot, h := c.headers.get(key, Hash(key)); h != nil {
			rs = append(rs, read{key: key, slot: slot})
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
	from, h := c.headers.get(key, hash)
	if h == nil {
		return 0, nil, nil
	}
	values, ok := c.staged[key]
	if !ok {
		values = make([]byte, c.size)
		if err := c.read(t, []read{{key: key, slot: from, to: values}}); err != nil {
			return 0, nil, err
		}
	}
	slot, warm, err := t.rows.add(key, hash)
	if err != nil {
		return 0, nil, t.noMemory(key, err)
	}
	*warm = *h
	copy(bytesAt(t.rows.record(slot), 0, c.size), values)
	c.headers.drop(key, hash)
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
	slots := c.victims(max(spillRows, t.rows.live()+n-c.most), t.rows.next)
	for len(slots) > 0 {
		run := slots[:min(spillRows, len(slots))]
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

// spill writes rows to the file. Neighbours there are written together.
func (t *Table) spill(slots []uint32) error {
	c := t.cold
	type move struct{ from, to uint32 }
	moves := make([]move, 0, len(slots))
	undo := func(ms []move) {
		for _, m := range ms {
			c.headers.drop(c.keys[m.from], Hash(c.keys[m.from]))
		}
	}
	for _, from := range slots {
		key := c.keys[from]
		to, h, err := c.headers.add(key, Hash(key))
		if err != nil {
			undo(moves)
			return err
		}
		*h = *t.rows.header(from)
		moves = append(moves, move{from, to})
	}
	buffer := make([]byte, 0, len(slots)*c.size)
	for len(moves) > 0 {
		n := 0
		buffer = buffer[:0]
		for n < len(moves) && moves[n].to == moves[0].to+uint32(n) {
			buffer = append(buffer, bytesAt(t.rows.record(moves[n].from), 0, c.size)...)
			n++
		}
		if _, err := c.file.WriteAt(buffer, int64(moves[0].to)*int64(c.size)); err != nil {
			undo(moves)
			return fmt.Errorf("write of %d rows: %w", n, err)
		}
		for _, m := range moves[:n] {
			t.rows.drop(c.keys[m.from], Hash(c.keys[m.from]))
		}
		moves = moves[n:]
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
		left := rs[:0]
		for _, r := range rs {
			hash := Hash(r.key)
			slot, h := c.headers.get(r.key, hash)
			if h != nil && slot == r.slot && h.lsn == r.lsn {
				continue
			}
			if h != nil {
				r.slot, r.lsn = slot, h.lsn
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
		rs = left
	}
	return nil
}
