// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"fmt"
	"slices"

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

// Close releases the context on all processes: it frees what its passes made and
// did not keep. The others are told, and not waited for. In a handler it does
// nothing. It may be called twice.
func (c *Context) Close() {
	if c.local {
		c.s.e.releaseAs(c.s, true, ErrReleased, "", nil)
	}
}
