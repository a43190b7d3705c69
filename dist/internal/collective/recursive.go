// SPDX-License-Identifier: Apache-2.0

package collective

import "math/bits"

// In a recursive exchange the members of a power of two pair up log n times,
// with the member whose number differs in one bit. Where n is no power of two,
// of the first 2(n-p) members the even ones hand their elements to the next one
// before, and get the result after (Rabenseifner, Optimization of collective
// reduction operations, 2004, §3).

// pairing is the part of a team that exchanges recursively.
type pairing struct {
	team
	p     int // the power of two
	extra int // members that stand aside
	v     int // this rank's number among the p, -1 if it stands aside
}

func pair(t team) pairing {
	p := 1 << (bits.Len(uint(t.n)) - 1)
	q := pairing{team: t, p: p, extra: t.n - p}
	switch {
	case t.me >= 2*q.extra:
		q.v = t.me - q.extra
	case t.me%2 == 1:
		q.v = t.me / 2
	default:
		q.v = -1
	}
	return q
}

// peer returns the rank with a number among the p.
func (q pairing) peer(v int) int {
	if v < q.extra {
		return q.at(2*v + 1)
	}
	return q.at(v + q.extra)
}

// doublingAllReduce exchanges all of r in every round: the fewest steps. Each
// round has memory of its own, since what it receives may come while what it
// sends has not gone.
func (b *builder) doublingAllReduce(t team, r Range) {
	if t.n == 1 {
		return
	}
	q := pair(t)
	if q.v < 0 {
		b.send(t.at(t.me+1), r)
		b.recv(t.at(t.me+1), r)
		return
	}
	sum := b.scratch(r.Len())
	if t.me < 2*q.extra {
		b.reduce(t.at(t.me-1), r, sum, false)
	} else {
		b.copy(sum.Lo, r)
	}
	for bit := 1; bit < q.p; bit *= 2 {
		peer, acc := q.peer(q.v^bit), r
		if 2*bit < q.p {
			acc = b.scratch(r.Len())
		}
		for k := range r.numPieces(b.piece) {
			b.sendPiece(peer, sum.piece(k, b.piece))
			b.reducePiece(peer, peer, sum.piece(k, b.piece), acc.piece(k, b.piece), 2*bit == q.p)
		}
		sum = acc
	}
	if t.me < 2*q.extra {
		b.send(t.at(t.me-1), sum)
	}
}

// halvingAllReduce is Rabenseifner's: a reduce-scatter by recursive halving, in
// which a rank sends the half that its partner goes on with, and an all-gather
// by recursive doubling. log n steps each, and the least data where n is a
// power of two. Thakur, Rabenseifner and Gropp 2005, §4.5.
func (b *builder) halvingAllReduce(t team, r Range, align int) {
	if t.n == 1 {
		return
	}
	q := pair(t)
	if q.v < 0 {
		b.send(t.at(t.me+1), r)
		b.recv(t.at(t.me+1), r)
		return
	}
	if t.me < 2*q.extra {
		b.reduce(t.at(t.me-1), r, r, false)
	}
	share := sharesOf(r, q.p, align)
	b.halve(q, share, share)
	for bit := 1; bit < q.p; bit *= 2 {
		peer, mine := q.peer(q.v^bit), q.v&^(bit-1)
		b.swap(peer, peer, sharesFrom(share, mine, mine+bit), sharesFrom(share, mine^bit, mine^bit+bit))
	}
	if t.me < 2*q.extra {
		b.send(t.at(t.me-1), r)
	}
}

// sharesFrom joins neighbouring shares.
func sharesFrom(share blocks, lo, hi int) Range { return Range{share(lo).Lo, share(hi - 1).Hi} }

// swap sends a run to one rank and receives one from another, which may be the
// same, piece by piece.
func (b *builder) swap(to, from int, out, in Range) {
	for k := range max(out.numPieces(b.piece), in.numPieces(b.piece)) {
		b.sendPiece(to, out.piece(k, b.piece))
		b.recvPiece(from, from, in.piece(k, b.piece))
	}
}

