// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// shmCall is one rank's part in a collective in shared memory. in and out are this rank's data.
//
// Every rank tells with its call how the others reach what it puts in: beside the call, in
// place, or through its staging slots. So ranks need not agree on the way: a rank that takes
// data looks at the way of each other rank.
type shmCall struct {
	s       *Shm
	ctx     context.Context
	call    operation.Call
	c       *operation.Call // call
	me      int
	in, out []byte // of inData and outData
	inData  collective.Data
	outData collective.Data
	// put and got are the bounds, in bytes, of what goes to each rank and of what comes from
	// each; nil for even parts.
	put, got []int
	red      collective.Reduction // of the operations that reduce
	// scaled says that this rank puts in its data times its own factor, so that no rank can
	// use the data in place.
	scaled bool
	lent   bool // others may reach this rank's data
}

// scratch is memory that a rank's calls use in turn.
type scratch struct {
	put, got         []int // bounds of parts
	srcs, dsts       [][]byte
	srcCuts, dstCuts [][]byte
}

func newScratch(n int) scratch {
	return scratch{put: make([]int, n+1), got: make([]int, n+1), srcs: make([][]byte, n), dsts: make([][]byte, 0, n),
		srcCuts: make([][]byte, n), dstCuts: make([][]byte, n)}
}

// puts reports whether a rank has data for others in a call.
func puts(c *operation.Call, rank int) bool {
	return rank == c.Root || c.Op != operation.Broadcast && c.Op != operation.Scatter
}

// gets reports whether a rank gets data from others in a call.
func gets(c *operation.Call, rank int) bool {
	switch c.Op {
	case operation.Gather, operation.Reduce:
		return rank == c.Root
	case operation.Broadcast:
		return rank != c.Root
	}
	return true
}

// deals reports whether a rank cuts its data into parts for the others. Otherwise all that get
// it get the same.
func deals(op operation.Op) bool {
	return op == operation.ReduceScatter || op == operation.Scatter || op == operation.AllToAll
}

// offer puts this rank's data where the others will look for it, and writes the way into the
// record.
func (m *shmCall) offer(rec *record) error {
	c, seg := m.c, m.s.seg
	if c.Op.Reduces() {
		var err error
		if m.red, err = collective.ReductionFor(c.Reduce, c.DType, m.s.n); err != nil {
			return err
		}
		m.red = m.red.Large(len(m.out))
	}
	m.layOut(rec)
	if puts(c, m.me) {
		switch whole := c.Op == operation.AllReduce || c.Op == operation.Reduce && m.me == c.Root; {
		case len(m.in) <= seg.eager:
			m.fill(seg.beside(m.me, c.Seq), m.in)
			rec.ways |= inBeside
		case m.red.NeedsPrepare() && whole:
			m.red.Prepare(m.out, m.in) // the result will come over it
		case m.red.NeedsPrepare():
			m.scaled = true
		}
	}
	if rec.ways&inBeside != 0 {
		return nil
	}
	var ok bool
	if puts(c, m.me) && !m.scaled && c.Op != operation.AllReduce {
		if rec.in, ok = m.s.space.lend(m.me, c, &m.inData, false); ok {
			rec.ways |= inLent
			m.lent = true
		} else {
			rec.in.offset = uint64(stageUnit(m.longest(), m.unitLimit()))
		}
	}
	// The others write to what reductions and all-gathers result in.
	if c.Op == operation.AllGather || c.Op == operation.AllReduce || c.Op == operation.Reduce && m.me == c.Root {
		if rec.out, ok = m.s.space.lend(m.me, c, &m.outData, true); ok {
			rec.ways |= outLent
			m.lent = true
		}
	}
	return nil
}

