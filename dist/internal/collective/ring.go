// SPDX-License-Identifier: Apache-2.0

package collective

// mod returns i modulo n, not negative.
func mod(i, n int) int { return ((i % n) + n) % n }

// rounds adds successive rounds on a ring to a plan, in which a rank receives
// from the one before it and sends to the one after: in each round, the
// elements that it received in the round before. blocks gives the elements
// that round t receives; first those that round 0 sends. Elements travel in
// pieces, so that a piece goes on while the next one comes.
func (p *Plan) rounds(n, rank, numRounds, piece int, first Range, blocks func(t int) (r Range, reduce bool)) {
	if numRounds == 0 {
		return
	}
	next, prev := mod(rank+1, n), mod(rank-1, n)
	first.Pieces(piece, func(r Range) { p.Sends = append(p.Sends, Send{Range: r, To: next}) })
	for t := range numRounds {
		block, reduce := blocks(t)
		block.Pieces(piece, func(r Range) {
			p.Recvs = append(p.Recvs, Recv{Range: r, From: prev, Reduce: reduce, Culprit: mod(rank-1-t, n)})
			if t+1 < numRounds {
				p.Sends = append(p.Sends, Send{Range: r, To: next, After: len(p.Recvs)})
			}
		})
	}
}

// RingAllReduce is the bandwidth-optimal all-reduce: the elements are cut into
// n shares (at multiples of align); each share goes once round the ring
// gathering sums, beginning with the rank after its own number and ending at
// that rank, and then once round again as it is. Every rank sends and
// receives 2(n-1)/n of the elements, in pieces of at most piece elements.
// Input and output are the same memory.
// (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
// workstations, 2009.)
func RingAllReduce(n, rank, count, align, piece int) Plan {
	var p Plan
	share := func(i int) Range { return Share(count, n, align, mod(i, n)) }
	p.rounds(n, rank, 2*(n-1), piece, share(rank-1), func(t int) (Range, bool) {
		return share(rank - 2 - t), t < n-1
	})
	return p
}

// GatherAllReduce has every rank gather the elements of all and reduce them in
// the order of ranks: half the steps of [RingAllReduce] and n/2 times the data.
func GatherAllReduce(n, rank, count, piece int) Plan {
	p := Plan{Work: n * count}
	p.gather(n, rank, count, nil, piece)
	for r := range n {
		p.Store = append(p.Store, Copy{From: block(r, count), Reduce: r > 0})
	}
	return p
}

// RingReduceScatter leaves rank r the reduction of all ranks' elements of its
// part (count each, or parts[r]), which lie in rank order: the first half of
// [RingAllReduce], in working memory as large as the input, which stays as it
// is.
func RingReduceScatter(n, rank, count int, parts []int, piece int) Plan {
	of := func(i int) Range { return part(parts, mod(i, n), count) }
	all := Range{0, of(n - 1).Hi}
	if n == 1 {
		return Plan{Load: []Copy{{From: all}}}
	}
	p := Plan{Work: all.Len(), Load: []Copy{{From: all}}, Store: []Copy{{From: of(rank)}}}
	p.rounds(n, rank, n-1, piece, of(rank-1), func(t int) (Range, bool) { return of(rank - 2 - t), true })
	return p
}

// RingAllGather brings every rank's elements to all, in rank order: count of
// each, or parts[r] of rank r.
func RingAllGather(n, rank, count int, parts []int, piece int) Plan {
	var p Plan
	p.gather(n, rank, count, parts, piece)
	return p
}

// gather adds the rounds of an all-gather to a plan.
func (p *Plan) gather(n, rank, count int, parts []int, piece int) {
	own := part(parts, rank, count)
	p.Load = append(p.Load, Copy{To: own.Lo, From: Range{0, own.Len()}})
	p.rounds(n, rank, n-1, piece, own, func(t int) (Range, bool) {
		return part(parts, mod(rank-1-t, n), count), false
	})
}

// block returns the elements of the i-th of several runs of count.
func block(i, count int) Range { return Range{i * count, (i + 1) * count} }

// RingBroadcast passes the root's elements along the ring up to the rank
// before the root. Input and output are the same memory.
func RingBroadcast(n, rank, root, count, piece int) Plan {
	var p Plan
	next, prev := mod(rank+1, n), mod(rank-1, n)
	Range{0, count}.Pieces(piece, func(r Range) {
		if rank != root {
			p.Recvs = append(p.Recvs, Recv{Range: r, From: prev, Culprit: prev})
		}
		if next != root {
			p.Sends = append(p.Sends, Send{Range: r, To: next, After: len(p.Recvs)})
		}
	})
	return p
}

// RingBarrier tells every rank that all have come: n-1 rounds of empty
// messages. Round t's comes when the t+1 ranks before this one have.
func RingBarrier(n, rank int) Plan {
	var p Plan
	next, prev := mod(rank+1, n), mod(rank-1, n)
	for t := range n - 1 {
		p.Sends = append(p.Sends, Send{To: next, After: t})
		p.Recvs = append(p.Recvs, Recv{From: prev, Culprit: mod(rank-1-t, n)})
	}
	return p
}
