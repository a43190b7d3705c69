// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"

	"github.com/cohort-ml/cohort/dist/internal/collective"
)

const (
	// pieceSize is how much is reduced before it is copied to the peers: it
	// is read again from the first-level cache or close to it.
	pieceSize = 32 << 10
	// shareAlign keeps ranks from writing to one cache line, in bytes.
	shareAlign = 64
)

// move is the part of a collective with a quick way that comes when all ranks
// have posted the same call: moving and reducing data. in and out are this
// rank's.
type move struct {
	s       *Shm
	ctx     context.Context
	c       *collective.Call
	in, out []byte

	eager           bool // the data lies beside the calls
	lentIn, lentOut bool // all ranks can reach the others' input, output
}

func (m *move) allReduce() error {
	switch {
	case m.eager:
		return m.reduceEager()
	case m.lentOut:
		return m.reduceInPlace()
	}
	return m.reduceStaged()
}

func (m *move) broadcast() error {
	switch {
	case m.eager:
		return m.broadcastEager()
	case m.s.lends(m.c, m.c.Root):
		return m.broadcastInPlace()
	}
	return m.broadcastStaged()
}

func (m *move) allGather() error {
	switch {
	case m.eager:
		return m.gatherEager()
	case m.lentIn:
		return m.gatherRead()
	case m.lentOut:
		return m.gatherWrite()
	}
	return m.gatherStaged()
}

// share returns the bytes of size that a rank works on.
func (m *move) share(size, rank int) collective.Range {
	return collective.Share(size, m.s.n, shareAlign, rank)
}

func (m *move) reducer() (collective.Reducer, error) {
	return collective.ReducerFor(m.c.Reduce, m.c.DType)
}

func (m *move) eagerOf(rank int) []byte {
	return m.s.seg.block(rank).eager[m.c.Seq&1][:len(m.in)]
}

// lent returns the lent data of all ranks, this rank's own among them.
func (m *move) lent(out bool) ([][]byte, error) {
	bufs := m.s.bufs
	for r := range bufs {
		own := m.in
		if out {
			own = m.out
		}
		if r == m.s.cfg.Rank {
			bufs[r] = own
			continue
		}
		b, err := m.s.peerData(r, m.c, out, len(own))
		if err != nil {
			return nil, err
		}
		bufs[r] = b
	}
	return bufs, nil
}

// finish says that this rank no longer needs the others' data and waits
// until they no longer need its own.
func (m *move) finish() error {
	m.s.post(m.c, doneFlag, 1)
	return m.s.awaitAll(m.ctx, m.c, doneFlag, 1)
}

// reduceEager reduces what lies beside the calls, every rank for itself. No
// rank waits for the others to finish: the slots are used again two calls
// later, which cannot begin before all have finished this one.
func (m *move) reduceEager() error {
	reduce, err := m.reducer()
	if err != nil {
		return err
	}
	copy(m.out, m.eagerOf(0))
	for r := 1; r < m.s.n; r++ {
		reduce(m.out, m.eagerOf(r))
	}
	return nil
}

// reduceInPlace has every rank reduce its share of everybody's data and write
// the result into everybody's data.
func (m *move) reduceInPlace() error {
	reduce, err := m.reducer()
	if err != nil {
		return err
	}
	bufs, err := m.lent(true)
	if err != nil {
		return err
	}
	// Reduced in the order of ranks. The first two commute, so rank 1 may
	// begin with its own data, which its caches are more likely to hold.
	first, second := 0, 1
	if m.s.cfg.Rank == 1 {
		first, second = 1, 0
	}
	m.share(len(m.out), m.s.cfg.Rank).Pieces(pieceSize, func(p collective.Range) {
		acc := bufs[first][p.Lo:p.Hi]
		reduce(acc, bufs[second][p.Lo:p.Hi])
		for _, b := range bufs[2:] {
			reduce(acc, b[p.Lo:p.Hi])
		}
		for r, b := range bufs {
			if r != first {
				copy(b[p.Lo:p.Hi], acc)
			}
		}
	})
	return m.finish()
}

// rounds cuts size bytes into pieces that fit a slot.
func rounds(size int) int { return (size + slotSize - 1) / slotSize }

// round returns the bytes of a round.
func round(size, i int) collective.Range {
	return collective.Range{Lo: i * slotSize, Hi: min((i+1)*slotSize, size)}
}

