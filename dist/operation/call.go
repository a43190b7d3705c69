// SPDX-License-Identifier: Apache-2.0

package operation

import (
	"fmt"
	"strings"
	"time"
)

// AnyRank as the root of a receive stands for whichever rank sends first.
const AnyRank = -1

// Call is one operation as one rank called it. [Call.Matches] compares what must agree
// between ranks.
type Call struct {
	Op     Op
	Reduce ReduceOp // the reduction, of operations that reduce
	DType  DType    // the type of the elements
	Root   int      // the root of a rooted operation; the peer of a send or a receive, or AnyRank; else 0
	// Count is how many elements this rank contributes, and in an all-to-all how many
	// it contributes to each rank. In a reduce-scatter and in a scatter it is how many
	// elements this rank gets.
	Count int
	// Parts is how many elements each rank contributes or gets, nil where that is Count
	// for all of them. In an all-gather Parts are the contributions and in a
	// reduce-scatter the results, which all ranks know alike. At the root of a gather
	// they are the contributions, at the root of a scatter the results, and in an
	// all-to-all what this rank sends to each rank.
	Parts []int
	// Recvs is what this rank gets from each rank in an all-to-all with Parts.
	Recvs []int
	// Layout is a number for what all ranks must know alike of the Parts, 0 where there
	// is nothing to know: see SetParts, SetExchange and SetEven.
	Layout uint64
	// Seq counts the collectives of a group, or the messages from one rank to another,
	// from 1.
	Seq uint64
	// Background says that other goroutines of this process compute while the call
	// runs: the call must not spin for long.
	Background bool
	// Begun is the time from which the group's time limit counts, the zero time before
	// the call has waited: see [Call.Start].
	Begun time.Time
}

// Start returns the time from which the group's time limit counts. All waits of a call
// share one limit, however many ranks the call waits for. The first wait sets Begun; a
// caller that makes one call of several sets it earlier. Where two goroutines run a
// call, Begun is set before the second one starts.
func (c *Call) Start() time.Time {
	if c.Begun.IsZero() {
		c.Begun = time.Now()
	}
	return c.Begun
}

// Matches reports whether two ranks' calls with one number fit together. Where two ranks
// may have different counts, the receiver compares its own with what arrives.
func (c *Call) Matches(o *Call) bool {
	return c.Op == o.Op && c.Reduce.Kind() == o.Reduce.Kind() && c.DType == o.DType && c.Root == o.Root &&
		c.Layout == o.Layout && c.Seq == o.Seq && (c.Count == o.Count || !c.CountsAgree())
}

// Wants returns how many elements this rank expects from another one. own is false where
// all ranks have the same count, which [Call.Matches] has compared.
func (c *Call) Wants(from int) (n int, own bool) {
	switch {
	case c.CountsAgree():
		return 0, false
	case c.Op == AllToAll:
		return c.Recvs[from], true
	case c.Op == Gather && c.Parts != nil:
		return c.Parts[from], true
	case c.Op == Gather, c.Op == Scatter:
		return c.Count, true
	}
	return 0, false
}

// HasFor returns how many elements this rank has for another one, where [Call.Wants] is
// the other side: the count that travels with the pieces.
func (c *Call) HasFor(to int) int {
	if c.Parts != nil && (c.Op == AllToAll || c.Op == Scatter) {
		return c.Parts[to]
	}
	return c.Count
}

// Empty reports whether there is nothing to move: the ranks only wait for each other.
func (c *Call) Empty() bool { return c.Op == Barrier || c.Count == 0 && c.CountsAgree() }

// CountsAgree reports whether all ranks of the call must have the same count.
func (c *Call) CountsAgree() bool {
	switch c.Op {
	case Gather, Scatter:
		return c.Layout == LayoutEven
	}
	return c.Layout == 0
}

// LayoutEven is the layout of a gather or a scatter whose parts have one size, as all
// ranks know.
const LayoutEven = 1

