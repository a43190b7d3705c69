// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/ctxerr"
)

// Shm is a rank of a group whose ranks share memory. The ranks are processes of one node, or
// goroutines of one process. The two kinds differ in how a rank reaches another's data.
type Shm struct {
	cfg   Config
	n     int
	seg   *segment
	park  parking
	space space
	pipes pipes
	// onFault spreads a fault beyond the segment. It may be nil.
	onFault func(rank int, kind uint32, text string)
	onClose func() error
	// settle returns a mismatch as all ranks have it. It may be nil.
	settle func(*fault.MismatchError) *fault.MismatchError
	// ask returns what another rank is doing. It may be nil.
	ask func(rank int, stop <-chan struct{}) fault.Doing
	// askWhere also asks where the rank's program is. It may be nil.
	askWhere func(rank int, stop <-chan struct{}) fault.Doing
	// come is set when cfg has what is this goroutine rank's own. Before that, ranks that have
	// come to the group do not use it.
	come atomic.Bool
	// beats knows which ranks are late where ranks are processes, board where they are
	// goroutines. One of the two is nil, or both are.
	beats *heartbeat
	board *board

	// whole ends with the first fault. It is the one context that lives as long as the
	// group. Both are nil for goroutine ranks, which wait for no connection.
	whole    context.Context
	endWhole context.CancelFunc

	failed   atomic.Pointer[firstError]
	closed   atomic.Bool
	gone     []atomic.Bool // by rank: its process has ended, or nothing is heard of it
	gate     sync.RWMutex  // held when news from other goroutines touch the memory
	detached bool
	running  shmCall // the collective under way
	past     history
	scratch  scratch
	given    atomic.Int64 // bytes of data that this rank has written for others
}

// space is how ranks reach each other's data.
type space interface {
	// lend makes data reachable for the peers during a call and returns where it is. It
	// returns false if peers cannot reach the data. out tells the result from the input.
	lend(rank int, c *operation.Call, d *collective.Data, out bool) (location, bool)
	// reach returns size bytes, from offset on, of what a peer has lent for a call. ctx
	// bounds the wait for them. offset and size are not negative.
	reach(ctx context.Context, peer int, c *operation.Call, at location, out bool, offset, size int) ([]byte, error)
	// close gives back what reach has mapped.
	close() error
}

// Collective implements [backend.Communicator].
func (s *Shm) Collective(ctx context.Context, c operation.Call, in, out collective.Data) error {
	if err := s.usable(&c); err != nil {
		return err
	}
	// One call runs at a time: a small one needs no memory of its own.
	m := &s.running
	*m = shmCall{s: s, ctx: ctx, call: c, me: s.cfg.Rank, inData: in, outData: out, in: in.Bytes(), out: out.Bytes()}
	m.c = &m.call
	if c.Parts != nil {
		s.past.note(&c)
	}
	err := m.perform()
	lent := m.lent
	*m = shmCall{}
	s.call(s.cfg.Rank, c.Seq).left.Store(uint32(c.Seq))
	if err == nil {
		return nil
	}
	err = s.fail(err)
	if lent {
		s.awaitLeave(c.Seq)
	}
	return err
}

// perform offers this rank's data, enters the call and moves the data.
func (m *shmCall) perform() error {
	mine := m.s.call(m.me, m.c.Seq)
	// Nobody waits for these any more: all have passed the call before the
	// last, or the last call's entry would not have completed.
	mine.ready.value.Store(0)
	mine.done.value.Store(0)
	mine.reduced.value.Store(0)
	mine.over.value.Store(0)
	mine.record.fill(m.c)
	if !m.c.Empty() {
		if err := m.offer(&mine.record); err != nil {
			return err
		}
		if e := m.s.cfg.Explain; e != nil {
			e.say(m.c, mine.record.ways.why())
		}
	}
	if err := m.s.enter(m.ctx, m.c); err != nil || m.c.Empty() {
		return err
	}
	return m.transfer()
}

// call returns the block of a rank's call.
func (s *Shm) call(rank int, seq uint64) *callBlock { return &s.seg.block(rank).calls[seq&1] }

// Flags of a rank's call.
type flagKind int

