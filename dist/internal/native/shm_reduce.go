// SPDX-License-Identifier: Apache-2.0

package native

import (
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// shareAlign keeps ranks from writing to one cache line, in bytes.
const shareAlign = cacheLine

// share returns the bytes of size that a rank reduces.
func (m *shmCall) share(size, rank int) collective.Range {
	return collective.Share(size, m.s.n, shareAlign, rank)
}

// merge reduces the bytes of all ranks' data in a range, in rank order, and
// writes them to the same range of every destination.
func (m *shmCall) merge(dsts, srcs [][]byte, at collective.Range) {
	cut := func(into, of [][]byte) [][]byte {
		into = into[:len(of)]
		for i, b := range of {
			into[i] = b[at.Lo:at.Hi]
		}
		return into
	}
	m.red.AllTo(cut(m.s.scratch.dstCuts, dsts), cut(m.s.scratch.srcCuts, srcs))
}

// into is a list of one place to write to.
func (m *shmCall) into(dst []byte) [][]byte { return append(m.s.scratch.dsts[:0], dst) }

// reduceScatter reduces this rank's part of everybody's data.
func (m *shmCall) reduceScatter() error {
	srcs, take, unit := m.s.scratch.srcs, 0, m.unit(m.me)
	for i := range m.s.n {
		p := m.s.after(i)
		src, dst, err := m.from(p)
		if err != nil {
			return err
		}
		data, here, err := m.reach(p, src, dst.Len())
		if err != nil {
			return err
		}
		srcs[p] = data
		if !here {
			take = numRounds(dst.Len(), unit)
		}
	}
	if take == 0 {
		m.merge(m.into(m.out), srcs, collective.Range{Hi: len(m.out)})
		m.tookOfAll(len(m.out))
	}
	if err := m.pass(m.putRounds(), take); err != nil {
		return err
	}
	return m.finish(false)
}

// reduceRound reduces a round of this rank's part.
func (m *shmCall) reduceRound(k int) error {
	at := piece(len(m.out), m.unit(m.me), k)
	srcs := m.s.scratch.srcCuts
	for p, data := range m.s.scratch.srcs {
		if data != nil {
			srcs[p] = data[at.Lo:at.Hi]
			continue
		}
		var err error
		if srcs[p], err = m.inSlot(p, k, at.Len()); err != nil {
			return err
		}
	}
	m.red.AllTo(m.into(m.out[at.Lo:at.Hi]), srcs)
	m.tookOfAll(at.Len())
	return nil
}

// tookOfAll counts bytes that this rank has read of every rank's data.
func (m *shmCall) tookOfAll(numBytes int) {
	for r := range m.s.n {
		m.s.took(r, numBytes)
	}
}

// reduce serves an all-reduce, and a reduction to the root, whose sources have
// the same size on all ranks.
func (m *shmCall) reduce() error {
	switch {
	case m.ways(m.me)&inBeside != 0:
		return m.reduceBeside()
	case m.allInPlace():
		return m.reduceInPlace()
	}
	return m.reduceStaged()
}

// reduceBeside reduces what lies beside the calls: every rank that gets the
// result for itself, or in a large group, where that would be work that grows
// with the square of the ranks, one for all. No rank waits for the others to
// finish: that memory is used again two calls later, which cannot begin before
// all have finished this one.
func (m *shmCall) reduceBeside() error {
	s, c := m.s, m.c
	forAll := s.n > flatLimit && c.Op == operation.AllReduce
	result := s.seg.beside(0, c.Seq)[:len(m.in)]
	switch {
	case !gets(c, m.me):
		return nil
	case forAll && m.me != 0:
		if err := s.awaitFlag(m.ctx, c, 0, readyFlag, 1); err != nil {
			return err
		}
		copy(m.out, result)
		s.took(0, len(result))
		return nil
	}
	srcs := s.scratch.srcs
	for r := range s.n {
		srcs[r] = s.seg.beside(r, c.Seq)[:len(m.in)]
	}
	m.red.AllTo(m.into(m.out), srcs)
	m.tookOfAll(len(m.out))
	if forAll {
		copy(result, m.out)
		s.post(c, readyFlag, 1)
	}
	return nil
}

// allInPlace reports whether all ranks have lent what a reduction in place
// needs.
func (m *shmCall) allInPlace() bool {
	for r := range m.s.n {
		need := outLent
		if !gets(m.c, r) {
			need = inLent
		}
		if m.ways(r)&need == 0 {
			return false
		}
	}
	return true
}

// reduceInPlace has every rank reduce its share of everybody's data and write
// the result to all who get it.
func (m *shmCall) reduceInPlace() error {
	srcs, dsts := m.s.scratch.srcs, m.s.scratch.dsts[:0]
	share := m.share(len(m.in), m.me)
	for r := range m.s.n {
		var err error
		if srcs[r], err = m.reachLent(r, gets(m.c, r), 0, len(m.in)); err != nil {
			return err
		}
		if gets(m.c, r) {
			dsts = append(dsts, srcs[r])
		}
	}
	m.merge(dsts, srcs, share)
	m.tookOfAll(share.Len())
	for r := range m.s.n {
		if r != m.me && gets(m.c, r) {
			m.s.gave(share.Len())
		}
	}
	m.s.post(m.c, overFlag, 1)
	return m.s.awaitAll(m.ctx, m.c, overFlag, 1)
}

// reduceStaged passes private data through the slots. In a round, every rank
// (A) puts its data into its slot, but for its own share; (B) reduces its share
// of all and puts the result there; (C) takes the results of the others, if it
// gets them. A, B and C of successive rounds follow each other, so that a rank
// seldom waits for one that is a little late.
func (m *shmCall) reduceStaged() error {
	s, c, me := m.s, m.c, m.me
	takes := gets(c, me)
	unit := stageUnit(len(m.in), m.unitLimit())
	total := numRounds(len(m.in), unit)
	for i := range total + 2 {
		if k := i; k < total { // A
			if k >= numSlots {
				if err := m.awaitTaken(k - numSlots + 1); err != nil {
					return err
				}
			}
			at := piece(len(m.in), unit, k)
			slot, own, mine := s.seg.slot(me, c.Seq, k, unit), m.in[at.Lo:at.Hi], m.share(at.Len(), me)
			if m.scaled {
				m.fill(slot, own)
			} else {
				copy(slot[:mine.Lo], own[:mine.Lo])
				copy(slot[mine.Hi:], own[mine.Hi:])
			}
			s.post(c, readyFlag, uint32(k+1))
		}
		if k := i - 1; k >= 0 && k < total { // B
			if err := s.awaitAll(m.ctx, c, readyFlag, uint32(k+1)); err != nil {
				return err
			}
			at := piece(len(m.in), unit, k)
			mine := m.share(at.Len(), me)
			srcs := s.scratch.srcs
			for r := range s.n {
				srcs[r] = s.seg.slot(r, c.Seq, k, unit)[:at.Len()]
			}
			dsts := m.into(srcs[me])
			if !m.scaled {
				srcs[me] = m.in[at.Lo:at.Hi]
			}
			if takes {
				dsts = append(dsts, m.out[at.Lo:at.Hi])
			}
			m.merge(dsts, srcs, mine)
			m.tookOfAll(mine.Len())
			s.post(c, reducedFlag, uint32(k+1))
		}
		if k := i - 2; k >= 0 && takes { // C
			if err := s.awaitAll(m.ctx, c, reducedFlag, uint32(k+1)); err != nil {
				return err
			}
			at := piece(len(m.in), unit, k)
			for j := 1; j < s.n; j++ {
				r := s.after(j)
				theirs := m.share(at.Len(), r)
				copy(m.out[at.Lo+theirs.Lo:at.Lo+theirs.Hi], s.seg.slot(r, c.Seq, k, unit)[theirs.Lo:theirs.Hi])
				s.took(r, theirs.Len())
			}
			s.post(c, doneFlag, uint32(k+1))
		}
	}
	return nil
}

// awaitTaken waits until all who get the result of a reduction have taken the
// given number of rounds.
func (m *shmCall) awaitTaken(rounds int) error {
	if m.c.Op == operation.Reduce {
		if m.me == m.c.Root {
			return nil
		}
		return m.s.awaitFlag(m.ctx, m.c, m.c.Root, doneFlag, uint32(rounds))
	}
	return m.s.awaitAll(m.ctx, m.c, doneFlag, uint32(rounds))
}
