// SPDX-License-Identifier: Apache-2.0

package mpi

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/dlopen"
)

// communicator is the [native.Carrier] of a group: a communicator of the MPI.
//
// Each collective posts a small nonblocking all-reduce of the call's number first, which finds
// calls that differ. A rank that makes a kind of call for the first time, or computes
// meanwhile, waits for it before it touches data. In a loop of the same calls it goes on, and
// looks at it whenever it looks at the data.
type communicator struct {
	lib  *Library
	job  *job
	comm handle
	rank int
	size int
	seen map[uint64]struct{} // kinds of calls that have been compared before their data moved
	// requests are those of the collective under way, check its comparison. parts is the
	// memory of exchanges; scratch the input of a call where it shares memory with the
	// output, counts and offsets those of uneven parts.
	requests        *requests
	check           *check
	parts           exchange
	scratch         []byte
	counts, offsets []int32
	// abandoned says that a call has been left behind: the MPI may still write its memory.
	abandoned atomic.Bool
}

// maxSeen bounds the kinds of calls that a communicator remembers.
const maxSeen = 1 << 12

// check is the comparison of a number on all ranks: the largest number, and the largest
// complement, which is that of the smallest.
type check struct{ mine, all [2]uint64 }

// same reports what a comparison that has ended has found.
func (k *check) same() bool { return k.all == k.mine }

// begin posts the comparison of a number.
func (c *communicator) begin(number uint64) error {
	k := c.check
	k.mine, k.all = [2]uint64{number, ^number}, [2]uint64{}
	slot, at := c.requests.next()
	if err := c.lib.call("Iallreduce", c.lib.fn.iallreduce, uintptr(unsafe.Pointer(&k.mine)), uintptr(unsafe.Pointer(&k.all)), 2, c.lib.abi.number, c.lib.abi.max, c.comm, at); err != nil {
		return err
	}
	c.requests.taken(slot, comparison)
	return nil
}

// look looks at the requests of the collective under way.
func (c *communicator) look() error {
	compares := c.requests.pending[comparison] > 0
	err := c.requests.look()
	if err == nil && compares && c.requests.pending[comparison] == 0 && !c.check.same() {
		err = errDiffers
	}
	return err
}

// await waits for a batch of requests of the collective. A comparison that ends meanwhile and
// finds a difference ends the wait: the data of calls that differ may never come.
func (c *communicator) await(s *native.Stop, b batch, m manner) error {
	q := c.requests
	return await(s, m, func() (bool, error) {
		if q.pending[b] == 0 {
			return true, nil
		}
		err := c.look()
		return q.pending[b] == 0, err
	})
}

// ended gives the result of a collective. What has not ended is left to the MPI.
func (c *communicator) ended(err error, memory ...any) (same bool, _ error) {
	if err != nil && (c.requests.underWay() || errors.Is(err, native.ErrStopped) || errors.Is(err, errDiffers)) {
		c.abandon(append(memory, c.requests, c.check, c.parts.room, c.scratch, c.counts, c.offsets)...)
		c.requests, c.check, c.parts, c.scratch, c.counts, c.offsets = newRequests(c.lib), &check{}, exchange{}, nil, nil, nil
	}
	if errors.Is(err, errDiffers) {
		return false, nil
	}
	return err == nil, err
}

// Agree implements [native.Carrier].
func (c *communicator) Agree(s *native.Stop, number native.CallNumber) (same bool, err error) {
	if err = c.begin(number.Whole); err == nil {
		err = c.await(s, comparison, patient)
	}
	return c.ended(err)
}

// Collective implements [native.Carrier].
func (c *communicator) Collective(s *native.Stop, call *operation.Call, number native.CallNumber, in, out []byte) (same bool, err error) {
	return c.ended(c.collective(s, call, number, in, out), in, out)
}

func (c *communicator) collective(s *native.Stop, call *operation.Call, number native.CallNumber, in, out []byte) error {
	if err := c.begin(number.Whole); err != nil {
		return err
	}
	// Moving data keeps the processor busy, so ranks that compute meanwhile wait for the
	// others before it.
	if _, known := c.seen[number.Kind]; !known || call.Background {
		if err := c.await(s, comparison, patient); err != nil {
			return err
		}
		if len(c.seen) >= maxSeen {
			clear(c.seen)
		}
		c.seen[number.Kind] = struct{}{}
	}
	move := c.move
	if c.exchanges(call) {
		move = c.moveExchanged
	}
	if err := move(s, call, in, out); err != nil {
		return err
	}
	return c.await(s, comparison, patient)
}

// abandon leaves memory to a call of the MPI that does not end.
func (c *communicator) abandon(memory ...any) {
	c.abandoned.Store(true)
	c.job.leave(c, memory)
}

// Moves implements [native.Carrier].
func (c *communicator) Moves(call *operation.Call) bool {
	if c.exchanges(call) {
		return true
	}
	if call.Op.Reduces() && c.lib.abi.op(call.Reduce, call.DType) == 0 {
		return false
	}
	elems := call.Count
	for _, n := range call.Parts {
		elems += n
	}
	if elems > math.MaxInt32/c.size {
		return false
	}
	switch call.Op {
	case operation.Gather, operation.Scatter:
		return call.Layout == operation.LayoutEven
	case operation.AllToAll:
		return call.Layout == 0
	case operation.Barrier, operation.AllReduce, operation.Broadcast, operation.AllGather, operation.ReduceScatter, operation.Reduce:
		return true
	}
	return false
}

