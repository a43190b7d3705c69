// SPDX-License-Identifier: Apache-2.0

package collective

import "fmt"

const (
	// PieceBytes is the most that a send of a plan may carry: a piece is
	// reduced, or sent on, while the next one comes.
	PieceBytes = 256 << 10
	// gatherLimit is up to where an all-reduce gathers everybody's data, in
	// bytes of all ranks together, and reduces for itself, which takes half
	// as many steps.
	gatherLimit = 8 << 10
	// shareAlign keeps shares from meeting in one cache line, in bytes.
	shareAlign = 64
)

// PlanFor returns a rank's part in a collective of numRanks ranks. It is where
// an algorithm is chosen; backends run whatever it returns, unless they know a
// quicker way to serve an operation.
func PlanFor(c *Call, rank int, t Topology, _ Options) (Plan, error) {
	n := t.NumRanks()
	if c.Empty() {
		return RingBarrier(n, rank), nil
	}
	if !c.DType.Valid() {
		return Plan{}, fmt.Errorf("dist: %v: no such element type", c)
	}
	size := c.DType.Size()
	piece := PieceBytes / size
	switch c.Op {
	case OpAllReduce:
		if n > 1 && c.Count <= gatherLimit/n/size {
			return GatherAllReduce(n, rank, c.Count, piece), nil
		}
		return RingAllReduce(n, rank, c.Count, max(1, shareAlign/size), piece), nil
	case OpReduceScatter:
		return RingReduceScatter(n, rank, c.Count, c.Parts, piece), nil
	case OpAllGather:
		return RingAllGather(n, rank, c.Count, c.Parts, piece), nil
	case OpBroadcast:
		return RingBroadcast(n, rank, c.Root, c.Count, piece), nil
	case OpReduce:
		return DirectReduce(n, rank, c.Root, c.Count, piece), nil
	case OpGather:
		return DirectGather(n, rank, c.Root, c.Count, c.Parts, piece), nil
	case OpScatter:
		return DirectScatter(n, rank, c.Root, c.Count, c.Parts, piece), nil
	case OpAllToAll:
		return DirectAllToAll(n, rank, c.Count, c.Parts, c.Recvs, piece), nil
	}
	return Plan{}, fmt.Errorf("dist: no collective %v", c.Op)
}

// Plan is one rank's part in a collective. Sends happen in order, receives
// happen in order, and the two at the same time but for what After says. A
// send may wait until its receiver comes to it.
//
// The steps work on the output itself or, if Work is not 0, in working memory.
type Plan struct {
	// Why says in a few words which algorithm this is and why it was chosen.
	Why string
	// OffRing says that some rank, not necessarily this one, sends to another
	// than the next one on the ring of ranks. Then a backend whose ranks find
	// mismatched calls by what comes round the ring sends something round it
	// first; and connections may have to be opened.
	OffRing bool
	Work    int    // elements of working memory
	Load    []Copy // before the steps: from the input to where they work
	Sends   []Send
	Recvs   []Recv
	Store   []Copy // after the steps: from working memory to the output
}

// Copy is a run of elements to copy on this rank, or to reduce.
type Copy struct {
	To     int   // index of the first element in the destination
	From   Range // in the source
	Reduce bool  // into what is there, instead of over it
}

// Send is a run of elements to send.
type Send struct {
	Range
	To    int // rank
	After int // how many receives must have been completed
}

// Recv is a run of elements to receive.
type Recv struct {
	Range
	From   int  // rank
	Reduce bool // into what is there, instead of over it
	// Culprit is the rank whose silence it is when this receive waits in vain
	// while the ranks between have done their part.
	Culprit int
}

// Check returns an error if no backend could run a rank's plan.
func (p *Plan) Check(rank, numRanks, size int) error {
	next, prev := mod(rank+1, numRanks), mod(rank-1, numRanks)
	check := func(what string, i int, r Range, peer, neighbour int) error {
		switch {
		case r.Len()*size > PieceBytes:
			return fmt.Errorf("%s %d has %d bytes, want at most %d", what, i, r.Len()*size, PieceBytes)
		case peer < 0 || peer >= numRanks || peer == rank:
			return fmt.Errorf("%s %d has rank %d as peer of rank %d of %d", what, i, peer, rank, numRanks)
		case peer != neighbour && !p.OffRing:
			return fmt.Errorf("%s %d has peer %d, which is off the ring", what, i, peer)
		}
		return nil
	}
	for i, s := range p.Sends {
		if err := check("send", i, s.Range, s.To, next); err != nil {
			return err
		}
	}
	for i, v := range p.Recvs {
		if err := check("receive", i, v.Range, v.From, prev); err != nil {
			return err
		}
	}
	return nil
}

// Start does what comes before the steps and returns the memory that they work
// on. work has Work elements of size bytes; it is not used if that is 0.
func (p *Plan) Start(in, out, work []byte, size int) []byte {
	data := out
	if p.Work > 0 {
		data = work
	}
	copies(data, in, p.Load, size, nil)
	return data
}

// Finish does what comes after the steps; data is what Start returned.
func (p *Plan) Finish(out, data []byte, size int, reduce Reducer) {
	copies(out, data, p.Store, size, reduce)
}

func copies(to, from []byte, cs []Copy, size int, reduce Reducer) {
	for _, c := range cs {
		src := from[c.From.Lo*size : c.From.Hi*size]
		dst := to[c.To*size:][:len(src)]
		if c.Reduce {
			reduce(dst, src)
		} else {
			copy(dst, src)
		}
	}
}

// Alone runs a collective of a group of one rank.
func Alone(c *Call, in, out Data) error {
	p, err := PlanFor(c, 0, OneNode(1), Options{})
	if err == nil && (len(p.Sends)+len(p.Recvs) > 0 || p.Work > 0) {
		err = fmt.Errorf("dist: %v: the plan for one rank has more than copies", c)
	}
	if err == nil {
		p.Start(in.Bytes(), out.Bytes(), nil, c.DType.Size())
	}
	return err
}

// Range is the elements [Lo, Hi).
type Range struct{ Lo, Hi int }

// Len returns the number of elements.
func (r Range) Len() int { return r.Hi - r.Lo }

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

// Pieces calls f for consecutive pieces of r of at most size elements.
func (r Range) Pieces(size int, f func(Range)) {
	for lo := r.Lo; lo < r.Hi; lo += size {
		f(Range{lo, min(lo+size, r.Hi)})
	}
}
