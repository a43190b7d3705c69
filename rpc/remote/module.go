// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"errors"
	"fmt"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/autograd"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	forward    = rpc.NewOn[nn.Module, *tensor.Tensor, *tensor.Tensor]("cohort.remote.forward")
	forwardN   = rpc.NewOn[nn.Module, []*tensor.Tensor, []*tensor.Tensor]("cohort.remote.forward_n")
	parameters = rpc.NewOn[nn.Module, struct{}, []*rpc.RRef[*nn.Parameter]]("cohort.remote.parameters")
)

// Serve lets an agent hold modules of others. Each agent with modules needs it, and each
// agent of the job needs autograd.WithEngine.
func Serve() rpc.Service {
	return rpc.Services(rpc.ServeOn(forward, serveForward), rpc.ServeOn(forwardN, serveForwardN), rpc.ServeOn(parameters, serveParameters))
}

func serveForward(ctx context.Context, m nn.Module, x *tensor.Tensor) (*tensor.Tensor, error) {
	if x == nil {
		return nil, errors.New("there is no input")
	}
	y, err := run(ctx, func(c *nn.Ctx) []*tensor.Tensor { return []*tensor.Tensor{c.Call(m, x)} })
	if err != nil {
		return nil, err
	}
	return y[0], nil
}

func serveForwardN(ctx context.Context, m nn.Module, x []*tensor.Tensor) ([]*tensor.Tensor, error) {
	several, ok := m.(nn.ModuleN)
	if !ok {
		return nil, fmt.Errorf("a %T has one input and one result: run it by Call", m)
	}
	return run(ctx, func(c *nn.Ctx) []*tensor.Tensor { return c.CallN(several, x...) })
}

// run runs a module under the carrier of the caller's pass, or in evaluation.
func run(ctx context.Context, forward func(c *nn.Ctx) []*tensor.Tensor) (y []*tensor.Tensor, err error) {
	if autograd.From(ctx) != nil {
		c := autograd.Ctx(ctx) // the context closes it
		defer c.Recover(&err)
		return forward(c), nil
	}
	c := nn.Evaluation(ctx)
	defer c.Close()
	defer c.Recover(&err)
	y = forward(c)
	for _, t := range y {
		if t != nil {
			t.Keep()
		}
	}
	return y, nil
}

func serveParameters(ctx context.Context, m nn.Module, _ struct{}) ([]*rpc.RRef[*nn.Parameter], error) {
	return autograd.Refs(rpc.AgentOf(ctx), nn.Parameters(m)), nil
}

// Module is a module whose forward runs in another process.
type Module struct{ ref *rpc.RRef[nn.Module] }

// New makes a module at a peer. It returns at once; an error of the maker is one of
// the first use.
func New[A any](ctx context.Context, at *rpc.Peer, maker *rpc.Maker[A, nn.Module], in A) (*Module, error) {
	ref, err := maker.Remote(ctx, at, in)
	if err != nil {
		return nil, err
	}
	return &Module{ref}, nil
}

// Of returns the module that a reference stands for.
func Of(ref *rpc.RRef[nn.Module]) *Module { return &Module{ref} }

// Ref returns the reference to the module, which can be passed on.
func (m *Module) Ref() *rpc.RRef[nn.Module] { return m.ref }

// Release gives the module up. It lives on if others refer to it.
func (m *Module) Release() { m.ref.Release() }

// Forward runs the module where it is. x and the result are of the shapes that it
// has. In training c is the carrier of a pass of package autograd. A failure ends the
// pass, as [nn.Ctx.Fail] does.
func (m *Module) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	if err := m.check(c); err != nil {
		c.Fail(err)
	}
	y, err := forward.Call(c, m.ref, x)
	if err == nil && y == nil {
		err = fmt.Errorf("the module at %s returned nothing", m.ref.OwnerName())
	}
	if err != nil {
		c.Fail(err)
	}
	return y
}

// ForwardN is Forward for a module there that is an nn.ModuleN too, such as nn.LSTM
// with its states, or nn.EmbeddingBag with offsets. Inputs and results may be nil as
// far as the module allows that.
func (m *Module) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	err := m.check(c)
	if err != nil {
		c.Fail(err)
	}
	y, err := forwardN.Call(c, m.ref, x)
	if err != nil {
		c.Fail(err)
	}
	return y
}

// Async is Forward that returns at once, so that modules in several processes, such as
// experts, run at the same time. Wait for the answers in the goroutine of the pass.
func (m *Module) Async(c *nn.Ctx, x *tensor.Tensor) *rpc.Future[*tensor.Tensor] {
	if err := m.check(c); err != nil {
		return rpc.Resolved[*tensor.Tensor](nil, err)
	}
	return forward.Async(c, m.ref, x)
}

// check refuses to train without gradients.
func (m *Module) check(c *nn.Ctx) error {
	if c.Training() && autograd.From(c) == nil {
		return fmt.Errorf("the module is at %s: train it under the carrier of autograd.Context.Pass, else its parameters get no gradients", m.ref.OwnerName())
	}
	return nil
}

// Parameters returns references to the module's parameters, in the order of
// nn.Parameters there.
func (m *Module) Parameters(ctx context.Context) ([]*rpc.RRef[*nn.Parameter], error) {
	return parameters.Call(ctx, m.ref, struct{}{})
}

// Parameters returns references to all parameters of a model: the model's own, as
// nn.Parameters has them, then those of each Module in it, which are elsewhere. An
// autograd.Optimizer made of them does not need them afterwards.
func Parameters(ctx context.Context, a *rpc.Agent, model any) ([]*rpc.RRef[*nn.Parameter], error) {
	refs := autograd.Refs(a, nn.Parameters(model))
	for name, m := range nn.Modules(model) {
		far, ok := m.(*Module)
		if !ok {
			continue
		}
		theirs, err := far.Parameters(ctx)
		if err != nil {
			for _, r := range refs {
				r.Release()
			}
			return nil, fmt.Errorf("parameters of %s: %w", name, err)
		}
		refs = append(refs, theirs...)
	}
	return refs, nil
}
