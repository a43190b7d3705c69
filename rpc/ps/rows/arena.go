// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"math"
	"math/bits"
	"unsafe"
)

// chunkBytes is the size that chunks of records stay below. Chunks lie in huge pages of
// the system, where it gives them: random rows then cost no walk of the page table.
const chunkBytes = 32 << 20

// header is the part of a record before its values.
type header struct {
	key   int64
	lsn   uint64
	step  uint32
	count uint32 // pushes, with usedBit
}

const (
	headerBytes = int(unsafe.Sizeof(header{}))
	// usedBit of a count says that the row was read since its memory was last looked
	// through for cold rows.
	usedBit  = 1 << 31
	maxCount = usedBit - 1
)

func (h *header) pushes() uint32 { return h.count &^ usedBit }

// arena holds records of one size. A slot is the number of a record.
type arena struct {
	stride int // bytes of a record
	shift  uint
	mask   uint32
	chunks []unsafe.Pointer
	memory [][]byte // of the chunks
	next   uint32   // the first slot that was never used
	free   []uint32
}

// newArena returns an arena for records of a header and some more bytes. most bounds the
// number of records that will be needed, 0 if that is not known.
func newArena(bytes, most int) arena {
	a := arena{stride: (headerBytes + bytes + 7) &^ 7}
	perChunk := max(1, chunkBytes/a.stride)
	if most > 0 {
		perChunk = min(perChunk, 1<<bits.Len(uint(most-1)))
	}
	a.shift = uint(bits.Len(uint(perChunk)) - 1)
	a.mask = 1<<a.shift - 1
	return a
}

// at returns the record of a slot.
func (a *arena) at(slot uint32) unsafe.Pointer {
	return unsafe.Add(a.chunks[slot>>a.shift], int(slot&a.mask)*a.stride)
}

func (a *arena) header(slot uint32) *header { return (*header)(a.at(slot)) }

// live returns the number of records in use.
func (a *arena) live() int { return int(a.next) - len(a.free) }

// take returns a slot whose bytes are undefined.
func (a *arena) take() (uint32, error) {
	if n := len(a.free); n > 0 {
		slot := a.free[n-1]
		a.free = a.free[:n-1]
		return slot, nil
	}
	if int(a.next>>a.shift) == len(a.chunks) {
		if a.next > maxSlots-(1<<a.shift) {
			return 0, errFull
		}
		data, err := reserve(a.stride << a.shift)
		if err != nil {
			return 0, err
		}
		a.memory = append(a.memory, data)
		a.chunks = append(a.chunks, unsafe.Pointer(unsafe.SliceData(data)))
	}
	a.next++
	return a.next - 1, nil
}

func (a *arena) give(slot uint32) { a.free = append(a.free, slot) }

// bytes returns what the records in use take.
func (a *arena) bytes() int64 { return int64(a.live()) * int64(a.stride) }

// reserved returns what was taken from the system.
func (a *arena) reserved() int64 { return int64(len(a.chunks)) * int64(a.stride) << a.shift }

func (a *arena) close() error {
	var first error
	for _, data := range a.memory {
		if err := release(data); err != nil && first == nil {
			first = err
		}
	}
	*a = arena{stride: a.stride, shift: a.shift, mask: a.mask}
	return first
}

// maxSlots bounds the records of an arena: an entry of the index has 31 bits for them.
const maxSlots = math.MaxInt32
