// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"math"
	"unsafe"
)

// tileRows is the number of rows that are computed together: their values and states lie
// in scratch, one behind the other, while the kernels run.
const tileRows = 64

// Changes says what an update did.
type Changes struct {
	Changed int // rows
	Made    int // of these, rows that began with this update
	Waiting int // keys that have fewer pushes than Schema.Admit
	// Older is the number of keys whose row, or removal, is as new as the update or newer:
	// they were left alone.
	Older int
}

// updateScratch is the memory of the writer.
type updateScratch struct {
	read   *readScratch
	record [tileRows]unsafe.Pointer
	from   [tileRows]int // positions in the tile of the keys of records
	raw    []byte
	params []float32
	state  []float32
	grads  []float32
	ids    []int64

	// Of one of two who share the keys of an update.
	without []int // positions of keys that had no row
	older   int
	stats   counters // what it adds to the table's
}

func (u *updateScratch) init(t *Table) {
	w := t.schema.Width
	u.read = newReadScratch(t)
	u.read.writes = true
	u.raw = make([]byte, tileRows*t.rowBytes)
	u.params = make([]float32, tileRows*w)
	u.grads = make([]float32, tileRows*w)
	u.state = make([]float32, tileRows*t.stateLen)
	u.ids = make([]int64, tileRows)
	for i := range u.ids {
		u.ids[i] = int64(i)
	}
}

// Check returns an error for keys and gradients that a server must refuse before it writes
// them to its log: a wrong number of values, keys that are not this table's or this
// process's or stand twice, and gradients that are not finite.
func (t *Table) Check(keys []int64, grad []float32) error {
	width := t.schema.Width
	if len(grad) != len(keys)*width {
		return t.fail(KindGradient, "%d values for %d keys: want %d for each", len(grad), len(keys), width)
	}
	var seen keySet
	seen.reset(len(keys))
	for _, k := range keys {
		if e := t.checkKey(k); e != nil {
			return e
		}
		if t.owns != nil && !t.owns(k) {
			e := t.fail(KindKey, "key %d is another server's", k)
			e.Key = k
			return e
		}
		if !seen.add(k) {
			e := t.fail(KindKey, "key %d stands twice in a push: add its gradients up first", k)
			e.Key = k
			return e
		}
	}
	if at := notFinite(grad); at >= 0 {
		k := keys[at/width]
		e := t.fail(KindGradient, "the gradient of key %d is %v at %d: want finite numbers", k, grad[at], at%width)
		e.Key = k
		return e
	}
	return nil
}

// notFinite returns the position of the first NaN or infinity, -1 if there is none.
func notFinite(x []float32) int {
	const exponent = 0x7f800000
	for at := 0; at < len(x); {
		run := x[at:min(at+64, len(x))]
		bad := uint32(0)
		for _, v := range run {
			// The sum reaches the sign bit only if all bits of the exponent are set.
			bad |= math.Float32bits(v)&exponent + 1<<23
		}
		if bad&(1<<31) != 0 {
			for i, v := range run {
				if math.Float32bits(v)&exponent == exponent {
					return at + i
				}
			}
		}
		at += len(run)
	}
	return -1
}

// Update changes the rows of keys by their gradients [len(keys), Width]. Keys stand once,
// and the gradients are finite: see Check. With Adam every row of the table moves, so a
// step calls it even if it has no keys.
func (t *Table) Update(at Mark, keys []int64, grad []float32) (Changes, error) {
	var c Changes
	width := t.schema.Width
	switch {
	case len(grad) != len(keys)*width:
		return c, t.fail(KindGradient, "%d values for %d keys: want %d for each", len(grad), len(keys), width)
	case at.LSN == 0:
		return c, t.fail(KindKey, "an update without a log number: count entries from 1")
	case at.Step > math.MaxUint32:
		return c, t.fail(KindKey, "step %d: want at most %d", at.Step, uint32(math.MaxUint32))
	}
	for _, k := range keys {
		if e := t.checkKey(k); e != nil {
			return c, e
		}
	}
	if t.schema.Optimizer.Kind == Adam {
		return t.updateAll(at, keys, grad)
	}
	alone := t.cold != nil || !hasCores()
	for lo, hi := 0, 0; lo < len(keys); lo = hi {
		if !alone && len(keys)-lo >= sharedRows {
			hi = lo + sharedRows
			most, err := t.updateShared(at, keys[lo:hi], grad[lo*width:hi*width], &c)
			if err != nil {
				return c, err
			}
			alone = !most // rows that begin do so one by one
			continue
		}
		hi = min(lo+lockRows, len(keys))
		if t.cold != nil && lo%stagedRows == 0 {
			if err := t.stage(keys[lo:min(lo+stagedRows, len(keys))]); err != nil {
				return c, err
			}
		}
		if err := t.updateLocked(at, keys[lo:hi], grad[lo*width:hi*width], &c); err != nil {
			return c, err
		}
	}
	t.mu.Lock()
	t.stats.updates++
	t.mu.Unlock()
	return c, nil
}

func (t *Table) updateLocked(at Mark, keys []int64, grad []float32, c *Changes) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	width := t.schema.Width
	for len(keys) > 0 {
		n := min(tileRows, len(keys))
		if err := t.updateTile(at, keys[:n], grad[:n*width], c); err != nil {
			return err
		}
		keys, grad = keys[n:], grad[n*width:]
	}
	return nil
}

