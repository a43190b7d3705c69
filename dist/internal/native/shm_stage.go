// SPDX-License-Identifier: Apache-2.0

package native

import (
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// Private data passes through staging slots in rounds. In a round, each rank that puts data in
// copies a piece of it into its next slot, and the others copy or reduce from there. A slot is
// used again when all have taken from it. Data that is cut into parts lies side by side in the
// slot, a piece for each rank; data that is the same for all fills the slot.
//
// A rank puts round i+1 before it takes round i, so that it seldom waits for a rank that is a
// little late.

const (
	// numUnits is the number of rounds for a little data, so that taking the first pieces
	// overlaps with putting the rest.
	numUnits = 4
	// leastUnit is the smallest useful round: a smaller one costs more than it hides.
	leastUnit = 16 << 10
)

// stageUnit returns how many of size bytes pass in a round, of at most limit.
func stageUnit(size, limit int) int {
	return min(limit, max(leastUnit, (size/numUnits+pageSize-1)&^(pageSize-1)))
}

// unitLimit returns the most that a rank has in a slot for another.
func (m *shmCall) unitLimit() int {
	if deals(m.c.Op) {
		return slotSize / m.s.n &^ (cacheLine - 1)
	}
	return slotSize
}

// longest returns the bytes of the longest part that this rank puts in.
func (m *shmCall) longest() int {
	if !deals(m.c.Op) {
		return len(m.in)
	}
	longest := 0
	for r := range m.s.n {
		if r != m.me || m.c.Op == operation.ReduceScatter {
			longest = max(longest, m.cut(m.put, r).Len())
		}
	}
	return longest
}

// unit returns how many bytes for another rank a rank puts into a slot. In a reduce-scatter all
// ranks know it. Else the rank writes it into the record, where the location of lent data
// would be.
func (m *shmCall) unit(rank int) int {
	if m.c.Op == operation.ReduceScatter {
		return stageUnit(m.longest(), m.unitLimit())
	}
	unit, limit := m.s.call(rank, m.c.Seq).record.in.offset, m.unitLimit()
	if unit == 0 || unit > uint64(limit) || unit%cacheLine != 0 {
		return limit // the record is wrong: any data will do
	}
	return int(unit)
}

// slotSize returns the bytes of a slot with a unit for each rank that gets one.
func (m *shmCall) slotSize(unit int) int {
	if deals(m.c.Op) {
		return m.s.n * unit
	}
	return unit
}

// numRounds returns in how many rounds size bytes pass.
func numRounds(size, unit int) int { return (size + unit - 1) / unit }

// piece returns the bytes of round k out of size.
func piece(size, unit, k int) collective.Range {
	return collective.Range{Lo: min(k*unit, size), Hi: min((k+1)*unit, size)}
}

// putRounds returns in how many rounds this rank's data pass through its slots.
func (m *shmCall) putRounds() int {
	if !puts(m.c, m.me) || m.ways(m.me)&(inBeside|inLent) != 0 {
		return 0
	}
	return numRounds(m.longest(), m.unit(m.me))
}

// pass puts and takes the given numbers of rounds.
func (m *shmCall) pass(put, take int) error {
	for i := range max(put, take+1) {
		if i < put {
			if err := m.putRound(i); err != nil {
				return err
			}
		}
		if k := i - 1; k >= 0 && k < take {
			if err := m.takeRound(k); err != nil {
				return err
			}
			m.s.post(m.c, doneFlag, uint32(k+1))
		}
	}
	return nil
}

// putRound copies a piece of this rank's data into a slot.
func (m *shmCall) putRound(k int) error {
	s, c, unit := m.s, m.c, m.unit(m.me)
	if before := k - numSlots; before >= 0 {
		for i := 1; i < s.n; i++ {
			p := s.after(i)
			if !gets(c, p) || deals(c.Op) && piece(m.cut(m.put, p).Len(), unit, before).Len() == 0 {
				continue // takes nothing from that slot
			}
			if err := s.awaitFlag(m.ctx, c, p, doneFlag, uint32(before+1)); err != nil {
				return err
			}
		}
	}
	slot := s.seg.slot(m.me, c.Seq, k, m.slotSize(unit))
	if deals(c.Op) {
		for r := range s.n {
			if r != m.me || m.scaled {
				part := m.cut(m.put, r)
				at := piece(part.Len(), unit, k)
				m.fill(slot[r*unit:], m.in[part.Lo+at.Lo:part.Lo+at.Hi])
			}
		}
	} else {
		at := piece(len(m.in), unit, k)
		m.fill(slot, m.in[at.Lo:at.Hi])
	}
	s.post(c, readyFlag, uint32(k+1))
	return nil
}

// inSlot waits for a round of a rank's data and returns the size bytes of it
// that are for this rank.
func (m *shmCall) inSlot(rank, k, size int) ([]byte, error) {
	if rank != m.me {
		if err := m.s.awaitFlag(m.ctx, m.c, rank, readyFlag, uint32(k+1)); err != nil {
			return nil, err
		}
	}
	unit, at := m.unit(rank), 0
	if deals(m.c.Op) {
		at = m.me * unit
	}
	return m.s.seg.slot(rank, m.c.Seq, k, m.slotSize(unit))[at:][:size:size], nil
}

// takeRound takes a round of what comes through slots.
func (m *shmCall) takeRound(k int) error {
	if m.c.Op == operation.ReduceScatter {
		return m.reduceRound(k)
	}
	for i := 1; i < m.s.n; i++ {
		p := m.s.after(i)
		if !puts(m.c, p) || m.ways(p)&(inBeside|inLent) != 0 {
			continue
		}
		_, dst, err := m.from(p)
		if err != nil {
			return err
		}
		at := piece(dst.Len(), m.unit(p), k)
		if at.Len() == 0 {
			continue
		}
		data, err := m.inSlot(p, k, at.Len())
		if err != nil {
			return err
		}
		copy(m.out[dst.Lo+at.Lo:dst.Lo+at.Hi], data)
		m.s.took(p, len(data))
	}
	return nil
}
