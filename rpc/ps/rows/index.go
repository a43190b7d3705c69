// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"math/bits"
	"slices"
	"unsafe"
)

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

// bucketKeys is the number of keys of a bucket, which fills a cache line.
const bucketKeys = 5

// bucket is a run of places of an index: keys, and the slots of their records plus one.
type bucket struct {
	keys  [bucketKeys]int64
	slots [bucketKeys]uint32
	n     uint32 // places in use, from the first on
}

const bucketBytes = int(unsafe.Sizeof(bucket{}))

func (b *bucket) next() *bucket { return (*bucket)(unsafe.Add(unsafe.Pointer(b), bucketBytes)) }

// find returns the place of a key in the bucket, bucketKeys if it is not there. It has no
// branches that a processor could foresee wrongly.
func (b *bucket) find(key int64) int {
	m := uint32(1 << bucketKeys)
	for i := range b.keys {
		same := uint32(0)
		if b.keys[i] == key {
			same = 1
		}
		m |= same << i
	}
	// Free places have any key.
	return bits.TrailingZeros32(m &^ (1<<bucketKeys - 1<<b.n))
}

// index finds the slots of keys: a hash table of open addressing for each partition. The
// upper half of a key's hash, called its tag, decides in which bucket a key wants to be: in
// the order of tags. If the bucket is full, the key is in one behind it. So a walk over a
// span of tags finds its keys wherever a growing table has put them.
type index struct {
	parts  [NumPartitions]part
	memory indexMemory
}

// part has the buckets of a partition. The last bucket is never full, and ends each search.
// A key is behind the bucket that it wants only if all between are full.
type part struct {
	first *bucket // nil while there are none
	homes uint32  // buckets that a key can want
	live  uint32  // keys
	class uint32  // of the memory
}

// overflow is the number of buckets behind the homes.
const overflow = 8

func tagOf(hash uint64) uint32 { return uint32(hash >> 32) }

func (x *index) part(hash uint64) *part { return &x.parts[hash%NumPartitions] }

// home returns the bucket that a key with this hash wants.
func (p *part) home(hash uint64) *bucket {
	return p.at(uint32(uint64(tagOf(hash)) * uint64(p.homes) >> 32))
}

func (p *part) at(i uint32) *bucket {
	return (*bucket)(unsafe.Add(unsafe.Pointer(p.first), int(i)*bucketBytes))
}

// find returns the bucket and the place of a key, nil if it is not there.
func (x *index) find(key int64, hash uint64) (*bucket, int) {
	p := x.part(hash)
	if p.live == 0 {
		return nil, 0
	}
	return search(p.home(hash), key)
}

// search looks for a key from a bucket on.
func search(b *bucket, key int64) (*bucket, int) {
	for ; ; b = b.next() {
		if i := b.find(key); i < bucketKeys {
			return b, i
		}
		if b.n < bucketKeys {
			return nil, 0
		}
	}
}

// insert adds a key that is not there.
func (x *index) insert(key int64, hash uint64, slot uint32) error {
	p := x.part(hash)
	if p.live >= p.homes*(bucketKeys*4)/5 {
		if err := x.grow(p); err != nil {
			return err
		}
	}
	for !p.place(key, slot+1, hash) {
		if err := x.grow(p); err != nil {
			return err
		}
	}
	p.live++
	return nil
}

// place puts a key into the first bucket with room. It returns false if it would fill the
// last one.
func (p *part) place(key int64, plus uint32, hash uint64) bool {
	b := p.home(hash)
	for b.n == bucketKeys {
		b = b.next()
	}
	if b.n == bucketKeys-1 && b == p.at(p.homes+overflow-1) {
		return false
	}
	b.keys[b.n], b.slots[b.n] = key, plus
	b.n++
	return true
}

// grow gives a part up to half as many homes more.
func (x *index) grow(p *part) error {
	for class := p.class + 1; ; class++ {
		if class >= uint32(len(x.memory.classes)) || homesOf(class) > 64*(p.live+16) {
			return errAlike
		}
		wider := part{homes: homesOf(class), live: p.live, class: class}
		var err error
		if wider.first, err = x.memory.get(class); err != nil {
			return err
		}
		if !wider.placeAll(p) {
			x.memory.put(class, wider.first) // many tags are alike: give them more room
			continue
		}
		if p.first != nil {
			x.memory.put(p.class, p.first)
		}
		*p = wider
		return nil
	}
}

// placeAll puts the keys of another part into this one, and returns false if one has no room.
func (p *part) placeAll(from *part) bool {
	for i := range from.buckets() {
		b := from.at(i)
		for j := range b.n {
			if !p.place(b.keys[j], b.slots[j], Hash(b.keys[j])) {
				return false
			}
		}
	}
	return true
}

func (p *part) buckets() uint32 {
	if p.first == nil {
		return 0
	}
	return p.homes + overflow
}

