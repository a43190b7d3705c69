// SPDX-License-Identifier: Apache-2.0

// Package mem holds tensor data outside the heap that the collector scans.
//
// A [Pool] hands out [Block]s cut from large regions of the system's memory
// and takes them back; a freed block joins its free neighbours, so that a
// training step that has run once finds all its memory in the pool and takes
// no more from the system. A [Slab] is a region that other processes on the
// same machine may map: what is communicated lives there.
//
// Ownership: a block belongs to whom Get returned it until Put. Nothing here
// is freed by the collector; a forgotten block is memory lost until the
// process ends. Reading a block after Put reads whatever has been put there
// since: the tensor package's handles turn that into an error.
package mem

import (
	"fmt"
	"math"
	"math/bits"
	"sync"
	"syscall"
	"unsafe"
)

const (
	// alignment of every block: a cache line, and a zmm register.
	alignment = 64
	// smallRegion and largeRegion are the sizes that blocks below and above
	// smallLimit are cut from, so that many small long-lived blocks do not
	// split the runs that large ones need.
	smallLimit  = 256 << 10
	smallRegion = 2 << 20
	largeRegion = 32 << 20
	// Free blocks are listed by size: 8 bins an octave.
	binsPerOctave = 8
	numBins       = 64 * binsPerOctave
)

// Block is a run of bytes owned by one holder.
type Block struct {
	ptr        unsafe.Pointer
	size       int // of the run: what was asked for, rounded up
	free       bool
	arena      *arena
	prev, next *Block // neighbours in the region
	// in a bin's list while free
	binPrev, binNext *Block
}

// Pointer returns the address of the first byte.
func (b *Block) Pointer() unsafe.Pointer { return b.ptr }

// Size returns the number of bytes that may be used, at least what was asked for.
func (b *Block) Size() int { return b.size }

// Bytes returns the block's bytes. The slice must not be used after Put.
func (b *Block) Bytes() []byte { return unsafe.Slice((*byte)(b.ptr), b.size) }

// Stats is what a pool holds, in bytes.
type Stats struct {
	InUse    int64 // handed out now, or counted by Count
	Peak     int64 // the most that InUse has been since ResetPeak
	Reserved int64 // taken from the system
	// NumRegions is how often memory was taken from the system.
	NumRegions int64
}

// Pool is a caching allocator. It may be used by several goroutines at once.
type Pool struct {
	mu           sync.Mutex
	small, large arena
	stats        Stats
}

// arena is the free blocks of one region size, found by best fit: the lowest
// bin that can hold a size, through a bitmap of the bins that are not empty.
type arena struct {
	regionSize int
	bins       [numBins]*Block
	nonEmpty   [numBins / 64]uint64
}

// NewPool returns an empty pool.
func NewPool() *Pool {
	p := &Pool{}
	p.small.regionSize = smallRegion
	p.large.regionSize = largeRegion
	return p
}

// Get returns a block of at least size bytes, which are not cleared. It
// panics when the system has no more memory: there is no way to go on.
func (p *Pool) Get(size int) *Block {
	if size < 0 {
		panic(fmt.Sprintf("mem: a block of %d bytes", size))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if size > math.MaxInt-largeRegion { // rounding up would wrap around
		p.exhausted(size, syscall.ENOMEM)
	}
	size = max(alignment, (size+alignment-1)&^(alignment-1))
	a := &p.large
	if size <= smallLimit {
		a = &p.small
	}
	b := a.take(size)
	if b == nil {
		b = p.grow(a, size)
	}
	a.split(b, size)
	p.stats.InUse += int64(b.size)
	p.stats.Peak = max(p.stats.Peak, p.stats.InUse)
	return b
}

// Put gives a block back. Giving one back twice panics.
func (p *Pool) Put(b *Block) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.free {
		panic("mem: a block was given back twice")
	}
	p.stats.InUse -= int64(b.size)
	a := b.arena
	if n := b.next; n != nil && n.free {
		a.unlist(n)
		a.join(b, n)
	}
	if l := b.prev; l != nil && l.free {
		a.unlist(l)
		a.join(l, b)
		b = l
	}
	a.list(b)
}

// Stats returns what the pool holds now.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Count adds to InUse what the holder of the pool has besides its blocks, such as slabs. It
// takes it off when numBytes is negative.
func (p *Pool) Count(numBytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.InUse += int64(numBytes)
	p.stats.Peak = max(p.stats.Peak, p.stats.InUse)
}

// ResetPeak makes Peak count from now on.
func (p *Pool) ResetPeak() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Peak = p.stats.InUse
}

func (p *Pool) grow(a *arena, size int) *Block {
	n := max(a.regionSize, (size+smallRegion-1)&^(smallRegion-1))
	ptr, err := reserve(n)
	if err != nil {
		p.exhausted(n, err)
	}
	p.stats.Reserved += int64(n)
	p.stats.NumRegions++
	return &Block{ptr: ptr, size: n, arena: a}
}

func (p *Pool) exhausted(size int, err error) {
	panic(fmt.Errorf("mem: the system gave no %d bytes of memory (%d in use, %d reserved): %w",
		size, p.stats.InUse, p.stats.Reserved, err))
}

// bin returns the bin that a free block of size bytes is listed in: all blocks
// of a higher bin are larger than all of a lower one.
func bin(size int) int {
	u := uint(size / alignment)
	octave := bits.Len(u) - 1
	step := 0
	if octave >= 3 {
		step = int(u>>(octave-3)) & (binsPerOctave - 1)
	} else {
		step = int(u<<(3-octave)) & (binsPerOctave - 1)
	}
	return octave*binsPerOctave + step
}

// take unlists a free block of at least size bytes, nil if there is none.
func (a *arena) take(size int) *Block {
	first := bin(size)
	// Blocks of the first bin may be too small; those of higher bins fit.
	for b := a.bins[first]; b != nil; b = b.binNext {
		if b.size >= size {
			a.unlist(b)
			return b
		}
	}
	for i := first + 1; i < numBins; {
		word := a.nonEmpty[i/64] >> (i % 64)
		if word == 0 {
			i = (i/64 + 1) * 64
			continue
		}
		b := a.bins[i+bits.TrailingZeros64(word)]
		a.unlist(b)
		return b
	}
	return nil
}

func (a *arena) split(b *Block, size int) {
	rest := b.size - size
	if rest < alignment {
		return
	}
	r := &Block{ptr: unsafe.Add(b.ptr, size), size: rest, arena: a, prev: b, next: b.next}
	if r.next != nil {
		r.next.prev = r
	}
	b.size, b.next = size, r
	a.list(r)
}

// join adds the block right after b to b.
func (a *arena) join(b, right *Block) {
	b.size += right.size
	b.next = right.next
	if b.next != nil {
		b.next.prev = b
	}
}

func (a *arena) list(b *Block) {
	i := bin(b.size)
	b.free, b.binPrev, b.binNext = true, nil, a.bins[i]
	if b.binNext != nil {
		b.binNext.binPrev = b
	}
	a.bins[i] = b
	a.nonEmpty[i/64] |= 1 << (i % 64)
}

func (a *arena) unlist(b *Block) {
	i := bin(b.size)
	if b.binPrev != nil {
		b.binPrev.binNext = b.binNext
	} else {
		a.bins[i] = b.binNext
		if b.binNext == nil {
			a.nonEmpty[i/64] &^= 1 << (i % 64)
		}
	}
	if b.binNext != nil {
		b.binNext.binPrev = b.binPrev
	}
	b.free, b.binPrev, b.binNext = false, nil, nil
}
