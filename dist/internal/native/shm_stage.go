// SPDX-License-Identifier: Apache-2.0

package native

import "github.com/cohort-ml/cohort/dist/internal/collective"

// Private data pass through staging slots in rounds. In a round, a rank that
// puts something in copies a piece of it into its next slot; who takes copies
// from there, or reduces. A slot is used again when all who take from it have
// done so. What is dealt goes side by side into the slot, a piece for each
// rank; what is the same for all fills it.
//
// A rank puts round i+1 before it takes round i, so that it seldom waits for
// one that is a little late.

// unit returns how many bytes of what a rank has for another fit a slot.
func (m *move) unit() int {
	if deals(m.c.Op) {
		return slotSize / m.s.n &^ (cacheLine - 1)
	}
	return slotSize
}

// numRounds returns in how many rounds size bytes for one rank pass.
func (m *move) numRounds(size int) int { return (size + m.unit() - 1) / m.unit() }

// piece returns the bytes of round k out of size.
func (m *move) piece(size, k int) collective.Range {
	unit := m.unit()
	return collective.Range{Lo: min(k*unit, size), Hi: min((k+1)*unit, size)}
}

// putRounds returns in how many rounds this rank's data pass through its slots.
func (m *move) putRounds() int {
	switch {
	case !puts(m.c, m.me) || m.ways(m.me)&(inBeside|inLent) != 0:
		return 0
	case !deals(m.c.Op):
		return m.numRounds(len(m.in))
	}
	longest := 0
	for r := range m.s.n {
		if r != m.me || m.scaled {
			longest = max(longest, m.cut(m.put, r).Len())
		}
	}
	return m.numRounds(longest)
}

// pass puts and takes the given numbers of rounds.
func (m *move) pass(put, take int) error {
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
func (m *move) putRound(k int) error {
	s, c := m.s, m.c
	if before := k - numSlots; before >= 0 {
		for i := 1; i < s.n; i++ {
			p := s.after(i)
			if !gets(c, p) || deals(c.Op) && m.piece(m.cut(m.put, p).Len(), before).Len() == 0 {
				continue // takes nothing from that slot
			}
			if err := s.awaitFlag(m.ctx, c, p, doneFlag, uint32(before+1)); err != nil {
				return err
			}
		}
	}
	slot := s.seg.slot(m.me, k)
	if deals(c.Op) {
		for r := range s.n {
			if r != m.me || m.scaled {
				part := m.cut(m.put, r)
				at := m.piece(part.Len(), k)
				m.fill(slot[r*m.unit():], m.in[part.Lo+at.Lo:part.Lo+at.Hi])
			}
		}
	} else {
		at := m.piece(len(m.in), k)
		m.fill(slot, m.in[at.Lo:at.Hi])
	}
	s.post(c, readyFlag, uint32(k+1))
	return nil
}

// inSlot waits for a round of a rank's data and returns the size bytes of it
// that are for this rank.
func (m *move) inSlot(rank, k, size int) ([]byte, error) {
	if rank != m.me {
		if err := m.s.awaitFlag(m.ctx, m.c, rank, readyFlag, uint32(k+1)); err != nil {
			return nil, err
		}
	}
	at := 0
	if deals(m.c.Op) {
		at = m.me * m.unit()
	}
	return m.s.seg.slot(rank, k)[at:][:size:size], nil
}

// takeRound takes a round of what comes through slots.
func (m *move) takeRound(k int) error {
	if m.c.Op == collective.OpReduceScatter {
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
		at := m.piece(dst.Len(), k)
		if at.Len() == 0 {
			continue
		}
		data, err := m.inSlot(p, k, at.Len())
		if err != nil {
			return err
		}
		copy(m.out[dst.Lo+at.Lo:dst.Lo+at.Hi], data)
	}
	return nil
}
