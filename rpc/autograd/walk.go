// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/tensor"
)

// walk is one process's part of a backward pass. Each forward pass has a goroutine that
// walks its tape backwards. At a tensor that was sent, it waits for the gradient.
//
// The goroutines cannot wait for each other in a circle: each tape is in the order of
// computation, and a tensor is received after it was sent. So among all nodes that are
// left on all tapes, the node that was recorded last does not wait.
type walk struct {
	number uint64
	mode   Mode
	slots  map[uint64]*slot // by message id, made by whoever comes first

	begun  bool
	cancel context.CancelCauseFunc
	over   chan struct{} // closed when the tapes are no longer read

	mu      sync.Mutex
	answers []func() error // of gradients given away
}

// slot is where a gradient arrives.
type slot struct {
	here chan struct{} // closed when it has
	grad *tensor.Tensor
}

// slot returns the place for the gradient of a message. The lock of the state is held.
func (w *walk) slot(id uint64) *slot {
	sl := w.slots[id]
	if sl == nil {
		sl = &slot{here: make(chan struct{})}
		w.slots[id] = sl
	}
	return sl
}

// next returns the backward pass with a number: the running one, or a new one. The lock is
// held.
func (s *state) next(number uint64) (*walk, error) {
	switch {
	case s.ended != nil:
		return nil, s.ended
	case s.walk != nil && s.walk.number == number:
		return s.walk, nil
	case s.walk != nil || number != s.walks+1:
		return nil, fmt.Errorf("backward pass %d of the context is asked for, %d was the last one", number, s.walks)
	}
	s.walk = &walk{number: number, slots: make(map[uint64]*slot)}
	return s.walk, nil
}

// onGradient is the answer to gradientCall.
func (e *engine) onGradient(from int, in gradientCall) error {
	s, err := e.state(in.Context)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.sends[in.Message]
	switch {
	case s.ended != nil:
		return s.ended
	case m == nil || m.to != from:
		return s.fail("backward", fmt.Errorf("%s answers message %s, which was not sent to it", e.wire.name(from), contextName(in.Message)))
	case in.Grad != nil && (in.Grad.DType() != m.dtype || !slices.Equal(in.Grad.Shape(), m.shape)):
		return s.fail("backward", fmt.Errorf("%s answers %s with a gradient %v%v, it is %v%v", e.wire.name(from), m.what,
			in.Grad.DType(), in.Grad.Shape(), m.dtype, m.shape))
	case in.Grad == nil && in.Walk <= s.walks && (s.walk == nil || s.walk.number != in.Walk):
		return nil // too late: the pass has ended
	}
	w, err := s.next(in.Walk)
	if err != nil {
		return s.fail("backward", err)
	}
	sl := w.slot(m.id)
	select {
	case <-sl.here:
		if in.Grad == nil {
			return nil // it came late, and its receiver said so before
		}
		return s.fail("backward", fmt.Errorf("%s answers %s twice", e.wire.name(from), m.what))
	default:
	}
	sl.grad = in.Grad
	close(sl.here)
	return nil
}

// give sends a process the gradient of a tensor that it has sent. wait waits for the
// answer.
func (e *engine) give(ctx context.Context, to int, in gradientCall) (wait func() error) {
	if to == e.rank {
		err := e.onGradient(e.rank, in)
		return func() error { return err }
	}
	return e.wire.gradient(ctx, to, in)
}

// current returns the backward pass that runs.
func (s *state) current() (*walk, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended != nil:
		return nil, s.ended
	case s.walk == nil || !s.walk.begun:
		return nil, errors.New("the value crossed to another process: use Backward of the autograd.Context")
	}
	return s.walk, nil
}

// askAfter is after what time without a gradient the receiver of a tensor is asked whether
// the tensor ever came: the call may have failed on its way.
const askAfter = 200 * time.Millisecond

// missing asks the receiver of a tensor whether the tensor has never come.
func (e *engine) missing(ctx context.Context, m *sent) (bool, error) {
	in := missingCall{m.by.s.id, m.by.s.life, m.id}
	if m.to == e.rank {
		return e.onMissing(ctx, in)
	}
	return e.wire.missing(ctx, m.to, in)
}

