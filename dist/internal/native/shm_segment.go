// SPDX-License-Identifier: Apache-2.0

package native

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

const (
	// eagerLimit is the most that travels beside a call.
	eagerLimit = 16 << 10
	// eagerTotal bounds what a rank reads that way from all ranks together.
	eagerTotal = 64 << 10
	// A rank has numSlots staging slots of slotSize bytes. The slots of two
	// ranks fit a core's second-level cache together with what they hold.
	slotSize  = collective.PieceBytes
	numSlots  = 4
	pageSize  = 4096
	cacheLine = 64
)

var segmentMagic = [8]byte{'c', 'o', 'h', 'o', 'r', 't', 's', '1'}

// segmentHeader is the first page of a control segment.
type segmentHeader struct {
	magic    [8]byte
	numRanks uint32
	_        [4]byte
	size     uint64
	fault    faultRecord
}

// faultRecord is why the group has failed: written once, by whoever comes first.
type faultRecord struct {
	state   atomic.Uint32 // faultNone, faultWriting, faultSet
	rank    int32         // at fault
	kind    uint32
	textLen uint32
	text    [maxFaultText]byte // for kindDied the signal, else what the rank said
}

const (
	faultNone = iota
	faultWriting
	faultSet
)

// block is what one rank writes and the others read. The memory for data beside its calls
// follows it.
type block struct {
	calls [2]callBlock // of even and odd sequence numbers
	left  atomic.Uint32
	_     [cacheLine - 4]byte
	// bell is rung by ranks that send to this one while it waits for a message from any
	// rank. It is the only part that others write.
	bell flag
	_    [cacheLine - 8]byte
}

// callBlock is a rank's current call: two cache lines. The first line has the call, the second
// how far it has come.
type callBlock struct {
	entry  flag // raised to the call's sequence number when record is written
	record record
	below  flag // raised likewise when all ranks below this one in the tree have come
	ready  flag // rounds that the rank has put into its slots
	done   flag // rounds that it has taken from the others' slots
	// reduced counts rounds whose reduction lies in its slots.
	reduced flag
	over    flag // 1: it no longer needs what the others have lent
	// left is the call's number once the rank has returned from it, with or without an
	// error, and touches nothing of the others any more.
	left atomic.Uint32
	_    [cacheLine - 5*8 - 4]byte
}

// record is a call as it stands in shared memory.
type record struct {
	op, reduce, dtype uint8
	ways              access
	root              uint32
	count             uint64
	layout            uint64
	in, out           location
}

// access is how peers reach a rank's data: bits.
type access uint8

const (
	inBeside access = 1 << iota // the input lies beside the call
	inLent                      // the input lies where the record says
	outLent                     // the output does
	inTable                     // how the input is cut stands in the rank's table
)

// location is where data lies in a slab of the rank.
type location struct{ slab, offset uint64 }

// pipeBlock is the shared part of a message pipe from one rank to another:
// numSlots slots that the sender fills and the receiver empties in turn.
type pipeBlock struct {
	sent    flag // slots filled since the beginning
	_       [56]byte
	taken   flag          // slots emptied since the beginning
	reading atomic.Uint32 // 1: the receiver copies a message from where the sender has it
	_       [52]byte
	records [numSlots]pipeRecord
	_       [pageSize - 128 - numSlots*pipeRecordSize]byte
	slots   [numSlots][slotSize]byte
}

const pipeRecordSize = 128

// pipeRecord describes a slot: the message it belongs to and how many bytes
// of it lie in the slot, or where all of it lies in a slab.
type pipeRecord struct {
	record
	seq  uint64
	size uint64
	_    [pipeRecordSize - 72]byte
}

