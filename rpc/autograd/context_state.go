// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// state is one process's part of a context: the forward passes that ran here, the tensors
// that were sent from here, and the gradients of parameters that live here.
type state struct {
	e     *engine
	id    uint64
	life  uint64 // of the process that made it
	grads gradients

	mu      sync.Mutex
	passes  []*pass
	sends   map[uint64]*sent // by message id
	came    map[uint64]*pass // what was received, by message id
	peers   map[int]uint64   // the lives of the other processes of the context that are known here, by rank
	running map[*pass]bool   // calls that have not been answered
	quiet   chan struct{}    // closed when the last of them was
	walks   uint64           // the backward pass that runs or was the last one
	asked   uint64           // the last one that this process was asked for
	walk    *walk            // the one that runs, or gets its first gradients
	heard   time.Time
	done    chan struct{}           // closed when the context ends
	ended   error                   // why it is over
	broken  error                   // why no backward pass can end well
	asking  context.CancelCauseFunc // ends the questions before a backward pass, see everybody
}

func newState(e *engine, id, life uint64) *state {
	return &state{
		e: e, id: id, life: life, sends: make(map[uint64]*sent), came: make(map[uint64]*pass), peers: make(map[int]uint64), running: make(map[*pass]bool),
		heard: time.Now(), done: make(chan struct{}),
	}
}

// fail wraps err in an Error of this context and process, unless it is one already.
func (s *state) fail(op string, err error) error { return s.failAt(op, s.e.rank, err) }

func (s *state) failAt(op string, rank int, err error) error {
	if own := (*Error)(nil); errors.As(err, &own) {
		return err
	}
	return &Error{Op: op, Context: s.id, Worker: s.e.wire.name(rank), Rank: rank, Err: err}
}

// known returns the ranks of the other processes of the context that are known here.
func (s *state) known() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.knownLocked()
}

func (s *state) knownLocked() []int {
	out := make([]int, 0, len(s.peers))
	for r := range s.peers {
		out = append(out, r)
	}
	slices.Sort(out)
	return out
}

// members is known, with the lives.
func (s *state) members() []member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.membersLocked()
}

func (s *state) membersLocked() []member {
	out := make([]member, 0, len(s.peers))
	for _, r := range s.knownLocked() {
		out = append(out, member{r, s.peers[r]})
	}
	return out
}

// learn adds processes of the context.
func (s *state) learn(who ...member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.learnLocked(who...)
}

func (s *state) learnLocked(who ...member) {
	for _, m := range who {
		if m.Rank == s.e.rank || m.Rank < 0 || m.Rank >= s.e.size {
			continue
		}
		if life, known := s.peers[m.Rank]; known && life != m.Life && s.broken == nil {
			s.breakOff(m.Rank, errors.New("it was started again in the middle of the context"))
		}
		s.peers[m.Rank] = m.Life
	}
}

func (s *state) touch(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = now
}

// quietSince returns for how long nothing has been heard of the context.
func (s *state) quietSince(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.walk != nil && s.walk.begun || len(s.running) > 0 {
		return 0
	}
	return now.Sub(s.heard)
}

// lose handles the end of a connection with a process.
func (s *state) lose(who member, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if life, known := s.peers[who.Rank]; known && life == who.Life && s.broken == nil && s.ended == nil {
		s.breakOff(who.Rank, fmt.Errorf("it was lost: %w", err))
	}
}

// breakOff sets the reason why no backward pass can succeed, and ends a running one. The
// lock is held.
func (s *state) breakOff(rank int, err error) {
	s.broken = s.failAt("backward", rank, err)
	if s.walk != nil && s.walk.begun {
		s.walk.cancel(s.broken)
	}
	if s.asking != nil {
		s.asking(s.broken)
	}
}

// end ends the context on this process: it frees what the tapes hold, ends a backward
// pass, and returns the other processes. mine says that the goroutine that began the
// maker's passes calls it; otherwise one of these passes may still be computing.
func (s *state) end(cause error, mine bool) []int {
	s.mu.Lock()
	s.ended = cause
	close(s.done)
	walk := s.walk
	if walk != nil && walk.begun {
		walk.cancel(cause)
	}
	peers := s.knownLocked()
	s.mu.Unlock()
	if walk != nil && walk.begun {
		<-walk.over // it reads the tapes
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.passes {
		// The tape of a call that still runs is in use, and what was sent may still be
		// on its way out: those are left to the collector.
		if p.carrier != nil && !s.running[p] && p.numSent == 0 && (mine || p.method != "") {
			p.carrier.Close()
		}
	}
	s.passes, s.sends, s.came = nil, nil, nil
	return peers
}

// started counts a call that runs here.
func (s *state) started(p *pass) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[p] = true
	if s.quiet == nil {
		s.quiet = make(chan struct{})
	}
}

// finished counts a call that has been answered.
func (s *state) finished(p *pass) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running[p] {
		return
	}
	delete(s.running, p)
	s.heard = time.Now()
	if len(s.running) == 0 {
		close(s.quiet)
		s.quiet = nil
	}
}

// waitQuiet waits until no call of the context runs here.
func (s *state) waitQuiet(ctx context.Context) error {
	for {
		s.mu.Lock()
		quiet, ended := s.quiet, s.ended
		var one *pass
		for p := range s.running {
			one = p
			break
		}
		s.mu.Unlock()
		switch {
		case ended != nil:
			return ended
		case quiet == nil:
			return nil
		}
		select {
		case <-quiet:
		case <-s.done:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s, called by %s, to return before the pass can begin: %w",
				one.method, s.e.wire.name(one.from), context.Cause(ctx))
		}
	}
}
