// SPDX-License-Identifier: Apache-2.0

package mpi

import (
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/operation"
)

// A few ranks exchange their data themselves, by messages of the MPI between each two of them:
// each rank sends every other rank its part, and reduces what it gets. That takes no longer
// than the collectives of the MPIs that were measured, and much less for large data. The
// collectives that do not block take up to several times as long as the others, and those
// that block need a goroutine that can be left behind, which costs some microseconds. The
// collectives of an MPI know its network, so more ranks use them.
const (
	maxExchanging = 4
	// exchangePiece is the bytes of a message of data that is reduced: two of them from each
	// rank stay in the cache.
	exchangePiece = 256 << 10
	// exchangeWhole is the bytes up to which each rank sends all it has to every other one: an
	// all-reduce takes one round then, not two.
	exchangeWhole = 4 << 10
)

// exchange is the memory of exchanges.
type exchange struct {
	lo, hi  []int    // where the part of each rank begins and ends
	sources [][]byte // the pieces of one reduction, in the order of ranks
	room    []byte
	roomFor int // of a piece
}

// exchanges reports whether the ranks do a call by an exchange. Every rank decides alike.
func (c *communicator) exchanges(call *operation.Call) bool {
	switch call.Op {
	case operation.AllReduce, operation.ReduceScatter:
		if call.Reduce.Kind() == operation.KindPremulSum {
			return false // each rank would prepare what it sends
		}
	case operation.AllGather:
	default:
		return false
	}
	return c.size <= maxExchanging && call.DType.Size()*max(call.Count, maxPart(call.Parts)) <= maxMessage
}

func maxPart(parts []int) int {
	most := 0
	for _, n := range parts {
		most = max(most, n)
	}
	return most
}

// moveExchanged moves the data of a call by an exchange.
func (c *communicator) moveExchanged(s *native.Stop, call *operation.Call, in, out []byte) error {
	size := call.DType.Size()
	if call.Op == operation.AllGather {
		c.divide(call, size)
		if own := out[c.parts.lo[c.rank]:c.parts.hi[c.rank]]; address(own) != address(in) {
			copy(own, in)
		}
		if err := c.postParts(out, false); err != nil {
			return err
		}
		if err := c.postParts(out, true); err != nil {
			return err
		}
		return c.await(s, whole, eager)
	}
	r, err := collective.ReductionFor(call.Reduce, call.DType, c.size)
	if err != nil {
		return err
	}
	c.divide(call, size)
	x := &c.parts
	switch {
	case call.Op == operation.ReduceScatter:
		if own := in[x.lo[c.rank]:x.hi[c.rank]]; overlaps(in, out) && address(own) != address(out) {
			in = append([]byte(nil), in...)
		}
		if err := c.reduceParts(s, &r, in, out, false); err != nil {
			return err
		}
		return c.awaitSent(s)
	case len(out) <= exchangeWhole:
		for p := range x.lo {
			x.lo[p], x.hi[p] = 0, len(out)
		}
		return c.reduceParts(s, &r, out, out, true)
	}
	if err := c.reduceParts(s, &r, out, out[x.lo[c.rank]:x.hi[c.rank]], false); err != nil {
		return err
	}
	if err := c.postParts(out, true); err != nil {
		return err
	}
	// What is received now goes to where the others may still read from.
	if err := c.awaitSent(s); err != nil {
		return err
	}
	if err := c.postParts(out, false); err != nil {
		return err
	}
	return c.await(s, whole, eager)
}

// divide divides the data of a call into the parts of the ranks.
func (c *communicator) divide(call *operation.Call, size int) {
	x := &c.parts
	x.lo, x.hi = x.lo[:0], x.hi[:0]
	at := 0
	for r := range c.size {
		n := call.Count
		switch {
		case call.Op == operation.AllReduce:
			n = call.Count*(r+1)/c.size - call.Count*r/c.size
		case call.Parts != nil:
			n = call.Parts[r]
		}
		x.lo, x.hi = append(x.lo, at), append(x.hi, at+n*size)
		at += n * size
	}
}

// piece returns a piece of data.
func piece(data []byte, i int) []byte {
	return data[min(i*exchangePiece, len(data)):min((i+1)*exchangePiece, len(data))]
}

