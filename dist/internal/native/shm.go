// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
)

// Shm is a rank of a group that shares memory. Ranks are processes of one
// node or goroutines of one process; only what is reachable differs.
type Shm struct {
	cfg   Config
	n     int
	seg   *segment
	park  parking
	space space
	pipes pipes
	// onFault spreads a fault beyond the segment. May be nil.
	onFault func(rank int, kind uint32, text string)
	onClose func() error

	// whole ends with the first fault; it is the one context that lives as
	// long as the group. Both are nil for goroutine ranks, which wait for no
	// connection.
	whole    context.Context
	endWhole context.CancelFunc

	patience atomic.Int64 // nanoseconds that it has paid to look for

	failed   atomic.Pointer[failure]
	closed   atomic.Bool
	gate     sync.RWMutex // news from other goroutines touch memory under it
	detached bool
	bufs     [][]byte // scratch: the ranks' data of one call
	exec     executor
}

// space is how ranks reach each other's data.
type space interface {
	// lend makes data reachable for the peers during a call and returns where
	// it is; false if peers cannot reach it. out tells an all-gather's result.
	lend(rank int, c *collective.Call, d *collective.Data, out bool) (location, bool)
	// reach returns size bytes that a peer has lent for a call.
	reach(peer int, c *collective.Call, at location, out bool, size int) ([]byte, error)
	// close gives back what reach has mapped.
	close() error
}

// failure is the first error of this rank, which all later calls repeat.
type failure struct{ err error }

// Collective implements [collective.Backend].
func (s *Shm) Collective(ctx context.Context, c collective.Call, in, out collective.Data) error {
	if err := s.usable(&c); err != nil {
		return err
	}
	if err := s.collective(ctx, &c, &in, &out); err != nil {
		return s.fail(err)
	}
	return nil
}

func (s *Shm) collective(ctx context.Context, c *collective.Call, in, out *collective.Data) error {
	inBytes, outBytes := in.Bytes(), out.Bytes()
	mine := s.seg.block(s.cfg.Rank)
	call := &mine.calls[c.Seq&1]
	// Nobody waits for these any more: all have passed the call before the
	// last, or the last call's entry would not have completed.
	call.ready.value.Store(0)
	call.reduced.value.Store(0)
	call.done.value.Store(0)
	rec := &call.record
	rec.fill(c)
	quick := quickWay(c.Op) && c.Parts == nil && !c.Empty()
	eager := quick && s.eager(len(inBytes))
	if eager && (c.Op != collective.OpBroadcast || c.Root == s.cfg.Rank) {
		copy(mine.eager[c.Seq&1][:], inBytes)
	}
	if quick && !eager {
		var ok bool
		if rec.in, ok = s.space.lend(s.cfg.Rank, c, in, false); ok {
			rec.slabs |= slabIn
		}
		if rec.out, ok = s.space.lend(s.cfg.Rank, c, out, true); ok {
			rec.slabs |= slabOut
		}
	}
	raise(s.park, &call.entry, uint32(c.Seq))
	if err := s.awaitAll(ctx, c, entryFlag, uint32(c.Seq)); err != nil {
		return err
	}
	lentIn, lentOut, err := s.compare(c)
	if err != nil {
		return err
	}
	switch m := (move{s, ctx, c, inBytes, outBytes, eager, lentIn, lentOut}); {
	case c.Empty():
		return nil // all have come
	case c.Op == collective.OpAllReduce:
		return m.allReduce()
	case c.Op == collective.OpBroadcast:
		return m.broadcast()
	case c.Op == collective.OpAllGather && c.Parts == nil:
		return m.allGather()
	}
	p, err := collective.PlanFor(c, s.cfg.Rank, s.cfg.Topology, s.cfg.Options)
	if err != nil {
		return err
	}
	return s.exec.run(ctx, s, c, &p, inBytes, outBytes)
}

// quickWay reports whether ranks serve an operation by looking into each
// other's memory, which the switch in collective then does, instead of by a
// plan.
func quickWay(op collective.Op) bool {
	return op == collective.OpAllReduce || op == collective.OpBroadcast || op == collective.OpAllGather
}

// eager reports whether the data of a call travels beside it.
func (s *Shm) eager(size int) bool {
	return size <= eagerLimit && size*s.n <= eagerTotal
}