// halve leaves member v of a pairing the reduction of all members' elements
// src(v), in acc(v). Neighbouring blocks lie side by side in src, and in acc.
func (b *builder) halve(q pairing, src, acc blocks) {
	for bit := q.p / 2; bit > 0; bit /= 2 {
		mine := q.v &^ (bit - 1)
		to, own, sum := sharesFrom(src, mine^bit, mine^bit+bit), sharesFrom(src, mine, mine+bit), sharesFrom(acc, mine, mine+bit)
		peer := q.peer(q.v ^ bit)
		for k := range max(to.numPieces(b.piece), sum.numPieces(b.piece)) {
			b.sendPiece(peer, to.piece(k, b.piece))
			b.reducePiece(peer, peer, own.piece(k, b.piece), sum.piece(k, b.piece), bit == 1)
		}
		src = acc
	}
}

// halvingReduceScatter leaves member i of a team of a power of two the
// reduction of src(i). acc is working memory laid out like src.
func (b *builder) halvingReduceScatter(t team, src, acc blocks) {
	b.halve(pair(t), src, acc)
}

// bruckAllGather brings every member's block to all in log n steps of doubling
// size. sizes are those of the blocks. Member i's work begins with its own
// block, and ends with a rotation.
//
// Bruck, Ho, Kipnis, Upfal and Weathersby, Efficient algorithms for all-to-all
// communications in multiport message-passing systems (1997), §4.
func (b *builder) bruckAllGather(t team, own Range, block blocks) {
	if t.n == 1 {
		return
	}
	at := make([]int, t.n+1) // of the i-th block from the own one
	for i := range t.n {
		at[i+1] = at[i] + block(mod(t.me+i, t.n)).Len()
	}
	work := b.scratch(at[t.n])
	b.copy(work.Lo, own)
	span := func(lo, hi int) Range { return Range{work.Lo + at[lo], work.Lo + at[hi]} }
	for d := 1; d < t.n; d *= 2 {
		// What is sent is as long as what the receiver lacks, and its blocks
		// follow each other there as here.
		num := min(d, t.n-d)
		b.swap(t.at(t.me-d), t.at(t.me+d), span(0, num), span(d, d+num))
	}
	wrap := t.n - t.me // the block of member 0
	head, tail := span(wrap, t.n), span(0, wrap)
	b.copy(block(0).Lo, head)
	b.copy(block(t.me).Lo, tail)
}

// bruckAllToAll sends in round k, to the member 2^k after, all blocks that have
// that far to go: log n steps, and half of the data in each. to and from are the
// blocks in input and output, of one size. Bruck and others 1997, §3.
func (b *builder) bruckAllToAll(t team, to, from blocks) {
	size := to(0).Len()
	work := b.scratch(t.n * size) // block i has i members to go
	for i := range t.n {
		b.copy(work.Lo+i*size, to(mod(t.me+i, t.n)))
	}
	for d := 1; d < t.n; d *= 2 {
		num := 0
		runs := func(f func(lo, num int)) { // of the blocks that go
			for lo := d; lo < t.n; lo += 2 * d {
				f(lo, min(d, t.n-lo))
			}
		}
		runs(func(_, n int) { num += n })
		packed, came := b.scratch(num*size), b.scratch(num*size)
		at := packed.Lo
		runs(func(lo, n int) {
			b.copy(at, Range{work.Lo + lo*size, work.Lo + (lo+n)*size})
			at += n * size
		})
		b.swap(t.at(t.me+d), t.at(t.me-d), packed, came)
		at = came.Lo
		runs(func(lo, n int) {
			b.copy(work.Lo+lo*size, Range{at, at + n*size})
			at += n * size
		})
	}
	for i := range t.n { // what has come i members far
		r := from(mod(t.me-i, t.n))
		b.copy(r.Lo, Range{work.Lo + i*size, work.Lo + (i+1)*size})
	}
}
