// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cohort-ml/cohort/internal/device"
)

// Stream is the number of a stream of a device; 0 is the one that computes.
type Stream int

// Source is where an [Allocator] has its memory from, and how streams wait for each other.
type Source interface {
	// Reserve returns memory of the device, with an error of the type *OutOfMemoryError if
	// there is not enough.
	Reserve(size int) (address uintptr, err error)
	// Release gives back what Reserve returned. It may wait for the device.
	Release(address uintptr) error
	// Order makes what is put onto stream later from now on wait for what is on stream
	// earlier now. The host does not wait.
	Order(later, earlier Stream) error
}

// AllocatorOptions describe an allocator.
type AllocatorOptions struct {
	// Limit is the most that the allocator takes from its source, in bytes; 0 is no limit.
	Limit int
	// Direct makes each block a piece of the source of its own, so that a tool that watches
	// pieces sees each block.
	Direct bool
}

// MemoryStats says what an allocator has done.
type MemoryStats struct {
	InUse, PeakInUse       int // bytes of blocks that are held, as asked for
	Reserved, PeakReserved int // bytes taken from the source
	Allocs, Frees          int // blocks
	Reserves, Releases     int // calls of the source
	Waits                  int // streams that had to wait for another when a block was freed
}

// Sizes of an allocator. Small blocks share segments.
const (
	blockUnit    = 512
	smallLimit   = 1 << 20
	smallSegment = 2 << 20
	largeSegment = 20 << 20
	largeUnit    = 2 << 20
)

// Allocator hands out memory of a device. A block belongs to the stream that it was asked for
// on. When it is freed, the next block of that stream may have its memory at once, though the
// device has not come so far: what uses the new block comes later on the same stream. If
// another stream has used the block ([Allocator.Use]), the block's own stream is made to wait
// for that one first. So the host never waits.
//
// Memory comes from the source in segments, which are cut into blocks. Free neighbours of a
// segment become one. Several goroutines may use an allocator.
type Allocator struct {
	source  Source
	options AllocatorOptions

	mu    sync.Mutex
	held  map[uintptr]*block
	free  map[Stream]*freeList
	stats MemoryStats
}

// block is a part of a segment.
type block struct {
	address    uintptr
	size       int
	asked      int // bytes that its user wants
	stream     Stream
	small      bool
	used       []Stream // other streams that have used it
	prev, next *block   // neighbours in the segment
	free       bool
}

// freeList has the free blocks of a stream by size and address, those of small segments apart.
type freeList [2][]*block

// NewAllocator returns an allocator without memory.
func NewAllocator(source Source, options AllocatorOptions) *Allocator {
	return &Allocator{source: source, options: options, held: map[uintptr]*block{}, free: map[Stream]*freeList{}}
}

// OutOfMemoryError says that a device has not enough memory.
type OutOfMemoryError struct {
	Device string
	Wanted int
	Limit  int // of the allocator, 0 for none
	Stats  MemoryStats
	// Largest are the largest blocks that are held, by size: the sizes and how many there are.
	Largest []HeldBlocks
	Reason  error // of the source, nil where the limit is the reason
}

// HeldBlocks are blocks of one size.
type HeldBlocks struct{ Size, Count int }

func (e *OutOfMemoryError) Error() string {
	var b strings.Builder
	name := e.Device
	if name == "" {
		name = "the device"
	}
	fmt.Fprintf(&b, "%s is out of memory: %s are wanted; %s are in use and %s more are kept", name, device.Size(uint64(e.Wanted)), device.Size(uint64(e.Stats.InUse)), device.Size(uint64(max(0, e.Stats.Reserved-e.Stats.InUse))))
	if e.Limit > 0 {
		fmt.Fprintf(&b, ", of a limit of %s", device.Size(uint64(e.Limit)))
	}
	for i, h := range e.Largest {
		lead := ", "
		if i == 0 {
			lead = "; the largest in use: "
		}
		fmt.Fprintf(&b, "%s%d × %s", lead, h.Count, device.Size(uint64(h.Size)))
	}
	b.WriteString("; a smaller batch, recomputation of activations or sharded parameters need less")
	if e.Reason != nil {
		fmt.Fprintf(&b, ": %v", e.Reason)
	}
	return b.String()
}

