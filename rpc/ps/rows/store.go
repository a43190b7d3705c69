// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"errors"
	"unsafe"
)

var errFull = errors.New("the table has 2^31 records, which is all that a process can have")

// store has records by key.
type store struct {
	index *index
	arena
}

func newStore(bytes, most int) store { return store{&index{}, newArena(bytes, most)} }

// find returns the place of a key in its part, and its slot.
func (s *store) find(key int64, hash uint64) (at int, slot uint32, ok bool) {
	p := s.index.part(hash)
	if p.live == 0 {
		return 0, 0, false
	}
	tag := tagOf(hash)
	for at := int(tag >> p.shift); at < len(p.entries); at++ {
		e := p.entries[at]
		if e == 0 {
			break
		}
		if entryTag(e) == tag && s.header(entrySlot(e)).key == key {
			return at, entrySlot(e), true
		}
	}
	return 0, 0, false
}

// get returns the record of a key, nil if it has none.
func (s *store) get(key int64, hash uint64) *header {
	if _, slot, ok := s.find(key, hash); ok {
		return s.header(slot)
	}
	return nil
}

// add makes the record of a key that has none. Its header has the key alone, the rest of
// it is undefined.
func (s *store) add(key int64, hash uint64) (*header, error) {
	slot, err := s.take()
	if err != nil {
		return nil, err
	}
	s.index.part(hash).insert(tagOf(hash), slot)
	h := s.header(slot)
	*h = header{key: key}
	return h, nil
}

// drop removes the record of a key and returns what its header was.
func (s *store) drop(key int64, hash uint64) (header, bool) {
	at, slot, ok := s.find(key, hash)
	if !ok {
		return header{}, false
	}
	was := *s.header(slot)
	s.index.part(hash).remove(at)
	s.give(slot)
	return was, true
}

// bytesAt returns n bytes of a record from an offset behind its header.
func bytesAt(h *header, offset, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(h), headerBytes+offset)), n)
}

// floatsAt returns n float32 of a record from an offset behind its header.
func floatsAt(h *header, offset, n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(h), headerBytes+offset)), n)
}
