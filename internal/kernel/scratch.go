// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math/bits"
	"sync"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/mem"
)

// scratch is memory for the length of one call, outside the Go heap. Its
// content is what the last user left.
type scratch struct {
	data  []float32
	block *mem.Block
	class int
}

// scratchList keeps scratch between calls, by powers of two, so that a steady
// step takes none from the system. It grows to what was in use at once.
var scratchList struct {
	sync.Mutex
	memory *mem.Pool
	free   [64][]*scratch
}

// takeScratch returns n float32, aligned to a cache line.
func takeScratch(n int) *scratch {
	class := bits.Len(uint(max(n, 256) - 1))
	l := &scratchList
	l.Lock()
	defer l.Unlock()
	var s *scratch
	if free := l.free[class]; len(free) > 0 {
		s = free[len(free)-1]
		l.free[class] = free[:len(free)-1]
	} else {
		if l.memory == nil {
			l.memory = mem.NewPool()
		}
		s = &scratch{block: l.memory.Get(4 << class), class: class}
	}
	s.data = unsafe.Slice((*float32)(s.block.Pointer()), n)
	return s
}

// release gives the scratch back; nil is none.
func (s *scratch) release() {
	if s == nil {
		return
	}
	s.data = nil
	l := &scratchList
	l.Lock()
	l.free[s.class] = append(l.free[s.class], s)
	l.Unlock()
}

// float64s returns the scratch as n float64; it must have been taken with at
// least 2n float32.
func (s *scratch) float64s(n int) []float64 {
	return unsafe.Slice((*float64)(unsafe.Pointer(unsafe.SliceData(s.data[:2*n]))), n)
}