// compare checks that all ranks have made the same call and reports whether
// all have lent their input, and their output, for the others to reach.
func (s *Shm) compare(c *collective.Call) (lentIn, lentOut bool, err error) {
	lentIn, lentOut = true, true
	for r := range s.n {
		rec := &s.seg.block(r).calls[c.Seq&1].record
		if there := rec.call(); !c.Matches(&there) {
			return false, false, &collective.MismatchError{Group: s.cfg.Group, Seq: c.Seq,
				Here: collective.RankCall{Rank: s.cfg.Rank, Call: *c}, There: collective.RankCall{Rank: r, Call: there}}
		}
		lentIn = lentIn && rec.slabs&slabIn != 0
		lentOut = lentOut && rec.slabs&slabOut != 0
	}
	return lentIn, lentOut, nil
}

// lends reports whether a rank has lent its input.
func (s *Shm) lends(c *collective.Call, rank int) bool {
	return s.seg.block(rank).calls[c.Seq&1].record.slabs&slabIn != 0
}

// peerData returns the data that a rank has lent for a call.
func (s *Shm) peerData(peer int, c *collective.Call, out bool, size int) ([]byte, error) {
	rec := &s.seg.block(peer).calls[c.Seq&1].record
	at := rec.in
	if out {
		at = rec.out
	}
	data, err := s.space.reach(peer, c, at, out, size)
	if err != nil {
		if reason := s.trouble(context.Background(), c, peer, time.Now()); reason != nil {
			return nil, reason // the peer has died, or left
		}
		return nil, fmt.Errorf("dist: reach the memory of %v: %w", s.cfg.Members[peer], err)
	}
	return data, nil
}

// Which flag of a rank's call is waited for.
type flagKind int

const (
	entryFlag flagKind = iota
	readyFlag
	reducedFlag
	doneFlag
)

func (s *Shm) flag(rank int, c *collective.Call, kind flagKind) *flag {
	b := &s.seg.block(rank).calls[c.Seq&1]
	switch kind {
	case entryFlag:
		return &b.entry
	case readyFlag:
		return &b.ready
	case reducedFlag:
		return &b.reduced
	}
	return &b.done
}

// post raises a flag of this rank.
func (s *Shm) post(c *collective.Call, kind flagKind, value uint32) {
	raise(s.park, s.flag(s.cfg.Rank, c, kind), value)
}

// awaitAll waits until a flag of every other rank has come to want.
func (s *Shm) awaitAll(ctx context.Context, c *collective.Call, kind flagKind, want uint32) error {
	for i := 1; i < s.n; i++ {
		// Each rank begins with its right neighbour: they do not all look at one.
		peer := s.cfg.Rank + i
		if peer >= s.n {
			peer -= s.n
		}
		f := s.flag(peer, c, kind)
		if f.reached(want) {
			continue
		}
		if err := s.await(ctx, c, peer, f, want); err != nil {
			var late *collective.TimeoutError
			if errors.As(err, &late) {
				late.Missing = late.Missing[:0]
				for r, m := range s.cfg.Members {
					if r != s.cfg.Rank && !s.flag(r, c, kind).reached(want) {
						late.Missing = append(late.Missing, m)
					}
				}
			}
			return err
		}
	}
	return nil
}

// await waits until a flag that peer raises has come to want.
func (s *Shm) await(ctx context.Context, c *collective.Call, peer int, f *flag, want uint32) error {
	if f.reached(want) {
		return nil
	}
	start := time.Now()
	limit := lookShared
	if !c.Background {
		limit = max(lookShared, time.Duration(s.patience.Load()))
	}
	for i := 0; s.park.look(i, start, limit); i++ {
		if f.reached(want) {
			s.learn(c, limit, start)
			return nil
		}
	}
	defer s.learn(c, limit, start)
	for {
		heard := s.park.alarms()
		err := s.trouble(ctx, c, peer, start)
		if f.reached(want) {
			return nil
		}
		if err != nil {
			return err
		}
		doze(ctx, s.park, f, want, heard, s.cfg.Timeout-time.Since(start))
		if f.reached(want) {
			return nil
		}
	}
}

// learn adapts how long it pays to look: longer if the wait that has ended
// could have been spent looking, else shorter. Without this, either ranks that
// share cores look in vain while others have work, or ranks that could answer
// each other at once keep waking each other.
func (s *Shm) learn(c *collective.Call, limit time.Duration, start time.Time) {
	most := s.park.patience()
	if c.Background || limit == most && limit == lookShared {
		return
	}
	if time.Since(start) < most {
		limit = min(2*limit, most)
	} else {
		limit = max(limit/2, lookShared)
	}
	s.patience.Store(int64(limit))
}