// await returns the gradient of a tensor that was sent: g, which this process has
// computed, and the gradient that the receiver sends back.
func (s *state) await(ctx context.Context, m *sent, g *tensor.Tensor) (*tensor.Tensor, error) {
	w, err := s.current()
	if err != nil {
		return nil, err
	}
	if m.over {
		return g, nil
	}
	s.mu.Lock()
	sl := w.slot(m.id)
	s.mu.Unlock()
	ask := time.NewTimer(askAfter)
	defer ask.Stop()
	for arrived := false; !arrived; {
		select {
		case <-sl.here:
			arrived = true
		case <-ask.C:
			missing, err := s.e.missing(ctx, m)
			// A receiver whose part of the pass is over has forgotten the message, but not
			// before its gradient was here.
			select {
			case <-sl.here:
				arrived = true
				continue
			default:
			}
			switch {
			case err != nil:
				return nil, err
			case missing && w.mode == Fast:
				return nil, fmt.Errorf("%s never came to %s: %w", m.what, s.e.wire.name(m.to), ErrUnreached)
			case missing:
				return g, nil
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the gradient of %s from %s: %w", m.what, s.e.wire.name(m.to), context.Cause(ctx))
		}
	}
	switch {
	case sl.grad == nil:
		return g, nil
	case g == nil:
		return m.by.carrier.Tape().Const(sl.grad), nil
	}
	return g.Add(m.by.carrier.Tape().Const(sl.grad)), nil
}

// answer sends the gradient of a tensor that was received back to its sender.
func (m *got) answer(ctx context.Context, g *tensor.Tensor) (*tensor.Tensor, error) {
	w, err := m.s.current()
	if err != nil {
		return nil, err
	}
	switch {
	case m.over && g != nil:
		return nil, fmt.Errorf("%s from %s belongs to a graph that an earlier backward pass consumed; give it WithRetainGraph", m.what, m.s.e.wire.name(m.from))
	case m.over || m.late == w.number:
		return nil, nil // it has been answered
	}
	if g == nil && w.mode == Fast {
		return nil, fmt.Errorf("%s from %s gets no gradient: %w", m.what, m.s.e.wire.name(m.from), ErrUnreached)
	}
	if g != nil {
		g = g.Contiguous().Keep() // it goes out while the pass goes on
	}
	wait := m.s.e.give(ctx, m.from, gradientCall{m.s.id, w.number, m.id, g})
	w.mu.Lock()
	w.answers = append(w.answers, wait)
	w.mu.Unlock()
	return nil, nil
}

// onWalk is the answer to walkCall.
func (e *engine) onWalk(ctx context.Context, from int, in walkCall) error {
	s, err := e.join(ctx, in.Context, in.Life) // see onPrepare
	if err != nil {
		return err
	}
	if from != rankOf(in.Context) {
		return s.fail("backward", fmt.Errorf("%s asks for a pass in the context of %s", e.wire.name(from), e.wire.name(rankOf(in.Context))))
	}
	if limit := time.Duration(in.Limit * float64(time.Second)); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	s.mu.Lock()
	s.asked = max(s.asked, in.Walk)
	s.mu.Unlock()
	if err = s.backward(ctx, in, nil); err != nil {
		err = s.fail("backward", err)
		if e.drop(s) { // the maker gets the error and tells the others
			s.end(fmt.Errorf("%w: %w", ErrReleased, err), false)
		}
	}
	return err
}

// backward walks the tapes of this process, once no call of the context runs here.
// losses are those of the context's maker.
func (s *state) backward(parent context.Context, in walkCall, losses []*tensor.Tensor) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	w, passes, err := s.beginWalk(ctx, cancel, in)
	if err != nil {
		return err
	}
	defer close(w.over)
	err = s.walkTapes(ctx, cancel, passes, in.Retain, losses)
	// The first tape to fail cancels the others, whose errors only repeat its error. When
	// the time is over, each error says what its tape has waited for.
	if cause := context.Cause(ctx); err != nil && parent.Err() == nil {
		err = cause
	}
	w.mu.Lock()
	answers := w.answers
	w.mu.Unlock()
	for _, wait := range answers {
		if e := wait(); e != nil && err == nil {
			err = e
		}
	}
	if err != nil {
		return err
	}
	return s.endWalk(passes, in.Retain)
}

