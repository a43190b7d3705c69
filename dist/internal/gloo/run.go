// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
)

const (
	// windowBytes is how much is granted, at most, of what is received beside the
	// output to be reduced: a segment is reduced while others come.
	windowBytes = 4 << 20
	// windowRecvs is how many receives are granted at once.
	windowRecvs = 64
	// maxKept is how many schedules are kept.
	maxKept = 256
)

// run does the schedules of a rank's collectives, one at a time, and keeps what it
// needs for that.
type run struct {
	b *Backend
	waiter
	kept  map[taskKey]*schedule
	timer *time.Timer

	recvs, sends []op
	scratch      []byte // receives that are reduced go round in it
	work         []byte // where a vector is reduced that must not be written
	touched      []*pair

	// of the call under way
	c                      *collective.Call
	s                      *schedule
	tag                    uint32
	slot                   slot
	in, out                []byte
	reduction              reduction
	begun                  time.Time
	posted, received, sent int
	sending                int // how many sends have been posted
	slots, slotBytes       int // of scratch
	inScratch              int // receives into scratch that are posted and not completed
	reduced                int // receives into scratch that have been posted
}

// grown returns scratch memory of a size, aligned to all elements.
func grown(scratch *[]byte, size int) []byte {
	if cap(*scratch) < size {
		*scratch = make([]byte, size) // the allocator aligns anything of 8 bytes and more
	}
	return (*scratch)[:size]
}

// do runs one collective.
func (r *run) do(ctx context.Context, c *collective.Call, tag uint32, in, out collective.Data) error {
	n := len(r.b.cfg.Members)
	var src, dst []byte
	if c.Op != collective.OpBarrier {
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
		if r.reduction, err = reductionFor(c.Reduce, c.DType, n); err != nil {
			return r.b.fail(fmt.Errorf("dist: %v of group %q on rank %d: %w", c, r.b.cfg.Group, r.b.cfg.Rank, err))
		}
	}
	t := task{op: c.Op, rank: r.b.cfg.Rank, size: n, root: c.Root, elem: c.DType.Size()}
	t.total = c.Count * t.elem
	whole := dst
	switch c.Op {
	case collective.OpReduceScatter:
		// The whole vector is reduced, and each takes its part.
		t.total = len(src)
		whole = grown(&r.work, len(src))
		copy(whole, src)
	case collective.OpReduce:
		if c.Root != r.b.cfg.Rank { // what it has is not to be written
			whole = grown(&r.work, len(src))
			copy(whole, src)
		}
	case collective.OpBroadcast, collective.OpAllReduce:
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
	if f := r.reduction.finish; f != nil && (c.Op != collective.OpReduce || c.Root == r.b.cfg.Rank) {
		f(whole)
	}
	if c.Op == collective.OpReduceScatter {
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

// parts sets the sizes of parts that differ.
func (r *run) parts(t *task, c *collective.Call) {
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
	case collective.OpAllGather, collective.OpAllToAll:
		t.sends, t.recvs = bytes(c.Parts), bytes(c.Recvs)
	case collective.OpGather, collective.OpScatter:
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
	op               collective.Op
	rank, size, root int
	elem, total      int
}

// ops returns operations for use, at least n.
func ops(kept *[]op, n int) {
	if len(*kept) < n {
		*kept = make([]op, max(n, 2*len(*kept)))
	}
}

// exchange sends and receives all of the schedule.
func (r *run) exchange(ctx context.Context) error {
	s := r.s
	for _, c := range s.copies {
		copy(r.out[c.to:c.to+c.n], r.in[c.from:c.from+c.n])
	}
	ops(&r.recvs, len(s.recvs))
	ops(&r.sends, len(s.sends))
	r.posted, r.received, r.sent, r.sending, r.inScratch, r.reduced = 0, 0, 0, 0, 0, 0
	r.slotBytes, r.slots = 0, 0
	for i := range s.recvs {
		if v := &s.recvs[i]; v.use == reduce || v.use == drop {
			r.slotBytes = max(r.slotBytes, v.len())
		}
	}
	if r.slotBytes > 0 {
		r.slotBytes = roundUp(r.slotBytes, 64)
		r.slots = min(max(2, windowBytes/r.slotBytes), windowRecvs)
		grown(&r.scratch, r.slots*r.slotBytes)
	}
	r.begun = time.Now()
	timed := false
	for {
		if peer, err := r.pump(); err != nil {
			return r.b.broken(r.c, peer, r.begun, err)
		}
		if r.received == len(s.recvs) && r.sent == len(s.sends) {
			if timed {
				r.timer.Stop()
			}
			return nil
		}
		if !timed {
			timed = true
			if r.timer == nil {
				r.timer = time.NewTimer(r.b.cfg.Timeout)
			} else {
				r.timer.Reset(r.b.cfg.Timeout)
			}
		}
		select {
		case <-r.wake:
		case <-r.b.failed:
			return r.b.broken(r.c, 0, r.begun, nil)
		case <-ctx.Done():
			return r.b.fail(r.b.late(ctx, r.c, r.missing()))
		case <-r.timer.C:
			return r.b.fail(r.b.late(ctx, r.c, r.missing()))
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
			v, o := &s.recvs[r.received], &r.recvs[r.received]
			if o.err != nil {
				return v.peer, o.err
			}
			if v.use == reduce || v.use == drop {
				if v.use == reduce {
					at := r.reducedAt(r.reduced - r.inScratch)
					r.reduction.into(r.out[v.lo:v.hi], r.scratch[at:at+v.len()])
				}
				r.inScratch--
			}
			r.received++
			again = true
		}
		for r.posted < len(s.recvs) && r.posted-r.received < windowRecvs {
			v := &s.recvs[r.posted]
			into := r.out[v.lo:v.hi]
			if v.use != plain {
				if r.inScratch == r.slots {
					break
				}
				at := r.reducedAt(r.reduced)
				into = r.scratch[at : at+v.len()]
				r.inScratch++
				r.reduced++
			}
			o := &r.recvs[r.posted]
			o.begin(r.waiter, into)
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
			o.begin(r.waiter, data[v.lo:v.hi])
			p := r.b.pairFor(v.peer, r.tag)
			if err := p.postSend(r.slot, o); err != nil {
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

// reducedAt is where in scratch the i-th receive goes that is reduced.
func (r *run) reducedAt(i int) int { return i % r.slots * r.slotBytes }

func (r *run) touch(p *pair) {
	if !slices.Contains(r.touched, p) {
		r.touched = append(r.touched, p)
	}
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
