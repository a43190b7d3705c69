// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// Communicator moves the data of one rank's calls on one group.
//
// Collective is called by one goroutine at a time, in the order of sequence
// numbers; Send by one goroutine at a time for each peer, and likewise Recv;
// all three may run at once. An error from any of them is final: the communicator
// has told the other ranks, and every later call fails at once.
//
// Operands are in the memory of the kind of device that the communicator was opened
// for: the host's, or that of [collective.Data.Device]. Of the latter, the buffer's bytes are
// the device's: only their address and number can be used.
type Communicator interface {
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
	Collective(ctx context.Context, c operation.Call, in, out collective.Data) error
	// Send returns when data may be changed again.
	Send(ctx context.Context, c operation.Call, data collective.Data) error
	// Recv returns when data has been written. c.Root is not AnyRank.
	Recv(ctx context.Context, c operation.Call, data collective.Data) error
	// AwaitAny returns a rank from which a message has begun to come that no
	// Recv has taken. It is never called while a Recv, or another AwaitAny,
	// runs. c is the receive that waits, for errors.
	AwaitAny(ctx context.Context, c operation.Call) (src int, err error)
	// Trouble returns why a call that needs all ranks cannot end well, as the
	// error of c: that the group has failed, or that a rank has left it; nil if
	// it can. It is for waits that do not go through the communicator.
	Trouble(c operation.Call) error
	// Fail makes pending and later calls of every rank fail with err; other
	// ranks see it as a [fault.RankError] that names this rank.
	Fail(err error)
	// HasLeft reports whether a rank has left the group, as far as is known.
	HasLeft(rank int) bool
	// Close leaves the group: calls of other ranks that still need this one fail.
	Close() error
}

// Streamer is a [Communicator] whose operations go on after they have returned, on a
// stream of the device that holds their data. The group calls Enqueue in place of
// Collective, Send and Recv for operands that are on a device.
type Streamer interface {
	Communicator
	// Enqueue puts an operation on the device's stream and returns its end. Calls come at
	// once as those of Collective, Send and Recv do: a send must not wait on the stream
	// for a receive that is enqueued after it. owner keeps the memory of in and out: the
	// communicator refers to it until the operation has ended on the device, for the
	// collector frees what nobody refers to. An error is final, as for the other methods.
	Enqueue(ctx context.Context, c operation.Call, in, out collective.Data, owner any) (Completion, error)
}

// Completion is the end of an operation on a device's stream. Several goroutines may wait
// for it, and each may do so again; or nobody does.
type Completion interface {
	// Wait has what uses the data next see the operation's result: it may make the
	// device's current stream wait, without a wait on the host. It returns an error
	// that the operation has ended with, or that of a ctx which ends first.
	Wait(ctx context.Context) error
}

// Asker is a [Communicator] that can ask another rank what it is doing. The rank's
// process answers whatever its program does. stop ends the wait for the answer.
type Asker interface {
	Ask(rank int, stop <-chan struct{}) fault.Doing
}

// WhereAsker is an [Asker] whose answer may say at what line the other rank's program is.
type WhereAsker interface {
	Asker
	AskWhere(rank int, stop <-chan struct{}) fault.Doing
}

// Timekeeper is a [Communicator] that knows how late the ranks come to collectives.
type Timekeeper interface {
	// Skew returns how late each rank is, in the order of ranks; nil until enough is known.
	Skew() []RankSkew
	// StepEnded says that this rank has come further: see [Spec.Progress].
	StepEnded()
}

// Meter is a [Communicator] that counts the data that this rank gives to others.
type Meter interface {
	// Sent returns how many bytes of data this rank has given to other ranks so far: what it
	// has sent, and in shared memory what the others have read of its data and what it has
	// written into theirs. The heads of frames and all that is no data of the program is not in
	// it. A number is exact when the calls that it counts have ended on all ranks.
	Sent() int64
	// Sends returns how many bytes a collective makes this rank give. It depends on the call
	// and the group alone. shared says that the data of all ranks lies in memory that other
	// processes can map.
	Sends(c *operation.Call, shared bool) (int64, error)
}

// Progress is how far a rank has come with the collectives of a group at a
// moment that is the same for all ranks: the end of a step if the program says
// where its steps end, or else that of a collective.
type Progress struct {
	Steps  uint64        // ended; as many as calls if nobody marks steps
	Calls  uint64        // collectives ended
	Waited time.Duration // for how long this rank stood still in them
	At     time.Duration // when, since some moment of this rank's
}

// RankSkew is how late a rank comes to the collectives of a group.
type RankSkew struct {
	Rank  int
	Late  time.Duration // a collective
	Share float64       // of the time
	Step  time.Duration // what a step takes that it is a share of
}
