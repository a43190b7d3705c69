// SPDX-License-Identifier: Apache-2.0

package mpi

import (
	"errors"
	"runtime"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/operation"
)

// overlaps reports whether two runs of bytes share memory.
func overlaps(a, b []byte) bool {
	return len(a) > 0 && len(b) > 0 && address(a) < address(b)+uintptr(len(b)) && address(b) < address(a)+uintptr(len(a))
}

// part returns the bytes of a rank in data with a part of a size for each rank.
func part(data []byte, size, rank int) []byte {
	if len(data) == 0 {
		return nil
	}
	return data[size*rank : size*(rank+1)]
}

// source returns the address of the input of a call: MPI_IN_PLACE where it is the rank's own
// part of the output, and a copy where it shares memory with the output otherwise.
func (c *communicator) source(in, own, out []byte) uintptr {
	switch {
	case len(in) > 0 && len(own) > 0 && address(in) == address(own):
		return c.lib.abi.inPlace
	case overlaps(in, out):
		if len(c.scratch) < len(in) {
			c.scratch = make([]byte, len(in))
		}
		copy(c.scratch, in)
		return address(c.scratch)
	}
	return address(in)
}

// uneven makes the lists of the parts of a call.
func (c *communicator) uneven(parts []int) (counts, offsets uintptr) {
	c.counts, c.offsets = c.counts[:0], c.offsets[:0]
	at := 0
	for _, n := range parts {
		c.counts, c.offsets = append(c.counts, int32(n)), append(c.offsets, int32(at))
		at += n
	}
	return uintptr(unsafe.Pointer(unsafe.SliceData(c.counts))), uintptr(unsafe.Pointer(unsafe.SliceData(c.offsets)))
}

// move moves the data of a call.
func (c *communicator) move(s *native.Stop, call *operation.Call, in, out []byte) error {
	blocking := c.lib.abi.blocking(call)
	a, fn := c.lib.abi, &c.lib.fn
	size := call.DType.Size()
	count, root := uintptr(call.Count), uintptr(call.Root)
	elem := a.bySize[size]
	var op handle
	if call.Op.Reduces() {
		elem, op = a.types[call.DType], a.op(call.Reduce, call.DType)
	}
	var err error
	result := out
	switch call.Op {
	case operation.AllReduce:
		err = c.run(s, blocking, "Allreduce", fn.allreduce, fn.iallreduce, a.inPlace, address(out), count, elem, op, c.comm)
	case operation.Broadcast:
		err = c.run(s, blocking, "Bcast", fn.bcast, fn.ibcast, address(out), count, elem, root, c.comm)
	case operation.Reduce:
		from, to := address(in), uintptr(0)
		if c.rank == call.Root {
			from, to, result = a.inPlace, address(in), in
			if len(out) > 0 && address(out) != address(in) {
				from, to, result = c.source(in, nil, out), address(out), out
			}
		}
		err = c.run(s, false, "Reduce", 0, fn.ireduce, from, to, count, elem, op, root, c.comm)
		if c.rank != call.Root {
			result = nil
		}
	case operation.AllGather:
		if call.Parts != nil {
			counts, offsets := c.uneven(call.Parts)
			at := int(c.offsets[c.rank]) * size
			from := c.source(in, out[at:at+call.Count*size], out)
			err = c.run(s, blocking, "Allgatherv", fn.allgatherv, fn.iallgatherv, from, count, elem, address(out), counts, offsets, elem, c.comm)
			break
		}
		err = c.run(s, blocking, "Allgather", fn.allgather, fn.iallgather, c.source(in, part(out, len(in), c.rank), out), count, elem, address(out), count, elem, c.comm)
	case operation.Gather:
		from := address(in)
		if c.rank == call.Root {
			from = c.source(in, part(out, len(in), c.rank), out)
		}
		err = c.run(s, false, "Gather", 0, fn.igather, from, count, elem, address(out), count, elem, root, c.comm)
	case operation.Scatter:
		to := address(out)
		if c.rank == call.Root && overlaps(in, out) {
			if to = a.inPlace; address(out) != address(part(in, len(out), c.rank)) {
				return errors.New("a scatter whose output shares memory with another part of its input")
			}
		}
		err = c.run(s, false, "Scatter", 0, fn.iscatter, address(in), count, elem, to, count, elem, root, c.comm)
	case operation.ReduceScatter:
		from := c.source(in, nil, out)
		if call.Parts != nil {
			counts, _ := c.uneven(call.Parts)
			err = c.run(s, false, "Reduce_scatter", 0, fn.ireduceScatter, from, address(out), counts, elem, op, c.comm)
			break
		}
		err = c.run(s, blocking, "Reduce_scatter_block", fn.reduceScatterBlock, fn.ireduceScatterBlock, from, address(out), count, elem, op, c.comm)
	case operation.AllToAll:
		from := c.source(in, nil, out)
		if address(in) == address(out) {
			from = a.inPlace
		}
		err = c.run(s, false, "Alltoall", 0, fn.ialltoall, from, count, elem, address(out), count, elem, c.comm)
	default:
		return errors.New("the MPI has no such collective")
	}
	runtime.KeepAlive(c)
	if err != nil {
		return err
	}
	if call.Op.Reduces() && call.Reduce == operation.Avg && len(result) > 0 {
		r, err := collective.ReductionFor(call.Reduce, call.DType, c.size)
		if err != nil {
			return err
		}
		r.Finish(result)
	}
	return nil
}

// run runs a collective to its end, in its blocking form or the other.
func (c *communicator) run(s *native.Stop, blocking bool, what string, fn, ifn uintptr, args ...uintptr) error {
	if blocking {
		return c.blockingCall(s, what, fn, args...)
	}
	slot, at := c.requests.next()
	if err := c.lib.call("I"+what, ifn, append(args, at)...); err != nil {
		return err
	}
	c.requests.taken(slot, whole)
	return c.await(s, whole, eager)
}