// remove takes out the key at a place. If keys had no room in the bucket, one of them takes
// the place, and so on behind it.
func (p *part) remove(b *bucket, i int) {
	p.live--
	for {
		wasFull := b.n == bucketKeys
		b.n--
		b.keys[i], b.slots[i] = b.keys[b.n], b.slots[b.n]
		if !wasFull {
			return
		}
		from, j := p.displaced(b)
		if from == nil {
			return
		}
		b.keys[b.n], b.slots[b.n] = from.keys[j], from.slots[j]
		b.n++
		b, i = from, j
	}
}

// displaced returns the place of a key behind a bucket that wants to be in it or before it,
// nil if there is none.
func (p *part) displaced(b *bucket) (*bucket, int) {
	for from := b.next(); ; from = from.next() {
		for j := range int(from.n) {
			if uintptr(unsafe.Pointer(p.home(Hash(from.keys[j])))) <= uintptr(unsafe.Pointer(b)) {
				return from, j
			}
		}
		if from.n < bucketKeys || from == p.at(p.homes+overflow-1) {
			return nil, 0
		}
	}
}

// entry is a key and the slot of its record.
type entry struct {
	key  int64
	slot uint32
}

// within appends the entries of all keys whose tags are from lo to hi.
func (p *part) within(found []entry, lo, hi uint32) []entry {
	if p.live == 0 {
		return found
	}
	last := p.home(uint64(hi) << 32)
	for b := p.home(uint64(lo) << 32); ; b = b.next() {
		for i := range b.n {
			if tag := tagOf(Hash(b.keys[i])); lo <= tag && tag <= hi {
				found = append(found, entry{b.keys[i], b.slots[i] - 1})
			}
		}
		if b.n < bucketKeys && uintptr(unsafe.Pointer(b)) >= uintptr(unsafe.Pointer(last)) {
			return found
		}
	}
}

// homesOf returns the homes of a class: 2, 3, 4, 6, 8, 12, 16 …
func homesOf(class uint32) uint32 {
	return (2 + class&1) << (class / 2)
}

// indexMemory has the buckets of parts. Parts grow at about the same time, so arrays of one
// class lie together in regions of the system's memory, and a region whose arrays have all
// been outgrown goes back to the system.
type indexMemory struct {
	classes [64]indexClass
	bytes   int64
}

type indexClass struct {
	free    []*bucket
	regions []*indexRegion
}

// region returns the number of the region that an array lies in.
func (c *indexClass) region(e *bucket) int {
	return slices.IndexFunc(c.regions, func(r *indexRegion) bool { return r.has(e) })
}

type indexRegion struct {
	data []byte
	used int // arrays in use
	next int // offset of the first array that was never used
}

// classBytes returns the bytes of an array of a class.
func classBytes(class uint32) int {
	return (int(homesOf(class)) + overflow) * bucketBytes
}

// get returns an array of empty buckets.
func (m *indexMemory) get(class uint32) (*bucket, error) {
	c, size := &m.classes[class], classBytes(class)
	if n := len(c.free); n > 0 {
		first := c.free[n-1]
		c.free = c.free[:n-1]
		c.regions[c.region(first)].used++
		clear(unsafe.Slice((*byte)(unsafe.Pointer(first)), size))
		return first, nil
	}
	n := len(c.regions)
	if n == 0 || c.regions[n-1].next+size > len(c.regions[n-1].data) {
		total := NumPartitions * size
		if total > chunkBytes {
			total = max(size, chunkBytes/size*size)
		}
		data, err := reserve(total)
		if err != nil {
			return nil, err
		}
		c.regions = append(c.regions, &indexRegion{data: data})
		m.bytes += int64(total)
		n++
	}
	r := c.regions[n-1]
	first := (*bucket)(unsafe.Pointer(&r.data[r.next]))
	r.next += size
	r.used++
	return first, nil
}

// has reports whether an array lies in the region.
func (r *indexRegion) has(e *bucket) bool {
	at, start := uintptr(unsafe.Pointer(e)), uintptr(unsafe.Pointer(unsafe.SliceData(r.data)))
	return start <= at && at < start+uintptr(len(r.data))
}

// put takes an array back.
func (m *indexMemory) put(class uint32, first *bucket) {
	c := &m.classes[class]
	c.free = append(c.free, first)
	i := c.region(first)
	r := c.regions[i]
	if r.used--; r.used > 0 {
		return
	}
	c.free = slices.DeleteFunc(c.free, r.has)
	m.bytes -= int64(len(r.data))
	_ = release(r.data)
	c.regions = slices.Delete(c.regions, i, i+1)
}

func (m *indexMemory) close() error {
	var first error
	for i := range m.classes {
		for _, r := range m.classes[i].regions {
			if err := release(r.data); err != nil && first == nil {
				first = err
			}
		}
	}
	*m = indexMemory{}
	return first
}
