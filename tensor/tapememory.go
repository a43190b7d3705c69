// SPDX-License-Identifier: Apache-2.0

package tensor

import "sync"

// tapeMemory is what a tape's record is written in. A closed tape gives it
// back, for a step's record is as long as that of the step before: training
// then leaves the collector little to do.
type tapeMemory struct {
	nodes  []node
	inputs slab[int]
	saved  slab[saved]
	live   []*storage
}

var tapeMemories = sync.Pool{New: func() any { return &tapeMemory{nodes: make([]node, 0, 256)} }}

// giveBack takes the memory from a tape that is being closed. Nothing outside
// the tape refers to it.
func (tp *Tape) giveBack() {
	m := tp.memory
	if m == nil {
		return // closed before
	}
	tp.memory = nil
	clear(tp.nodes)
	m.nodes = tp.nodes[:0]
	m.live = tp.scope.live[:0] // which release has cleared
	m.inputs.reset()
	m.saved.reset()
	tapeMemories.Put(m)
}

// slab gives out short slices of one array.
type slab[T any] struct{ free, all []T }

// take returns n zero elements.
func (s *slab[T]) take(n int) []T {
	if len(s.free) < n {
		// What was given out stays with those who have it.
		s.all = make([]T, max(n, 2*len(s.all), 256))
		s.free = s.all
	}
	out := s.free[:n:n]
	s.free = s.free[n:]
	return out
}

// reset takes everything back.
func (s *slab[T]) reset() {
	clear(s.all[:len(s.all)-len(s.free)])
	s.free = s.all
}