// layOut computes the bounds of uneven parts. Where the others do not know them, it writes them
// into this rank's table.
func (m *shmCall) layOut(rec *record) {
	c, size := m.c, m.c.DType.Size()
	bounds := func(to []int, parts []int) []int {
		to[0] = 0
		for i, n := range parts {
			to[i+1] = to[i] + n*size
		}
		return to
	}
	if c.Parts == nil {
		return
	}
	switch c.Op {
	case operation.AllGather, operation.Gather:
		m.got = bounds(m.s.scratch.got, c.Parts)
	case operation.AllToAll:
		m.got = bounds(m.s.scratch.got, c.Recvs)
		m.put = bounds(m.s.scratch.put, c.Parts)
	default:
		m.put = bounds(m.s.scratch.put, c.Parts)
	}
	if c.Op == operation.AllToAll || c.Op == operation.Scatter {
		table := m.s.seg.table(m.me, c.Seq)
		for i, at := range m.put {
			table[i] = uint64(at / size)
		}
		rec.ways |= inTable
	}
}

// fill writes what this rank contributes, of which src is a piece, to dst.
func (m *shmCall) fill(dst, src []byte) {
	if m.red.NeedsPrepare() {
		m.red.Prepare(dst[:len(src)], src)
	} else {
		copy(dst, src)
	}
}

// run moves the data.
func (m *shmCall) transfer() error {
	switch m.c.Op {
	case operation.AllReduce, operation.Reduce:
		return m.reduce()
	case operation.ReduceScatter:
		return m.reduceScatter()
	}
	return m.exchange()
}

// ways returns the ways to a rank's data.
func (m *shmCall) ways(rank int) access { return m.s.call(rank, m.c.Seq).record.ways }

// cut returns part i between bounds, or the i-th of even parts.
func (m *shmCall) cut(bounds []int, i int) collective.Range {
	if bounds != nil {
		return collective.Range{Lo: bounds[i], Hi: bounds[i+1]}
	}
	size := m.c.Count * m.c.DType.Size()
	return collective.Range{Lo: i * size, Hi: (i + 1) * size}
}

// from returns what a rank has for this one: where it begins in that rank's data, and where it
// goes in this rank's.
func (m *shmCall) from(rank int) (src int, dst collective.Range, err error) {
	dst.Hi = len(m.out)
	switch m.c.Op {
	case operation.AllGather:
		return 0, m.cut(m.got, rank), nil
	case operation.ReduceScatter:
		return m.cut(m.put, m.me).Lo, dst, nil
	case operation.Gather:
		dst = m.cut(m.got, rank)
		count := m.s.call(rank, m.c.Seq).record.count
		return 0, dst, m.expect(rank, count, dst)
	case operation.AllToAll:
		dst = m.cut(m.got, rank)
		fallthrough
	case operation.Scatter:
		var count uint64
		src, count = m.dealt(rank)
		return src, dst, m.expect(rank, count, dst)
	}
	return 0, dst, nil
}

// dealt returns where a rank's data for this one begins, in bytes, and how many elements it has,
// both as the rank tells.
func (m *shmCall) dealt(rank int) (src int, count uint64) {
	rec := &m.s.call(rank, m.c.Seq).record
	lo, count := uint64(m.me)*rec.count, rec.count
	if rec.ways&inTable != 0 {
		table := m.s.seg.table(rank, m.c.Seq)
		lo = table[m.me]
		count = table[m.me+1] - lo
	}
	if lo > math.MaxInt/16 {
		return math.MaxInt / 16, count // beyond all data: reach returns an error there
	}
	return int(lo) * m.c.DType.Size(), count
}

// expect checks that a rank has as many elements for this one as this one wants.
func (m *shmCall) expect(rank int, count uint64, dst collective.Range) error {
	if count == uint64(dst.Len()/m.c.DType.Size()) {
		return nil
	}
	there := m.s.call(rank, m.c.Seq).record.call(m.c.Seq)
	return parcelError(m.s.mismatch(m.c, rank, there), int(count), dst.Len()/m.c.DType.Size())
}