// updateTile changes the rows of at most tileRows keys.
func (t *Table) updateTile(at Mark, keys []int64, grad []float32, c *Changes) error {
	u := &t.update
	t.makeRoom(len(keys)) // before the waves: rows that they found stay where they are
	n := 0
	var failed error
	t.eachWave(u.read, keys, func(l *lookup, first, num int) {
		if t.cold != nil {
			t.cold.use(l, num)
		}
		for i, key := range keys[first : first+num] {
			slot, change, err := t.touch(at, key, l.slot[i], c)
			if err != nil {
				failed = err
				return
			}
			if change {
				if t.cold != nil {
					t.cold.took(slot, key)
				}
				u.record[n], u.from[n] = t.rows.record(slot), first+i
				n++
			}
		}
	})
	if failed != nil {
		return failed
	}
	t.applySome(u, at, n, grad)
	return nil
}

// touch counts a push of a key whose slot plus one is plus, and returns the slot of the row
// to change, which is new if there was none, and false if the push changes nothing.
func (t *Table) touch(at Mark, key int64, plus uint32, c *Changes) (uint32, bool, error) {
	if plus != 0 {
		h := t.rows.header(plus - 1)
		if h.lsn >= at.LSN {
			c.Older++
			return 0, false, nil
		}
		count(&t.stats, h, at)
		c.Changed++
		return plus - 1, true, nil
	}
	hash := Hash(key)
	if slot, h := t.rows.get(key, hash); h != nil { // a key that stands twice
		return t.touch(at, key, slot+1, c)
	}
	if t.cold != nil {
		if _, h := t.cold.get(key, hash); h != nil && h.lsn >= at.LSN {
			c.Older++
			return 0, false, nil
		}
		slot, h, err := t.warm(key, hash)
		if err != nil {
			return 0, false, err
		}
		if h != nil {
			return t.touch(at, key, slot+1, c)
		}
	}
	if _, g := t.gone.get(key, hash); g != nil {
		if g.lsn >= at.LSN {
			c.Older++
			return 0, false, nil
		}
		t.gone.drop(key, hash)
	}
	pushes := uint32(1)
	if t.schema.Admit > 1 {
		_, y := t.young.get(key, hash)
		if y == nil {
			var err error
			if _, y, err = t.young.add(key, hash); err != nil {
				return 0, false, t.noMemory(key, err)
			}
		}
		if y.lsn >= at.LSN {
			c.Older++
			return 0, false, nil
		}
		y.count++
		y.lsn, y.step = at.LSN, max(y.step, uint32(at.Step))
		if int(y.count) < t.schema.Admit {
			c.Waiting++
			return 0, false, nil
		}
		pushes = y.count
		t.young.drop(key, hash)
		t.stats.admitted++
	}
	slot, h, err := t.rows.add(key, hash)
	if err != nil {
		return 0, false, t.noMemory(key, err)
	}
	t.begin(key, slot)
	h.count = pushes - 1
	t.stats.begin(pushes - 1)
	count(&t.stats, h, at)
	c.Changed++
	c.Made++
	return slot, true, nil
}

func (t *Table) noMemory(key int64, err error) error {
	e := t.fail(KindMemory, "no memory for the row of key %d", key)
	e.Key, e.Cause = key, err
	return e
}

// begin writes the first value and state of a row.
func (t *Table) begin(key int64, slot uint32) {
	f := t.update.read.floats[:t.schema.Width]
	t.first.fill(f, key)
	record := t.rows.record(slot)
	encode(bytesAt(record, 0, t.rowBytes), f, t.schema.DType, t.schema.Width)
	t.schema.Optimizer.firstState(floatsAt(record, t.stateAt, t.stateLen), t.schema.Width)
}

// count notes in a row's header that a push changes it.
func count(stats *counters, h *header, at Mark) {
	stats.push(h.count)
	if h.count < maxCount {
		h.count++
	}
	h.lsn, h.step = at.LSN, max(h.step, uint32(at.Step))
}

// updateAll is Update of Adam, which moves all rows.
func (t *Table) updateAll(at Mark, keys []int64, grad []float32) (Changes, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var c Changes
	width := t.schema.Width
	from := make([]int32, t.rows.next, int(t.rows.next)+len(keys)) // of a slot: the position of its key, plus one
	for i, key := range keys {
		hash := Hash(key)
		slot, h := t.rows.get(key, hash)
		if h != nil && h.lsn >= at.LSN {
			c.Older++
			continue
		}
		if h == nil {
			var err error
			if slot, h, err = t.rows.add(key, hash); err != nil {
				return c, t.noMemory(key, err)
			}
			t.begin(key, slot)
			t.stats.begin(0)
			c.Made++
			from = append(from, 0)
		}
		from[slot] = int32(i) + 1
		count(&t.stats, h, Mark{Step: at.Step, LSN: h.lsn})
	}
	u := &t.update
	n := 0
	for slot := range t.rows.next {
		if h := t.rows.header(slot); h.lsn < at.LSN {
			h.lsn = at.LSN
			to := u.grads[n*width : (n+1)*width]
			if i := from[slot]; i > 0 {
				copy(to, grad[int(i-1)*width:])
			} else {
				clear(to)
			}
			u.record[n] = t.rows.record(slot)
			n++
			c.Changed++
		}
		if n == tileRows || slot+1 == t.rows.next {
			t.applyTile(u, at, u.record[:n], u.grads[:n*width])
			n = 0
		}
	}
	t.stats.updates++
	return c, nil
}