// reduceStaged passes private data through the slots in rounds. In a round,
// every rank (A) puts its data into its slot, but for its own share; (B)
// reduces its share of all and puts the result there; (C) takes the results
// of the others. A, B and C of successive rounds follow each other, so that a
// rank seldom waits for one that is a little late.
func (m *move) reduceStaged() error {
	s, c, me, n := m.s, m.c, m.s.cfg.Rank, m.s.n
	reduce, err := m.reducer()
	if err != nil {
		return err
	}
	total := rounds(len(m.out))
	for i := range total + 2 {
		if k := i; k < total { // A
			if k >= numSlots {
				if err := s.awaitAll(m.ctx, c, doneFlag, uint32(k-numSlots+1)); err != nil {
					return err
				}
			}
			at := round(len(m.out), k)
			slot, own, mine := s.seg.slot(me, k), m.out[at.Lo:at.Hi], m.share(at.Len(), me)
			copy(slot[:mine.Lo], own[:mine.Lo])
			copy(slot[mine.Hi:], own[mine.Hi:])
			s.post(c, readyFlag, uint32(k+1))
		}
		if k := i - 1; k >= 0 && k < total { // B
			if err := s.awaitAll(m.ctx, c, readyFlag, uint32(k+1)); err != nil {
				return err
			}
			at := round(len(m.out), k)
			mine := m.share(at.Len(), me)
			own := m.out[at.Lo+mine.Lo : at.Lo+mine.Hi]
			result := s.seg.slot(me, k)[mine.Lo:mine.Hi]
			part := func(r int) []byte {
				if r == me {
					return own
				}
				return s.seg.slot(r, k)[mine.Lo:mine.Hi]
			}
			if me <= 1 {
				// The first two commute: reduce into the own data.
				reduce(own, part(1-me))
				for r := 2; r < n; r++ {
					reduce(own, part(r))
				}
				copy(result, own)
			} else {
				copy(result, part(0))
				for r := 1; r < n; r++ {
					reduce(result, part(r))
				}
				copy(own, result)
			}
			s.post(c, reducedFlag, uint32(k+1))
		}
		if k := i - 2; k >= 0 { // C
			if err := s.awaitAll(m.ctx, c, reducedFlag, uint32(k+1)); err != nil {
				return err
			}
			at := round(len(m.out), k)
			for j := 1; j < n; j++ {
				r := (me + j) % n
				theirs := m.share(at.Len(), r)
				copy(m.out[at.Lo+theirs.Lo:at.Lo+theirs.Hi], s.seg.slot(r, k)[theirs.Lo:theirs.Hi])
			}
			s.post(c, doneFlag, uint32(k+1))
		}
	}
	return nil
}

func (m *move) broadcastEager() error {
	if m.s.cfg.Rank != m.c.Root {
		copy(m.out, m.eagerOf(m.c.Root))
	}
	return nil
}

// broadcastInPlace has every rank copy from the root's data; the root waits.
func (m *move) broadcastInPlace() error {
	s, c := m.s, m.c
	if s.cfg.Rank == c.Root {
		return s.awaitAll(m.ctx, c, doneFlag, 1)
	}
	from, err := s.peerData(c.Root, c, false, len(m.out))
	if err != nil {
		return err
	}
	copy(m.out, from)
	s.post(c, doneFlag, 1)
	return nil
}

// broadcastStaged passes the root's private data through its slots.
func (m *move) broadcastStaged() error {
	s, c := m.s, m.c
	for k := range rounds(len(m.in)) {
		at := round(len(m.in), k)
		if s.cfg.Rank == c.Root {
			if k >= numSlots {
				if err := s.awaitAll(m.ctx, c, doneFlag, uint32(k-numSlots+1)); err != nil {
					return err
				}
			}
			copy(s.seg.slot(c.Root, k), m.in[at.Lo:at.Hi])
			s.post(c, readyFlag, uint32(k+1))
			continue
		}
		if err := s.await(m.ctx, c, c.Root, s.flag(c.Root, c, readyFlag), uint32(k+1)); err != nil {
			return err
		}
		copy(m.out[at.Lo:at.Hi], s.seg.slot(c.Root, k))
		s.post(c, doneFlag, uint32(k+1))
	}
	return nil
}

// part returns the place of a rank's contribution in gathered data.
func (m *move) part(out []byte, rank int) []byte {
	return out[rank*len(m.in) : (rank+1)*len(m.in)]
}

func (m *move) gatherEager() error {
	for r := range m.s.n {
		copy(m.part(m.out, r), m.eagerOf(r))
	}
	return nil
}

// gatherRead has every rank copy the others' contributions.
func (m *move) gatherRead() error {
	bufs, err := m.lent(false)
	if err != nil {
		return err
	}
	for i := range bufs {
		r := (m.s.cfg.Rank + i) % m.s.n
		copy(m.part(m.out, r), bufs[r])
	}
	return m.finish()
}

// gatherWrite has every rank write its contribution into everybody's result.
func (m *move) gatherWrite() error {
	bufs, err := m.lent(true)
	if err != nil {
		return err
	}
	for i := range bufs {
		r := (m.s.cfg.Rank + i) % m.s.n
		copy(m.part(bufs[r], m.s.cfg.Rank), m.in)
	}
	return m.finish()
}

// gatherStaged passes private contributions through the slots.
func (m *move) gatherStaged() error {
	s, c, me := m.s, m.c, m.s.cfg.Rank
	total := rounds(len(m.in))
	copy(m.part(m.out, me), m.in)
	for i := range total + 1 {
		if k := i; k < total {
			if k >= numSlots {
				if err := s.awaitAll(m.ctx, c, doneFlag, uint32(k-numSlots+1)); err != nil {
					return err
				}
			}
			at := round(len(m.in), k)
			copy(s.seg.slot(me, k), m.in[at.Lo:at.Hi])
			s.post(c, readyFlag, uint32(k+1))
		}
		if k := i - 1; k >= 0 {
			if err := s.awaitAll(m.ctx, c, readyFlag, uint32(k+1)); err != nil {
				return err
			}
			at := round(len(m.in), k)
			for j := 1; j < s.n; j++ {
				r := (me + j) % s.n
				copy(m.part(m.out, r)[at.Lo:at.Hi], s.seg.slot(r, k))
			}
			s.post(c, doneFlag, uint32(k+1))
		}
	}
	return nil
}
