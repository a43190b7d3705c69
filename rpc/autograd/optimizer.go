// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

// Optimizer steps on parameters behind references. Each step is made on the process that
// has the parameter, by an optimizer of package optim. It is PyTorch's
// DistributedOptimizer.
//
// Its state (moments, counts) is with the parameters. Two optimizers of one parameter have
// a state each. The state outlives connections. It is freed by Close, when the program
// forgets the optimizer, or a lease (rpc.WithLease) after the optimizer's process has
// died.
//
// Steps on one process are made one after the other. They are not ordered with the forward
// passes of other contexts there: if a parameter changes between the forward and the
// backward pass of a context, the backward pass fails.
type Optimizer struct {
	agent *rpc.Agent
	parts []*rpc.RRef[*optimizerPart] // by owner, in the order of the parameters
}

// Algorithm is an optimizer of package optim with its options. [SGD] and the functions
// like it make it.
type Algorithm struct {
	SGD        *optim.SGDOptions        `rpc:"sgd,optional"`
	Adam       *optim.AdamOptions       `rpc:"adam,optional"`
	AdamW      *optim.AdamWOptions      `rpc:"adamw,optional"`
	SparseAdam *optim.SparseAdamOptions `rpc:"sparse_adam,optional"`
	Adagrad    *optim.AdagradOptions    `rpc:"adagrad,optional"`
	RMSprop    *optim.RMSpropOptions    `rpc:"rmsprop,optional"`
}

// SGD is optim.NewSGD.
func SGD(o optim.SGDOptions) Algorithm { return Algorithm{SGD: &o} }

// Adam is optim.NewAdam.
func Adam(o optim.AdamOptions) Algorithm { return Algorithm{Adam: &o} }

// AdamW is optim.NewAdamW.
func AdamW(o optim.AdamWOptions) Algorithm { return Algorithm{AdamW: &o} }

// SparseAdam is optim.NewSparseAdam.
func SparseAdam(o optim.SparseAdamOptions) Algorithm { return Algorithm{SparseAdam: &o} }

// Adagrad is optim.NewAdagrad.
func Adagrad(o optim.AdagradOptions) Algorithm { return Algorithm{Adagrad: &o} }

// RMSprop is optim.NewRMSprop.
func RMSprop(o optim.RMSpropOptions) Algorithm { return Algorithm{RMSprop: &o} }

// build makes the optimizer. Options that make no sense panic with a *tensor.Error.
func (alg Algorithm) build(params []*nn.Parameter) (optim.Optimizer, error) {
	switch {
	case alg.SGD != nil:
		return optim.NewSGD(params, *alg.SGD), nil
	case alg.Adam != nil:
		return optim.NewAdam(params, *alg.Adam), nil
	case alg.AdamW != nil:
		return optim.NewAdamW(params, *alg.AdamW), nil
	case alg.SparseAdam != nil:
		return optim.NewSparseAdam(params, *alg.SparseAdam), nil
	case alg.Adagrad != nil:
		return optim.NewAdagrad(params, *alg.Adagrad), nil
	case alg.RMSprop != nil:
		return optim.NewRMSprop(params, *alg.RMSprop), nil
	}
	return nil, errors.New("no algorithm was chosen: give autograd.SGD, Adam, AdamW, SparseAdam, Adagrad or RMSprop")
}

// Refs returns references to parameters of this process, such as nn.Parameters(model). A
// handler returns them to the process that makes the [Optimizer].
func Refs(a *rpc.Agent, params []*nn.Parameter) []*rpc.RRef[*nn.Parameter] {
	refs := make([]*rpc.RRef[*nn.Parameter], len(params))
	for i, p := range params {
		refs[i] = rpc.NewRRef(a, p)
	}
	return refs
}

// optimizerPart is what of an optimizer is on a process that has parameters of it.
type optimizerPart struct {
	params []*nn.Parameter
	opt    optim.Optimizer
}

// What optimizers tell the owners of parameters.
type (
	optimizerCall struct {
		Algorithm Algorithm
		Params    []*rpc.RRef[*nn.Parameter]
	}
	stepCall struct {
		Context uint64
		// Part says that the process takes part in the context: one that does not, and
		// knows nothing of it, has no gradients.
		Part      bool
		GradScale float64
	}
)

var (
	partMaker  = rpc.NewMaker[optimizerCall, *optimizerPart](prefix + "optimizer")
	madeMethod = rpc.NewOn[*optimizerPart, struct{}, struct{}](prefix + "made")
	stepMethod = rpc.NewOn[*optimizerPart, stepCall, struct{}](prefix + "step")
	normMethod = rpc.NewOn[*optimizerPart, stepCall, float64](prefix + "norm")
	lrMethod   = rpc.NewOn[*optimizerPart, float64, struct{}](prefix + "lr")
)

