// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/tensor"
)

// engine is distributed autograd on one process: its part of all contexts. The agent's
// hook calls it for each message of a context.
type engine struct {
	rank, size int
	life       uint64 // of this process, see hook.Peer
	wire       wire

	numMessages atomic.Uint64
	stepping    sync.Mutex // optimizers step one after the other: they may share parameters

	mu          sync.Mutex // a state's lock may be held when it is taken, not the other way round
	lastContext uint64     // the count in the newest id
	states      map[uint64]*state
	orphans     map[*state]error   // contexts whose maker was lost; run will release them
	wake        chan struct{}      // there are some
	closed      bool               // its agent has been
	released    [remembered]uint64 // the ids of contexts released last: late messages must not make them again
	numReleased int
}

// Limits on what other processes can make this one hold.
const (
	remembered  = 1024
	maxContexts = 1 << 16
)

// wire is how engines call each other. Its methods return when the call has been answered;
// release does not wait.
type wire interface {
	name(rank int) string
	prepare(ctx context.Context, to int, in prepareCall) (prepareAnswer, error)
	walk(ctx context.Context, to int, in walkCall) error
	gradient(ctx context.Context, to int, in gradientCall) (wait func() error)
	missing(ctx context.Context, to int, in missingCall) (bool, error)
	release(to int, in releaseCall)
	alive(ctx context.Context, to int, in aliveCall) (aliveAnswer, error)
}

// prepareCall asks a process which processes it knows in a context.
type prepareCall struct{ Context, Life uint64 }

type prepareAnswer struct{ Peers []member }

// walkCall makes a process do its part of a backward pass. The answer comes when
// that is done.
type walkCall struct {
	Context uint64
	Life    uint64 // of the context's maker
	Walk    uint64 // the number of the pass in the context, from 1
	Mode    Mode
	Retain  bool
	// Limit is after how many seconds the process gives up, and says for what it has
	// waited: a little before the process that asked gives up.
	Limit float64
}

// gradientCall answers a tensor that was sent with its gradient, nil for none.
type gradientCall struct {
	Context uint64
	Walk    uint64
	Message uint64
	Grad    *tensor.Tensor
}

// missingCall asks whether a message has never come: the call that it was part of
// failed, or is still on its way.
type missingCall struct{ Context, Life, Message uint64 }

// releaseCall ends a context. Told are the ranks that know it from the sender.
type releaseCall struct {
	Context uint64
	Told    []int
	Why     string // "" if it was closed
}

// aliveCall asks the process that made contexts which of them there still are.
type aliveCall struct{ Contexts []uint64 }

type aliveAnswer struct{ Alive []uint64 }

func newEngine(rank, size int, life uint64, w wire) *engine {
	return &engine{rank: rank, size: size, life: life, wire: w, lastContext: rand.Uint64N(1 << (counterBits - 1)), states: make(map[uint64]*state),
		orphans: make(map[*state]error), wake: make(chan struct{}, 1)}
}

// newState makes a context of this process.
func (e *engine) newState() *state {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastContext++
	s := newState(e, uint64(e.rank)<<counterBits|e.lastContext, e.life)
	e.states[s.id] = s
	return s
}

// messages takes n message ids that follow each other, and returns the first.
func (e *engine) messages(n int) uint64 {
	return uint64(e.rank)<<counterBits | (e.numMessages.Add(uint64(n)) - uint64(n) + 1)
}

// state returns this process's part of a context.
func (e *engine) state(id uint64) (*state, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.states[id]; s != nil {
		return s, nil
	}
	return nil, e.unknown(id)
}

// unknown returns the error of a context that this process does not have. The lock is
// held.
func (e *engine) unknown(id uint64) error {
	switch root := rankOf(id); {
	case e.over(id):
		return ErrReleased
	case root >= e.size:
		return fmt.Errorf("context %s is of rank %d, of %d ranks", contextName(id), root, e.size)
	}
	return fmt.Errorf("there is no context %s here: %w", contextName(id), ErrReleased)
}

// join returns this process's part of the context of a message. It makes the part if this
// process has not seen the context yet; life is that of the context's maker. ctx is the
// message's: it ends when the sender is lost, before [engine.lost] is called, so that no
// part is made after that, which nobody would end.
func (e *engine) join(ctx context.Context, id, life uint64) (*state, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.states[id]; s != nil {
		return s, nil
	}
	root := rankOf(id)
	switch {
	case e.over(id) || root >= e.size || root == e.rank:
		return nil, e.unknown(id)
	case e.closed:
		return nil, errAgentClosed
	case ctx.Err() != nil:
		return nil, fmt.Errorf("the call of the message ended before it was read: %w", context.Cause(ctx))
	case len(e.states) >= maxContexts:
		return nil, fmt.Errorf("%d contexts are open here: Close those that are done", len(e.states))
	}
	s := newState(e, id, life)
	e.states[id] = s
	return s, nil
}

// errAgentClosed is the end of all contexts of a process.
var errAgentClosed = fmt.Errorf("%w: its agent has been closed", ErrReleased)

// over says whether a context has been released here not long ago; the lock is held.
func (e *engine) over(id uint64) bool { return slices.Contains(e.released[:], id) }

// drop takes a context out, and reports whether it was there.
func (e *engine) drop(s *state) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.states[s.id] != s {
		return false
	}
	delete(e.states, s.id)
	e.note(s.id)
	return true
}