// SetEven says that the parts of a gather or a scatter have one size. Ranks then compare
// the size, and can pass blocks on for each other. Otherwise only the root knows the
// sizes, and all data goes straight to its receiver.
func (c *Call) SetEven() { c.Layout = LayoutEven }

// SetParts gives an all-gather or a reduce-scatter uneven parts, one for each rank. rank
// is this rank.
func (c *Call) SetParts(parts []int, rank int) {
	c.Parts, c.Count, c.Layout = parts, parts[rank], layoutOf(parts)
}

// SetExchange gives an all-to-all uneven parts: what this rank sends to each rank, and
// what it gets from each.
func (c *Call) SetExchange(sends, recvs []int) {
	c.Parts, c.Recvs, c.Layout = sends, recvs, 1
	c.Count = 0
	for _, n := range sends {
		c.Count += n
	}
}

// layoutOf returns a hash of the parts (FNV-1a over the numbers), never that of even
// parts.
func layoutOf(parts []int) uint64 {
	h := uint64(14695981039346656037)
	for _, p := range parts {
		for v := uint64(p); ; v >>= 7 {
			h = (h ^ v&0x7f ^ (v>>7)&0x80) * 1099511628211
			if v < 0x80 {
				break
			}
		}
		h = (h ^ 0xff) * 1099511628211
	}
	return max(h, LayoutEven+1)
}

// NeedsAll reports whether a call cannot end on a rank before another rank has made it,
// whatever way the data takes.
func (c *Call) NeedsAll(rank, other int) bool {
	switch c.Op {
	case Barrier:
		return true
	case AllReduce, AllGather, ReduceScatter, AllToAll:
		return c.Layout == 0 && c.Count > 0
	case Broadcast, Scatter:
		return c.Root == other && c.Count > 0
	case Reduce, Gather:
		return c.Root == rank && c.Count > 0
	case Send, Recv:
		return c.Root == other
	}
	return false
}

// String returns the call without its number: "all_reduce sum of 4 float32".
func (c Call) String() string {
	uneven := ""
	if c.Layout > LayoutEven || c.Op == AllToAll && c.Layout != 0 || c.Parts != nil {
		uneven = " (uneven" + partsText(c.Parts) + ")"
	}
	switch c.Op {
	case Barrier:
		return "barrier"
	case AllReduce:
		return fmt.Sprintf("all_reduce %v of %d %v", c.Reduce, c.Count, c.DType)
	case ReduceScatter:
		return fmt.Sprintf("reduce_scatter %v of %d %v%s", c.Reduce, c.Count, c.DType, uneven)
	case Reduce:
		return fmt.Sprintf("reduce %v to rank %d of %d %v", c.Reduce, c.Root, c.Count, c.DType)
	case Gather:
		return fmt.Sprintf("gather to rank %d of %d %v%s", c.Root, c.Count, c.DType, uneven)
	case Scatter:
		return fmt.Sprintf("scatter from rank %d of %d %v%s", c.Root, c.Count, c.DType, uneven)
	case Broadcast:
		return fmt.Sprintf("broadcast from rank %d of %d %v", c.Root, c.Count, c.DType)
	case Send:
		return fmt.Sprintf("send of %d %v to rank %d", c.Count, c.DType, c.Root)
	case Recv:
		if c.Root == AnyRank {
			return fmt.Sprintf("recv of %d %v from any rank", c.Count, c.DType)
		}
		return fmt.Sprintf("recv of %d %v from rank %d", c.Count, c.DType, c.Root)
	}
	return fmt.Sprintf("%v of %d %v%s", c.Op, c.Count, c.DType, uneven)
}

// partsText returns the numbers of elements of uneven parts, "" if there are many.
func partsText(parts []int) string {
	const most = 16
	if len(parts) == 0 || len(parts) > most {
		return ""
	}
	return ": " + strings.ReplaceAll(strings.Trim(fmt.Sprint(parts), "[]"), " ", ", ")
}
