// SPDX-License-Identifier: Apache-2.0

package collective

// The plans here send every element straight to where it is wanted.

// part returns the elements of rank i in data that holds something for every
// rank: parts[i] of them, or count where there are no parts.
func part(parts []int, i, count int) Range {
	if parts == nil {
		return block(i, count)
	}
	lo := 0
	for _, p := range parts[:i] {
		lo += p
	}
	return Range{lo, lo + parts[i]}
}

// sendTo adds the sends of a run of elements to a rank, in pieces.
func (p *Plan) sendTo(to int, r Range, piece int) {
	r.Pieces(piece, func(r Range) { p.Sends = append(p.Sends, Send{Range: r, To: to}) })
}

// recvFrom adds the receives of a run of elements from a rank.
func (p *Plan) recvFrom(from int, r Range, piece int, reduce bool) {
	r.Pieces(piece, func(r Range) {
		p.Recvs = append(p.Recvs, Recv{Range: r, From: from, Reduce: reduce, Culprit: from})
	})
}

// DirectReduce has every rank send its elements to the root, which reduces
// them as they come.
func DirectReduce(n, rank, root, count, piece int) Plan {
	p := Plan{OffRing: true}
	all := Range{0, count}
	if rank != root {
		p.Work, p.Load = count, []Copy{{From: all}}
		p.sendTo(root, all, piece)
		return p
	}
	for i := 1; i < n; i++ {
		p.recvFrom(mod(root+i, n), all, piece, true)
	}
	return p
}

// DirectGather has every rank send its elements to the root.
func DirectGather(n, rank, root, count int, parts []int, piece int) Plan {
	p := Plan{OffRing: true}
	if rank != root {
		p.Work, p.Load = count, []Copy{{From: Range{0, count}}}
		p.sendTo(root, Range{0, count}, piece)
		return p
	}
	own := part(parts, rank, count)
	p.Load = []Copy{{To: own.Lo, From: Range{0, own.Len()}}}
	for i := 1; i < n; i++ {
		from := mod(root+i, n)
		p.recvFrom(from, part(parts, from, count), piece, false)
	}
	return p
}

// DirectScatter has the root send every rank its elements.
func DirectScatter(n, rank, root, count int, parts []int, piece int) Plan {
	all := Range{0, part(parts, n-1, count).Hi}
	if n == 1 {
		return Plan{Load: []Copy{{From: all}}}
	}
	p := Plan{OffRing: true}
	if rank != root {
		p.recvFrom(root, Range{0, count}, piece, false)
		return p
	}
	p.Work, p.Load, p.Store = all.Len(), []Copy{{From: all}}, []Copy{{From: part(parts, rank, count)}}
	for i := 1; i < n; i++ {
		to := mod(root+i, n)
		p.sendTo(to, part(parts, to, count), piece)
	}
	return p
}

// DirectAllToAll has every rank send every other one its elements, beginning
// with the next, so that not all send to one.
func DirectAllToAll(n, rank, count int, sends, recvs []int, piece int) Plan {
	out, in := part(sends, n-1, count).Hi, part(recvs, n-1, count).Hi
	if n == 1 {
		return Plan{Load: []Copy{{From: Range{0, out}}}}
	}
	p := Plan{OffRing: true, Work: out + in, Load: []Copy{{From: Range{0, out}}}}
	own := part(recvs, rank, count)
	p.Store = []Copy{
		{From: Range{out, out + own.Lo}},
		{To: own.Lo, From: part(sends, rank, count)},
		{To: own.Hi, From: Range{out + own.Hi, out + in}},
	}
	for i := 1; i < n; i++ {
		to, from := mod(rank+i, n), mod(rank-i, n)
		p.sendTo(to, part(sends, to, count), piece)
		r := part(recvs, from, count)
		p.recvFrom(from, Range{out + r.Lo, out + r.Hi}, piece, false)
	}
	return p
}
