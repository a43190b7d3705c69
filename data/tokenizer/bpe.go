// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"container/heap"
	"encoding/binary"
	"math/bits"
)

func pairKey(left, right uint16) uint32 { return uint32(left)<<16 | uint32(right) }

// pairTable maps pairs of tokens to the rank and the result of their merge: a
// hash table with open addressing, filled once and then only read.
type pairTable struct {
	slots []pairSlot
	shift uint
}

type pairSlot struct {
	key  uint32
	rank uint32 // plus one; 0 is an empty slot
	id   uint16
}

func (p *pairTable) init(n int) {
	size := max(bits.Len(uint(n))+1, 4) // at most half full
	p.slots = make([]pairSlot, 1<<size)
	p.shift = uint(32 - size)
}

func (p *pairTable) slot(key uint32) *pairSlot {
	mask := uint32(len(p.slots) - 1)
	for i := key * 0x9e3779b1 >> p.shift; ; i = (i + 1) & mask {
		s := &p.slots[i]
		if s.rank == 0 || s.key == key {
			return s
		}
	}
}

// add reports false if the key is there already.
func (p *pairTable) add(key, rank uint32, id uint16) bool {
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
	syms  []uint16
	ranks []uint32
}

const (
	cacheBits = 13 // entries of 32 bytes: 256 KiB
	cacheWord = 15 // bytes of a word that can be cached
	cacheIDs  = 7
	heapFrom  = 48 // bytes from which merging keeps a heap
)

// cached is a word of at most 15 bytes, in lo and hi with its length in the
// top byte, and its tokens. An empty entry has length 0.
type cached struct {
	lo, hi uint64
	n      uint16
	ids    [cacheIDs]uint16
}

func newEncoder(t *Tokenizer) *encoder {
	return &encoder{t: t, cache: make([]cached, 1<<cacheBits)}
}

func (e *encoder) appendWord(dst []int64, word []byte) []int64 {
	if len(word) == 1 {
		return append(dst, int64(e.t.byteID[word[0]]))
	}
	if len(word) > cacheWord {
		return e.appendTokens(dst, e.bpe(word))
	}
	var lo, hi uint64
	if len(word) >= 8 {
		lo = binary.LittleEndian.Uint64(word)
		// The last eight bytes overlap the first: they are shifted clear.
		hi = binary.LittleEndian.Uint64(word[len(word)-8:]) >> (8 * uint(16-len(word)))
	} else {
		for i, b := range word {
			lo |= uint64(b) << (8 * uint(i))
		}
	}
	hi |= uint64(len(word)) << 56
	h := (lo ^ bits.RotateLeft64(hi, 29)) * 0x9e3779b97f4a7c15
	c := &e.cache[(h^h>>29)*0xbf58476d1ce4e5b9>>(64-cacheBits)]
	if c.lo == lo && c.hi == hi {
		for _, id := range c.ids[:c.n] {
			dst = append(dst, int64(id))
		}
		return dst
	}
	syms := e.bpe(word)
	if len(syms) <= cacheIDs {
		c.lo, c.hi, c.n = lo, hi, uint16(len(syms))
		copy(c.ids[:], syms)
	}
	return e.appendTokens(dst, syms)
}

func (e *encoder) appendTokens(dst []int64, syms []uint16) []int64 {
	for _, id := range syms {
		dst = append(dst, int64(id))
	}
	return dst
}

// bpe merges the bytes of a word: again and again the pair of lowest rank, the
// leftmost of equals. The result is valid until the next call.
func (e *encoder) bpe(word []byte) []uint16 {
	syms := e.syms[:0]
	for _, b := range word {
		syms = append(syms, e.t.byteID[b])
	}
	e.syms = syms
	if len(syms) >= heapFrom {
		return e.bpeLong(syms)
	}
	const none = 1<<32 - 1
	rank := func(l, r uint16) uint32 { return e.t.table.slot(pairKey(l, r)).rank - 1 } // none if absent
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

// bpeLong is bpe for words that may be of any length (a file without spaces):
// the pairs wait in a heap, so that n bytes take n·log(n) time.
func (e *encoder) bpeLong(syms []uint16) []uint16 {
	n := len(syms)
	next, prev := make([]int32, n), make([]int32, n)
	h := make(pairHeap, 0, n)
	look := func(i int32) (pairEntry, bool) {
		j := next[i]
		if int(j) >= n {
			return pairEntry{}, false
		}
		s := e.t.table.slot(pairKey(syms[i], syms[j]))
		return pairEntry{rank: s.rank - 1, at: i, key: s.key}, s.rank != 0
	}
	for i := range syms {
		next[i], prev[i] = int32(i+1), int32(i-1)
	}
	for i := range syms {
		if p, ok := look(int32(i)); ok {
			h = append(h, p)
		}
	}
	heap.Init(&h)
	const dead = -2 // prev of a symbol that a merge took away
	for len(h) > 0 {
		p := heap.Pop(&h).(pairEntry)
		j := int32(n)
		if prev[p.at] != dead {
			j = next[p.at]
		}
		if int(j) >= n || pairKey(syms[p.at], syms[j]) != p.key {
			continue // one of the two has been merged meanwhile
		}
		syms[p.at] = e.t.merges[p.rank].id
		prev[j] = dead
		next[p.at] = next[j]
		if int(next[j]) < n {
			prev[next[j]] = p.at
		}
		if q, ok := look(p.at); ok {
			heap.Push(&h, q)
		}
		if prev[p.at] >= 0 {
			if q, ok := look(prev[p.at]); ok {
				heap.Push(&h, q)
			}
		}
	}
	out := syms[:0]
	for i := int32(0); int(i) < n; i = next[i] {
		out = append(out, syms[i])
	}
	return out
}

type pairEntry struct {
	rank uint32
	at   int32
	key  uint32
}

type pairHeap []pairEntry

func (h pairHeap) Len() int { return len(h) }
func (h pairHeap) Less(i, j int) bool {
	return h[i].rank < h[j].rank || h[i].rank == h[j].rank && h[i].at < h[j].at
}
func (h pairHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *pairHeap) Push(x any)   { *h = append(*h, x.(pairEntry)) }
func (h *pairHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
