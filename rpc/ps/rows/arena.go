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

// header is what a record has beside its values and its state.
type header struct {
	lsn   uint64
	step  uint32
	count uint32 // pushes
}

const (
	headerBytes = int(unsafe.Sizeof(header{}))
	maxCount    = math.MaxInt32
)

// arena holds records of one size. A slot is the number of a record. In a chunk, values and
// states of all records come first, and then their headers: a reader needs values alone.
type arena struct {
	stride int // bytes of values and state
	shift  uint
	mask   uint32
	chunks []unsafe.Pointer
	memory [][]byte // of the chunks
	next   uint32   // the first slot that was never used
	free   []uint32
}

// newArena returns an arena for records with some bytes. most bounds the number of records
// that will be needed, 0 if that is not known.
func newArena(bytes, most int) arena {
	a := arena{stride: (bytes + 7) &^ 7}
	// A row of whole cache lines is read faster, if that wastes little.
	if lines := (bytes + 63) &^ 63; lines-bytes <= bytes/8 {
		a.stride = lines
	}
	perChunk := max(1, chunkBytes/(a.stride+headerBytes))
	if most > 0 {
		perChunk = min(perChunk, 1<<bits.Len(uint(most-1)))
	}
	a.shift = uint(bits.Len(uint(perChunk)) - 1)
	a.mask = 1<<a.shift - 1
	return a
}

// record returns the address of a record's values.
func (a *arena) record(slot uint32) unsafe.Pointer {
	return unsafe.Add(a.chunks[slot>>a.shift], int(slot&a.mask)*a.stride)
}

func (a *arena) header(slot uint32) *header {
	return (*header)(unsafe.Add(a.chunks[slot>>a.shift], a.stride<<a.shift+int(slot&a.mask)*headerBytes))
}

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
		data, err := reserve((a.stride + headerBytes) << a.shift)
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
func (a *arena) bytes() int64 { return int64(a.live()) * int64(a.stride+headerBytes) }

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

// maxSlots bounds the records of an arena.
const maxSlots = math.MaxInt32

// bytesAt returns n bytes from an offset of a record.
func bytesAt(record unsafe.Pointer, offset, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(record, offset)), n)
}

// floatsAt returns n float32 from an offset of a record.
func floatsAt(record unsafe.Pointer, offset, n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Add(record, offset)), n)
}
