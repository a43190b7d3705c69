// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/internal/mem"

	"github.com/cohort-ml/cohort/dist/operation"
)

// Data is what a call reads or writes: elements without gaps in a borrowed
// buffer. The zero value is no data at all.
type Data struct {
	Buffer   mem.Buffer
	DType    operation.DType
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
	Collective(ctx context.Context, c operation.Call, in, out Data) error
	// Send returns when data may be changed again.
	Send(ctx context.Context, c operation.Call, data Data) error
	// Recv returns when data has been written. c.Root is not AnyRank.
	Recv(ctx context.Context, c operation.Call, data Data) error
	// AwaitAny returns a rank from which a message has begun to come that no
	// Recv has taken. It is never called while a Recv, or another AwaitAny,
	// runs. c is the receive that waits, for errors.
	AwaitAny(ctx context.Context, c operation.Call) (src int, err error)
	// Trouble returns why a call that needs all ranks cannot end well, as the
	// error of c: that the group has failed, or that a rank has left it; nil if
	// it can. It is for waits that do not go through the backend.
	Trouble(c operation.Call) error
	// Fail makes pending and later calls of every rank fail with err; other
	// ranks see it as a [fault.RankError] that names this rank.
	Fail(err error)
	// HasLeft reports whether a rank has left the group, as far as is known.
	HasLeft(rank int) bool
	// Close leaves the group: calls of other ranks that still need this one fail.
	Close() error
}

// KeyNumber is a number that stands for the key by which the members of a group
// have met: FNV-1a.
func KeyNumber(key string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	return h
}