// The layout is shared between processes, which run the same binary; still,
// what depends on it fails to compile when it changes by accident.
var (
	_ [0]byte = [unsafe.Sizeof(block{}) - 6*cacheLine]byte{}
	_ [0]byte = [unsafe.Sizeof(callBlock{}) - 2*cacheLine]byte{}
	_ [0]byte = [unsafe.Sizeof(pipeRecord{}) - pipeRecordSize]byte{}
	_ [0]byte = [unsafe.Sizeof(pipeBlock{}) - pageSize - numSlots*slotSize]byte{}
)

// segment is a control segment: header, a block for each rank with room for
// what travels beside its calls, and, used by few groups and only then memory,
// each rank's staging slots and table.
type segment struct {
	data     []byte
	numRanks int
	eager    int // bytes that travel beside a call
	slots    []func() []byte
	tables   []func() []byte
}

// eagerSize returns how many bytes travel beside a call. They are fewer in groups of many ranks,
// for each rank reads from all.
func eagerSize(numRanks int) int {
	return max(cacheLine, min(eagerLimit, eagerTotal/numRanks&^(cacheLine-1)))
}

func blockSize(numRanks int) int { return int(unsafe.Sizeof(block{})) + 2*eagerSize(numRanks) }

// tableSize returns the bytes of a rank's table: for either of two calls the
// bounds of its parts, and how many bytes it has read of each rank's data.
func tableSize(numRanks int) int {
	return ((2*(numRanks+1)+numRanks)*8 + pageSize - 1) &^ (pageSize - 1)
}

// controlSize returns the bytes of a control segment without slots and tables.
func controlSize(numRanks int) int {
	return (pageSize + numRanks*blockSize(numRanks) + pageSize - 1) &^ (pageSize - 1)
}

// segmentSize returns the bytes of a control segment between processes. Slots
// and tables are memory only when they are used.
func segmentSize(numRanks int) int {
	return controlSize(numRanks) + numRanks*(numSlots*slotSize+tableSize(numRanks))
}

// newSegment lays a segment out in cleared memory of segmentSize bytes.
func newSegment(data []byte, numRanks int) *segment {
	s := mapSegment(data, numRanks)
	h := s.header()
	h.magic, h.numRanks, h.size = segmentMagic, uint32(numRanks), uint64(len(data))
	return s
}

// newLocalSegment makes a segment for ranks of one process. Its slots and tables are allocated
// when they are first used.
func newLocalSegment(numRanks int) *segment {
	s := &segment{data: aligned(controlSize(numRanks)), numRanks: numRanks, eager: eagerSize(numRanks)}
	for range numRanks {
		s.slots = append(s.slots, sync.OnceValue(func() []byte { return aligned(numSlots * slotSize) }))
		s.tables = append(s.tables, sync.OnceValue(func() []byte { return aligned(tableSize(numRanks)) }))
	}
	return s
}

// openSegment checks a segment that another process has laid out.
func openSegment(data []byte, numRanks int) (*segment, error) {
	if len(data) != segmentSize(numRanks) {
		return nil, fmt.Errorf("control segment of %d bytes, want %d for %d ranks", len(data), segmentSize(numRanks), numRanks)
	}
	s := mapSegment(data, numRanks)
	if h := s.header(); h.magic != segmentMagic || h.numRanks != uint32(numRanks) || h.size != uint64(len(data)) {
		return nil, errors.New("control segment has another layout: the ranks run different versions of this program")
	}
	return s, nil
}

func mapSegment(data []byte, numRanks int) *segment {
	s := &segment{data: data, numRanks: numRanks, eager: eagerSize(numRanks)}
	rest := data[controlSize(numRanks):]
	next := func(size int) func() []byte {
		piece := rest[:size:size]
		rest = rest[size:]
		return func() []byte { return piece }
	}
	for range numRanks {
		s.slots = append(s.slots, next(numSlots*slotSize))
		s.tables = append(s.tables, next(tableSize(numRanks)))
	}
	return s
}

func (s *segment) header() *segmentHeader {
	return (*segmentHeader)(unsafe.Pointer(unsafe.SliceData(s.data)))
}