// beginWalk waits until no call of the context runs here, and begins a backward pass over
// the passes that it returns.
func (s *state) beginWalk(ctx context.Context, cancel context.CancelCauseFunc, in walkCall) (*walk, []*pass, error) {
	for {
		if err := s.waitQuiet(ctx); err != nil {
			return nil, nil, err
		}
		s.mu.Lock()
		if len(s.running) == 0 {
			break
		}
		s.mu.Unlock() // a call has just come
	}
	defer s.mu.Unlock()
	w, err := s.next(in.Walk)
	switch {
	case err != nil:
	case s.broken != nil:
		err = s.broken
	case w.begun:
		err = fmt.Errorf("backward pass %d runs already", in.Walk)
	}
	if err != nil {
		return nil, nil, err
	}
	w.begun, w.mode, w.cancel, w.over = true, in.Mode, cancel, make(chan struct{})
	s.walks, s.asked = in.Walk, in.Walk
	passes := make([]*pass, 0, len(s.passes))
	for _, p := range s.passes {
		if p.carrier != nil {
			passes = append(passes, p)
		}
	}
	return w, passes, nil
}

// walkTapes walks the tapes of passes, each in a goroutine of its own, and waits for all.
// The first error cancels the others.
func (s *state) walkTapes(ctx context.Context, cancel context.CancelCauseFunc, passes []*pass, retain bool, losses []*tensor.Tensor) (err error) {
	var parts []*part
	for _, p := range passes {
		parts = append(parts, p.parts...)
	}
	s.grads.begin(parts)
	errs := make(chan error, len(passes))
	for _, p := range passes {
		go func() {
			err := p.walk(ctx, retain, losses)
			if err != nil {
				cancel(err)
			} else {
				s.grads.settle(p.parts)
			}
			errs <- err
		}()
	}
	for range passes {
		if e := <-errs; e != nil && err == nil {
			err = e
		}
	}
	return err
}

// endWalk ends a backward pass that has succeeded.
func (s *state) endWalk(passes []*pass, retain bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return s.ended
	}
	s.walk = nil
	s.heard = time.Now()
	for _, p := range passes {
		p.numSent = 0
	}
	if !retain {
		s.consumed(passes)
	}
	return nil
}

// consumed drops what a backward pass has used up that does not keep the graph. The lock
// is held. The maker may use the carriers of its own passes until Close, except for
// tensors that have crossed, which the other side has forgotten.
func (s *state) consumed(passes []*pass) {
	var parts []*part
	gone := make(map[*pass]bool, len(passes))
	for _, p := range passes {
		for _, over := range p.crossings {
			*over = true
		}
		p.crossings = nil
		gone[p] = true
		if p.method != "" {
			parts = append(parts, p.parts...)
			p.carrier.Close()
		}
	}
	s.grads.forget(parts)
	maps.DeleteFunc(s.came, func(_ uint64, p *pass) bool { return gone[p] })
	maps.DeleteFunc(s.sends, func(_ uint64, m *sent) bool { return gone[m.by] })
	s.passes = slices.DeleteFunc(s.passes, func(p *pass) bool { return gone[p] && p.method != "" })
}

// walk goes down the tape of one forward pass.
func (p *pass) walk(ctx context.Context, retain bool, losses []*tensor.Tensor) (err error) {
	defer func() {
		// A panic of a tensor operation is a failure of the pass; others are bugs.
		if v := recover(); v != nil {
			te, ok := v.(*tensor.Error)
			if !ok {
				panic(v)
			}
			err = te
		}
	}()
	tape := p.carrier.Tape()
	var own []*tensor.Tensor
	for _, l := range losses {
		if l.Tape() == tape {
			own = append(own, l)
		}
	}
	var opts []tensor.BackwardOption
	if retain {
		opts = append(opts, tensor.RetainGraph())
	}
	return tape.Backward(ctx, own, opts...)
}
