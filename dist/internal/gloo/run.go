// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

const (
	// windowRecvs is how many receives are granted at once.
	windowRecvs = 64
	// maxKept is how many schedules are kept.
	maxKept = 256
)

// run does the schedules of a rank's collectives, one at a time, and keeps what it
// needs for that. Whoever has news takes the run on: the caller, or who reads from a
// peer, which saves waking the caller for each message.
type run struct {
	b *Communicator
	waiter
	call operation.Call
	// news counts what has come that nobody may have seen to.
	news atomic.Int32
	// gone counts the sends of all calls that have gone, and due is what it has come to
	// with the last of the call under way. It goes on from call to call: who completes a
	// send counts it a moment after others can see that it is done, and by then this rank
	// may be in its next call.
	gone, due atomic.Uint32

	mu sync.Mutex // guards what follows
	// active is set while a call is under way, peer and err are of an operation that
	// has failed.
	active bool
	peer   int
	err    error

	kept  map[taskKey]*schedule
	known map[reductionKey]reduction
	timer *time.Timer

	recvs, sends []op
	work         []byte // where a vector is reduced that must not be written
	touched      []*pair

	// of the call under way
	c                      *operation.Call
	s                      *schedule
	tag                    uint32
	slot                   slot
	in, out                []byte
	reduction              reduction
	begun                  time.Time
	posted, received, sent int
	sending                int // how many sends have been posted
}

// grown returns scratch memory of a size, aligned to all elements.
func grown(scratch *[]byte, size int) []byte {
	if cap(*scratch) < size {
		*scratch = make([]byte, max(size, 64)) // smaller ones may not be aligned
	}
	return (*scratch)[:size]
}

// do runs one collective.
func (r *run) do(ctx context.Context, c *operation.Call, tag uint32, in, out collective.Data) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.b.cfg.Members)
	var src, dst []byte
	if c.Op != operation.Barrier {
		if in.DType != 0 {
			src = in.Bytes()
		}
		if out.DType != 0 {
			dst = out.Bytes()
		}
	}
	r.reduction = reduction{}
	if c.Op.Reduces() {
		var err error
		if r.reduction, err = r.reductionOf(c, n); err != nil {
			return r.b.fail(fmt.Errorf("dist: %v of group %q on rank %d: %w", c, r.b.cfg.Group, r.b.cfg.Rank, err))
		}
	}
	t := task{op: c.Op, rank: r.b.cfg.Rank, size: n, root: c.Root, elem: c.DType.Size()}
	t.total = c.Count * t.elem
	whole := dst
	switch c.Op {
	case operation.ReduceScatter:
		// The whole vector is reduced, and each takes its part.
		t.total = len(src)
		whole = grown(&r.work, len(src))
		copy(whole, src)
	case operation.Reduce:
		if c.Root != r.b.cfg.Rank { // what it has is not to be written
			whole = grown(&r.work, len(src))
			copy(whole, src)
		}
	case operation.Broadcast, operation.AllReduce:
		whole, src = src, nil
	}
	r.parts(&t, c)
	r.c, r.tag, r.slot, r.in, r.out = c, tag, slotOf(prefixOf(c.Op), tag), src, whole
	r.s = r.schedule(t)
	err := r.exchange(ctx)
	r.c, r.in, r.out = nil, nil, nil
	if err != nil {
		return err
	}
	if f := r.reduction.finish; f != nil && (c.Op != operation.Reduce || c.Root == r.b.cfg.Rank) {
		f(whole)
	}
	if c.Op == operation.ReduceScatter {
		at := 0
		for i := range r.b.cfg.Rank {
			if c.Parts != nil {
				at += c.Parts[i] * t.elem
			} else {
				at += c.Count * t.elem
			}
		}
		copy(dst, whole[at:])
	}
	return nil
}

// reductionKey is what a reduction depends on in a group.
type reductionKey struct {
	op    operation.ReduceOp
	dtype operation.DType
}

// reductionOf returns the reduction of a call.
func (r *run) reductionOf(c *operation.Call, numRanks int) (reduction, error) {
	key := reductionKey{c.Reduce, c.DType}
	of, ok := r.known[key]
	if ok {
		return of, nil
	}
	of, err := reductionFor(c.Reduce, c.DType, numRanks)
	if err == nil {
		if r.known == nil {
			r.known = map[reductionKey]reduction{}
		}
		r.known[key] = of
	}
	return of, err
}

// parts sets the sizes of parts that differ.
func (r *run) parts(t *task, c *operation.Call) {
	bytes := func(parts []int) []int {
		if parts == nil {
			return nil
		}
		b := make([]int, len(parts))
		for i, n := range parts {
			b[i] = n * t.elem
		}
		return b
	}
	switch c.Op {
	case operation.AllGather, operation.AllToAll:
		t.sends, t.recvs = bytes(c.Parts), bytes(c.Recvs)
	case operation.Gather, operation.Scatter:
		if c.Root == t.rank {
			t.sends = bytes(c.Parts)
		}
	}
}

// schedule returns the schedule of a task, which is kept unless it has parts.
func (r *run) schedule(t task) *schedule {
	if t.sends != nil || t.recvs != nil {
		return scheduleOf(t)
	}
	key := taskKey{t.op, t.rank, t.size, t.root, t.elem, t.total}
	if s := r.kept[key]; s != nil {
		return s
	}
	if r.kept == nil || len(r.kept) >= maxKept {
		r.kept = map[taskKey]*schedule{}
	}
	s := scheduleOf(t)
	r.kept[key] = s
	return s
}