const (
	entryFlag flagKind = iota
	belowFlag
	readyFlag
	doneFlag
	reducedFlag
	overFlag
)

func (s *Shm) flag(rank int, c *operation.Call, kind flagKind) *flag {
	b := s.call(rank, c.Seq)
	switch kind {
	case entryFlag:
		return &b.entry
	case belowFlag:
		return &b.below
	case readyFlag:
		return &b.ready
	case doneFlag:
		return &b.done
	case reducedFlag:
		return &b.reduced
	}
	return &b.over
}

// post raises a flag of this rank.
func (s *Shm) post(c *operation.Call, kind flagKind, value uint32) {
	raise(s.park, s.flag(s.cfg.Rank, c, kind), value)
}

// awaitAll waits until a flag of every other rank has come to want.
func (s *Shm) awaitAll(ctx context.Context, c *operation.Call, kind flagKind, want uint32) error {
	for i := 1; i < s.n; i++ {
		if err := s.awaitFlag(ctx, c, s.after(i), kind, want); err != nil {
			return err
		}
	}
	return nil
}

// after returns the rank i places after this one. Each rank begins with its right neighbour,
// so that not all look at the same rank.
func (s *Shm) after(i int) int {
	if r := s.cfg.Rank + i; r < s.n {
		return r
	}
	return s.cfg.Rank + i - s.n
}

// awaitFlag waits until a flag of a rank has come to want. If that takes too long, the error
// names all ranks whose flag has not come to want.
func (s *Shm) awaitFlag(ctx context.Context, c *operation.Call, peer int, kind flagKind, want uint32) error {
	f := s.flag(peer, c, kind)
	if f.reached(want) {
		return nil
	}
	err := s.await(ctx, c, peer, f, want)
	if err == nil {
		return nil
	}
	var late *fault.TimeoutError
	if !errors.As(err, &late) {
		return err
	}
	if kind == belowFlag {
		kind = entryFlag // name the ranks that have not come at all
	}
	late.Missing = late.Missing[:0]
	for r, m := range s.cfg.Members {
		if r != s.cfg.Rank && !s.flag(r, c, kind).reached(want) {
			late.Missing = append(late.Missing, m)
		}
	}
	return err
}

// await waits until a flag that peer raises has come to want.
func (s *Shm) await(ctx context.Context, c *operation.Call, peer int, f *flag, want uint32) error {
	if f.reached(want) {
		return nil
	}
	start := time.Now()
	if c.Begun.IsZero() {
		c.Begun = start
	}
	for i := 0; s.park.look(i, start, c.Background); i++ {
		if f.reached(want) {
			return nil
		}
	}
	for {
		heard := s.park.alarms()
		err := s.trouble(ctx, c, peer)
		if f.reached(want) {
			return nil
		}
		if err != nil {
			return err
		}
		doze(ctx, s.park, f, want, heard, s.cfg.Timeout-time.Since(c.Begun))
		if f.reached(want) {
			return nil
		}
	}
}

// trouble returns why a wait for peer is in vain, nil if it is not.
func (s *Shm) trouble(ctx context.Context, c *operation.Call, peer int) error {
	if rank, kind, text, ok := s.seg.fault(); ok {
		return s.faultError(c, rank, kind, text)
	}
	if f := s.failed.Load(); f != nil {
		if f.err == fault.ErrClosed {
			return s.cfg.closed(c)
		}
		return owned(f.err)
	}
	if s.seg.block(peer).left.Load() != 0 {
		if rank, kind, text, ok := s.seg.fault(); ok { // the reason for its leave
			return s.faultError(c, rank, kind, text)
		}
		return s.faultError(c, peer, kindLeft, "")
	}
	cause := ctxerr.Of(ctx)
	if cause == nil && time.Since(c.Start()) >= s.cfg.Timeout {
		cause = fmt.Errorf("the group's limit of %v: %w", s.cfg.Timeout, context.DeadlineExceeded)
	}
	if cause == nil {
		return nil
	}
	return &fault.TimeoutError{Group: s.cfg.Group, Op: c.Op.String(), Seq: c.Seq,
		Missing: []fault.Member{s.cfg.Members[peer]}, Cause: cause}
}

