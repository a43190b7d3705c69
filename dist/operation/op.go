// SPDX-License-Identifier: Apache-2.0

package operation

import "fmt"

// Op is what a call does: all_reduce, broadcast and so on.
type Op uint8

// The operations. Their numbers travel between ranks: add at the end only.
const (
	Barrier Op = iota + 1
	AllReduce
	Broadcast
	AllGather
	Send
	Recv
	ReduceScatter
	Reduce
	Gather
	Scatter
	AllToAll
)

var opNames = [...]string{Barrier: "barrier", AllReduce: "all_reduce", Broadcast: "broadcast",
	AllGather: "all_gather", Send: "send", Recv: "recv", ReduceScatter: "reduce_scatter",
	Reduce: "reduce", Gather: "gather", Scatter: "scatter", AllToAll: "all_to_all"}

// Reduces reports whether an operation makes one element of the elements of all ranks.
func (o Op) Reduces() bool { return o == AllReduce || o == ReduceScatter || o == Reduce }

// Rooted reports whether an operation has a root: one rank whose part is not like the
// others'.
func (o Op) Rooted() bool {
	return o == Broadcast || o == Reduce || o == Gather || o == Scatter
}

// Message reports whether an operation is one of two ranks: a send or a receive.
func (o Op) Message() bool { return o == Send || o == Recv }

func (o Op) String() string {
	if o >= Barrier && int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}