func (e *OutOfMemoryError) Unwrap() error { return e.Reason }

// Alloc returns a block of memory for work on a stream. A block of no bytes has the address 0.
func (a *Allocator) Alloc(size int, stream Stream) (uintptr, error) {
	if size < 0 {
		return 0, fmt.Errorf("cuda: a block of %d bytes", size)
	}
	if size == 0 {
		return 0, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	whole := (size + blockUnit - 1) / blockUnit * blockUnit
	b := a.take(whole, stream)
	if b == nil {
		var err error
		if b, err = a.reserve(whole, stream); err != nil {
			return 0, err
		}
	}
	b.asked, b.free = size, false
	a.held[b.address] = b
	a.stats.Allocs++
	a.stats.InUse += size
	a.stats.PeakInUse = max(a.stats.PeakInUse, a.stats.InUse)
	return b.address, nil
}

// isSmall says whether blocks of a size share small segments.
func (a *Allocator) isSmall(size int) bool { return size <= smallLimit }

// take returns the free block that fits best, cut to size; nil if none fits.
func (a *Allocator) take(size int, stream Stream) *block {
	f := a.free[stream]
	if f == nil || a.options.Direct {
		return nil
	}
	list := &f[index(a.isSmall(size))]
	i, _ := slices.BinarySearchFunc(*list, &block{size: size}, compareBlocks)
	if i == len(*list) {
		return nil
	}
	b := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	a.cut(b, size)
	return b
}

func index(small bool) int {
	if small {
		return 0
	}
	return 1
}

func compareBlocks(x, y *block) int {
	return cmp.Or(cmp.Compare(x.size, y.size), cmp.Compare(x.address, y.address))
}

// cut makes a free block as small as wanted, where the rest is worth it.
func (a *Allocator) cut(b *block, size int) {
	rest := b.size - size
	if rest < blockUnit || !b.small && rest < smallLimit {
		return
	}
	r := &block{address: b.address + uintptr(size), size: rest, stream: b.stream, small: b.small, prev: b, next: b.next}
	if r.next != nil {
		r.next.prev = r
	}
	b.next, b.size = r, size
	a.keep(r)
}

// keep puts a block onto the list of free ones.
func (a *Allocator) keep(b *block) {
	b.free = true
	f := a.free[b.stream]
	if f == nil {
		f = &freeList{}
		a.free[b.stream] = f
	}
	list := &f[index(b.small)]
	i, _ := slices.BinarySearchFunc(*list, b, compareBlocks)
	*list = slices.Insert(*list, i, b)
}

// drop takes a free block from its list.
func (a *Allocator) drop(b *block) {
	list := &a.free[b.stream][index(b.small)]
	i, found := slices.BinarySearchFunc(*list, b, compareBlocks)
	if !found {
		panic("cuda: a free block is on no list")
	}
	*list = slices.Delete(*list, i, i+1)
}

// reserve gets a segment from the source. If there is none left, what is kept is given back,
// and it is tried once more.
func (a *Allocator) reserve(size int, stream Stream) (*block, error) {
	segment := size
	switch {
	case a.options.Direct:
	case a.isSmall(size):
		segment = smallSegment
	case size < largeSegment/2:
		segment = largeSegment
	default:
		segment = (size + largeUnit - 1) / largeUnit * largeUnit
	}
	address, err := a.tryReserve(segment)
	if err != nil {
		if released := a.releaseFree(); released != nil {
			return nil, released
		}
		address, err = a.tryReserve(segment)
	}
	if err != nil && segment > size && !a.isSmall(size) { // the rest would only have been kept
		segment = size
		address, err = a.tryReserve(segment)
	}
	if err != nil {
		var none *OutOfMemoryError
		if !errors.As(err, &none) {
			return nil, err
		}
		return nil, &OutOfMemoryError{Device: none.Device, Wanted: size, Limit: a.options.Limit, Stats: a.stats, Largest: a.largest(4), Reason: none.Reason}
	}
	b := &block{address: address, size: segment, stream: stream, small: a.isSmall(size)}
	if !a.options.Direct {
		a.cut(b, size)
	}
	return b, nil
}

func (a *Allocator) tryReserve(size int) (uintptr, error) {
	if a.options.Limit > 0 && a.stats.Reserved+size > a.options.Limit {
		return 0, &OutOfMemoryError{}
	}
	address, err := a.source.Reserve(size)
	if err != nil {
		return 0, err
	}
	a.stats.Reserves++
	a.stats.Reserved += size
	a.stats.PeakReserved = max(a.stats.PeakReserved, a.stats.Reserved)
	return address, nil
}

// largest returns the sizes of the largest blocks that are held.
func (a *Allocator) largest(n int) []HeldBlocks {
	counts := map[int]int{}
	for _, b := range a.held {
		counts[b.asked]++
	}
	var all []HeldBlocks
	for size, count := range counts {
		all = append(all, HeldBlocks{size, count})
	}
	slices.SortFunc(all, func(x, y HeldBlocks) int {
		return cmp.Or(cmp.Compare(y.Size*y.Count, x.Size*x.Count), cmp.Compare(y.Size, x.Size))
	})
	return all[:min(n, len(all))]
}

// Use notes that a stream other than its own uses a block.
func (a *Allocator) Use(address uintptr, stream Stream) {
	if address == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.held[address]
	if b == nil {
		panic(fmt.Sprintf("cuda: stream %d uses memory at %#x that is not held", stream, address))
	}
	if stream != b.stream && !slices.Contains(b.used, stream) {
		b.used = append(b.used, stream)
	}
}

// Free gives a block back. What was put onto its streams before may still use it.
func (a *Allocator) Free(address uintptr) error {
	if address == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.held[address]
	if b == nil {
		return fmt.Errorf("cuda: memory at %#x is given back that is not held: it was freed twice, or never handed out", address)
	}
	delete(a.held, address)
	a.stats.Frees++
	a.stats.InUse -= b.asked
	for _, s := range b.used {
		if err := a.source.Order(b.stream, s); err != nil {
			return err
		}
		a.stats.Waits++
	}
	b.used = nil
	if a.options.Direct {
		return a.release(b)
	}
	a.keep(a.merge(b))
	return nil
}

// merge makes one of a block and its free neighbours.
func (a *Allocator) merge(b *block) *block {
	if n := b.next; n != nil && n.free {
		a.drop(n)
		b.size += n.size
		b.next = n.next
		if b.next != nil {
			b.next.prev = b
		}
	}
	if p := b.prev; p != nil && p.free {
		a.drop(p)
		p.size += b.size
		p.next = b.next
		if p.next != nil {
			p.next.prev = p
		}
		b = p
	}
	return b
}

// ReleaseFree gives the segments back to the source of which nothing is held.
func (a *Allocator) ReleaseFree() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.releaseFree()
}

func (a *Allocator) releaseFree() error {
	for _, f := range a.free {
		for i := range f {
			var kept, whole []*block
			for _, b := range f[i] {
				if b.prev == nil && b.next == nil {
					whole = append(whole, b)
				} else {
					kept = append(kept, b)
				}
			}
			f[i] = kept
			for _, b := range whole {
				if err := a.release(b); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (a *Allocator) release(b *block) error {
	a.stats.Releases++
	a.stats.Reserved -= b.size
	return a.source.Release(b.address)
}

// Stats returns what the allocator has done so far.
func (a *Allocator) Stats() MemoryStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

// ResetPeak makes the peaks count from now on.
func (a *Allocator) ResetPeak() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.PeakInUse, a.stats.PeakReserved = a.stats.InUse, a.stats.Reserved
}