// usable returns an error if no call can be made any more.
func (s *Shm) usable(c *operation.Call) error {
	if s.closed.Load() {
		return s.cfg.closed(c)
	}
	if f := s.failed.Load(); f != nil {
		return s.cfg.again(f.err, c)
	}
	if rank, kind, text, ok := s.seg.fault(); ok {
		return s.fail(s.faultError(c, rank, kind, text))
	}
	return nil
}

// faultError returns the error of a call that ends because of a recorded fault.
func (s *Shm) faultError(c *operation.Call, rank int, kind uint32, text string) error {
	return s.cfg.faultError(c, rank, kind, text)
}

// fail makes err the end of the group, here and for the others, and returns the error that this
// rank reports. All ranks that see a mismatch find it themselves; the first one that is found
// is the group's.
func (s *Shm) fail(err error) error {
	if s.ask != nil {
		s.cfg.askMissing(err, s.ask)
	}
	s.Fail(err)
	if e, ok := err.(*fault.MismatchError); ok && s.settle != nil {
		if s.seg.awaitWritten(); s.seg.faultKind() == kindMismatch {
			err = s.settle(e)
			s.failed.Store(&firstError{err})
		}
	}
	return err
}

// Fail implements [backend.Communicator].
func (s *Shm) Fail(err error) {
	s.failed.CompareAndSwap(nil, &firstError{err})
	rank, kind, text := s.cfg.faultOf(err)
	s.spread(rank, kind, text)
}

// SetRecorder sets [Config.Site] and Doing of a rank that is a goroutine,
// before its first call: groups made by [NewGoRanks] have one Config for all
// ranks.
func (s *Shm) SetRecorder(site func(c operation.Call) string, doing func(asker int) fault.Doing) {
	s.cfg.Site, s.cfg.Doing = site, doing
}

// spread records a fault for all ranks and wakes them.
func (s *Shm) spread(rank int, kind uint32, text string) {
	if s.endWhole != nil {
		s.endWhole()
	}
	if s.record(rank, kind, text) && s.onFault != nil {
		s.onFault(rank, kind, text)
	}
}

// Report records a fault of which this rank has heard.
func (s *Shm) Report(rank int, kind uint32, text string) {
	if s.endWhole != nil {
		defer s.endWhole()
	}
	if kind == kindDied || kind == kindSilent {
		s.gone[rank].Store(true)
	}
	s.record(rank, kind, text)
}

// record records a fault and wakes all that sleep. It returns false if there is a fault
// already, or the memory has been given back.
func (s *Shm) record(rank int, kind uint32, text string) bool {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.detached || s.seg == nil || !s.seg.setFault(rank, kind, text) {
		return false
	}
	s.wakeAll()
	return true
}

// HasLeft implements [backend.Communicator].
func (s *Shm) HasLeft(rank int) bool {
	s.gate.RLock()
	defer s.gate.RUnlock()
	return !s.detached && s.seg.block(rank).left.Load() != 0
}

// Died tells the group that a rank's process has ended.
func (s *Shm) Died(rank int) {
	if rank >= 0 && rank < s.n && rank != s.cfg.Rank {
		s.Report(rank, kindDied, "")
	}
}

// Silent tells the group that a rank has fallen silent.
func (s *Shm) Silent(rank int, text string) {
	if rank >= 0 && rank < s.n {
		s.Report(rank, kindSilent, text)
	}
}

// Skew returns how late the ranks are, as far as that is known.
func (s *Shm) Skew() []RankSkew {
	if s.board != nil {
		return s.board.latest()
	}
	return s.beats.latest()
}

// StepEnded notes that the program has ended a step.
func (s *Shm) StepEnded() {
	if s.board != nil {
		s.board.note(s.cfg.Rank, s.cfg.Progress)
	} else {
		s.beats.soon()
	}
}

// knownFault returns the recorded fault, if there is one.
func (s *Shm) knownFault() (rank int, kind uint32, text string, ok bool) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.detached || s.seg == nil {
		return 0, 0, "", false
	}
	return s.seg.fault()
}

// reportLeft does nothing: a rank that has left has marked its own block.
func (s *Shm) reportLeft(int) {}

