// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"context"
	"fmt"

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
)

var opNames = [...]string{OpBarrier: "barrier", OpAllReduce: "all_reduce", OpBroadcast: "broadcast",
	OpAllGather: "all_gather", OpSend: "send", OpRecv: "recv", OpReduceScatter: "reduce_scatter"}

func (o Op) String() string {
	if o >= OpBarrier && int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// ReduceOp is how the elements of several ranks become one.
type ReduceOp uint8

// The reductions. Their numbers travel between ranks: add at the end only.
const (
	Sum ReduceOp = iota
	Product
	Min
	Max
	numReduceOps
)

var reduceNames = [numReduceOps]string{"sum", "product", "min", "max"}

func (r ReduceOp) String() string {
	if r < numReduceOps {
		return reduceNames[r]
	}
	return fmt.Sprintf("reduction(%d)", uint8(r))
}

// Valid reports whether r is one of the reductions.
func (r ReduceOp) Valid() bool { return r < numReduceOps }

// DType is the type of an element, as it travels between ranks.
type DType uint8

// The element types. Their numbers travel between ranks: add at the end only.
// All can be moved; which are reduced, [ReducerFor] says.
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

// Call is one operation as a rank asked for it. What must agree between ranks
// is compared through [Call.Matches].
type Call struct {
	Op     Op
	Reduce ReduceOp // all-reduce and reduce-scatter only
	DType  DType
	Root   int // broadcast: the source; send and recv: the peer; else 0
	// Count is how many elements this rank contributes; for a reduce-scatter,
	// how many it gets.
	Count int
	// Seq counts the collectives of a group, or the messages of one ordered
	// pair of ranks, from 1.
	Seq uint64
	// Background says that other goroutines of this process compute while the
	// call runs: it must not spin for long.
	Background bool
}

// Matches reports whether two ranks' calls of one sequence number fit together.
func (c Call) Matches(o Call) bool {
	return c.Op == o.Op && c.Reduce == o.Reduce && c.DType == o.DType && c.Root == o.Root && c.Count == o.Count && c.Seq == o.Seq
}

// String is the call without its number: "all_reduce sum of 4 float32".
func (c Call) String() string {
	switch c.Op {
	case OpBarrier:
		return "barrier"
	case OpAllReduce, OpReduceScatter:
		return fmt.Sprintf("%v %v of %d %v", c.Op, c.Reduce, c.Count, c.DType)
	case OpBroadcast:
		return fmt.Sprintf("broadcast from rank %d of %d %v", c.Root, c.Count, c.DType)
	case OpSend:
		return fmt.Sprintf("send of %d %v to rank %d", c.Count, c.DType, c.Root)
	case OpRecv:
		return fmt.Sprintf("recv of %d %v from rank %d", c.Count, c.DType, c.Root)
	}
	return fmt.Sprintf("%v of %d %v", c.Op, c.Count, c.DType)
}

// Backend moves the data of one rank's calls.
//
// Collective is called by one goroutine at a time, in the order of sequence
// numbers; Send by one goroutine at a time for each peer, and likewise Recv;
// all three may run at once. An error from any of them is final: the backend
// has told the other ranks, and every later call fails at once.
type Backend interface {
	// Collective runs anything but a send or a receive. in and out are the
	// same data except for an all-gather, whose out holds the contribution of
	// every rank in rank order, and a reduce-scatter, whose in holds what it
	// contributes to every rank's out in rank order.
	Collective(ctx context.Context, c Call, in, out Data) error
	// Send returns when data may be changed again.
	Send(ctx context.Context, c Call, data Data) error
	// Recv returns when data has been written.
	Recv(ctx context.Context, c Call, data Data) error
	// Fail makes pending and later calls of every rank fail with err; other
	// ranks see it as a [RankError] that names this rank.
	Fail(err error)
	// Close leaves the group: calls of other ranks that still need this one fail.
	Close() error
}

// Member is a rank as errors name it.
type Member struct {
	Rank int    `json:"rank"`
	Host string `json:"host,omitempty"`
	PID  int    `json:"pid,omitempty"`
}

func (m Member) String() string {
	switch {
	case m.Host != "" && m.PID != 0:
		return fmt.Sprintf("rank %d (host %s, pid %d)", m.Rank, m.Host, m.PID)
	case m.PID != 0:
		return fmt.Sprintf("rank %d (pid %d)", m.Rank, m.PID)
	}
	return fmt.Sprintf("rank %d", m.Rank)
}
