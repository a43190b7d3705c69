// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"fmt"
)

const (
	// PieceBytes is the most that a send of a plan may carry: a piece is
	// reduced, or sent on, while the next one comes.
	PieceBytes = 256 << 10
	// shareAlign keeps shares from meeting in one cache line, in bytes.
	shareAlign = 64
)

// Plan is one rank's part in a collective. Sends happen in their order, and receives and steps
// happen in theirs. The two run at the same time, except for what After says. A send may wait
// until its receiver comes to it. A plan may be run many times.
//
// Elements have one numbering: first those of the output, then those of the input where that is
// other memory, then those of working memory. No range crosses a border between the three, and the
// input is not written.
type Plan struct {
	// Algorithm is the name in the table of the package's documentation. Why says in a few
	// words why it was chosen.
	Algorithm, Why string

	NumOut, NumIn, Work int // elements of output, input and working memory

	Steps []Step // between receives, by After
	Sends []Send
	Recvs []Recv
}

// Send is a run of elements to send.
type Send struct {
	Range
	To    int // rank
	After int // how many receives, with the steps that follow them, must have been completed
}

// Recv is a run of elements to receive.
type Recv struct {
	Range
	From   int  // rank
	Reduce bool // into what is there, instead of over it
	Finish bool // what has been reduced is then complete, as for a [Step]
	// Culprit is the rank to blame when this receive waits in vain, although the ranks
	// between have done their part.
	Culprit int
}

// Step makes a run of elements from others on this rank. It copies one run, or reduces several in
// their order and rounds once.
type Step struct {
	Range      // what is written; it may be one of the sources
	From   int // the first element of the first source
	Num    int // of sources
	Stride int // from the first element of a source to that of the next
	After  int // how many receives must have been completed
	// Whole says that the sources are the contributions of all ranks. Finish says that the
	// reduction is complete, so that an average is divided now.
	Whole, Finish bool
}

// source returns the i-th source.
func (s *Step) source(i int) Range {
	lo := s.From + i*s.Stride
	return Range{lo, lo + s.Len()}
}

// Check returns an error if no backend could run a rank's plan for elements of
// size bytes.
func (p *Plan) Check(rank, numRanks, size int) error {
	peer := func(what string, i int, r Range, peer int) error {
		switch {
		case r.Len()*size > PieceBytes:
			return fmt.Errorf("%s %d has %d bytes, want at most %d", what, i, r.Len()*size, PieceBytes)
		case peer < 0 || peer >= numRanks || peer == rank:
			return fmt.Errorf("%s %d has rank %d as peer of rank %d of %d", what, i, peer, rank, numRanks)
		}
		return nil
	}
	for i, s := range p.Sends {
		if err := peer("send", i, s.Range, s.To); err != nil {
			return err
		}
		if p.region(s.Range) == nowhere || s.After > len(p.Recvs) {
			return fmt.Errorf("send %d of %v after %d of %d receives is not of this plan", i, s.Range, s.After, len(p.Recvs))
		}
	}
	for i, v := range p.Recvs {
		if err := peer("receive", i, v.Range, v.From); err != nil {
			return err
		}
		if r := p.region(v.Range); r == nowhere || r == input {
			return fmt.Errorf("receive %d cannot write %v", i, v.Range)
		}
	}
	for i, s := range p.Steps {
		if s.After > len(p.Recvs) {
			return fmt.Errorf("step %d after %d of %d receives is not of this plan", i, s.After, len(p.Recvs))
		}
		if r := p.region(s.Range); r == nowhere || r == input {
			return fmt.Errorf("step %d cannot write %v", i, s.Range)
		}
		for j := range s.Num {
			if p.region(s.source(j)) == nowhere {
				return fmt.Errorf("step %d cannot read %v", i, s.source(j))
			}
		}
	}
	return nil
}

// region is where a range lies.
type region uint8

const (
	nowhere region = iota
	output
	input
	working
)

func (p *Plan) region(r Range) region {
	in, work := p.NumOut, p.NumOut+p.NumIn
	switch {
	case r.Lo < 0 || r.Hi < r.Lo || r.Hi > work+p.Work:
		return nowhere
	case r.Lo == r.Hi || r.Hi <= in: // of no elements: anywhere
		return output
	case r.Lo >= in && r.Hi <= work:
		return input
	case r.Lo >= work:
		return working
	}
	return nowhere
}

// Range is the elements [Lo, Hi).
type Range struct{ Lo, Hi int }

// Len returns the number of elements.
func (r Range) Len() int { return r.Hi - r.Lo }

// plus returns a range that lies further on.
func (r Range) plus(n int) Range { return Range{r.Lo + n, r.Hi + n} }

// piece returns the k-th piece of r of at most size elements; empty if there
// is none.
func (r Range) piece(k, size int) Range {
	lo := min(r.Lo+k*size, r.Hi)
	return Range{lo, min(lo+size, r.Hi)}
}

// numPieces returns how many pieces of at most size elements r has.
func (r Range) numPieces(size int) int { return (r.Len() + size - 1) / size }

// Share cuts [0, count) into n consecutive shares whose borders are multiples
// of align (the last one takes the rest) and returns share i. Shares differ by
// at most align elements, but for the last; some may be empty.
func Share(count, n, align, i int) Range {
	units := count / align
	lo, hi := units*i/n*align, units*(i+1)/n*align
	if i == n-1 {
		hi = count
	}
	return Range{lo, hi}
}

// PlanMemory is the memory of a plan's elements.
type PlanMemory struct {
	out, in, work []byte
	inAt, workAt  int // the first bytes of input and working memory
	size          int
	sources       [][]byte // scratch
}

// Map returns the memory for a run of the plan with elements of size bytes.
// Where input and output are the same memory, the input is not used.
func (p *Plan) Map(m *PlanMemory, in, out, work []byte, size int) {
	m.out, m.in, m.work, m.size = out, in, work, size
	m.inAt, m.workAt = p.NumOut*size, (p.NumOut+p.NumIn)*size
}

// At returns the bytes of a range.
func (m *PlanMemory) At(r Range) []byte {
	lo, hi := r.Lo*m.size, r.Hi*m.size
	switch {
	case hi <= m.inAt:
		return m.out[lo:hi]
	case hi <= m.workAt:
		return m.in[lo-m.inAt : hi-m.inAt]
	}
	return m.work[lo-m.workAt : hi-m.workAt]
}

// Do does a step. reduce may be nil where a plan has only copies.
func (m *PlanMemory) Do(s *Step, reduce *Reduction) {
	to := m.At(s.Range)
	if s.Num == 1 {
		copy(to, m.At(s.source(0)))
		return
	}
	m.sources = m.sources[:0]
	for i := range s.Num {
		m.sources = append(m.sources, m.At(s.source(i)))
	}
	if s.Whole {
		reduce.All(to, m.sources)
		return
	}
	part := reduce.Partial()
	part.All(to, m.sources)
	if s.Finish {
		reduce.Finish(to)
	}
}

// Drop releases the memory.
func (m *PlanMemory) Drop() {
	m.out, m.in, m.work = nil, nil, nil
	clear(m.sources)
}
