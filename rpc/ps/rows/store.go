// SPDX-License-Identifier: Apache-2.0

package rows

import "errors"

var errAlike = errors.New("too many keys have hashes that begin alike")

var errFull = errors.New("the table has 2^31 records, which is all that a process can have")

// store has records by key.
type store struct {
	*index
	arena
}

func newStore(bytes, most int) store { return store{&index{}, newArena(bytes, most)} }

// get returns the slot and the header of a key, nil if it has none.
func (s *store) get(key int64, hash uint64) (uint32, *header) {
	if b, i := s.find(key, hash); b != nil {
		return b.slots[i] - 1, s.header(b.slots[i] - 1)
	}
	return 0, nil
}

// add makes the record of a key that has none, with a header of zeros; the rest of it is
// undefined.
func (s *store) add(key int64, hash uint64) (uint32, *header, error) {
	slot, err := s.take()
	if err != nil {
		return 0, nil, err
	}
	if err := s.insert(key, hash, slot); err != nil {
		s.give(slot)
		return 0, nil, err
	}
	h := s.header(slot)
	*h = header{}
	return slot, h, nil
}

// drop removes the record of a key and returns what its header was.
func (s *store) drop(key int64, hash uint64) (header, bool) {
	b, i := s.find(key, hash)
	if b == nil {
		return header{}, false
	}
	slot := b.slots[i] - 1
	s.part(hash).remove(b, i)
	s.give(slot)
	return *s.header(slot), true
}

func (s *store) close() error {
	err := s.index.memory.close()
	s.parts = [NumPartitions]part{}
	return errors.Join(err, s.arena.close())
}
