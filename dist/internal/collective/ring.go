// SPDX-License-Identifier: Apache-2.0

package collective

// Plan is one rank's part in a collective over a ring, in which it receives
// from the rank before it and sends to the one after. Sends happen in order,
// receives happen in order, and the two at the same time but for what After says.
type Plan struct {
	Sends []Send
	Recvs []Recv
}

// Send is a run of elements to send on.
type Send struct {
	Range
	After int // how many receives must have been completed
}

// Recv is a run of elements to receive.
type Recv struct {
	Range
	Reduce bool // into what is there, instead of over it
	// From is the rank whose silence it is when this receive waits in vain
	// while the ranks between have done their part.
	From int
}

// mod returns i modulo n, not negative.
func mod(i, n int) int { return ((i % n) + n) % n }

// rounds makes a plan of successive rounds: in each, a rank sends the
// elements that it received in the round before. blocks gives the elements
// that round t receives; first those that round 0 sends. Elements travel in
// pieces, so that a piece goes on while the next one comes.
func rounds(n, rank, numRounds, piece int, first Range, blocks func(t int) (r Range, reduce bool)) Plan {
	var p Plan
	if numRounds == 0 {
		return p
	}
	first.Pieces(piece, func(r Range) { p.Sends = append(p.Sends, Send{Range: r}) })
	for t := range numRounds {
		block, reduce := blocks(t)
		block.Pieces(piece, func(r Range) {
			p.Recvs = append(p.Recvs, Recv{r, reduce, mod(rank-1-t, n)})
			if t+1 < numRounds {
				p.Sends = append(p.Sends, Send{r, len(p.Recvs)})
			}
		})
	}
	return p
}

// RingAllReduce is the bandwidth-optimal all-reduce: the elements are cut into
// n shares (at multiples of align); each share goes once round the ring
// gathering sums, beginning with the rank after its own number and ending at
// that rank, and then once round again as it is. Every rank sends and
// receives 2(n-1)/n of the elements, in pieces of at most piece elements.
// (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
// workstations, 2009.)
func RingAllReduce(n, rank, count, align, piece int) Plan {
	share := func(i int) Range { return Share(count, n, align, mod(i, n)) }
	return rounds(n, rank, 2*(n-1), piece, share(rank-1), func(t int) (Range, bool) {
		return share(rank - 2 - t), t < n-1
	})
}

// RingAllGather brings every rank's block of count elements to all: element i
// of rank r is element r*count+i of the result, in which the own block stands
// already.
func RingAllGather(n, rank, count, piece int) Plan {
	block := func(i int) Range { i = mod(i, n); return Range{i * count, (i + 1) * count} }
	return rounds(n, rank, n-1, piece, block(rank), func(t int) (Range, bool) {
		return block(rank - 1 - t), false
	})
}

// RingBroadcast passes the root's elements along the ring up to the rank
// before the root.
func RingBroadcast(n, rank, root, count, piece int) Plan {
	var p Plan
	Range{0, count}.Pieces(piece, func(r Range) {
		if rank != root {
			p.Recvs = append(p.Recvs, Recv{r, false, mod(rank-1, n)})
		}
		if mod(rank+1, n) != root {
			p.Sends = append(p.Sends, Send{r, len(p.Recvs)})
		}
	})
	return p
}

// RingBarrier tells every rank that all have come: n-1 rounds of empty
// messages. Round t's comes when the t+1 ranks before this one have.
func RingBarrier(n, rank int) Plan {
	p := Plan{Sends: []Send{{}}}
	for t := range n - 1 {
		p.Recvs = append(p.Recvs, Recv{From: mod(rank-1-t, n)})
		if t+1 < n-1 {
			p.Sends = append(p.Sends, Send{After: t + 1})
		}
	}
	return p
}