func (s *segment) block(rank int) *block {
	return (*block)(unsafe.Pointer(&s.data[pageSize+rank*blockSize(s.numRanks)]))
}

// beside returns the memory beside a rank's call.
func (s *segment) beside(rank int, seq uint64) []byte {
	at := pageSize + rank*blockSize(s.numRanks) + int(unsafe.Sizeof(block{})) + int(seq&1)*s.eager
	return s.data[at : at+s.eager : at+s.eager]
}

// slot returns the staging slot of a round of a call, which has size bytes. Calls use all of the
// memory in turn: memory that was used long ago lies in the shared cache, which is read twice
// as fast as another core's own cache.
func (s *segment) slot(rank int, seq uint64, round, size int) []byte {
	all := s.slots[rank]()
	at := int((seq*numSlots+uint64(round))%uint64(len(all)/size)) * size
	return all[at : at+size : at+size]
}

// table returns the bounds of a rank's parts in a call, in elements. Part r lies between bound r
// and bound r+1.
func (s *segment) table(rank int, seq uint64) []uint64 {
	all := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(s.tables[rank]()))), 2*(s.numRanks+1))
	at := int(seq&1) * (s.numRanks + 1)
	return all[at : at+s.numRanks+1]
}

// setFault records a fault unless there is one, and reports whether it did. A rank may die in
// the middle of recording. So when a rank is reported as dead or silent, a recording that has
// been under way for longer than a nap is done again.
func (s *segment) setFault(rank int, kind uint32, text string) bool {
	f := &s.header().fault
	if !f.state.CompareAndSwap(faultNone, faultWriting) {
		if kind != kindDied && kind != kindSilent {
			return false
		}
		for start := time.Now(); f.state.Load() == faultWriting && time.Since(start) < nap; {
			time.Sleep(nap / 50)
		}
		if f.state.Load() != faultWriting {
			return false
		}
	}
	f.rank, f.kind = int32(rank), kind
	f.textLen = uint32(copy(f.text[:], text))
	f.state.Store(faultSet)
	return true
}

// faultless reports whether no fault has been recorded, or is being recorded.
func (s *segment) faultless() bool { return s.header().fault.state.Load() == faultNone }

// fault returns the recorded fault, if there is one.
func (s *segment) fault() (rank int, kind uint32, text string, ok bool) {
	f := &s.header().fault
	if f.state.Load() != faultSet {
		return 0, 0, "", false
	}
	rank = int(f.rank)
	if rank < 0 || rank >= s.numRanks {
		rank = -1
	}
	return rank, f.kind, string(f.text[:min(f.textLen, maxFaultText)]), true
}

// fill writes what a rank calls.
func (r *record) fill(c *operation.Call) {
	r.op, r.reduce, r.dtype, r.root = uint8(c.Op), uint8(c.Reduce.Kind()), uint8(c.DType), uint32(c.Root)
	r.count, r.layout, r.ways = uint64(c.Count), c.Layout, 0
}

// call returns the call of a number that a record describes.
func (r *record) call(seq uint64) operation.Call {
	return operation.Call{Op: operation.Op(r.op), Reduce: operation.ReduceOp(r.reduce), DType: operation.DType(r.dtype),
		Root: int(r.root), Count: int(r.count), Seq: seq, Layout: r.layout}
}

// awaitWritten waits until another rank has recorded the fault that it is recording, but
// not for long: the rank may have died meanwhile.
func (s *segment) awaitWritten() {
	for i := 0; s.header().fault.state.Load() == faultWriting && i < 1000; i++ {
		time.Sleep(50 * time.Microsecond)
	}
}

// faultKind returns the kind of the recorded fault, 0 if there is none.
func (s *segment) faultKind() uint32 {
	_, kind, _, ok := s.fault()
	if !ok {
		return 0
	}
	return kind
}