// detach keeps late news from touching the memory, which is about to be given back.
func (s *Shm) detach() {
	s.gate.Lock()
	s.detached = true
	s.gate.Unlock()
}

// wakeAll wakes all that sleep in this group, so that they look up.
func (s *Shm) wakeAll() {
	s.park.wakeAll()
	for r := range s.n {
		s.wakeWaitersFor(r)
		ring(s.park, &s.seg.block(r).bell)
	}
	s.pipes.wakeAll(s.park)
}

// wakeWaitersFor wakes all that wait for a rank's flags.
func (s *Shm) wakeWaitersFor(rank int) {
	for i := range 2 {
		b := s.call(rank, uint64(i))
		for _, f := range [...]*flag{&b.entry, &b.below, &b.ready, &b.done, &b.reduced, &b.over} {
			if f.sleepers.Load() > 0 {
				s.park.wake(f)
			}
		}
	}
}

// Close implements [backend.Communicator].
func (s *Shm) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.seg.block(s.cfg.Rank).left.Store(1)
	s.park.wakeAll()
	s.wakeWaitersFor(s.cfg.Rank)
	for r := range s.n {
		ring(s.park, &s.seg.block(r).bell)
	}
	s.pipes.wakeAll(s.park)
	var err error
	if s.onClose != nil {
		err = s.onClose()
	}
	return err
}

// unreachableError says that a peer's process could not be reached, or did not answer. It may
// be dead, or not.
type unreachableError struct{ err error }

func (e *unreachableError) Error() string { return e.err.Error() }
func (e *unreachableError) Unwrap() error { return e.err }

// unreached returns why this rank could not get a peer's memory, or a pipe to the peer. It
// returns nil if the peer is not the reason. A dead process may be missed here a moment before
// the news of its death comes.
func (s *Shm) unreached(ctx context.Context, c *operation.Call, peer int, err error) error {
	var lost *unreachableError
	if !errors.As(err, &lost) {
		return s.trouble(ctx, c, peer)
	}
	tick := time.NewTicker(nap)
	defer tick.Stop()
	for waited := time.Now(); ; {
		if reason := s.trouble(ctx, c, peer); reason != nil {
			return reason
		}
		if time.Since(waited) >= newsPatience {
			return s.faultError(c, peer, kindFailed, "could not be reached: "+lost.Error())
		}
		<-tick.C
	}
}

// Trouble implements [backend.Communicator].
func (s *Shm) Trouble(c operation.Call) error {
	if err := s.usable(&c); err != nil {
		return err
	}
	for r := range s.n {
		if r != s.cfg.Rank && s.seg.block(r).left.Load() != 0 {
			if err := s.usable(&c); err != nil { // the reason for its leave
				return err
			}
			return s.faultError(&c, r, kindLeft, "")
		}
	}
	return nil
}

// settleHere is star.settled for ranks of one process, which need not ask each other.
func (s *Shm) settleHere(ranks []*Shm) func(*fault.MismatchError) *fault.MismatchError {
	return func(e *fault.MismatchError) *fault.MismatchError {
		m := newMismatch(e)
		if _, kind, text, ok := s.seg.fault(); ok && kind == kindMismatch { // the first to be found
			if first, err := parseMismatch(text, s.n); err == nil {
				m = first
			}
		}
		for r := range ranks {
			if ranks[r].come.Load() {
				m.say(r, ranks[r].cfg.Site, ranks[r].past.call)
			}
		}
		return m.error(s.cfg.Group, s.cfg.Rank)
	}
}

// AskWhere is [Mesh.AskWhere].
func (s *Shm) AskWhere(rank int, stop <-chan struct{}) fault.Doing {
	if s.askWhere == nil || rank < 0 || rank >= s.n {
		return s.Ask(rank, stop)
	}
	return s.askWhere(rank, stop)
}

// Ask is [Mesh.Ask].
func (s *Shm) Ask(rank int, stop <-chan struct{}) fault.Doing {
	if s.ask == nil || rank < 0 || rank >= s.n {
		return fault.Doing{}
	}
	return s.ask(rank, stop)
}

// SetProgress sets the function that returns how far this rank has come, before its first
// call.
func (s *Shm) SetProgress(report func() Progress) { s.cfg.Progress = report }
