// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/tensor"
)

// BackwardOption changes what [Context.Backward] does.
type BackwardOption func(*backwardOptions)

type backwardOptions struct {
	mode   Mode
	retain bool
	losses []*tensor.Tensor
}

// WithMode sets the mode: [Smart], which is the default, or [Fast].
func WithMode(m Mode) BackwardOption { return func(o *backwardOptions) { o.mode = m } }

// WithRetainGraph keeps the graph, which Backward would free, for another backward pass.
func WithRetainGraph() BackwardOption { return func(o *backwardOptions) { o.retain = true } }

// WithLosses adds losses: Backward begins at all of them. They may belong to other passes
// of this process.
func WithLosses(losses ...*tensor.Tensor) BackwardOption {
	return func(o *backwardOptions) { o.losses = append(o.losses, losses...) }
}

// DefaultTimeout limits a backward pass whose context has no deadline.
const DefaultTimeout = 10 * time.Minute

// Backward computes the gradients of loss with respect to all parameters that it depends
// on, wherever they are. loss is a value of one element that a pass of this process has
// computed. The gradients add to those that earlier passes have left in the context. The
// answers of all calls must have come.
//
// If any process fails, the backward pass ends on all of them and the context is released.
// The error is an [*Error] that says where it began.
func (c *Context) Backward(ctx context.Context, loss *tensor.Tensor, opts ...BackwardOption) error {
	o := backwardOptions{losses: []*tensor.Tensor{loss}}
	for _, opt := range opts {
		opt(&o)
	}
	s := c.s
	if err := c.checkBackward(o); err != nil {
		return s.fail("backward", err)
	}
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, DefaultTimeout, fmt.Errorf("it took longer than %v, the limit for a context without a deadline: %w", DefaultTimeout, context.DeadlineExceeded))
		defer cancel()
	}
	if err := s.drive(ctx, o); err != nil {
		err = s.fail("backward", err)
		s.e.releaseAs(s, true, fmt.Errorf("%w: %w", ErrReleased, err), err.Error(), nil)
		return err
	}
	return nil
}

func (c *Context) checkBackward(o backwardOptions) error {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended != nil:
		return s.ended
	case !c.local:
		return fmt.Errorf("the pass begins on %s, which made the context", s.e.wire.name(rankOf(s.id)))
	case s.walk != nil && s.walk.begun:
		return errors.New("a backward pass runs already")
	case o.mode != Smart && o.mode != Fast:
		return fmt.Errorf("%v is neither Smart nor Fast", o.mode)
	}
	for i, l := range o.losses {
		switch {
		case l == nil:
			return fmt.Errorf("loss %d is nil", i)
		case !l.NeedsGrad() || s.ownerOf(l.Tape()) == nil:
			return fmt.Errorf("loss %d was not computed in a pass of the context on this process", i)
		case l.NumElems() != 1:
			return fmt.Errorf("loss %d has shape %v, one element is wanted", i, l.Shape())
		}
	}
	return nil
}

// drive makes all processes of the context walk their tapes, and waits for them.
func (s *state) drive(ctx context.Context, o backwardOptions) error {
	s.mu.Lock()
	peers, broken := s.knownLocked(), s.broken
	s.mu.Unlock()
	if broken != nil {
		return broken
	}
	if o.mode == Smart {
		var err error
		if peers, err = s.everybody(ctx, peers); err != nil {
			return err
		}
	}
	in := walkCall{Context: s.id, Life: s.life, Walk: s.walks + 1, Mode: o.mode, Retain: o.retain}
	if at, has := ctx.Deadline(); has {
		left := time.Until(at)
		in.Limit = (left - min(left/10, time.Second)).Seconds()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type outcome struct {
		rank int
		err  error
	}
	ends := make(chan outcome, len(peers)+1)
	for _, to := range peers {
		go func() { ends <- outcome{to, s.e.wire.walk(ctx, to, in)} }()
	}
	s.mu.Lock()
	s.asked = in.Walk
	s.mu.Unlock()
	go func() { ends <- outcome{s.e.rank, s.backward(ctx, in, o.losses)} }()
	var first error
	for range len(peers) + 1 {
		end := <-ends
		if end.err == nil {
			continue
		}
		err := s.failAt("backward", end.rank, end.err)
		// An error that repeats another process's failure may come before that failure.
		if first == nil || repeats(first) && !repeats(err) {
			first = err
		}
		cancel(err)
	}
	return first
}

// repeats reports whether an error only says that another process had one.
func repeats(err error) bool { return errors.Is(err, ErrReleased) || errors.Is(err, context.Canceled) }

// everybody returns the ranks of all processes that take part: it asks each known process
// which processes it knows, until no new one is named. It ends when a process of the
// context is lost, here or at a process that was asked. Otherwise a question to a process
// that has died would wait for that process to come back.
func (s *state) everybody(ctx context.Context, peers []int) ([]int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	s.asking = cancel
	if s.broken != nil {
		cancel(s.broken)
	}
	s.mu.Unlock()
	asked := make(map[int]bool)
	for {
		var fresh []int
		for _, r := range peers {
			if !asked[r] {
				asked[r] = true
				fresh = append(fresh, r)
			}
		}
		if len(fresh) == 0 {
			return peers, nil
		}
		errs := make(chan error, len(fresh))
		for _, to := range fresh {
			go func() {
				answer, err := s.e.wire.prepare(ctx, to, prepareCall{s.id, s.life})
				if err == nil {
					s.learn(answer.Peers...)
				} else {
					err = s.failAt("backward", to, err)
				}
				errs <- err
			}()
		}
		var first error
		for range fresh {
			if err := <-errs; err != nil && first == nil {
				first = err
				cancel(err)
			}
		}
		if first != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.broken != nil {
				return nil, s.broken // it names the process that was lost
			}
			return nil, first
		}
		peers = s.known()
	}
}

// Mode says what a backward pass does where the loss may not depend on a tensor that was
// sent.
type Mode int

const (
	// Smart sends an answer for every tensor that was received: its gradient, or that
	// there is none. So a tensor on which the loss does not depend holds nothing up. The
	// pass begins with a round of questions that finds all processes of the context.
	Smart Mode = iota
	// Fast assumes that the loss depends on every tensor that was sent, and that the
	// answers of the calls have named all processes of the context. If the loss does not
	// depend on a tensor that was sent, the pass fails with [ErrUnreached].
	Fast
)

func (m Mode) String() string {
	switch m {
	case Smart:
		return "Smart"
	case Fast:
		return "Fast"
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}
