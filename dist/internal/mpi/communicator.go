// SPDX-License-Identifier: Apache-2.0

package mpi

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/dlopen"
)

// communicator is the [native.Carrier] of a group: a communicator of the MPI.
//
// Each collective posts a small nonblocking all-reduce of the call's number first, which finds
// calls that differ. A rank that makes a kind of call for the first time waits for it before it
// touches data. In a loop of the same calls it goes on meanwhile, and looks at it afterwards.
type communicator struct {
	lib  *Library
	job  *job
	comm handle
	rank int
	size int
	seen map[uint64]struct{} // kinds of calls that have been compared before their data moved
	// check is the comparison under way, scratch the input of a call where it shares memory
	// with the output, counts and offsets those of uneven parts.
	check           *check
	scratch         []byte
	counts, offsets []int32
	// abandoned says that a call has been left behind: the MPI may still write its memory.
	abandoned atomic.Bool
}

// maxSeen bounds the kinds of calls that a communicator remembers.
const maxSeen = 1 << 12

// check is the comparison of a number on all ranks: the largest number, and the largest
// complement, which is that of the smallest.
type check struct {
	mine, all [2]uint64
	req       pin
	pending   bool
}

// begin posts the comparison of a number.
func (c *communicator) begin(number uint64) error {
	k := c.check
	k.mine = [2]uint64{number, ^number}
	k.all = [2]uint64{}
	k.req = pin{}
	err := c.lib.call("Iallreduce", c.lib.fn.iallreduce, uintptr(unsafe.Pointer(&k.mine)), uintptr(unsafe.Pointer(&k.all)), 2, c.lib.abi.number, c.lib.abi.max, c.comm, k.req.address())
	k.pending = err == nil
	return err
}

// end waits for the comparison.
func (c *communicator) end(s *native.Stop) (same bool, err error) {
	k := c.check
	if err := c.await(s, &k.req, patient); err != nil {
		return false, err
	}
	k.pending = false
	return k.all[0] == k.mine[0] && k.all[1] == k.mine[1], nil
}

// Agree implements [native.Carrier].
func (c *communicator) Agree(s *native.Stop, number native.CallNumber) (same bool, err error) {
	if err := c.begin(number.Whole); err != nil {
		return false, err
	}
	return c.end(s)
}

// Collective implements [native.Carrier].
func (c *communicator) Collective(s *native.Stop, call *operation.Call, number native.CallNumber, in, out []byte) (same bool, err error) {
	if err := c.begin(number.Whole); err != nil {
		return false, err
	}
	blocking := c.lib.abi.blocking(call)
	// A blocking call keeps its processor busy, so ranks that compute meanwhile wait for the
	// others before it.
	if _, known := c.seen[number.Kind]; !known || blocking && call.Background {
		if same, err := c.end(s); !same || err != nil {
			return false, err
		}
		if len(c.seen) >= maxSeen {
			clear(c.seen)
		}
		c.seen[number.Kind] = struct{}{}
	}
	if err := c.move(s, call, in, out, blocking); err != nil {
		return false, err
	}
	if c.check.pending {
		return c.end(s)
	}
	return true, nil
}

// how a wait passes its time: patient sleeps soon, for others may come late; eager does so
// when the data should long have moved.
type manner time.Duration

const (
	patient = manner(200 * time.Microsecond)
	eager   = manner(20 * time.Millisecond)
)

const (
	// spins is after how many looks a wait lets others run and looks at the clock.
	spins     = 64
	minPause  = 20 * time.Microsecond
	mostPause = time.Millisecond
)

// await waits for a request. When the stop is over it leaves the request behind.
func (c *communicator) await(s *native.Stop, req *pin, m manner) error {
	flag := new(pin)
	var begun time.Time
	pause := minPause
	for i := 1; ; i++ {
		if err := c.lib.call("Test", c.lib.fn.test, req.address(), flag.address(), c.lib.abi.noStatus); err != nil {
			return err
		}
		if flag.number() != 0 {
			return nil
		}
		if i%spins != 0 {
			continue
		}
		if s.Over() {
			c.abandon(req)
			return native.ErrStopped
		}
		switch now := time.Now(); {
		case begun.IsZero():
			begun = now
		case now.Sub(begun) > time.Duration(m):
			time.Sleep(pause)
			pause = min(2*pause, mostPause)
			i = spins - 4 // a few looks, then the next pause
			continue
		}
		runtime.Gosched()
		yield()
	}
}

// abandon leaves memory to a call of the MPI that does not end.
func (c *communicator) abandon(memory ...any) {
	c.abandoned.Store(true)
	c.job.leave(c, memory)
}

// Moves implements [native.Carrier].
func (c *communicator) Moves(call *operation.Call) bool {
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
		req := new(pin)
		if err := c.lib.call(what, fn, address(data), uintptr(n), c.lib.abi.bySize[1], uintptr(peer), tag(ch), c.comm, req.address()); err != nil {
			return err
		}
		if err := c.await(s, req, patient); err != nil {
			if errors.Is(err, native.ErrStopped) {
				c.job.leave(c, data)
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
// can leave it behind.
func (c *communicator) blockingCall(s *native.Stop, what string, fn uintptr, args ...uintptr) error {
	b := calls.Get().(*blockingRun)
	b.fn, b.args = fn, append(b.args[:0], args...)
	go b.run()
	if !s.Await(b.done) {
		return native.ErrStopped // b is not used again
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
	c := &communicator{lib: lib, job: j, rank: rank, size: len(world), seen: map[uint64]struct{}{}, check: &check{}}
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
