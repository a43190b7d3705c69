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

// WithMode chooses between [Smart], which is the default, and [Fast].
func WithMode(m Mode) BackwardOption { return func(o *backwardOptions) { o.mode = m } }

// WithRetainGraph keeps what the pass would free, for another pass.
func WithRetainGraph() BackwardOption { return func(o *backwardOptions) { o.retain = true } }

// WithLosses adds losses to the one that Backward begins at. They may belong to other
// passes of this process.
func WithLosses(losses ...*tensor.Tensor) BackwardOption {
	return func(o *backwardOptions) { o.losses = append(o.losses, losses...) }
}

// DefaultTimeout ends a backward pass whose context has no deadline.
const DefaultTimeout = 10 * time.Minute

// Backward computes the gradients of loss, a value of one element that a pass of
// this process computed, with respect to all parameters that it depends on, wherever
// they are. They add to those that earlier passes left in the context. The answers of
// all calls must be there.
//
// An error, of whatever process, ends the pass on all of them and releases the
// context; it is an [*Error] that says where it began.
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
		ctx, cancel = context.WithTimeoutCause(ctx, DefaultTimeout, fmt.Errorf("it took longer than %v, which counts where the context has no deadline: %w", DefaultTimeout, context.DeadlineExceeded))
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

// drive makes all processes of the context walk their tapes.
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
		// Who was told of a failure may be heard before who failed.
		if first == nil || repeats(first) && !repeats(err) {
			first = err
		}
		cancel(err)
	}
	return first
}

// repeats reports whether an error only says that another process had one.
func repeats(err error) bool { return errors.Is(err, ErrReleased) || errors.Is(err, context.Canceled) }

// everybody asks those who take part for whom they know, until nobody new is named. It
// ends when one of them is lost, or knows of one: a question to a process whose
// connection has ended makes it anew, and waits for a process that has died to come back.
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
				return nil, s.broken // who is waited for in vain
			}
			return nil, first
		}
		peers = s.known()
	}
}

// Mode is how a backward pass deals with what the loss does not depend on.
type Mode int

const (
	// Smart lets every tensor that was received answer, with its gradient or with
	// none, so that an argument which does not feed the loss holds nothing up. Before,
	// one round of questions finds everybody who takes part.
	Smart Mode = iota
	// Fast takes for granted that the loss depends on every tensor that was sent, and
	// that the answers of all calls have told who takes part. Where the first is not so,
	// the pass fails with [ErrUnreached].
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
