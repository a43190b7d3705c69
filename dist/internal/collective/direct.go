// SPDX-License-Identifier: Apache-2.0

package collective

// The algorithms here send every element straight to where it is wanted: one
// step, and as many messages and connections as there are peers. In round i, a
// rank sends to the i-th after it and receives from the i-th before it, so that
// not all send to one (pairwise exchange; Thakur, Rabenseifner and Gropp,
// Optimization of collective communication operations in MPICH, 2005, §4).

// exchangeStage adds the k-th piece of what goes to every member and comes
// from it.
func (b *builder) exchangeStage(t team, k int, to, from blocks) {
	for i := 1; i < t.n; i++ {
		dst, src := mod(t.me+i, t.n), mod(t.me-i, t.n)
		b.sendPiece(t.at(dst), to(dst).piece(k, b.piece))
		b.recvPiece(t.at(src), t.at(src), from(src).piece(k, b.piece))
	}
}

// stages returns the most pieces that any member's block has.
func (b *builder) stages(t team, of ...blocks) int {
	most := 0
	for i := range t.n {
		for _, f := range of {
			most = max(most, f(i).numPieces(b.piece))
		}
	}
	return most
}

// exchange sends to(i) to every member and receives from(i) from it.
func (b *builder) exchange(t team, to, from blocks) {
	for k := range b.stages(t, to, from) {
		b.exchangeStage(t, k, to, from)
	}
}

// directAllGather has every member send its block to all.
func (b *builder) directAllGather(t team, block blocks) {
	own := block(t.me)
	b.exchange(t, func(int) Range { return own }, block)
}

// slots is working memory for one piece of every member.
type slots struct {
	Range
	size int
}

// slotsFor returns slots for pieces of up to most elements.
func (b *builder) slotsFor(t team, most int) slots {
	size := min(most, b.piece)
	return slots{b.scratch(t.n * size), size}
}

// of returns the slot of a member for a piece of length n.
func (s slots) of(i, n int) Range {
	lo := s.Lo + i*s.size
	return Range{lo, lo + n}
}

// fold adds the reduction of the team's pieces in slots, in the order of its
// members.
func (b *builder) fold(t team, s slots, to Range) Step {
	return Step{Range: to, From: s.Lo, Num: t.n, Stride: s.size, Whole: b.whole, Finish: b.finish}
}

// directReduceStage adds the k-th piece of a reduce-scatter: all members'
// pieces of this rank's elements come into slots and are reduced in the order
// of members, rounded once.
func (b *builder) directReduceStage(t team, k int, s slots, src blocks, acc Range) {
	own, to := src(t.me).piece(k, b.piece), acc.piece(k, b.piece)
	b.exchangeStage(t, k, src, func(i int) Range {
		r := s.of(i, to.Len())
		return Range{r.Lo - k*b.piece, r.Hi} // whose k-th piece is r
	})
	if to.Len() > 0 {
		b.copy(s.of(t.me, 0).Lo, own)
		b.step(b.fold(t, s, to))
	}
}

// directReduceScatter leaves member i the reduction of all members' src(i), in
// acc(i).
func (b *builder) directReduceScatter(t team, src, acc blocks) {
	if t.n == 1 {
		b.copy(acc(0).Lo, src(0))
		return
	}
	s := b.slotsFor(t, acc(t.me).Len())
	for k := range b.stages(t, src) {
		b.directReduceStage(t, k, s, src, acc(t.me))
	}
}

// directAllReduce is a direct reduce-scatter of r in shares and a direct
// all-gather, which follows one piece behind. It sends no more than a ring, in
// two steps, and sums in the order of members.
func (b *builder) directAllReduce(t team, r Range, align int) {
	if t.n == 1 {
		return
	}
	share := sharesOf(r, t.n, align)
	own := share(t.me)
	s := b.slotsFor(t, own.Len())
	stages := b.stages(t, share)
	for k := range stages + 1 {
		if k < stages {
			b.directReduceStage(t, k, s, share, own)
		}
		if k > 0 {
			b.exchangeStage(t, k-1, func(int) Range { return own }, share)
		}
	}
}

// exchangeAllReduce has every member send all of r to all, and reduce for
// itself in the order of members: one step.
func (b *builder) exchangeAllReduce(t team, r Range) {
	if t.n == 1 {
		return
	}
	all := slots{b.scratch(t.n * r.Len()), r.Len()}
	own := all.of(t.me, r.Len())
	b.copy(own.Lo, r) // and sent from there, so that r can be written
	b.exchange(t, func(int) Range { return own }, func(i int) Range { return all.of(i, r.Len()) })
	b.step(b.fold(t, all, r))
}

// directReduce has every member send its elements to the first in order of
// ranks, root being the place of the one who reduces them.
func (b *builder) directReduce(t team, root int, own, acc Range) {
	if t.me != root {
		b.send(t.at(root), own)
		return
	}
	s := b.slotsFor(t, own.Len())
	for k := range own.numPieces(b.piece) {
		p := own.piece(k, b.piece)
		for i := 1; i < t.n; i++ {
			from := mod(root+i, t.n)
			b.recvPiece(t.at(from), t.at(from), s.of(from, p.Len()))
		}
		b.copy(s.of(root, 0).Lo, p)
		b.step(b.fold(t, s, acc.piece(k, b.piece)))
	}
}

// directGather has every member but the root send its block to the root.
func (b *builder) directGather(t team, root int, own Range, block blocks) {
	if t.me != root {
		b.send(t.at(root), own)
		return
	}
	for i := 1; i < t.n; i++ {
		b.recv(t.at(root+i), block(mod(root+i, t.n)))
	}
}

// directScatter has the root send every other member its block.
func (b *builder) directScatter(t team, root int, own Range, block blocks) {
	if t.me != root {
		b.recv(t.at(root), own)
		return
	}
	for i := 1; i < t.n; i++ {
		b.send(t.at(root+i), block(mod(root+i, t.n)))
	}
}
