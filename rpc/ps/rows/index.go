// SPDX-License-Identifier: Apache-2.0

package rows

// NumPartitions is the number of partitions of keys. The partition of a key is the lowest
// ten bits of its hash.
const NumPartitions = 1 << 10

// Hash spreads the bits of a key: the last step of MurmurHash3 for 64 bits. Its numbers
// are a part of the protocol.
func Hash(key int64) uint64 {
	x := uint64(key)
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x
}

// index finds the slots of keys: a hash table of open addressing for each partition.
//
// An entry is the upper half of a key's hash, called its tag, and its slot plus one; 0 is
// an empty entry. The tag decides where an entry wants to be, and which entries are asked
// for their key. So a table grows, and closes the gap of a removed entry, without a look
// at the rows.
type index struct {
	parts [NumPartitions]part
}

// part has entries for 2^bits places, and behind them some for what did not fit at the
// end, so that no entry is before the place that it wants.
type part struct {
	entries []uint64 // nil while empty
	shift   uint8    // a tag >> shift is the place that its entry wants
	live    int32
}

// overflow is the number of places behind the last.
const overflow = 32

const firstBits = 3

func tagOf(hash uint64) uint32          { return uint32(hash >> 32) }
func (x *index) part(hash uint64) *part { return &x.parts[hash%NumPartitions] }
func entryOf(tag, slot uint32) uint64   { return uint64(tag)<<32 | uint64(slot) + 1 }
func entryTag(e uint64) uint32          { return uint32(e >> 32) }
func entrySlot(e uint64) uint32         { return uint32(e) - 1 }

// insert adds an entry; the key must not be there.
func (p *part) insert(tag, slot uint32) {
	if p.entries == nil {
		p.entries, p.shift = make([]uint64, 1<<firstBits+overflow), 32-firstBits
	}
	if int(p.live) >= (len(p.entries)-overflow)*4/5 {
		p.grow()
	}
	for !place(p.entries, p.shift, entryOf(tag, slot)) {
		p.grow()
	}
	p.live++
}

// place puts an entry at the first free place from where it wants to be. It returns false
// if there is none.
func place(entries []uint64, shift uint8, e uint64) bool {
	for at := int(entryTag(e) >> shift); at < len(entries); at++ {
		if entries[at] == 0 {
			entries[at] = e
			return true
		}
	}
	return false
}

func (p *part) grow() {
	size, shift := len(p.entries)-overflow, p.shift
	for {
		size, shift = 2*size, shift-1
		wider := make([]uint64, size+overflow)
		ok := true
		for _, e := range p.entries {
			if e != 0 && !place(wider, shift, e) {
				ok = false // many tags are alike: give them more places
				break
			}
		}
		if ok {
			p.entries, p.shift = wider, shift
			return
		}
	}
}

// remove empties the place of an entry and moves those behind it that want to be further
// ahead.
func (p *part) remove(at int) {
	p.live--
	gap := at
	for i := at + 1; i < len(p.entries) && p.entries[i] != 0; i++ {
		if wants := int(entryTag(p.entries[i]) >> p.shift); wants <= gap {
			p.entries[gap] = p.entries[i]
			gap = i
		}
	}
	p.entries[gap] = 0
}

// within appends the slots of all entries whose tags are from lo to hi.
func (p *part) within(slots []uint32, lo, hi uint32) []uint32 {
	last := int(hi >> p.shift)
	for at := int(lo >> p.shift); at < len(p.entries); at++ {
		e := p.entries[at]
		if e == 0 {
			if at >= last {
				break
			}
			continue
		}
		if tag := entryTag(e); lo <= tag && tag <= hi {
			slots = append(slots, entrySlot(e))
		}
	}
	return slots
}