// tag of a channel.
func tag(ch native.Channel) uintptr { return uintptr(ch) }

// maxMessage is the most bytes of one message of the MPI.
const maxMessage = 1 << 30

// Send implements [native.Carrier].
func (c *communicator) Send(s *native.Stop, to int, ch native.Channel, data []byte) error {
	return c.message("Isend", c.lib.fn.isend, s, to, ch, data)
}

// Recv implements [native.Carrier].
func (c *communicator) Recv(s *native.Stop, from int, ch native.Channel, data []byte) error {
	return c.message("Irecv", c.lib.fn.irecv, s, from, ch, data)
}

// message sends or receives data in messages that MPI can count.
func (c *communicator) message(what string, fn uintptr, s *native.Stop, peer int, ch native.Channel, data []byte) error {
	for len(data) > 0 {
		n := min(len(data), maxMessage)
		req, flag := new(pin), new(pin)
		if err := c.lib.call(what, fn, address(data), uintptr(n), c.lib.abi.bySize[1], uintptr(peer), tag(ch), c.comm, req.address()); err != nil {
			return err
		}
		if err := await(s, patient, func() (bool, error) {
			err := c.lib.call("Test", c.lib.fn.test, req.address(), flag.address(), c.lib.abi.noStatus)
			return flag.number() != 0, err
		}); err != nil {
			if errors.Is(err, native.ErrStopped) {
				c.abandon(req, flag, data)
			}
			return err
		}
		data = data[n:]
	}
	return nil
}

// Probe implements [native.Carrier].
func (c *communicator) Probe(ch native.Channel) (from int, ok bool, err error) {
	flag, status := new(pin), new(pin)
	if err := c.lib.call("Iprobe", c.lib.fn.iprobe, uintptr(uint32(c.lib.abi.anySource)), tag(ch), c.comm, flag.address(), status.address()); err != nil || flag.number() == 0 {
		return 0, false, err
	}
	return int(status.at(c.lib.abi.sourceAt)), true, nil
}

// Close implements [native.Carrier].
func (c *communicator) Close(well bool) error {
	if !well || c.abandoned.Load() {
		c.job.failed.Store(true)
		return nil
	}
	comm := &pin{uint64(c.comm)}
	return c.lib.call("Comm_free", c.lib.fn.commFree, comm.address())
}

// String names the MPI.
func (c *communicator) String() string { return c.lib.Version }

// address returns where data begins; 0 for none.
func address(data []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(data))) }

// blockingCall runs a blocking call of the MPI on a goroutine of its own, so that the caller
// can leave it behind. It looks at the comparison of the call now and then.
func (c *communicator) blockingCall(s *native.Stop, what string, fn uintptr, args ...uintptr) error {
	b := calls.Get().(*blockingRun)
	b.fn, b.args = fn, append(b.args[:0], args...)
	go b.run()
	var failed error
	if !s.Await(b.done, func() bool {
		failed = c.look()
		return failed != nil
	}) {
		// b is not used again
		return cmp.Or(failed, native.ErrStopped)
	}
	code := b.code
	calls.Put(b)
	if code != 0 {
		return c.lib.errorOf(what, code)
	}
	return nil
}

// blockingRun is a blocking call.
type blockingRun struct {
	fn   uintptr
	args []uintptr
	code int32
	done chan struct{}
}

func (b *blockingRun) run() {
	b.code = int32(dlopen.Call(b.fn, b.args...))
	b.done <- struct{}{}
}

// calls keeps the memory of blocking calls that have ended.
var calls = sync.Pool{New: func() any { return &blockingRun{done: make(chan struct{}, 1)} }}

// open makes the communicator of a group, whose ranks are given by their numbers in the job.
// All members have come.
func (j *job) open(s *native.Stop, world []int, rank int, key uint64) (*communicator, error) {
	lib := j.lib
	ranks := make([]int32, len(world))
	for i, r := range world {
		ranks[i] = int32(r)
	}
	all, group, comm := new(pin), new(pin), new(pin)
	if err := lib.call("Comm_group", lib.fn.commGroup, lib.abi.world, all.address()); err != nil {
		return nil, err
	}
	if err := lib.call("Group_incl", lib.fn.groupIncl, uintptr(all[0]), uintptr(len(ranks)), uintptr(unsafe.Pointer(unsafe.SliceData(ranks))), group.address()); err != nil {
		return nil, err
	}
	c := &communicator{lib: lib, job: j, rank: rank, size: len(world), seen: map[uint64]struct{}{}, check: &check{}, requests: newRequests(lib)}
	const tags = 1 << 14 // every MPI has twice as many
	err := c.blockingCall(s, "Comm_create_group", lib.fn.createGroup, lib.abi.world, uintptr(group[0]), uintptr(key%tags), comm.address())
	if err != nil {
		c.abandon(comm, ranks)
		j.failed.Store(true)
		return nil, fmt.Errorf("make the communicator: %w", err)
	}
	for _, g := range []*pin{group, all} {
		if err := lib.call("Group_free", lib.fn.groupFree, g.address()); err != nil {
			return nil, err
		}
	}
	runtime.KeepAlive(ranks)
	c.comm = handle(comm[0])
	return c, lib.call("Comm_set_errhandler", lib.fn.setErrhandler, c.comm, lib.abi.errorsReturn)
}
