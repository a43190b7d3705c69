// SPDX-License-Identifier: Apache-2.0

package collective

// ringReduceScatter leaves member i of a team the reduction of all members'
// elements src(i), in acc(i): n-1 rounds, in which a rank receives from the one
// before it, reduces with its own, and sends to the one after. In round t that
// is the block t+2 before its own. Every rank sends (n-1)/n of the elements, in
// pieces: a piece goes on while the next one comes.
//
// Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
// workstations (2009), §3.
func (b *builder) ringReduceScatter(t team, src, acc blocks) {
	if t.n == 1 {
		b.copy(acc(0).Lo, src(0))
		return
	}
	next, prev := t.at(t.me+1), t.at(t.me-1)
	b.send(next, src(mod(t.me-1, t.n)))
	for round := range t.n - 1 {
		i := mod(t.me-2-round, t.n)
		own, sum, last := src(i), acc(i), round == t.n-2
		for k := range sum.numPieces(b.piece) {
			p := sum.piece(k, b.piece)
			b.reducePiece(prev, t.at(t.me-1-round), own.piece(k, b.piece), p, last)
			if !last {
				b.sendPiece(next, p)
			}
		}
	}
}

// ringAllGather passes every member's block round the team, in n-1 rounds.
func (b *builder) ringAllGather(t team, block blocks) {
	if t.n == 1 {
		return
	}
	next, prev := t.at(t.me+1), t.at(t.me-1)
	b.send(next, block(t.me))
	for round := range t.n - 1 {
		r := block(mod(t.me-1-round, t.n))
		for k := range r.numPieces(b.piece) {
			p := r.piece(k, b.piece)
			b.recvPiece(prev, t.at(t.me-1-round), p)
			if round < t.n-2 {
				b.sendPiece(next, p)
			}
		}
	}
}

// ringAllReduce is a reduce-scatter of r in n shares, in place, and an
// all-gather of them: every rank sends 2(n-1)/n of the elements, the least that
// is possible.
func (b *builder) ringAllReduce(t team, r Range, align int) {
	share := sharesOf(r, t.n, align)
	b.ringReduceScatter(t, share, share)
	b.ringAllGather(t, share)
}

// sharesOf cuts a range into n shares.
func sharesOf(r Range, n, align int) blocks {
	return func(i int) Range { return Share(r.Len(), n, align, i).plus(r.Lo) }
}

// chainBroadcast passes the first member's elements from one to the next, in
// pieces. It takes hardly longer than to send them once, for any n, once there
// are many more pieces than members.
func (b *builder) chainBroadcast(t team, r Range) {
	for k := range r.numPieces(b.piece) {
		p := r.piece(k, b.piece)
		if t.me > 0 {
			b.recvPiece(t.at(t.me-1), t.at(t.me-1), p)
		}
		if t.me < t.n-1 {
			b.sendPiece(t.at(t.me+1), p)
		}
	}
}

// chainReduce passes sums from the last member to the first, in pieces: the
// broadcast backwards. Members but the first have their sums in acc, which for
// the last is never written.
func (b *builder) chainReduce(t team, own, acc Range) {
	if t.me == t.n-1 {
		acc = own
	}
	for k := range own.numPieces(b.piece) {
		p := acc.piece(k, b.piece)
		if t.me < t.n-1 {
			b.reducePiece(t.at(t.me+1), t.at(t.me+1), own.piece(k, b.piece), p, t.me == 0)
		}
		if t.me > 0 {
			b.sendPiece(t.at(t.me-1), p)
		}
	}
}
