// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

// Optimizer steps on parameters behind references, each on the process that has
// it, by an optimizer of package optim there. It is PyTorch's DistributedOptimizer.
//
// Its state (moments, counts) is with the parameters, and its own: two optimizers of
// one parameter have two. Steps on one process come one after the other; nothing
// orders them with forward passes of other contexts there, which fail in their
// backward pass when a parameter that they used has changed in between.
type Optimizer struct {
	agent  *rpc.Agent
	id     uint64
	owners []int
}

// Algorithm is an optimizer of package optim with its options: what [SGD] and its
// like return.
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

// Refs returns references to parameters of this process, such as those of
// nn.Parameters(model): what a handler gives to who optimizes them.
func Refs(a *rpc.Agent, params []*nn.Parameter) []*rpc.RRef[*nn.Parameter] {
	refs := make([]*rpc.RRef[*nn.Parameter], len(params))
	for i, p := range params {
		refs[i] = rpc.NewRRef(a, p)
	}
	return refs
}

// owned is the part of an optimizer on a process that has parameters of it.
type owned struct {
	params []*nn.Parameter
	opt    optim.Optimizer
}

// ownedSet is the optimizers that have parameters on a process, by their ids.
type ownedSet struct {
	stepping sync.Mutex // one after the other, as the parameters may be the same

	mu   sync.Mutex
	made uint64
	all  map[uint64]*owned
}

// maxOptimizers bounds what other processes can make this one hold.
const maxOptimizers = 1 << 12

// What optimizers tell the owners of parameters.
type (
	optimizerCall struct {
		Optimizer uint64
		Algorithm Algorithm
		Params    []*rpc.RRef[*nn.Parameter]
	}
	stepCall struct {
		Optimizer, Context uint64
		// Part says that the process takes part in the context: one that does not, and
		// knows nothing of it, has no gradients.
		Part      bool
		GradScale float64
	}
	lrCall struct {
		Optimizer uint64
		LR        float64
	}
	dropCall struct{ Optimizer uint64 }
)

var (
	optimizerMethod = rpc.NewMethod[optimizerCall, struct{}](prefix + "optimizer")
	stepMethod      = rpc.NewMethod[stepCall, struct{}](prefix + "step")
	normMethod      = rpc.NewMethod[stepCall, float64](prefix + "norm")
	lrMethod        = rpc.NewMethod[lrCall, struct{}](prefix + "lr")
	dropMethod      = rpc.NewMethod[dropCall, struct{}](prefix + "drop")
)

// serveOptimizers answers what optimizers ask.
func serveOptimizers(h *agentHook) rpc.Option {
	return rpc.Options(
		rpc.Serve(optimizerMethod, func(ctx context.Context, in optimizerCall) (struct{}, error) {
			return struct{}{}, h.engine.owned.add(rpc.Caller(ctx).Rank(), in)
		}),
		rpc.Serve(stepMethod, func(_ context.Context, in stepCall) (struct{}, error) {
			return struct{}{}, h.engine.onStep(in)
		}),
		rpc.Serve(normMethod, func(_ context.Context, in stepCall) (float64, error) { return h.engine.onNorm(in) }),
		rpc.Serve(lrMethod, func(_ context.Context, in lrCall) (struct{}, error) {
			return struct{}{}, h.engine.owned.setLR(in)
		}),
		rpc.Serve(dropMethod, func(_ context.Context, in dropCall) (struct{}, error) {
			h.engine.owned.drop(in.Optimizer)
			return struct{}{}, nil
		}),
	)
}

