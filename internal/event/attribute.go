// SPDX-License-Identifier: Apache-2.0

package event

import (
	"math"
	"time"
)

// Waits is who waited for whom.
type Waits struct {
	Waiting []time.Duration // by rank: for others
	Exposed []time.Duration // by rank: standing still in all, of the samples
	For     []int           // by rank: for whom it waited the longest; -1 for nobody
	Longest []time.Duration // by rank: and how long
	Caused  []time.Duration // by rank: how long all others together waited for it
	Moving  []time.Duration // by rank: how long data moved, beside computation or not
}

// Attribute compares the samples of all ranks, by rank. In a collective, the rank that it took the
// shortest came last. The others waited for it, for as long as it took them longer; the rest of the
// time for which a rank stood still is communication. In a message a rank waits for its peer.
// Attribute is a pure function, so all ranks that call it know the same.
func Attribute(ranks [][]Sample) Waits {
	n := len(ranks)
	w := Waits{Waiting: make([]time.Duration, n), Exposed: make([]time.Duration, n), For: make([]int, n), Longest: make([]time.Duration, n), Caused: make([]time.Duration, n), Moving: make([]time.Duration, n)}
	type last struct {
		took time.Duration
		rank int
		came int // ranks
	}
	lasts := map[uint64]last{}
	for r, of := range ranks {
		for _, s := range of {
			if s.ID&messageBit != 0 {
				continue
			}
			l, ok := lasts[s.ID]
			if !ok {
				l.took = math.MaxInt64
			}
			if l.came++; s.Took < l.took {
				l.took, l.rank = s.Took, r
			}
			lasts[s.ID] = l
		}
	}
	for r, of := range ranks {
		who := map[int]time.Duration{}
		for _, s := range of {
			w.Exposed[r] += s.Exposed
			culprit, wait := -1, time.Duration(0)
			if s.ID&messageBit != 0 {
				if peer := s.ID &^ messageBit; peer < uint64(n) {
					culprit, wait = int(peer), s.Exposed
				}
				w.Moving[r] += max(0, s.Took-s.Exposed)
			} else if l := lasts[s.ID]; l.came > 1 {
				culprit, wait = l.rank, max(0, s.Exposed-l.took)
				w.Moving[r] += l.took
			}
			if culprit >= 0 && culprit != r {
				who[culprit] += wait
				w.Waiting[r] += wait
				w.Caused[culprit] += wait
			}
		}
		w.For[r] = -1
		for culprit := range n {
			if d := who[culprit]; d > w.Longest[r] {
				w.For[r], w.Longest[r] = culprit, d
			}
		}
	}
	return w
}

// Split divides the time that a rank stood still into communication and waiting, as its samples say.
func (w Waits) Split(rank int, t Times) Times {
	if w.Exposed[rank] <= 0 {
		return t
	}
	share := min(1, float64(w.Waiting[rank])/float64(w.Exposed[rank]))
	waited := time.Duration(share * float64(t[Communication]))
	t[Communication] -= waited
	t[Waiting] += waited
	return t
}

// Waited says how much of the time of the last cut, which is in Communication, was time to wait for
// others.
func (s *Stream) Waited(d time.Duration) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range []*Times{&s.clock.times, &s.window.before} {
		t[Communication] -= d
		t[Waiting] += d
	}
	s.divided, s.compared = s.window.before, true
}

// IsMessage reports whether the call was a send or a receive.
func (s Sample) IsMessage() bool { return s.ID&messageBit != 0 }
