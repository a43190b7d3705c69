// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"encoding/binary"
	"math/bits"
)

func pairKey(left, right uint32) uint64 { return uint64(left)<<32 | uint64(right) }

// pairTable maps pairs of tokens to the rank and the result of their merge: a
// hash table with open addressing, filled once and then only read.
type pairTable struct {
	slots []pairSlot
	shift uint
}

type pairSlot struct {
	key  uint64
	rank uint32 // plus one; 0 is an empty slot
	id   uint32
}

func (p *pairTable) init(n int) {
	size := max(bits.Len(uint(n))+1, 4) // at most half full
	p.slots = make([]pairSlot, 1<<size)
	p.shift = uint(64 - size)
}

func (p *pairTable) slot(key uint64) *pairSlot {
	mask := uint64(len(p.slots) - 1)
	for i := key * 0x9e3779b97f4a7c15 >> p.shift; ; i = (i + 1) & mask {
		s := &p.slots[i]
		if s.rank == 0 || s.key == key {
			return s
		}
	}
}

// add reports false if the key is there already.
func (p *pairTable) add(key uint64, rank, id uint32) bool {
	s := p.slot(key)
	if s.rank != 0 {
		return false
	}
	*s = pairSlot{key: key, rank: rank + 1, id: id}
	return true
}

// encoder holds the scratch and the cache of words of one goroutine.
type encoder struct {
	t     *Tokenizer
	cache []cached
	syms  []uint32
	ranks []uint32
	next  []int32
	prev  []int32
	queue []uint64 // a heap
	text  []byte   // a text with a space before it
	parts [][]byte // words
}

const (
	cacheBits = 14 // entries of 64 bytes: 1 MiB
	cacheWord = 23 // bytes of a word that can be cached
	cacheIDs  = 9
	heapFrom  = 48 // symbols from which merging keeps a heap
)

// cached is a word of at most 23 bytes, with its length in the top byte, and
// its tokens: a line of the processor's cache. An empty entry has length 0.
type cached struct {
	word [3]uint64
	n    uint32
	ids  [cacheIDs]uint32
}

func newEncoder(t *Tokenizer) *encoder {
	return &encoder{t: t, cache: make([]cached, 1<<cacheBits)}
}

// appendWord appends the tokens of a word to dst.
func (e *encoder) appendWord(dst []int64, word []byte) []int64 {
	if len(word) > cacheWord {
		return appendIDs(dst, e.word(word))
	}
	// Eight bytes at a time; the last eight overlap those before and are shifted
	// clear.
	var key [3]uint64
	n := len(word)
	switch {
	case n >= 16:
		key[0], key[1] = binary.LittleEndian.Uint64(word), binary.LittleEndian.Uint64(word[8:])
		key[2] = binary.LittleEndian.Uint64(word[n-8:]) >> (8 * uint(24-n))
	case n >= 8:
		key[0] = binary.LittleEndian.Uint64(word)
		key[1] = binary.LittleEndian.Uint64(word[n-8:]) >> (8 * uint(16-n))
	case n >= 4:
		key[0] = uint64(binary.LittleEndian.Uint32(word)) | uint64(binary.LittleEndian.Uint32(word[n-4:]))<<(8*uint(n-4))
	default:
		for i, b := range word {
			key[0] |= uint64(b) << (8 * uint(i))
		}
	}
	key[2] |= uint64(n) << 56
	h := (key[0] ^ bits.RotateLeft64(key[1], 29) ^ bits.RotateLeft64(key[2], 47)) * 0x9e3779b97f4a7c15
	c := &e.cache[(h^h>>29)*0xbf58476d1ce4e5b9>>(64-cacheBits)]
	if c.word == key {
		if c.n == 1 {
			return append(dst, int64(c.ids[0]))
		}
		return appendIDs(dst, c.ids[:c.n])
	}
	syms := e.word(word)
	if len(syms) <= cacheIDs {
		c.word, c.n = key, uint32(len(syms))
		copy(c.ids[:], syms)
	}
	return appendIDs(dst, syms)
}

func appendIDs(dst []int64, ids []uint32) []int64 {
	for _, id := range ids {
		dst = append(dst, int64(id))
	}
	return dst
}

