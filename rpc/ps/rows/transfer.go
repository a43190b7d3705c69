// SPDX-License-Identifier: Apache-2.0

package rows

import "github.com/cohort-ml/cohort/tensor"

// StateLen returns the number of float32 of a row's state.
func (t *Table) StateLen() int { return t.stateLen }

// Lookup writes the values of keys as float32 [len(keys), Width], and the states of their
// rows [len(keys), StateLen]. A key without a row has what its row would begin with. Keys
// may repeat. Like Gather it may run beside Update.
func (t *Table) Lookup(values, states []float32, keys []int64) error {
	width := t.schema.Width
	if len(values) != len(keys)*width || len(states) != len(keys)*t.stateLen {
		return t.fail(KindDType, "%d values and %d of state for %d keys: want %d and %d for each", len(values), len(states), len(keys), width, t.stateLen)
	}
	for _, k := range keys {
		if e := t.checkKey(k); e != nil {
			return e
		}
	}
	for lo := 0; lo < len(keys); lo += scanRows {
		hi := min(lo+scanRows, len(keys))
		if err := t.lookupLocked(values[lo*width:hi*width], states[lo*t.stateLen:hi*t.stateLen], keys[lo:hi]); err != nil {
			return err
		}
	}
	return nil
}

// lookupLocked is Lookup of some keys. Rows on disk are read under the lock.
func (t *Table) lookupLocked(values, states []float32, keys []int64) error {
	width := t.schema.Width
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i, key := range keys {
		to, state := values[i*width:(i+1)*width], states[i*t.stateLen:(i+1)*t.stateLen]
		hash := Hash(key)
		if slot, h := t.rows.get(key, hash); h != nil {
			record := t.rows.record(slot)
			decode(to, bytesAt(record, 0, t.rowBytes), t.schema.DType, width)
			copy(state, floatsAt(record, t.stateAt, t.stateLen))
			continue
		}
		if t.cold != nil {
			if place, h := t.cold.get(key, hash); h != nil {
				r := read{key: key, place: place, lsn: h.lsn, to: make([]byte, t.cold.size)}
				if err := t.cold.read(t, []read{r}); err != nil {
					return err
				}
				decode(to, r.to[:t.rowBytes], t.schema.DType, width)
				decode(state, r.to[t.stateAt:t.stateAt+4*t.stateLen], tensor.Float32, 1)
				continue
			}
		}
		t.first.fill(to, key)
		rounded := make([]byte, t.rowBytes)
		encode(rounded, to, t.schema.DType, width)
		decode(to, rounded, t.schema.DType, width)
		t.schema.Optimizer.firstState(state, width)
	}
	return nil
}

// Insert makes rows with these values, float32 [len(keys), Width], and states. What the
// table has of the keys leaves, unless it is as new as the mark. Keys of other processes are
// an error. One goroutine may call it, that of Update.
func (t *Table) Insert(at Mark, keys []int64, values, states []float32) error {
	width := t.schema.Width
	if len(values) != len(keys)*width || len(states) != len(keys)*t.stateLen {
		return t.fail(KindRecord, "%d values and %d of state for %d keys: want %d and %d for each", len(values), len(states), len(keys), width, t.stateLen)
	}
	row := make([]byte, t.rowBytes)
	state := make([]byte, 4*t.stateLen)
	for i, key := range keys {
		if t.owns != nil && !t.owns(key) {
			e := t.fail(KindKey, "key %d is another server's", key)
			e.Key = key
			return e
		}
		encode(row, values[i*width:(i+1)*width], t.schema.DType, width)
		encode(state, states[i*t.stateLen:(i+1)*t.stateLen], tensor.Float32, 1)
		if _, err := t.Put(Record{Key: key, LSN: at.LSN, Step: at.Step, Count: uint32(max(1, t.schema.Admit)), Row: row, State: state}); err != nil {
			return err
		}
	}
	return nil
}

// Clear removes all rows and waiting keys that are older than the mark.
func (t *Table) Clear(at Mark) {
	var keys []int64
	stores := []*store{&t.rows, &t.young}
	if t.cold != nil {
		stores = append(stores, &t.cold.headers)
	}
	t.eachHeader(stores, func(batch []keyed) {
		for _, k := range batch {
			keys = append(keys, k.key)
		}
	})
	t.Remove(at, keys)
}
