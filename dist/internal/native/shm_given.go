// SPDX-License-Identifier: Apache-2.0

package native

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// A rank gives data to another rank in two ways: the other rank reads it, or this rank writes it
// into the other rank's memory or into a pipe. The rank that moves the bytes counts them. A reader
// counts in its own row of the segment, by the rank whose data it has read. A writer counts in
// Shm.given.

// taken returns how many bytes a rank has read of each rank's data. Only that rank writes them.
func (s *segment) taken(rank int) []atomic.Uint64 {
	at := unsafe.Add(unsafe.Pointer(unsafe.SliceData(s.tables[rank]())), 2*(s.numRanks+1)*8)
	return unsafe.Slice((*atomic.Uint64)(at), s.numRanks)
}

// took counts bytes that this rank has read of a rank's data.
func (s *Shm) took(from, numBytes int) {
	if from != s.cfg.Rank && numBytes > 0 {
		s.seg.taken(s.cfg.Rank)[from].Add(uint64(numBytes))
	}
}

// gave counts bytes that this rank has written for other ranks.
func (s *Shm) gave(numBytes int) { s.given.Add(int64(numBytes)) }

// Sent implements [backend.Meter].
func (s *Shm) Sent() int64 {
	s.gate.RLock()
	defer s.gate.RUnlock()
	sum := s.given.Load()
	if s.detached || s.seg == nil {
		return sum
	}
	for r := range s.n {
		sum += int64(s.seg.taken(r)[s.cfg.Rank].Load())
	}
	return sum
}

// Sends implements [backend.Meter].
func (s *Shm) Sends(c *operation.Call, shared bool) (int64, error) {
	if w, ok := s.space.(*goWorld); ok {
		shared = w.lent != nil
	}
	return shmSends(c, s.cfg.Rank, s.n, shared)
}

// shmSends returns how many bytes of data a collective has a rank of n give, where all ranks have
// their data in memory that the others can reach, or none has.
func shmSends(c *operation.Call, me, n int, shared bool) (int64, error) {
	size := c.DType.Size()
	part := func(rank int) int { return c.HasFor(rank) * size }
	if c.Parts != nil && c.Op == operation.ReduceScatter {
		part = func(rank int) int { return c.Parts[rank] * size }
	}
	others := 0
	for r := range n {
		if r != me {
			others += part(r)
		}
	}
	whole := c.Count * size
	switch c.Op {
	case operation.Barrier:
		return 0, nil
	case operation.AllGather:
		return int64((n - 1) * whole), nil
	case operation.ReduceScatter, operation.AllToAll:
		return int64(others), nil
	case operation.AllReduce, operation.Reduce:
		return shmReductionSends(c, whole, me, n, shared)
	case operation.Broadcast, operation.Scatter:
		if me != c.Root {
			return 0, nil
		}
		return int64(others), nil
	case operation.Gather:
		if me == c.Root {
			return 0, nil
		}
		return int64(whole), nil
	}
	return 0, fmt.Errorf("dist: no collective %v", c)
}

// shmReductionSends is shmSends of an all-reduce or a reduce of size bytes.
func shmReductionSends(c *operation.Call, size, me, n int, shared bool) (int64, error) {
	red, err := collective.ReductionFor(c.Reduce, c.DType, n)
	if err != nil {
		return 0, err
	}
	all, root := c.Op == operation.AllReduce, me == c.Root
	// readers is how many ranks read the whole, or read the share that this rank has reduced.
	readers := n - 1
	if !all {
		readers = 1
		if root {
			readers = 0
		}
	}
	if size <= eagerSize(n) {
		if all && n > flatLimit && me != 0 {
			readers = 1 // rank 0 reduces for all
		}
		return int64(readers * size), nil
	}
	sent := func(size int) int {
		share := collective.Share(size, n, shareAlign, me).Len()
		return size - share + readers*share
	}
	if shared && (all || !red.NeedsPrepare()) {
		return int64(sent(size)), nil
	}
	unit, sum := stageUnit(size, slotSize), 0
	for k := range numRounds(size, unit) {
		sum += sent(piece(size, unit, k).Len())
	}
	return int64(sum), nil
}
