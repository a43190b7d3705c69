// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Context is one differentiable computation over several processes. A call that is made
// with the carrier of one of its passes takes the called process into the context. A
// context belongs to one goroutine, and so does each of its passes. A program makes a
// context for a step and closes it at the end of the step.
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

// ID returns the context's id. Its upper 16 bits are the rank of the process that made the
// context. The rest is a count that begins at a random number in each process.
func (c *Context) ID() uint64 { return c.s.id }

// String names the context in messages.
func (c *Context) String() string { return "autograd context " + contextName(c.s.id) }

// Pass begins a forward pass of the context on this process, and returns its carrier. What
// is computed under the carrier belongs to the context, and so do calls that are made with
// it: the carrier is a context.Context. Most programs need one pass; several goroutines
// need one each.
func (c *Context) Pass(ctx context.Context, opts ...nn.CtxOption) (*nn.Ctx, error) {
	p, err := c.s.newPass(ctx, "", c.s.e.rank)
	if err != nil {
		return nil, c.s.fail("pass", err)
	}
	p.ownGrads = c.own
	return p.open(opts...), nil
}

// From returns the context of the call whose handler has ctx, nil if the call belongs to
// none. The handler reads gradients of it, or begins more passes.
func From(ctx context.Context) *Context {
	p := passOf(ctx)
	if p == nil {
		return nil
	}
	return &Context{s: p.s}
}

// Ctx returns the carrier under which a handler computes; ctx is the handler's. The
// options apply to the carrier.
//
// If the call belongs to a pass, Backward of the caller differentiates what is computed
// under the carrier from parameters and from tensors of the call. If the call was made
// with the carrier of an evaluation, or by a client that is no agent of the job, the
// carrier is that of an evaluation. Under the carrier of any other call, reading a
// parameter fails the call with [ErrNoPass].
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

// Bring returns a value of another pass of the context, on this process, as a value of the
// pass of ctx. With it a handler goes on with what an earlier call has computed. Gradients
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

// Gradient returns the gradient of a parameter of this process in the context, nil if it
// has none. It stays valid after Close. Further backward passes add to it.
func (c *Context) Gradient(p *nn.Parameter) *tensor.Tensor {
	g, rows := c.s.grads.get(p)
	if g == nil && rows != nil {
		return rows.Dense()
	}
	return g
}

// RowGradient returns the gradient of an nn.Parameter that is Sparse. It is nil if there
// is none, or if it is dense.
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

// Close releases the context on all processes: it frees what the passes made and did not
// keep. It tells the other processes and does not wait for them. In a handler it does
// nothing. A second Close does nothing.
func (c *Context) Close() {
	if c.local {
		c.s.e.releaseAs(c.s, true, ErrReleased, "", nil)
	}
}