// reduceParts sends each rank its part of in, and writes the reduction of this rank's parts to
// out, which may be this rank's part of in. sends says that out is also what others are sent. What
// it sends may not all have ended when it returns.
func (c *communicator) reduceParts(s *native.Stop, r *collective.Reduction, in, out []byte, sends bool) error {
	x := &c.parts
	most := 0
	for p := range c.size {
		most = max(most, x.hi[p]-x.lo[p])
	}
	num := (most + exchangePiece - 1) / exchangePiece
	x.makeRoom(c.size, min(most, exchangePiece))
	mine := in[x.lo[c.rank]:x.hi[c.rank]]
	for i := range min(2, num) {
		if err := c.postPieces(in, len(piece(mine, i)), i); err != nil {
			return err
		}
	}
	for i := range num {
		if err := c.await(s, received+batch(i%2), eager); err != nil {
			return err
		}
		if sends || i+2 < num {
			if err := c.await(s, sent+batch(i%2), eager); err != nil {
				return err
			}
		}
		if own := piece(mine, i); len(own) > 0 {
			for p := range c.size {
				x.sources[p] = x.roomOf(p, i)[:len(own)]
			}
			x.sources[c.rank] = own
			r.All(piece(out, i), x.sources)
		}
		if i+2 < num {
			if err := c.postPieces(in, len(piece(mine, i+2)), i+2); err != nil {
				return err
			}
		}
	}
	return nil
}

// postPieces begins to send each rank a piece of its part, and to receive numBytes from each.
func (c *communicator) postPieces(in []byte, numBytes, i int) error {
	x := &c.parts
	for d := 1; d < c.size; d++ {
		from, to := (c.rank+c.size-d)%c.size, (c.rank+d)%c.size
		if err := c.post(received+batch(i%2), "Irecv", c.lib.fn.irecv, x.roomOf(from, i)[:numBytes], from, exchangedPieces); err != nil {
			return err
		}
		if err := c.post(sent+batch(i%2), "Isend", c.lib.fn.isend, piece(in[x.lo[to]:x.hi[to]], i), to, exchangedPieces); err != nil {
			return err
		}
	}
	return nil
}

// awaitSent waits until others have all that they were sent.
func (c *communicator) awaitSent(s *native.Stop) error {
	for i := range 2 {
		if err := c.await(s, sent+batch(i), eager); err != nil {
			return err
		}
	}
	return nil
}

// postParts begins to send this rank's part of out to all others, or to receive theirs.
func (c *communicator) postParts(out []byte, sends bool) error {
	x := &c.parts
	for d := 1; d < c.size; d++ {
		from, to := (c.rank+c.size-d)%c.size, (c.rank+d)%c.size
		var err error
		if sends {
			err = c.post(whole, "Isend", c.lib.fn.isend, out[x.lo[c.rank]:x.hi[c.rank]], to, exchangedParts)
		} else {
			err = c.post(whole, "Irecv", c.lib.fn.irecv, out[x.lo[from]:x.hi[from]], from, exchangedParts)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// The tags of exchanges, apart from those of [native.Channel].
const (
	exchangedPieces = 100 + iota
	exchangedParts
)

// post begins a message of an exchange. Both sides leave out what is empty.
func (c *communicator) post(b batch, what string, fn uintptr, data []byte, peer, tag int) error {
	if len(data) == 0 {
		return nil
	}
	slot, at := c.requests.next()
	if err := c.lib.call(what, fn, address(data), uintptr(len(data)), c.lib.abi.bySize[1], uintptr(peer), uintptr(tag), c.comm, at); err != nil {
		return err
	}
	c.requests.taken(slot, b)
	return nil
}

// makeRoom makes room for two pieces of each rank.
func (x *exchange) makeRoom(numRanks, numBytes int) {
	const line = 64 // no two pieces share a line of a cache
	x.roomFor = (numBytes + line - 1) / line * line
	if need := 2 * numRanks * x.roomFor; len(x.room) < need {
		x.room = make([]byte, max(need, 1<<12))
	}
	if len(x.sources) < numRanks {
		x.sources = make([][]byte, numRanks)
	}
}

// roomOf returns the room for a piece of a rank.
func (x *exchange) roomOf(rank, i int) []byte {
	at := (2*rank + i%2) * x.roomFor
	return x.room[at : at+x.roomFor]
}
