// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/memlimit"
)

// storage is the handle to a tensor's memory. Views share it. It is owned by
// a scope, which frees it, or by the collector (scope nil).
type storage struct {
	dev     device.Device
	mem     device.Memory
	scope   *scope
	owners  int    // tape nodes and pending gradients that hold it
	born    uint64 // its place in the order in which its scope's were made
	version uint32 // counts writes in place
	state   storageState
	shared  bool            // its memory can be mapped by other processes
	origin  *origin         // what memory of Meta remembers of its values
	unpin   func()          // ends what pinned its memory; nil for memory that is not pinned
	cleanup runtime.Cleanup // of what is left to the collector
}

// storageState says whether a storage has its memory.
type storageState uint8

const (
	live     storageState = iota
	released              // the memory was given up by Release; Restore brings it back
	freed                 // for good
)

func newStorage(dev device.Device, dtype DType, shape []int, shared bool, sc *scope) *storage {
	s := &storage{dev: dev, mem: memory(dev, dtype, shape, shared), shared: shared}
	if sc != nil && !sc.closed {
		sc.add(s)
	} else {
		s.leaveToCollector()
	}
	return s
}

// ErrOutOfMemory is what an *Error is, by errors.Is, where the system has given no
// memory for a tensor.
var ErrOutOfMemory = errors.New("tensor: out of memory")

// opAllocate is the operation of errors that are ErrOutOfMemory.
const opAllocate = "allocate"

// Is makes errors.Is find [ErrOutOfMemory].
func (e *Error) Is(target error) bool { return target == ErrOutOfMemory && e.Op == opAllocate }

// memory takes memory for a tensor from a device; its exhaustion is an error like
// another for whoever recovers at the border of a step.
func memory(dev device.Device, dtype DType, shape []int, shared bool) device.Memory {
	size := numElems(shape) * dtype.Size()
	defer func() {
		if v := recover(); v != nil {
			panic(&Error{
				Op: opAllocate, Shapes: [][]int{slices.Clone(shape)}, DTypes: []DType{dtype}, Where: caller(),
				Msg: fmt.Sprintf("out of memory: there are no %d bytes on %s for it: %v%s", size, dev.Name(), v, tightest(size)),
			})
		}
	}()
	return dev.Alloc(size, shared)
}

// tightest names the limits that leave less room than size bytes, and what is taken
// from the system at once.
func tightest(size int) string {
	const region = 64 << 20
	var text strings.Builder
	for _, l := range memlimit.Limits() {
		if l.Room() < uint64(size)+region {
			fmt.Fprintf(&text, "; %s is %d bytes, of which %d are used", l.Source, l.Bytes, l.Used)
		}
	}
	return text.String()
}

// leaveToCollector arranges for the memory to be freed when nothing refers to
// the storage any more.
func (s *storage) leaveToCollector() {
	if s.mem.Ptr == nil {
		return // the device has no memory, or it was given up
	}
	collectable.add(s.mem.Size)
	s.cleanup = runtime.AddCleanup(s, func(o orphan) {
		if o.unpin != nil {
			o.unpin()
		}
		o.dev.Free(o.mem)
		collectable.freed(o.mem.Size)
	}, orphan{s.dev, s.mem, s.unpin})
}

// takeFromCollector undoes leaveToCollector: the memory has another owner from
// now on. The caller keeps s reachable until the memory is its own.
func (s *storage) takeFromCollector() {
	if s.scope == nil && s.mem.Ptr != nil {
		s.cleanup.Stop()
		collectable.bytes.Add(-int64(s.mem.Size))
	}
}

type orphan struct {
	dev   device.Device
	mem   device.Memory
	unpin func()
}

// giveUp gives the memory back to the device, if the storage has any.
func (s *storage) giveUp() {
	if s.unpin != nil {
		s.unpin()
		s.unpin = nil
	}
	s.dev.Free(s.mem)
	s.mem = device.Memory{Size: s.mem.Size}
	if s.scope != nil {
		s.scope.count(-s.mem.Size)
	}
}

// free ends the storage. Whoever owns it calls it.
func (s *storage) free() {
	if s.state == live {
		s.giveUp()
	}
	s.state = freed
}

// write copies data to the memory from a byte on, and read copies from there.
func (s *storage) write(offset int, data []byte) {
	s.dev.Write(s.mem, offset, data)
}

func (s *storage) read(offset int, dst []byte) {
	s.dev.Read(s.mem, offset, dst)
	s.report()
}

// report fails for what the device has noted of earlier calls.
func (s *storage) report() {
	if s.dev.Late() {
		if err := deviceFault(s.dev, false); err != nil {
			panic(err)
		}
	}
}

// host returns the bytes of the memory in place, false where the host does not see
// them.
func (s *storage) host(offset, size int) ([]byte, bool) {
	v, ok := s.dev.(device.Visible)
	if !ok {
		return nil, false
	}
	b := v.Host(s.mem, offset, size)
	s.report()
	return b, true
}

// scope owns the storages made under one tape.
type scope struct {
	live   []*storage
	born   uint64 // how many were made
	closed bool   // what is made from now on is left to the collector
	bytes  int64  // that they hold now, with what Tape.Count has added
	peak   int64  // the most that bytes has been
}

// add makes the scope own a storage.
func (sc *scope) add(s *storage) {
	s.scope, s.born = sc, sc.born
	sc.count(s.mem.Size)
	sc.live = append(sc.live, s)
	sc.born++
}

// count adds to the bytes that are held.
func (sc *scope) count(numBytes int) {
	sc.bytes += int64(numBytes)
	sc.peak = max(sc.peak, sc.bytes)
}

// release frees everything. It is the tape's Close, or its cleanup when it
// was forgotten.
func (sc *scope) release() {
	for _, s := range sc.live {
		if s.scope == sc {
			s.free()
		}
	}
	clear(sc.live)
	sc.live = sc.live[:0]
}

// sweep frees what was made since mark and is held by nobody.
func (sc *scope) sweep(mark int) {
	kept := sc.live[:mark]
	for _, s := range sc.live[mark:] {
		switch {
		case s.scope != sc || s.state == freed:
		case s.owners == 0:
			s.free()
		default:
			kept = append(kept, s)
		}
	}
	clear(sc.live[len(kept):])
	sc.live = kept
}

// collectable tells the collector of memory it cannot see: the bytes that
// only it will free. When they have doubled since it last ran, it runs.
var collectable pressure

type pressure struct{ bytes, limit atomic.Int64 }

const minPressure = 64 << 20

func (p *pressure) add(n int) {
	bytes := p.bytes.Add(int64(n))
	if limit := p.limit.Load(); bytes > max(limit, minPressure) {
		// The frees come later, on the cleanup goroutine; it lowers the limit.
		p.limit.Store(bytes + minPressure)
		runtime.GC()
	}
}

func (p *pressure) freed(n int) {
	p.limit.Store(2 * p.bytes.Add(-int64(n)))
}
