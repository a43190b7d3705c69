// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Context is one differentiable computation over several processes. Calls made
// under the carrier of one of its passes take the processes that they reach into
// it. It belongs to one goroutine, and so does each of its passes; a context is
// made for a step and closed at the step's end.
type Context struct {
	s     *state
	local bool // of the process that made it
	own   bool // its passes give gradients to the parameters
}

// ContextOption changes what [NewContext] does.
type ContextOption func(*Context)

// WithParameterGrads makes the passes of the process that makes the context give gradients
// to the parameters themselves (nn.Parameter.Grad), as a pass of package nn does: for
// parameters of a local optimizer, or of DDP. On other processes gradients stay in the
// context.
func WithParameterGrads() ContextOption { return func(c *Context) { c.own = true } }

func newContext(e *engine, opts []ContextOption) *Context {
	c := &Context{s: e.newState(), local: true}
	for _, o := range opts {
		o(c)
	}
	return c
}

// ID returns the context's id: the rank of the process that made it in the upper
// 16 bits, and below them a count, which begins at another number in every process.
func (c *Context) ID() uint64 { return c.s.id }

// String names the context in messages.
func (c *Context) String() string { return "autograd context " + contextName(c.s.id) }

// Pass begins a forward pass of the context on this process. Calls that are made
// with the carrier, which is a context.Context, belong to the context; so does what
// is computed under it. One pass is enough for most; each goroutine wants one of its
// own.
func (c *Context) Pass(ctx context.Context, opts ...nn.CtxOption) (*nn.Ctx, error) {
	p, err := c.s.newPass(ctx, "", c.s.e.rank)
	if err != nil {
		return nil, c.s.fail("pass", err)
	}
	p.ownGrads = c.own
	return p.open(opts...), nil
}

// From returns the context that a call belongs to, in its handler: to read
// gradients, or to begin more passes. Outside of contexts it is nil.
func From(ctx context.Context) *Context {
	p := passOf(ctx)
	if p == nil {
		return nil
	}
	return &Context{s: p.s}
}

// Ctx returns the carrier of the pass that a handler's ctx belongs to: what is
// computed under it from parameters and from tensors of the call is differentiated
// by the caller's Backward. The options apply to it. For a call that was made with the
// carrier of an evaluation, or by a client that is no member of the job, it is one of
// an evaluation. Any other call wants gradients of which nobody would hear, or does not
// say what it wants: where a parameter is read under its carrier the call fails with
// [ErrNoPass].
func Ctx(ctx context.Context, opts ...nn.CtxOption) *nn.Ctx {
	if c, ok := ctx.(*nn.Ctx); ok && len(opts) == 0 {
		return c
	}
	if p := passOf(ctx); p != nil {
		return p.open(opts...)
	}
	c := nn.Evaluation(ctx, opts...)
	if !evaluates(ctx) {
		nn.WithLeaves(func(p *nn.Parameter) tensor.Leaf {
			c.Fail(fmt.Errorf("autograd: the parameter %q is read for a call that belongs to no pass: %w", p.Name(), ErrNoPass))
			return nil
		})(c)
	}
	return c
}

// Bring returns a value that another pass of the context computed, on this process,
// under the pass of ctx: a handler goes on with what an earlier call left. Gradients
// flow back to that pass.
func Bring(ctx context.Context, t *tensor.Tensor) (*tensor.Tensor, error) {
	p := passOf(ctx)
	if p == nil || !t.NeedsGrad() || t.Tape() == p.open().Tape() {
		return t, nil
	}
	one := []*tensor.Tensor{t}
	first, crossed, err := p.send(p.s.e.rank, "value", one, false)
	if err == nil {
		one[0] = p.open().Tape().Const(t)
		err = p.receive(p.s.e.rank, "value", header{context: p.s.id, first: first, crossed: crossed}, one)
	}
	if err != nil {
		return nil, p.s.fail("bring", err)
	}
	return one[0], nil
}

// Gradient returns the gradient of a parameter of this process in the context, nil
// if it has none. It stays valid after Close, and grows by further passes.
func (c *Context) Gradient(p *nn.Parameter) *tensor.Tensor {
	g, rows := c.s.grads.get(p)
	if g == nil && rows != nil {
		return rows.Dense()
	}
	return g
}

// RowGradient returns the gradient of an nn.Parameter that is Sparse, nil if there
// is none or it is dense.
func (c *Context) RowGradient(p *nn.Parameter) *tensor.RowGrad {
	_, rows := c.s.grads.get(p)
	return rows
}

// Parameters returns the parameters of this process that have a gradient in the
// context, in the order in which they were first read.
func (c *Context) Parameters() []*nn.Parameter { return c.s.grads.params() }

// reaches says whether a process takes part.
func (c *Context) reaches(rank int) bool {
	return rank == c.s.e.rank || slices.Contains(c.s.known(), rank)
}

// DefaultTimeout ends a backward pass whose context has no deadline.
const DefaultTimeout = 10 * time.Minute

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

// Close releases the context on all processes: it frees what its passes made and
// did not keep. The others are told, and not waited for. In a handler it does
// nothing. It may be called twice.
func (c *Context) Close() {
	if c.local {
		c.s.e.releaseAs(c.s, true, ErrReleased, "", nil)
	}
}
