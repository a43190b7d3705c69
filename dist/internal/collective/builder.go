// SPDX-License-Identifier: Apache-2.0

package collective

// builder makes one rank's plan. Algorithms add what their team does, one
// after the other; what a send must wait for follows from what it sends.
//
// Sends may wait for their receivers, so all ranks must come to what they
// exchange in one order: each algorithm goes through stages, and in a stage a
// rank's sends and receives meet those of its peers in the same stage.
type builder struct {
	Plan
	piece  int       // elements that a send may carry
	writes []written // by receives and steps, so far
	// whole says that a fold over the team is one over all ranks, finish that
	// what the team reduces completely is the result.
	whole, finish bool
}

// written is a range that is there after so many receives.
type written struct {
	Range
	after int
}

// team is the ranks that run an algorithm, or a part of one, in some order.
type team struct {
	ranks []int // nil: all ranks in their order
	n, me int
	first int // which of ranks is member 0
}

// at returns the rank with a number in the team, modulo its size.
func (t team) at(i int) int {
	i = mod(i+t.first, t.n)
	if t.ranks == nil {
		return i
	}
	return t.ranks[i]
}

// from returns the team that begins with a member.
func (t team) from(first int) team {
	t.first, t.me = mod(t.first+first, t.n), mod(t.me-first, t.n)
	return t
}

// mod returns i modulo n, not negative.
func mod(i, n int) int { return ((i % n) + n) % n }

// blocks gives the elements that belong to a member of a team.
type blocks func(i int) Range

// scratch returns new working memory.
func (b *builder) scratch(n int) Range {
	lo := b.NumOut + b.NumIn + b.Work
	b.Work += n
	return Range{lo, lo + n}
}

// out and in are the whole output and input.
func (b *builder) out() Range { return Range{0, b.NumOut} }
func (b *builder) in() Range  { return Range{b.NumOut, b.NumOut + b.NumIn} }

// ready returns how many receives must have been completed for r to be there.
// Receives are completed in order, so the last that wrote to it tells.
func (b *builder) ready(r Range) int {
	for i := len(b.writes) - 1; i >= 0; i-- {
		if w := b.writes[i]; w.Lo < r.Hi && r.Lo < w.Hi {
			return w.after
		}
	}
	return 0
}

func (b *builder) wrote(r Range, after int) {
	b.writes = append(b.writes, written{r, after})
}

// sendPiece adds the send of a run of elements that is one piece, or of none.
func (b *builder) sendPiece(to int, r Range) {
	if r.Len() > 0 {
		b.Sends = append(b.Sends, Send{Range: r, To: to, After: b.ready(r)})
	}
}

// recvPiece adds the receive of one piece, or of none.
func (b *builder) recvPiece(from, culprit int, r Range) {
	if r.Len() > 0 {
		b.Recvs = append(b.Recvs, Recv{Range: r, From: from, Culprit: culprit})
		b.wrote(r, len(b.Recvs))
	}
}

// send adds the sends of a run of elements, in pieces.
func (b *builder) send(to int, r Range) {
	for k := range r.numPieces(b.piece) {
		b.sendPiece(to, r.piece(k, b.piece))
	}
}

// recv adds the receives of a run of elements, in pieces.
func (b *builder) recv(from int, r Range) {
	for k := range r.numPieces(b.piece) {
		b.recvPiece(from, from, r.piece(k, b.piece))
	}
}

// reducePiece adds the receive of one piece that is reduced with own, into
// acc, which may be the same. last says that then all of the team have been
// reduced.
func (b *builder) reducePiece(from, culprit int, own, acc Range, last bool) {
	if acc.Len() == 0 {
		return
	}
	finish := last && b.finish
	b.recvPiece(from, culprit, acc)
	if own == acc {
		v := &b.Recvs[len(b.Recvs)-1]
		v.Reduce, v.Finish = true, finish
		return
	}
	b.step(Step{Range: acc, From: own.Lo, Num: 2, Stride: acc.Lo - own.Lo, Finish: finish})
}

// reduce adds the receives of a run of elements that is reduced with own, into acc.
func (b *builder) reduce(from int, own, acc Range, last bool) {
	for k := range acc.numPieces(b.piece) {
		b.reducePiece(from, from, own.piece(k, b.piece), acc.piece(k, b.piece), last)
	}
}

// step adds what happens after the receives so far.
func (b *builder) step(s Step) {
	if s.Len() > 0 {
		s.After = len(b.Recvs)
		b.Steps = append(b.Steps, s)
		b.wrote(s.Range, s.After)
	}
}

// copy adds a copy within this rank, after the receives so far.
func (b *builder) copy(to int, from Range) {
	if to != from.Lo {
		b.step(Step{Range: Range{to, to + from.Len()}, From: from.Lo, Num: 1})
	}
}

// signal tells a rank that this one, and all it has heard from, have come.
func (b *builder) signal(to int) {
	b.Sends = append(b.Sends, Send{To: to, After: len(b.Recvs)})
}

// await adds the receive of a signal.
func (b *builder) await(from int) {
	b.Recvs = append(b.Recvs, Recv{From: from, Culprit: from})
}