// taskKey is a [task] without parts.
type taskKey struct {
	op               operation.Op
	rank, size, root int
	elem, total      int
}

// ops returns operations for use, at least n.
func ops(kept *[]op, n int) {
	if len(*kept) < n {
		*kept = make([]op, max(n, 2*len(*kept)))
	}
}

// exchange sends and receives all of the schedule. The run is locked, but not
// meanwhile.
func (r *run) exchange(ctx context.Context) error {
	s := r.s
	for _, c := range s.copies {
		copy(r.out[c.to:c.to+c.n], r.in[c.from:c.from+c.n])
	}
	ops(&r.recvs, len(s.recvs))
	ops(&r.sends, len(s.sends))
	r.posted, r.received, r.sent, r.sending = 0, 0, 0, 0
	r.begun = time.Now()
	r.due.Add(uint32(len(s.sends)))
	r.active, r.err = true, nil
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.active = false
	}()
	timed := false
	for {
		ended, peer, err := r.takeOn()
		if err != nil {
			return r.b.broken(r.c, peer, r.begun, err)
		}
		if ended {
			if timed {
				r.timer.Stop()
			}
			return nil
		}
		if !timed {
			timed = true
			limit := r.b.cfg.Timeout - time.Since(r.c.Start())
			if r.timer == nil {
				r.timer = time.NewTimer(limit)
			} else {
				r.timer.Reset(limit)
			}
		}
		select {
		case <-r.wake:
		case <-r.b.failed:
			return r.b.broken(r.c, 0, r.begun, nil)
		case <-ctx.Done():
			return r.tooLate(ctx)
		case <-r.timer.C:
			return r.tooLate(ctx)
		}
	}
}

// takeOn does what can be done now, and says whether the run has ended.
func (r *run) takeOn() (ended bool, peer int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.news.Store(0)
		r.peer, r.err = r.pump()
	}
	return r.received == len(r.s.recvs) && r.sent == len(r.s.sends), r.peer, r.err
}

// goOn does what can be done now, for who has completed a receive. It waits for nobody:
// who is at it sees to the news as well.
func (r *run) goOn() {
	r.news.Add(1)
	for r.news.Load() > 0 {
		if !r.mu.TryLock() {
			r.ping() // whoever has it may have looked already
			return
		}
		told := false
		if r.news.Store(0); r.active && r.err == nil {
			r.peer, r.err = r.pump()
			told = r.err != nil || r.received == len(r.s.recvs) && r.sent == len(r.s.sends)
		}
		r.mu.Unlock()
		if told {
			r.ping()
		}
	}
}

// pump does what can be done now: it completes what has come, sends what that
// allows, and grants what comes next. An error is one with a peer.
func (r *run) pump() (peer int, err error) {
	s := r.s
	for again := true; again; {
		again = false
		for r.received < r.posted && r.recvs[r.received].done.Load() {
			if err := r.recvs[r.received].err; err != nil {
				return s.recvs[r.received].peer, err
			}
			r.received++
			again = true
		}
		for r.posted < len(s.recvs) && r.posted-r.received < windowRecvs {
			v := &s.recvs[r.posted]
			o := &r.recvs[r.posted]
			o.begin(r.waiter, r, v.use, r.out[v.lo:v.hi])
			p := r.b.pairFor(v.peer, r.tag)
			p.postRecv(r.slot, o)
			r.touch(p)
			r.posted++
		}
		for r.sending < len(s.sends) && s.sends[r.sending].after <= r.received {
			v, o := &s.sends[r.sending], &r.sends[r.sending]
			data := r.out
			if v.use == input {
				data = r.in
			}
			o.begin(r.waiter, r, v.use, data[v.lo:v.hi])
			p := r.b.pairFor(v.peer, r.tag)
			if err := p.postSend(r.slot, o); err != nil {
				p.part()
				return v.peer, err
			}
			r.touch(p)
			r.sending++
		}
		for _, p := range r.touched {
			p.flush()
		}
		r.touched = r.touched[:0]
		for r.sent < r.sending && r.sends[r.sent].done.Load() {
			if err := r.sends[r.sent].err; err != nil {
				return s.sends[r.sent].peer, err
			}
			r.sent++
		}
		again = again || r.received < r.posted && r.recvs[r.received].done.Load()
	}
	return 0, nil
}

func (r *run) touch(p *pair) {
	if !slices.Contains(r.touched, p) {
		r.touched = append(r.touched, p)
	}
}

// tooLate ends a run that takes too long.
func (r *run) tooLate(ctx context.Context) error {
	r.mu.Lock()
	missing := r.missing()
	r.mu.Unlock()
	return r.b.fail(r.b.late(ctx, r.c, missing))
}

// missing returns the ranks that are waited for.
func (r *run) missing() []int {
	var ranks []int
	add := func(rank int) {
		if !slices.Contains(ranks, rank) {
			ranks = append(ranks, rank)
		}
	}
	for i := r.received; i < r.posted; i++ {
		if !r.recvs[i].done.Load() {
			add(r.s.recvs[i].peer)
		}
	}
	for i := r.sent; i < r.sending; i++ {
		if !r.sends[i].done.Load() {
			add(r.s.sends[i].peer)
		}
	}
	slices.Sort(ranks)
	return ranks
}
