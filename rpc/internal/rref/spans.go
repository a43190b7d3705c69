// SPDX-License-Identifier: Apache-2.0

package rref

import (
	"math"
	"slices"
)

// maxRuns bounds the memory of a set, whatever a peer sends.
const maxRuns = 1 << 14

// spans is a set of counters that only grows. Counters are used in order and
// finish nearly so, whence few runs hold any number of them. The zero value
// holds 0, which no counter is.
type spans struct {
	through uint64 // all up to here are in
	runs    []run  // behind through+1, apart from each other, ascending
}

type run struct{ lo, hi uint64 }

func (s *spans) has(n uint64) bool {
	if n <= s.through {
		return true
	}
	i := s.search(n)
	return i < len(s.runs) && s.runs[i].lo <= n
}

// search returns the first run that ends at n or behind it.
func (s *spans) search(n uint64) int {
	i, _ := slices.BinarySearchFunc(s.runs, n, func(r run, n uint64) int {
		if r.hi < n {
			return -1
		}
		return 1
	})
	return i
}

func (s *spans) add(n uint64) {
	if s.has(n) || n == math.MaxUint64 {
		return
	}
	if n == s.through+1 {
		s.trim(n)
		return
	}
	i := s.search(n)
	joinsBefore := i > 0 && s.runs[i-1].hi+1 == n
	joinsAfter := i < len(s.runs) && s.runs[i].lo == n+1
	switch {
	case joinsBefore && joinsAfter:
		s.runs[i-1].hi = s.runs[i].hi
		s.runs = slices.Delete(s.runs, i, i+1)
	case joinsBefore:
		s.runs[i-1].hi = n
	case joinsAfter:
		s.runs[i].lo = n
	default:
		s.runs = slices.Insert(s.runs, i, run{n, n})
		if len(s.runs) > maxRuns { // the oldest gap is given up
			s.trim(s.runs[0].lo)
		}
	}
}

// trim puts in all up to n.
func (s *spans) trim(n uint64) {
	if n <= s.through || n == math.MaxUint64 {
		return
	}
	s.through = n
	for len(s.runs) > 0 && s.runs[0].lo <= s.through+1 {
		s.through = max(s.through, s.runs[0].hi)
		s.runs = slices.Delete(s.runs, 0, 1)
	}
}