// word returns the tokens of a word, valid until the next call.
func (e *encoder) word(word []byte) []uint32 {
	t := e.t
	if t.general != nil && t.general.model != nil {
		e.syms = t.general.model.appendWord(e.syms[:0], word)
		return e.syms
	}
	if t.names != nil {
		e.syms = t.appendChars(e.syms[:0], word)
		return e.merge(e.syms)
	}
	syms := e.syms[:0]
	if t.whole != nil {
		if id, ok := t.whole[string(word)]; ok {
			e.syms = append(syms, id)
			return e.syms
		}
	}
	fused := false // the last is an unknown token that stands for more
	for _, b := range word {
		switch id := t.byteID[b]; {
		case id != none:
			syms = append(syms, id)
			fused = false
		case t.unk != none && !fused:
			syms = append(syms, t.unk)
			fused = t.pipeline.fuseUnk
		}
	}
	e.syms = syms
	return e.merge(syms)
}

// merge merges symbols, in place: again and again the pair of lowest rank, the
// leftmost of equals.
func (e *encoder) merge(syms []uint32) []uint32 {
	if len(syms) >= heapFrom {
		return e.mergeLong(syms)
	}
	rank := func(l, r uint32) uint32 { return e.t.table.slot(pairKey(l, r)).rank - 1 } // none if absent
	ranks := e.ranks[:0]
	for i := 1; i < len(syms); i++ {
		ranks = append(ranks, rank(syms[i-1], syms[i]))
	}
	e.ranks = ranks
	for {
		best, at := uint32(none), 0
		for i, r := range ranks {
			if r < best {
				best, at = r, i
			}
		}
		if best == none {
			return syms
		}
		syms[at] = e.t.merges[best].id
		syms = append(syms[:at+1], syms[at+2:]...)
		ranks = append(ranks[:at], ranks[at+1:]...)
		if at > 0 {
			ranks[at-1] = rank(syms[at-1], syms[at])
		}
		if at < len(ranks) {
			ranks[at] = rank(syms[at], syms[at+1])
		}
	}
}

// mergeLong is merge for words that may be of any length (a file without
// spaces): the pairs wait in a heap, so that n symbols take n·log(n) time.
func (e *encoder) mergeLong(syms []uint32) []uint32 {
	const end, dead = -1, -2 // dead: prev of a symbol that a merge took away
	n := len(syms)
	if cap(e.next) < n {
		e.next, e.prev = make([]int32, n), make([]int32, n)
	}
	next, prev := e.next[:n], e.prev[:n]
	queue := e.queue[:0] // rank and place, of which the smallest comes first
	for i := range syms {
		next[i], prev[i] = int32(i+1), int32(i-1)
	}
	next[n-1] = end
	for i := range n - 1 {
		if s := e.t.table.slot(pairKey(syms[i], syms[i+1])); s.rank != 0 {
			queue = append(queue, uint64(s.rank-1)<<32|uint64(i))
		}
	}
	for i := len(queue)/2 - 1; i >= 0; i-- {
		siftDown(queue, i)
	}
	push := func(i int32) {
		if s := e.t.table.slot(pairKey(syms[i], syms[next[i]])); s.rank != 0 {
			queue = append(queue, uint64(s.rank-1)<<32|uint64(i))
			siftUp(queue)
		}
	}
	for len(queue) > 0 {
		top := queue[0]
		queue[0] = queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		siftDown(queue, 0)
		i, m := int32(top&(1<<32-1)), e.t.merges[top>>32]
		if prev[i] == dead || syms[i] != m.left || next[i] == end || syms[next[i]] != m.right {
			continue // one of the two has been merged meanwhile
		}
		j := next[i]
		syms[i] = m.id
		next[i] = next[j]
		prev[j] = dead
		if next[i] != end {
			prev[next[i]] = i
			push(i)
		}
		if prev[i] >= 0 {
			push(prev[i])
		}
	}
	e.queue = queue
	out := syms[:0]
	for i := int32(0); i != end; i = next[i] {
		out = append(out, syms[i])
	}
	return out
}

func siftDown(q []uint64, i int) {
	for {
		child := 2*i + 1
		if child >= len(q) {
			return
		}
		if child+1 < len(q) && q[child+1] < q[child] {
			child++
		}
		if q[i] <= q[child] {
			return
		}
		q[i], q[child] = q[child], q[i]
		i = child
	}
}

// siftUp puts the last entry in its place.
func siftUp(q []uint64) {
	for i := len(q) - 1; i > 0; {
		parent := (i - 1) / 2
		if q[parent] <= q[i] {
			return
		}
		q[i], q[parent] = q[parent], q[i]
		i = parent
	}
}
