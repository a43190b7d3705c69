// SPDX-License-Identifier: Apache-2.0

package mpi

import (
	"encoding/binary"
	"errors"
	"runtime"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/internal/native"
)

// batch says what a request belongs to: what a call waits for at one time.
type batch uint8

// The batches. Pieces of data that are received take two in turns, and so do those that are
// sent.
const (
	comparison batch = iota
	whole
	received // and the next one
	_
	sent // and the next one
	_
	numBatches
)

// maxRequests is the most requests of a call: its comparison, and the pieces that it sends
// and receives at one time.
const maxRequests = 1 + 4*(maxExchanging-1)

// requests are the requests of a collective under way. The library writes them, so they are
// on the heap, and are left alone for ever when a call is abandoned.
type requests struct {
	lib     *Library
	handles [maxRequests]uint64 // of 4 or of 8 bytes each, as the library has them
	of      [maxRequests]batch
	used    int // the handles that have ever been used
	pending [numBatches]int

	numDone  pin
	done     [maxRequests]int32
	statuses [maxRequests * statusSize]byte
}

// next returns where a call of the library writes a request. taken counts it.
func (q *requests) next() (slot int, at uintptr) {
	for slot = range q.of {
		if q.of[slot] == numBatches {
			return slot, q.at(slot)
		}
	}
	panic("mpi: a call with more requests than it can have")
}

func (q *requests) at(slot int) uintptr {
	return uintptr(unsafe.Pointer(&q.handles)) + uintptr(slot)*q.lib.abi.handleSize
}

// taken counts the request that next has given a place.
func (q *requests) taken(slot int, b batch) {
	q.of[slot] = b
	q.pending[b]++
	q.used = max(q.used, slot+1)
}

// newRequests returns requests of which none is under way.
func newRequests(lib *Library) *requests {
	q := &requests{lib: lib}
	for slot := range q.of {
		q.of[slot] = numBatches
		at := unsafe.Slice((*byte)(unsafe.Pointer(&q.handles)), len(q.handles)*8)[slot*int(lib.abi.handleSize):]
		if lib.abi.handleSize == 4 {
			binary.NativeEndian.PutUint32(at, uint32(lib.abi.noRequest))
		} else {
			binary.NativeEndian.PutUint64(at, uint64(lib.abi.noRequest))
		}
	}
	return q
}

// underWay reports whether any request is.
func (q *requests) underWay() bool { return q.pending != [numBatches]int{} }

// look has the library go on, and counts what has ended.
func (q *requests) look() error {
	if !q.underWay() {
		return nil
	}
	fn := q.lib.fn.testsome
	if err := q.lib.call("Testsome", fn, uintptr(q.used), q.at(0), q.numDone.address(), uintptr(unsafe.Pointer(&q.done)), uintptr(unsafe.Pointer(&q.statuses))); err != nil {
		return q.lib.errorIn(err, q)
	}
	for _, slot := range q.done[:max(0, q.numDone.number())] {
		q.pending[q.of[slot]]--
		q.of[slot] = numBatches
	}
	return nil
}

// errorIn returns the error of one of the requests that look has found ended.
func (l *Library) errorIn(err error, q *requests) error {
	for i := range min(int(q.numDone.number()), maxRequests) {
		if code := int32(binary.NativeEndian.Uint32(q.statuses[i*l.abi.statusSize+l.abi.sourceAt+8:])); code != 0 {
			return l.errorOf("Testsome", code)
		}
	}
	return err
}

// manner is how a wait passes its time: for how long it looks all the time, before it sleeps
// between looks.
type manner time.Duration

// A patient wait sleeps soon, for others may come late; an eager one does so when the data
// should long have moved.
const (
	patient = manner(200 * time.Microsecond)
	eager   = manner(20 * time.Millisecond)
)

const (
	// looks is after how many looks a wait looks at the clock.
	looks = 64
	// A wait lets other processes run after yieldAfter: there may be more ranks than
	// processors. It lets other goroutines run every switchAfter, and not more often: that
	// wakes a thread, which takes the processor of another rank where all are in use.
	yieldAfter  = 20 * time.Microsecond
	switchAfter = time.Millisecond
	minPause    = 20 * time.Microsecond
	mostPause   = time.Millisecond
)

// errDiffers ends the wait of a call that differs from that of another rank.
var errDiffers = errors.New("the calls differ")

// await looks until it has found what it looks for. When the stop is over it returns
// [native.ErrStopped].
func await(s *native.Stop, m manner, look func() (found bool, err error)) error {
	var begun, switched time.Time
	pause := minPause
	for i := 1; ; i++ {
		if found, err := look(); found || err != nil {
			return err
		}
		if i%looks != 0 {
			continue
		}
		if s.Over() {
			return native.ErrStopped
		}
		now := time.Now()
		if begun.IsZero() {
			begun, switched = now, now
			continue
		}
		switch waited := now.Sub(begun); {
		case waited > time.Duration(m):
			time.Sleep(pause)
			pause = min(2*pause, mostPause)
			i = looks - 4 // a few looks, then the next pause
		case now.Sub(switched) > switchAfter:
			switched = now
			runtime.Gosched()
		case waited > yieldAfter:
			yield()
		}
	}
}
