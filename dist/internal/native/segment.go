// SPDX-License-Identifier: Apache-2.0

package native

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/internal/collective"
)

const (
	// eagerLimit is the most that travels beside a call.
	eagerLimit = 16 << 10
	// eagerTotal bounds what a rank reads that way from all ranks together.
	eagerTotal = 64 << 10
	// A rank has numSlots staging slots of slotSize bytes. The slots of two
	// ranks fit a core's second-level cache together with what they hold.
	slotSize = collective.PieceBytes
	numSlots = 4
	// maxFaultText is the most that a rank says about why it gave up.
	maxFaultText = 1024
	pageSize     = 4096
)

var segmentMagic = [8]byte{'c', 'o', 'h', 'o', 'r', 't', 's', '1'}

// segmentHeader is the first page of a control segment.
type segmentHeader struct {
	magic    [8]byte
	numRanks uint32
	_        [4]byte
	size     uint64
	fault    fault
}

// fault is why the group has failed: written once, by whoever comes first.
type fault struct {
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

// What a fault is about.
const (
	kindDied     = iota + 1 // the process has ended; the text is the signal, if known
	kindLeft                // the rank closed its group
	kindFailed              // the rank gave up; the text is why
	kindMismatch            // the text is two calls that do not fit, encoded
)

// block is what one rank writes and the others read.
type block struct {
	calls [2]callBlock // of even and odd sequence numbers
	left  atomic.Uint32
	pad   [pageSize - 2*128 - 4]byte
	eager [2][eagerLimit]byte
}

// callBlock is a rank's current call: two cache lines.
type callBlock struct {
	entry  flag // raised to the call's sequence number when record is written
	record record
	// How many rounds the rank has put into its slots, reduced, and taken
	// from the others' slots.
	ready, reduced, done flag
	_                    [32]byte
}

// record is a call as it stands in shared memory.
type record struct {
	op, reduce, dtype uint8
	slabs             uint8 // bits: slabIn, slabOut
	root              uint32
	count             uint64
	seq               uint64
	layout            uint64
	in, out           location
}

// location is where data lies in a slab of the rank.
type location struct{ slab, offset uint64 }

// pipeBlock is the shared part of a message pipe from one rank to another:
// numSlots slots that the sender fills and the receiver empties in turn.
type pipeBlock struct {
	sent    flag // slots filled since the beginning
	_       [56]byte
	taken   flag // slots emptied since the beginning
	_       [56]byte
	records [numSlots]pipeRecord
	_       [pageSize - 128 - numSlots*pipeRecordSize]byte
	slots   [numSlots][slotSize]byte
}

const pipeRecordSize = 128

// pipeRecord describes a slot: the message it belongs to and how many bytes
// of it lie in the slot, or where all of it lies in a slab.
type pipeRecord struct {
	record
	size uint64
	_    [pipeRecordSize - 72]byte
}

// The layout is shared between processes, which run the same binary; still,
// what depends on it fails to compile when it changes by accident.
var (
	_ [0]byte = [unsafe.Sizeof(block{}) - pageSize - 2*eagerLimit]byte{}
	_ [0]byte = [unsafe.Sizeof(callBlock{}) - 128]byte{}
	_ [0]byte = [unsafe.Sizeof(pipeRecord{}) - pipeRecordSize]byte{}
	_ [0]byte = [unsafe.Sizeof(pipeBlock{}) - pageSize - numSlots*slotSize]byte{}
)

// segment is a control segment: header, a block for each rank, and the
// staging slots of each rank.
type segment struct {
	data     []byte
	numRanks int
}

// segmentSize returns the bytes of a control segment. Slots are memory only
// when they are used.
func segmentSize(numRanks int, slots bool) int {
	n := pageSize + numRanks*int(unsafe.Sizeof(block{}))
	if slots {
		n += numRanks * numSlots * slotSize
	}
	return n
}

// newSegment lays a segment out in cleared memory of segmentSize bytes.
func newSegment(data []byte, numRanks int) *segment {
	s := &segment{data: data, numRanks: numRanks}
	h := s.header()
	h.magic, h.numRanks, h.size = segmentMagic, uint32(numRanks), uint64(len(data))
	return s
}

// openSegment checks a segment that another process has laid out.
func openSegment(data []byte, numRanks int) (*segment, error) {
	if len(data) != segmentSize(numRanks, true) {
		return nil, fmt.Errorf("control segment of %d bytes, want %d for %d ranks", len(data), segmentSize(numRanks, true), numRanks)
	}
	s := &segment{data: data, numRanks: numRanks}
	if h := s.header(); h.magic != segmentMagic || h.numRanks != uint32(numRanks) || h.size != uint64(len(data)) {
		return nil, errors.New("control segment has another layout: the ranks run different versions of this program")
	}
	return s, nil
}

func (s *segment) header() *segmentHeader {
	return (*segmentHeader)(unsafe.Pointer(unsafe.SliceData(s.data)))
}

func (s *segment) block(rank int) *block {
	return (*block)(unsafe.Pointer(&s.data[pageSize+rank*int(unsafe.Sizeof(block{}))]))
}

// slot returns the staging slot of a round.
func (s *segment) slot(rank, round int) []byte {
	at := segmentSize(s.numRanks, false) + (rank*numSlots+round%numSlots)*slotSize
	return s.data[at : at+slotSize : at+slotSize]
}

// setFault records a fault unless there is one, and reports whether it did.
func (s *segment) setFault(rank int, kind uint32, text string) bool {
	f := &s.header().fault
	if !f.state.CompareAndSwap(faultNone, faultWriting) {
		return false
	}
	f.rank, f.kind = int32(rank), kind
	f.textLen = uint32(copy(f.text[:], text))
	f.state.Store(faultSet)
	return true
}

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

// Bits of record.slabs: whether peers can reach the rank's input and output.
const (
	slabIn = 1 << iota
	slabOut
)

// fill writes what a rank calls.
func (r *record) fill(c *collective.Call) {
	r.op, r.reduce, r.dtype, r.root = uint8(c.Op), uint8(c.Reduce.Kind()), uint8(c.DType), uint32(c.Root)
	r.count, r.seq, r.layout, r.slabs = uint64(c.Count), c.Seq, c.Layout, 0
}

// call returns the call that a record describes.
func (r *record) call() collective.Call {
	return collective.Call{Op: collective.Op(r.op), Reduce: collective.ReduceOp(r.reduce), DType: collective.DType(r.dtype),
		Root: int(r.root), Count: int(r.count), Seq: r.seq, Layout: r.layout}
}
