// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/internal/mem"
)

// Op is what a call does.
type Op uint8

// The operations. Their numbers travel between ranks: add at the end only.
const (
	OpBarrier Op = iota + 1
	OpAllReduce
	OpBroadcast
	OpAllGather
	OpSend
	OpRecv
	OpReduceScatter
	OpReduce
	OpGather
	OpScatter
	OpAllToAll
)

var opNames = [...]string{OpBarrier: "barrier", OpAllReduce: "all_reduce", OpBroadcast: "broadcast",
	OpAllGather: "all_gather", OpSend: "send", OpRecv: "recv", OpReduceScatter: "reduce_scatter",
	OpReduce: "reduce", OpGather: "gather", OpScatter: "scatter", OpAllToAll: "all_to_all"}

// Reduces reports whether an operation makes one element of the ranks' elements.
func (o Op) Reduces() bool { return o == OpAllReduce || o == OpReduceScatter || o == OpReduce }

// Rooted reports whether one rank of the group is not like the others.
func (o Op) Rooted() bool {
	return o == OpBroadcast || o == OpReduce || o == OpGather || o == OpScatter
}

// message reports whether an operation is one of two ranks.
func (o Op) message() bool { return o == OpSend || o == OpRecv }

func (o Op) String() string {
	if o >= OpBarrier && int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// DType is the type of an element, as it travels between ranks.
type DType uint8

// The element types. Their numbers travel between ranks: add at the end only.
// All can be moved; how they are reduced, [Reduction] says.
const (
	Float32 DType = iota + 1
	Int64
	BFloat16
	Float16
	Float64
	Int32
	Int8
	Uint8
	Bool
	numDTypes
)

var dtypes = [numDTypes]struct {
	name string
	size int
}{
	Float32: {"float32", 4}, Int64: {"int64", 8}, BFloat16: {"bfloat16", 2}, Float16: {"float16", 2}, Float64: {"float64", 8},
	Int32: {"int32", 4}, Int8: {"int8", 1}, Uint8: {"uint8", 1}, Bool: {"bool", 1},
}

func (d DType) String() string {
	if d.Valid() {
		return dtypes[d].name
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// Size returns the bytes of an element, 0 for an unknown type.
func (d DType) Size() int {
	if d.Valid() {
		return dtypes[d].size
	}
	return 0
}

// Valid reports whether d is one of the element types.
func (d DType) Valid() bool { return d >= Float32 && int(d) < len(dtypes) }

// Data is what a call reads or writes: elements without gaps in a borrowed
// buffer. The zero value is no data at all.
type Data struct {
	Buffer   mem.Buffer
	DType    DType
	NumElems int
}

// Bytes returns exactly the bytes of the elements.
func (d Data) Bytes() []byte { return d.Buffer.Data[:d.NumElems*d.DType.Size()] }

// Check returns an error if the elements do not fit their buffer.
func (d Data) Check() error {
	if !d.DType.Valid() {
		return fmt.Errorf("element type %v cannot be communicated", d.DType)
	}
	if d.NumElems < 0 || d.NumElems > len(d.Buffer.Data)/d.DType.Size() {
		return fmt.Errorf("%d elements of %v need %d bytes, the buffer has %d",
			d.NumElems, d.DType, d.NumElems*d.DType.Size(), len(d.Buffer.Data))
	}
	return nil
}

// AnyRank as the root of a receive stands for whichever rank sends first.
const AnyRank = -1

// Call is one operation as a rank asked for it. What must agree between ranks
// is compared through [Call.Matches].
type Call struct {
	Op     Op
	Reduce ReduceOp // of the operations that reduce
	DType  DType
	Root   int // of the rooted operations; send and recv: the peer, or AnyRank; else 0
	// Count is how many elements this rank contributes, to every rank if that
	// is more than one (all_to_all); for a reduce-scatter and a scatter, how
	// many it gets.
	Count int
	// Parts is how many elements each rank contributes or gets where that is
	// not Count for all of them, nil where it is: in an all-gather the
	// contributions and in a reduce-scatter the results, which all ranks know
	// alike; at the root of a gather the contributions and of a scatter the
	// results; in an all-to-all what this rank sends to each.
	Parts []int
	// Recvs is what this rank gets from each in an all-to-all with Parts.
	Recvs []int
	// Layout stands for what all ranks must know alike of the Parts, 0 for
	// nothing: see SetParts, SetExchange and SetEven.
	Layout uint64
	// Seq counts the collectives of a group, or the messages of one ordered
	// pair of ranks, from 1.
	Seq uint64
	// Background says that other goroutines of this process compute while the
	// call runs: it must not spin for long.
	Background bool
	// Begun is from when on the group's time limit counts, the zero time as long as
	// the call has not waited: see [Call.Start].
	Begun time.Time
}

// Start returns from when on the group's time limit counts: one limit for all
// waits of a call, however many ranks it waits for. The first wait begins it, or
// who makes one call of several, by setting Begun. Where two goroutines run a call,
// it has been begun before there are two.
func (c *Call) Start() time.Time {
	if c.Begun.IsZero() {
		c.Begun = time.Now()
	}
	return c.Begun
}

// Matches reports whether two ranks' calls of one sequence number fit
// together. Where a rank's count is its own affair, its receiver compares it
// with what comes.
func (c *Call) Matches(o *Call) bool {
	return c.Op == o.Op && c.Reduce.Kind() == o.Reduce.Kind() && c.DType == o.DType && c.Root == o.Root &&
		c.Layout == o.Layout && c.Seq == o.Seq && (c.Count == o.Count || !c.countsAgree())
}

// Wants returns how many elements this rank expects from another one that is
// to have something for it, where that is the two ranks' own affair.
func (c *Call) Wants(from int) (n int, own bool) {
	switch {
	case c.countsAgree():
		return 0, false
	case c.Op == OpAllToAll:
		return c.Recvs[from], true
	case c.Op == OpGather && c.Parts != nil:
		return c.Parts[from], true
	case c.Op == OpGather, c.Op == OpScatter:
		return c.Count, true
	}
	return 0, false
}

// HasFor returns how many elements this rank has for another one, in a call
// that [Call.Wants] is about: what pieces for it say as their count.
func (c *Call) HasFor(to int) int {
	if c.Parts != nil && (c.Op == OpAllToAll || c.Op == OpScatter) {
		return c.Parts[to]
	}
	return c.Count
}

// Empty reports whether nothing is to be moved: all ranks need only to come.
func (c *Call) Empty() bool { return c.Op == OpBarrier || c.Count == 0 && c.countsAgree() }

// countsAgree reports whether all ranks of the call have the same count.
func (c *Call) countsAgree() bool {
	switch c.Op {
	case OpGather, OpScatter:
		return c.Layout == layoutEven
	}
	return c.Layout == 0
}

// layoutEven is the layout of a gather or a scatter whose parts all ranks know
// to be of one size.
const layoutEven = 1

// SetEven says of a gather or a scatter that its parts are of one size, which
// ranks then compare. Knowing it, they can pass blocks on for each other;
// otherwise only the root knows, and all data goes straight to its receiver.
func (c *Call) SetEven() { c.Layout = layoutEven }

// SetParts makes an all-gather's or a reduce-scatter's call one of uneven
// parts, of which this rank's is the rank-th.
func (c *Call) SetParts(parts []int, rank int) {
	c.Parts, c.Count, c.Layout = parts, parts[rank], layoutOf(parts)
}

// SetExchange makes an all-to-all's call one of uneven parts: what this rank
// sends to each rank, and gets from each.
func (c *Call) SetExchange(sends, recvs []int) {
	c.Parts, c.Recvs, c.Layout = sends, recvs, 1
	c.Count = 0
	for _, n := range sends {
		c.Count += n
	}
}

// layoutOf is a number that differs, all but surely, where the parts do, and is
// not that of even parts: FNV-1a over the numbers.
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
	return max(h, layoutEven+1)
}

// String is the call without its number: "all_reduce sum of 4 float32".
func (c Call) String() string {
	uneven := ""
	if c.Layout > layoutEven || c.Op == OpAllToAll && c.Layout != 0 || c.Parts != nil {
		uneven = " (uneven" + partsText(c.Parts) + ")"
	}
	switch c.Op {
	case OpBarrier:
		return "barrier"
	case OpAllReduce:
		return fmt.Sprintf("all_reduce %v of %d %v", c.Reduce, c.Count, c.DType)
	case OpReduceScatter:
		return fmt.Sprintf("reduce_scatter %v of %d %v%s", c.Reduce, c.Count, c.DType, uneven)
	case OpReduce:
		return fmt.Sprintf("reduce %v to rank %d of %d %v", c.Reduce, c.Root, c.Count, c.DType)
	case OpGather:
		return fmt.Sprintf("gather to rank %d of %d %v%s", c.Root, c.Count, c.DType, uneven)
	case OpScatter:
		return fmt.Sprintf("scatter from rank %d of %d %v%s", c.Root, c.Count, c.DType, uneven)
	case OpBroadcast:
		return fmt.Sprintf("broadcast from rank %d of %d %v", c.Root, c.Count, c.DType)
	case OpSend:
		return fmt.Sprintf("send of %d %v to rank %d", c.Count, c.DType, c.Root)
	case OpRecv:
		if c.Root == AnyRank {
			return fmt.Sprintf("recv of %d %v from any rank", c.Count, c.DType)
		}
		return fmt.Sprintf("recv of %d %v from rank %d", c.Count, c.DType, c.Root)
	}
	return fmt.Sprintf("%v of %d %v%s", c.Op, c.Count, c.DType, uneven)
}

// partsText is the numbers of elements of uneven parts, unless they are many.
func partsText(parts []int) string {
	const most = 16
	if len(parts) == 0 || len(parts) > most {
		return ""
	}
	return ": " + strings.ReplaceAll(strings.Trim(fmt.Sprint(parts), "[]"), " ", ", ")
}

// Backend moves the data of one rank's calls.
//
// Collective is called by one goroutine at a time, in the order of sequence
// numbers; Send by one goroutine at a time for each peer, and likewise Recv;
// all three may run at once. An error from any of them is final: the backend
// has told the other ranks, and every later call fails at once.
type Backend interface {
	// Collective runs anything but a send or a receive. What in and out hold:
	//
	//	all_reduce, broadcast  in and out are the same data
	//	reduce                 in; out is in at the root, no data elsewhere
	//	all_gather             out: everybody's in, in rank order
	//	gather                 likewise at the root; no data elsewhere
	//	reduce_scatter         in: what becomes everybody's out, in rank order
	//	scatter                likewise at the root; no data elsewhere
	//	all_to_all             in: what goes to each rank, out: what comes from each
	//
	// in stays as it is where it is not out.
	Collective(ctx context.Context, c Call, in, out Data) error
	// Send returns when data may be changed again.
	Send(ctx context.Context, c Call, data Data) error
	// Recv returns when data has been written. c.Root is not AnyRank.
	Recv(ctx context.Context, c Call, data Data) error
	// AwaitAny returns a rank from which a message has begun to come that no
	// Recv has taken. It is never called while a Recv, or another AwaitAny,
	// runs. c is the receive that waits, for errors.
	AwaitAny(ctx context.Context, c Call) (src int, err error)
	// Trouble returns why a call that needs all ranks cannot end well, as the
	// error of c: that the group has failed, or that a rank has left it; nil if
	// it can. It is for waits that do not go through the backend.
	Trouble(c Call) error
	// Fail makes pending and later calls of every rank fail with err; other
	// ranks see it as a [RankError] that names this rank.
	Fail(err error)
	// HasLeft reports whether a rank has left the group, as far as is known.
	HasLeft(rank int) bool
	// Close leaves the group: calls of other ranks that still need this one fail.
	Close() error
}