// NewOptimizer makes an optimizer of the parameters behind refs, wherever they are.
// An error is an [*Error] that names the owner.
func NewOptimizer(ctx context.Context, a *rpc.Agent, alg Algorithm, refs []*rpc.RRef[*nn.Parameter]) (*Optimizer, error) {
	e, err := engineOf(a)
	if err != nil {
		return nil, err
	}
	if len(refs) == 0 {
		return nil, errors.New("autograd: new optimizer: there are no parameters")
	}
	byOwner := make(map[int][]*rpc.RRef[*nn.Parameter])
	o := &Optimizer{agent: a, id: e.owned.next(a.Rank())}
	for i, r := range refs {
		if r == nil {
			return nil, fmt.Errorf("autograd: new optimizer: reference %d of %d is nil", i, len(refs))
		}
		owner := r.Owner().Rank()
		if byOwner[owner] == nil {
			o.owners = append(o.owners, owner)
		}
		byOwner[owner] = append(byOwner[owner], r)
	}
	err = o.each("new optimizer", 0, func(owner *rpc.Peer) func() error {
		return wait(ctx, optimizerMethod.Async(ctx, owner, optimizerCall{o.id, alg, byOwner[owner.Rank()]}))
	})
	if err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

// each asks all owners at once, waits for all, and returns the error of the first
// in order that has one.
func (o *Optimizer) each(op string, dc uint64, ask func(owner *rpc.Peer) func() error) error {
	waits := make([]func() error, len(o.owners))
	for i, r := range o.owners {
		waits[i] = ask(o.agent.PeerRank(r))
	}
	var first error
	for i, wait := range waits {
		if err := wait(); err != nil && first == nil {
			owner := o.agent.PeerRank(o.owners[i])
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

// Step applies one update by the gradients that Backward left in the context, each
// multiplied by gradScale: 1, or what [Optimizer.ClipGradNorm] returned. Parameters
// without a gradient there stay as they are. The error is an [*Error] that names the
// owner that failed; others may have stepped.
func (o *Optimizer) Step(ctx context.Context, dc *Context, gradScale float64) error {
	return o.each("step", dc.ID(), func(owner *rpc.Peer) func() error {
		return wait(ctx, stepMethod.Async(ctx, owner, stepCall{o.id, dc.ID(), dc.reaches(owner.Rank()), gradScale}))
	})
}

// ClipGradNorm returns the norm of the gradients of all parameters together, and
// what Step is to multiply them by so that it is not above limit; see
// optim.ClipGradNorm.
func (o *Optimizer) ClipGradNorm(ctx context.Context, dc *Context, limit float64) (norm, gradScale float64, err error) {
	var futures []*rpc.Future[float64]
	err = o.each("clip", dc.ID(), func(owner *rpc.Peer) func() error {
		f := normMethod.Async(ctx, owner, stepCall{o.id, dc.ID(), dc.reaches(owner.Rank()), 1})
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

// SetLR sets the learning rate from the next step on.
func (o *Optimizer) SetLR(ctx context.Context, lr float64) error {
	return o.each("set lr", 0, func(owner *rpc.Peer) func() error {
		return wait(ctx, lrMethod.Async(ctx, owner, lrCall{o.id, lr}))
	})
}

// Close gives up the optimizer's state with the owners. They are told, and not
// waited for.
func (o *Optimizer) Close() {
	for _, r := range o.owners {
		dropMethod.Async(context.Background(), o.agent.PeerRank(r), dropCall{o.id})
	}
}

// next takes an id.
func (s *ownedSet) next(rank int) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	return uint64(rank)<<counterBits | s.made
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

// add makes the part of an optimizer on this process.
func (s *ownedSet) add(from int, in optimizerCall) (err error) {
	defer misuse(&err)
	if rankOf(in.Optimizer) != from {
		return fmt.Errorf("the optimizer %s is not of rank %d that makes it", contextName(in.Optimizer), from)
	}
	own := &owned{}
	for i, r := range in.Params {
		if r == nil {
			return fmt.Errorf("parameter %d of %d is none", i, len(in.Params))
		}
		p, err := r.LocalValue()
		r.Release() // the optimizer has the parameter itself
		if err != nil {
			return fmt.Errorf("parameter %d of %d: %w", i, len(in.Params), err)
		}
		own.params = append(own.params, p)
	}
	if own.opt, err = in.Algorithm.build(own.params); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) >= maxOptimizers {
		return fmt.Errorf("%d optimizers have parameters here: Close those that are done", len(s.all))
	}
	if s.all == nil {
		s.all = make(map[uint64]*owned)
	}
	s.all[in.Optimizer] = own
	return nil
}

func (s *ownedSet) get(id uint64) (*owned, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.all[id]
	if own == nil {
		return nil, fmt.Errorf("there is no optimizer %s here: it has been closed", contextName(id))
	}
	return own, nil
}

func (s *ownedSet) drop(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
}

// lose drops the optimizers of a process that is gone.
func (s *ownedSet) lose(rank int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.all {
		if rankOf(id) == rank {
			delete(s.all, id)
		}
	}
}

func (s *ownedSet) setLR(in lrCall) (err error) {
	defer misuse(&err)
	own, err := s.get(in.Optimizer)
	if err != nil {
		return err
	}
	s.stepping.Lock()
	defer s.stepping.Unlock()
	for _, g := range own.opt.Groups() {
		g.SetLR(in.LR)
	}
	return nil
}

// onStep is the answer to stepCall.
func (e *engine) onStep(in stepCall) (err error) {
	defer misuse(&err)
	return e.withGrads(in, func(own *owned) { own.opt.Step(in.GradScale) })
}

// onNorm returns the sum of the squares of the gradients that are here.
func (e *engine) onNorm(in stepCall) (squares float64, err error) {
	defer misuse(&err)
	err = e.withGrads(in, func(own *owned) {
		for _, p := range own.params {
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
func (e *engine) withGrads(in stepCall, fn func(*owned)) error {
	own, err := e.owned.get(in.Optimizer)
	if err != nil {
		return err
	}
	grads := &gradients{}
	if s, err := e.state(in.Context, false); err == nil {
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
	e.owned.stepping.Lock()
	defer e.owned.stepping.Unlock()
	lend(own.params, grads, func() { fn(own) })
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