// reach returns data that a rank has beside its call or has lent. It returns false if the data
// comes through the rank's slots.
func (m *shmCall) reach(rank, src, size int) ([]byte, bool, error) {
	ways := m.ways(rank)
	switch {
	case rank == m.me && m.scaled:
		return nil, false, nil
	case rank == m.me && !m.red.NeedsPrepare():
		return m.in[src:][:size:size], true, nil
	case ways&inBeside != 0:
		beside := m.s.seg.beside(rank, m.c.Seq)
		if src > len(beside) || size > len(beside)-src {
			return nil, false, fmt.Errorf("dist: %v of group %q: %v has %d bytes at %d beside its call, which has room for %d",
				m.c, m.s.cfg.Group, m.s.cfg.Members[rank], size, src, len(beside))
		}
		return beside[src:][:size:size], true, nil
	case ways&inLent != 0:
		data, err := m.reachLent(rank, false, src, size)
		return data, true, err
	}
	return nil, false, nil
}

// reachLent returns size bytes, from offset on, of what a rank has lent.
func (m *shmCall) reachLent(rank int, out bool, offset, size int) ([]byte, error) {
	if rank == m.me {
		if out {
			return m.out[offset:][:size:size], nil
		}
		return m.in[offset:][:size:size], nil
	}
	if err := m.s.mayTouch(m.c); err != nil {
		return nil, err
	}
	rec := &m.s.call(rank, m.c.Seq).record
	at := rec.in
	if out {
		at = rec.out
	}
	data, err := m.s.space.reach(m.ctx, rank, m.c, at, out, offset, size)
	if err != nil {
		if reason := m.s.unreached(m.ctx, m.c, rank, err); reason != nil {
			return nil, reason // the peer has died, or left, or the call is out of time
		}
		return nil, fmt.Errorf("dist: %v of group %q: reach the memory of %v: %w", m.c, m.s.cfg.Group, m.s.cfg.Members[rank], err)
	}
	return data, nil
}

// exchange serves the operations that only move data: every rank takes what the others have for
// it.
func (m *shmCall) exchange() error {
	pushed := m.pushed()
	take := 0
	if gets(m.c, m.me) {
		for i := range m.s.n {
			p := m.s.after(i)
			if !puts(m.c, p) {
				continue
			}
			src, dst, err := m.from(p)
			if err != nil {
				return err
			}
			data, here, err := m.reach(p, src, dst.Len())
			switch {
			case err != nil:
				return err
			case here:
				copy(m.out[dst.Lo:dst.Hi], data)
				m.s.took(p, len(data))
			case !pushed:
				take = max(take, numRounds(dst.Len(), m.unit(p)))
			}
		}
	}
	if pushed && m.ways(m.me)&(inBeside|inLent) == 0 {
		if err := m.push(); err != nil {
			return err
		}
	} else if err := m.pass(m.putRounds(), take); err != nil {
		return err
	}
	return m.finish(pushed)
}

// pushed reports whether ranks write private data into the results of the others. They do in an
// all-gather if all ranks have lent their results.
func (m *shmCall) pushed() bool {
	if m.c.Op != operation.AllGather {
		return false
	}
	for r := range m.s.n {
		if m.ways(r)&outLent == 0 {
			return false
		}
	}
	return true
}

// push writes this rank's data into the results of all others.
func (m *shmCall) push() error {
	at := m.cut(m.got, m.me)
	for i := 1; i < m.s.n; i++ {
		out, err := m.reachLent(m.s.after(i), true, at.Lo, at.Len())
		if err != nil {
			return err
		}
		copy(out, m.in)
		m.s.gave(len(out))
	}
	return nil
}

// finish tells that this rank no longer needs what the others have lent. It waits until they no
// longer need what this rank has lent.
func (m *shmCall) finish(pushed bool) error {
	m.s.post(m.c, overFlag, 1)
	mine := m.ways(m.me)
	for i := 1; i < m.s.n; i++ {
		p := m.s.after(i)
		if mine&inLent != 0 && gets(m.c, p) || pushed && m.ways(p)&(inBeside|inLent) == 0 {
			if err := m.s.awaitFlag(m.ctx, m.c, p, overFlag, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// why says how this rank's data reaches ranks that share memory.
func (a access) why() string {
	switch {
	case a&inBeside != 0:
		return "shared memory, beside the call: small"
	case a&(inLent|outLent) != 0:
		return "shared memory, in place: in memory that peers have mapped"
	}
	return "shared memory, through staging slots: in private memory"
}
