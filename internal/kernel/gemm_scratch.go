// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math/bits"
	"runtime"
	"sync"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/mem"
)

// freeList keeps what kernels need while they run, so that a call allocates
// nothing once the process has done a like one. It holds at most two blocks for
// each thread that can run; what comes back beyond that is freed.
type freeList struct {
	mu     sync.Mutex
	blocks []*scratch
}

// scratch is float32 memory outside the Go heap, aligned to a cache line.
type scratch struct {
	block  *mem.Block
	floats []float32
}

// scratchMemory is where scratch is cut from, scratchList what is idle. The two
// are the package's only state: caches, without effect on any result.
var (
	scratchMemory = mem.NewPool()
	scratchList   freeList
)

// get returns scratch of at least n elements, not cleared: the smallest that is
// idle and large enough.
func (f *freeList) get(n int) *scratch {
	f.mu.Lock()
	best := -1
	for i, s := range f.blocks {
		if len(s.floats) >= n && (best < 0 || len(s.floats) < len(f.blocks[best].floats)) {
			best = i
		}
	}
	if best >= 0 {
		s := f.blocks[best]
		last := len(f.blocks) - 1
		f.blocks[best] = f.blocks[last]
		f.blocks = f.blocks[:last]
		f.mu.Unlock()
		return s
	}
	f.mu.Unlock()
	// Few sizes make blocks serve many calls: an eighth of a power of two.
	step := max(1024, 1<<max(0, bits.Len(uint(n))-4))
	n = (n + step - 1) / step * step
	b := scratchMemory.Get(4 * n)
	return &scratch{b, unsafe.Slice((*float32)(b.Pointer()), n)}
}

// put takes scratch back. When the list is full the smallest block goes.
func (f *freeList) put(s *scratch) {
	f.mu.Lock()
	f.blocks = append(f.blocks, s)
	var drop *scratch
	if len(f.blocks) > 2*runtime.GOMAXPROCS(0)+2 {
		least := 0
		for i, s := range f.blocks {
			if len(s.floats) < len(f.blocks[least].floats) {
				least = i
			}
		}
		drop = f.blocks[least]
		last := len(f.blocks) - 1
		f.blocks[least] = f.blocks[last]
		f.blocks = f.blocks[:last]
	}
	f.mu.Unlock()
	if drop != nil {
		scratchMemory.Put(drop.block)
	}
}