// serveOptimizers answers what optimizers ask.
func serveOptimizers(h *agentHook) rpc.Service {
	return rpc.Services(
		rpc.ServeMaker(partMaker, func(_ context.Context, in optimizerCall) (*optimizerPart, error) { return newPart(in) }),
		rpc.ServeOn(madeMethod, func(context.Context, *optimizerPart, struct{}) (out struct{}, err error) { return out, nil }),
		rpc.ServeOn(stepMethod, func(_ context.Context, part *optimizerPart, in stepCall) (out struct{}, err error) {
			return out, h.engine.onStep(part, in)
		}),
		rpc.ServeOn(normMethod, func(_ context.Context, part *optimizerPart, in stepCall) (float64, error) {
			return h.engine.onNorm(part, in)
		}),
		rpc.ServeOn(lrMethod, func(_ context.Context, part *optimizerPart, lr float64) (out struct{}, err error) {
			return out, h.engine.setLR(part, lr)
		}))
}

// NewOptimizer makes an optimizer of the parameters behind refs. The error is an [*Error]
// that names the owner that failed.
func NewOptimizer(ctx context.Context, a *rpc.Agent, alg Algorithm, refs []*rpc.RRef[*nn.Parameter]) (*Optimizer, error) {
	if _, err := engineOf(a); err != nil {
		return nil, err
	}
	if len(refs) == 0 {
		return nil, errors.New("autograd: new optimizer: there are no parameters")
	}
	byOwner := make(map[*rpc.Peer][]*rpc.RRef[*nn.Parameter])
	var owners []*rpc.Peer
	for i, r := range refs {
		if r == nil {
			return nil, fmt.Errorf("autograd: new optimizer: reference %d of %d is nil", i, len(refs))
		}
		owner := a.PeerRank(r.Owner().Rank())
		if byOwner[owner] == nil {
			owners = append(owners, owner)
		}
		byOwner[owner] = append(byOwner[owner], r)
	}
	const op = "new optimizer"
	o := &Optimizer{agent: a}
	for _, owner := range owners {
		part, err := partMaker.Remote(ctx, owner, optimizerCall{alg, byOwner[owner]})
		if err != nil {
			o.Close()
			return nil, &Error{Op: op, Worker: owner.Name(), Rank: owner.Rank(), Err: plainly(err)}
		}
		o.parts = append(o.parts, part)
	}
	err := o.each(op, 0, func(part *rpc.RRef[*optimizerPart]) func() error {
		return wait(ctx, madeMethod.Async(ctx, part, struct{}{}))
	})
	if err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

// each asks all owners at once, waits for all, and returns the error of the first
// in order that has one.
func (o *Optimizer) each(op string, dc uint64, ask func(part *rpc.RRef[*optimizerPart]) func() error) error {
	waits := make([]func() error, len(o.parts))
	for i, part := range o.parts {
		waits[i] = ask(part)
	}
	var first error
	for i, wait := range waits {
		if err := wait(); err != nil && first == nil {
			if rpc.KindOf(err) == rpc.KindReleased {
				err = fmt.Errorf("the optimizer, or a parameter that it was made of, has been given up: %w", plainly(err))
			}
			owner := o.parts[i].Owner()
			first = &Error{Op: op, Context: dc, Worker: owner.Name(), Rank: owner.Rank(), Err: plainly(err)}
		}
	}
	return first
}

func wait[R any](ctx context.Context, f *rpc.Future[R]) func() error {
	return func() error {
		_, err := f.Wait(ctx)
		return err
	}
}

// Step updates the parameters by the gradients that Backward has left in the context,
// multiplied by gradScale: 1, or what [Optimizer.ClipGradNorm] returned. A parameter
// without a gradient does not change. The error is an [*Error] that names the owner that
// failed; other owners may have stepped.
func (o *Optimizer) Step(ctx context.Context, dc *Context, gradScale float64) error {
	return o.each("step", dc.ID(), func(part *rpc.RRef[*optimizerPart]) func() error {
		return wait(ctx, stepMethod.Async(ctx, part, stepCall{dc.ID(), dc.reaches(part.Owner().Rank()), gradScale}))
	})
}

// ClipGradNorm returns the norm of the gradients of all parameters together, and the
// factor for [Optimizer.Step] with which the norm is not above limit; see
// optim.ClipGradNorm.
func (o *Optimizer) ClipGradNorm(ctx context.Context, dc *Context, limit float64) (norm, gradScale float64, err error) {
	var futures []*rpc.Future[float64]
	err = o.each("clip", dc.ID(), func(part *rpc.RRef[*optimizerPart]) func() error {
		f := normMethod.Async(ctx, part, stepCall{dc.ID(), dc.reaches(part.Owner().Rank()), 1})
		futures = append(futures, f)
		return wait(ctx, f)
	})
	if err != nil {
		return 0, 0, err
	}
	squares, err := rpc.WaitAll(ctx, futures...)
	if err != nil {
		return 0, 0, err
	}
	sum := 0.0
	for _, s := range squares {
		sum += s
	}
	norm = math.Sqrt(sum)
	return norm, min(1, limit/(norm+1e-6)), nil
}

// SetLR sets the learning rate of the next steps.
func (o *Optimizer) SetLR(ctx context.Context, lr float64) error {
	return o.each("set lr", 0, func(part *rpc.RRef[*optimizerPart]) func() error {
		return wait(ctx, lrMethod.Async(ctx, part, lr))
	})
}

// Close frees the optimizer's state on the owners. It tells them and does not wait for
// them.
func (o *Optimizer) Close() {
	for _, part := range o.parts {
		part.Release()
	}
}

// misuse makes an error of a panic of package optim or tensor.
func misuse(err *error) {
	if v := recover(); v != nil {
		te, ok := v.(*tensor.Error)
		if !ok {
			panic(v)
		}
		*err = te
	}
}

// newPart makes the part of an optimizer on this process.
func newPart(in optimizerCall) (part *optimizerPart, err error) {
	defer misuse(&err)
	part = &optimizerPart{}
	for i, r := range in.Params {
		if r == nil {
			return nil, fmt.Errorf("parameter %d of %d is none", i, len(in.Params))
		}
		p, err := r.LocalValue()
		r.Release() // the optimizer has the parameter itself
		if err != nil {
			return nil, fmt.Errorf("parameter %d of %d: %w", i, len(in.Params), err)
		}
		part.params = append(part.params, p)
	}
	part.opt, err = in.Algorithm.build(part.params)
	return part, err
}

func (e *engine) setLR(part *optimizerPart, lr float64) (err error) {
	defer misuse(&err)
	e.stepping.Lock()
	defer e.stepping.Unlock()
	for _, g := range part.opt.Groups() {
		g.SetLR(lr)
	}
	return nil
}

// onStep applies one update.
func (e *engine) onStep(part *optimizerPart, in stepCall) (err error) {
	defer misuse(&err)
	return e.withGrads(part, in, func() {
		if in.GradScale == 1 {
			part.opt.Step(nil)
			return
		}
		part.opt.Step(tensor.Full(in.GradScale))
		if math.IsNaN(in.GradScale) || math.IsInf(in.GradScale, 0) {
			part.opt.Skipped()
		}
	})
}

// onNorm returns the sum of the squares of the gradients that are here.
func (e *engine) onNorm(part *optimizerPart, in stepCall) (squares float64, err error) {
	defer misuse(&err)
	err = e.withGrads(part, in, func() {
		for _, p := range part.params {
			switch rows := p.RowGrad(); {
			case rows != nil:
				squares += rows.Rows.SumSquares()
			case p.Grad() != nil:
				squares += p.Grad().SumSquares()
			}
		}
	})
	return squares, err
}

// withGrads runs fn with the gradients of a context in the parameters of an
// optimizer. A context that has not come here has none.
func (e *engine) withGrads(part *optimizerPart, in stepCall, fn func()) error {
	grads := &gradients{}
	if s, err := e.state(in.Context); err == nil {
		s.mu.Lock()
		walking := s.walk != nil && s.walk.begun
		s.mu.Unlock()
		if walking {
			return errors.New("a backward pass of the context runs")
		}
		grads = &s.grads
	} else if in.Part {
		return err
	}
	e.stepping.Lock()
	defer e.stepping.Unlock()
	lend(part.params, grads, fn)
	return nil
}

// lend runs fn while each of params has its gradient of a context.
func lend(params []*nn.Parameter, grads *gradients, fn func()) {
	if len(params) == 0 {
		fn()
		return
	}
	g, rows := grads.get(params[0])
	params[0].WithGrad(g, rows, func() { lend(params[1:], grads, fn) })
}

// Train is one training step. compute runs under the carrier of a pass and returns the
// loss, a tensor of one element. Train computes the gradients on all processes, steps on
// the parameters of the optimizer, releases the context, and returns the value of the
// loss. A failure inside the pass is an error; see nn.Ctx.Recover.
//
//	loss, err := opt.Train(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) {
//		h, err := Embed.Call(c, agent.Peer("embedding"), tokens)
//		if err != nil {
//			return nil, err
//		}
//		return tensor.CrossEntropy(c.Call(decoder, h), targets), nil
//	})
//
// A program that needs the gradients before the step, for [Optimizer.ClipGradNorm] for
// example, makes the [Context] itself.
func (o *Optimizer) Train(ctx context.Context, compute func(c *nn.Ctx) (*tensor.Tensor, error), opts ...nn.CtxOption) (loss float64, err error) {
	dc, err := NewContext(o.agent)
	if err != nil {
		return 0, err
	}
	defer dc.Close()
	c, err := dc.Pass(ctx, opts...)
	if err != nil {
		return 0, err
	}
	defer c.Recover(&err)
	l, err := compute(c)
	if err != nil {
		return 0, err
	}
	if err := dc.Backward(ctx, l); err != nil {
		return 0, err
	}
	return l.Item(), o.Step(ctx, dc, 1)
}