// trouble returns why waiting for peer is in vain, nil if it is not.
func (s *Shm) trouble(ctx context.Context, c *collective.Call, peer int, start time.Time) error {
	if rank, kind, text, ok := s.seg.fault(); ok {
		return s.faultError(c, rank, kind, text)
	}
	if f := s.failed.Load(); f != nil {
		return f.err
	}
	if s.seg.block(peer).left.Load() != 0 {
		return s.faultError(c, peer, kindLeft, "")
	}
	cause := ctx.Err()
	if cause != nil {
		cause = context.Cause(ctx)
	} else if time.Since(start) >= s.cfg.Timeout {
		cause = fmt.Errorf("the group's limit of %v: %w", s.cfg.Timeout, context.DeadlineExceeded)
	} else {
		return nil
	}
	return &collective.TimeoutError{Group: s.cfg.Group, Op: c.Op.String(), Seq: c.Seq,
		Missing: []collective.Member{s.cfg.Members[peer]}, Cause: cause}
}

// usable returns an error if no call can be made any more.
func (s *Shm) usable(c *collective.Call) error {
	if s.closed.Load() {
		return fmt.Errorf("dist: %v %d of group %q: %w", c.Op, c.Seq, s.cfg.Group, collective.ErrClosed)
	}
	if f := s.failed.Load(); f != nil {
		return again(f.err, c)
	}
	if rank, kind, text, ok := s.seg.fault(); ok {
		return s.fail(s.faultError(c, rank, kind, text))
	}
	return nil
}

// faultError returns the error of a call that ends because of a recorded fault.
func (s *Shm) faultError(c *collective.Call, rank int, kind uint32, text string) error {
	return s.cfg.faultError(c, rank, kind, text)
}

// fail makes err the end of the group, here and for the others, and returns
// the error that this rank reports. The ranks that see a mismatch of
// collectives all find it themselves; telling them again changes nothing.
func (s *Shm) fail(err error) error {
	s.failed.CompareAndSwap(nil, &failure{err})
	rank, kind, text := s.cfg.faultOf(err)
	s.spread(rank, kind, text)
	return err
}

// Fail implements [collective.Backend].
func (s *Shm) Fail(err error) { _ = s.fail(err) }

// spread records a fault for all ranks and wakes them.
func (s *Shm) spread(rank int, kind uint32, text string) {
	if s.endWhole != nil {
		s.endWhole()
	}
	if s.seg.setFault(rank, kind, text) {
		s.wakeAll()
		if s.onFault != nil {
			s.onFault(rank, kind, text)
		}
	}
}

// Report records a fault that this rank has heard of from elsewhere.
func (s *Shm) Report(rank int, kind uint32, text string) {
	if s.endWhole != nil {
		defer s.endWhole()
	}
	s.gate.RLock()
	defer s.gate.RUnlock()
	if !s.detached && s.seg != nil && s.seg.setFault(rank, kind, text) {
		s.wakeAll()
	}
}

// Died tells the group that a rank's process has ended.
func (s *Shm) Died(rank int) {
	if rank >= 0 && rank < s.n && rank != s.cfg.Rank {
		s.Report(rank, kindDied, "")
	}
}

// reportLeft hears that a rank has left: it has marked its block itself.
func (s *Shm) reportLeft(int) {}

// detach makes news that come late leave the memory alone, which is about to
// be given back.
func (s *Shm) detach() {
	s.gate.Lock()
	s.detached = true
	s.gate.Unlock()
}

// wakeAll wakes everybody who sleeps in this group so that they look up.
func (s *Shm) wakeAll() {
	s.park.wakeAll()
	for r := range s.n {
		s.wakeWaitersFor(r)
	}
	s.pipes.wakeAll(s.park)
}

// wakeWaitersFor wakes those who wait for a rank's flags.
func (s *Shm) wakeWaitersFor(rank int) {
	for i := range 2 {
		b := &s.seg.block(rank).calls[i]
		for _, f := range [...]*flag{&b.entry, &b.ready, &b.reduced, &b.done} {
			if f.sleepers.Load() > 0 {
				s.park.wake(f)
			}
		}
	}
}

// Close implements [collective.Backend].
func (s *Shm) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.seg.block(s.cfg.Rank).left.Store(1)
	s.park.wakeAll()
	s.wakeWaitersFor(s.cfg.Rank)
	s.pipes.wakeAll(s.park)
	var err error
	if s.onClose != nil {
		err = s.onClose()
	}
	return err
}