// note remembers the id of a context that has ended. The lock is held.
func (e *engine) note(id uint64) {
	if !e.over(id) {
		e.released[e.numReleased%remembered] = id
		e.numReleased++
	}
}

// remember remembers that a context has ended that this process does not know.
func (e *engine) remember(id uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.states[id] == nil {
		e.note(id)
	}
}

// release ends a context, and tells its other processes except those of told. cause is the
// error of using it from now on; why is the reason that the others are told.
func (e *engine) release(s *state, cause error, why string, told []int) {
	e.releaseAs(s, false, cause, why, told)
}

// releaseAs is release; see [state.end] for mine.
func (e *engine) releaseAs(s *state, mine bool, cause error, why string, told []int) {
	if !e.drop(s) {
		return
	}
	peers := s.end(cause, mine)
	all := append(append([]int{e.rank}, told...), peers...)
	for _, to := range peers {
		if to != e.rank && !slices.Contains(told, to) {
			e.wire.release(to, releaseCall{s.id, all, why})
		}
	}
}

// onRelease answers releaseCall. Any process may end a context: one on which a pass failed
// does.
func (e *engine) onRelease(from int, in releaseCall) {
	s, err := e.state(in.Context)
	if err != nil {
		e.remember(in.Context) // a call of it may be on its way
		return
	}
	cause := fmt.Errorf("%w by %s", ErrReleased, e.wire.name(from))
	if in.Why != "" {
		cause = fmt.Errorf("%w: %s", cause, in.Why)
	}
	e.release(s, cause, in.Why, append(in.Told, from))
}

// onPrepare answers prepareCall. The call that brings the context here may have failed, or
// may not have come yet.
func (e *engine) onPrepare(ctx context.Context, in prepareCall) (prepareAnswer, error) {
	s, err := e.join(ctx, in.Context, in.Life)
	if err != nil {
		return prepareAnswer{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return prepareAnswer{s.membersLocked()}, s.broken
}

// onMissing is the answer to missingCall.
func (e *engine) onMissing(ctx context.Context, in missingCall) (bool, error) {
	s, err := e.join(ctx, in.Context, in.Life)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.came[in.Message] == nil, nil
}

// onAlive is the answer to aliveCall.
func (e *engine) onAlive(in aliveCall) aliveAnswer {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out aliveAnswer
	for _, id := range in.Contexts {
		if e.states[id] != nil {
			out.Alive = append(out.Alive, id)
		}
	}
	return out
}

// staleAfter is after what time without messages the maker of a context is asked whether
// the context still exists. The maker may have died, or its message that the context has
// ended may have been lost.
const staleAfter = 30 * time.Second

// aliveTimeout is how long their maker has for its answer.
const aliveTimeout = 10 * time.Second

// sweep releases the contexts whose makers do not have them any more, or do not answer.
func (e *engine) sweep(ctx context.Context, now time.Time) {
	stale := make(map[int][]*state)
	for _, s := range e.all() {
		if root := rankOf(s.id); root != e.rank && s.quietSince(now) >= staleAfter {
			stale[root] = append(stale[root], s)
		}
	}
	for root, states := range stale {
		var in aliveCall
		for _, s := range states {
			in.Contexts = append(in.Contexts, s.id)
		}
		asking, cancel := context.WithTimeout(ctx, aliveTimeout)
		answer, err := e.wire.alive(asking, root, in)
		cancel()
		if ctx.Err() != nil {
			return
		}
		alive := make(map[uint64]bool)
		for _, id := range answer.Alive {
			alive[id] = true
		}
		for _, s := range states {
			switch {
			case err != nil:
				e.release(s, fmt.Errorf("%w: %s, which made it, does not answer: %v", ErrReleased, e.wire.name(root), err), "", nil)
			case !alive[s.id]:
				e.release(s, fmt.Errorf("%w by %s", ErrReleased, e.wire.name(root)), "", nil)
			default:
				s.touch(now)
			}
		}
	}
}

// all returns the contexts that this process knows.
func (e *engine) all() []*state {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.states))
}

// lost handles the end of a connection with a process. The contexts that the process made
// are released. No backward pass of a context in which it takes part can succeed: the
// process may come back, but without its part of the context. Contexts of a later process
// of the same rank, which may be known here already, go on.
func (e *engine) lost(who member, err error) {
	all := e.all()
	for _, s := range all {
		s.lose(who, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range all {
		if rankOf(s.id) == who.Rank && s.life == who.Life {
			e.orphans[s] = err
		}
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// run releases contexts that have ended elsewhere, until ctx ends.
func (e *engine) run(ctx context.Context) {
	tick := time.NewTicker(staleAfter)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			e.sweep(ctx, now)
		case <-e.wake:
			e.mu.Lock()
			orphans := e.orphans
			e.orphans = make(map[*state]error)
			e.mu.Unlock()
			for s, err := range orphans {
				e.release(s, fmt.Errorf("%w: %s, which made it, was lost: %w", ErrReleased, e.wire.name(rankOf(s.id)), err), "", nil)
			}
		}
	}
}

// close ends all contexts on this process, when its agent ends.
func (e *engine) close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	for _, s := range e.all() {
		if e.drop(s) {
			s.end(errAgentClosed, false)
		}
	}
}
