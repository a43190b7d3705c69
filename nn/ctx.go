// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/internal/trace"
	"github.com/cohort-ml/cohort/tensor"
)

// Ctx is what one forward pass carries. It is a context.Context: cancelling
// it ends collectives and the backward pass. Create one with [Training] or
// [Evaluation] for every step and close it at the step's end.
type Ctx struct {
	context.Context
	training  bool
	generator *tensor.Generator
	device    tensor.Device
	cache     *KVCache
	sequence  *sequence            // nil where tokens follow each other
	counted   *tensor.Tensor       // see WithCounted; nil for all
	cuts      []tensor.Cut         // of what Dropout is given
	part      tensor.AttentionPart // that attention is
	around    []Interceptor        // outermost first
	pass      *pass
}

// pass is what all carriers derived in one forward pass share.
type pass struct {
	tape   *tensor.Tape
	leaves map[*Parameter]*tensor.Tensor
	sink   func(p *Parameter) tensor.Leaf // nil: gradients go to the parameters
	// buffers has the data of buffers in this pass; see BindBuffer.
	buffers map[*Buffer]*tensor.Tensor
	// calls are the modules being run, outermost first. A panic leaves it as
	// it was, which tells where it came from.
	calls []any
	// shards says that modules compute with what this rank has of parameters.
	shards bool
	// recomputing is set while a call is run for the second time.
	recomputing bool
	follows     sequence         // of carriers without one: the masks that they share
	added       []*tensor.Tensor // losses of modules
	// shapes is what the pass has while it runs for shapes alone; nil at other times.
	shapes *shapesPass
	// Kept for the next time that the pass runs so.
	shapesBefore *shapesPass
	paramShape   func(p *Parameter) []int // see SetParamShapes
}

// Interceptor steps in where a module is called and where a parameter is
// read. The model does not know of it. next goes on with the interceptors
// inside this one, and in the end with the call or the read itself. next runs
// them under the carrier that it is given: c, or one derived from c. What
// [Ctx.With] adds to that carrier steps in on what the module calls and reads,
// not on this call.
type Interceptor interface {
	InterceptCall(c *Ctx, module any, x []*tensor.Tensor, next func(c *Ctx, x []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor
	InterceptParam(c *Ctx, p *Parameter, next func(c *Ctx) *tensor.Tensor) *tensor.Tensor
}

// Module is a part of a model with one input and one output.
type Module interface {
	Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor
}

// ModuleN is a part of a model with several inputs or outputs.
type ModuleN interface {
	ForwardN(c *Ctx, x ...*tensor.Tensor) []*tensor.Tensor
}

// CtxOption sets something of a carrier.
type CtxOption func(*Ctx)

// WithGenerator gives the pass a source of random numbers (dropout).
func WithGenerator(g *tensor.Generator) CtxOption { return func(c *Ctx) { c.generator = g } }

// WithDevice sets the device that modules make new values on.
func WithDevice(d tensor.Device) CtxOption { return func(c *Ctx) { c.device = d } }

// WithAutocast makes the pass compute what gains from it in dtype, which is
// tensor.BFloat16: matrix products, attention and what else
// [tensor.Tape.SetAutocast] lists. Parameters and their gradients stay float32. 0 is
// no autocast.
func WithAutocast(dtype tensor.DType) CtxOption {
	return func(c *Ctx) { c.pass.tape.SetAutocast(dtype) }
}

// WithLeaves makes the gradients of the pass go where leaf says, and not to the
// parameters themselves: it is called when a parameter that is not frozen is first
// read. Distributed autograd keeps those of several passes apart so.
func WithLeaves(leaf func(p *Parameter) tensor.Leaf) CtxOption {
	return func(c *Ctx) { c.pass.sink = leaf }
}

// Training returns the carrier of a pass that can be followed by Backward.
func Training(ctx context.Context, opts ...CtxOption) *Ctx { return newCtx(ctx, true, opts) }

// Evaluation returns the carrier of a pass without gradients, for modules in
// evaluation mode. What a module makes on the way is freed when its call
// returns; a value that is to outlive it is taken out by Keep.
func Evaluation(ctx context.Context, opts ...CtxOption) *Ctx { return newCtx(ctx, false, opts) }

func newCtx(ctx context.Context, training bool, opts []CtxOption) *Ctx {
	c := &Ctx{Context: ctx, training: training, device: tensor.CPU(), pass: &pass{
		tape: tensor.NewTape(training), leaves: make(map[*Parameter]*tensor.Tensor),
	}}
	for _, o := range opts {
		o(c)
	}
	return c
}

// carrierKey is under which Value has the carrier itself.
type carrierKey struct{}

// Value implements [context.Context].
func (c *Ctx) Value(key any) any {
	if _, ok := key.(carrierKey); ok {
		return c
	}
	return c.Context.Value(key)
}

// CarrierOf returns the carrier that ctx is, or was derived from; nil for none.
func CarrierOf(ctx context.Context) *Ctx {
	c, _ := ctx.Value(carrierKey{}).(*Ctx)
	return c
}

// Close frees everything that was made in the pass and not kept.
func (c *Ctx) Close() {
	c.ShapesOnly(false)
	c.pass.tape.Close()
	if s := c.pass.shapesBefore; s != nil {
		s.tape.Close()
	}
}

// Training reports whether modules are in training mode.
func (c *Ctx) Training() bool { return c.training }

// Tape returns the tape of the pass.
func (c *Ctx) Tape() *tensor.Tape { return c.pass.current() }

// Generator returns the source of random numbers, nil if the pass has none.
func (c *Ctx) Generator() *tensor.Generator { return c.generator }

// Device returns where modules make new values.
func (c *Ctx) Device() tensor.Device {
	if c.pass.shapes != nil {
		return tensor.Meta
	}
	return c.device
}

// Recomputing reports whether a call is being run again for the backward pass;
// see [Recompute]. What a module does once a step, such as moving a running
// mean, it leaves out then.
func (c *Ctx) Recomputing() bool { return c.pass.recomputing }

// AddLoss adds a loss of a module's own, such as that which keeps experts equally busy, to
// what is trained. loss is one number, with its weight. Whoever runs the pass adds
// [Ctx.AddedLoss] to the loss of the model before Backward, as parallel.Strategy does. Where
// ranks share the pass, each adds its part of the loss. Outside of training it does nothing.
func (c *Ctx) AddLoss(loss *tensor.Tensor) {
	if loss == nil || loss.NumElems() != 1 {
		panic(tensor.NewError("add loss", []*tensor.Tensor{loss}, "wants one number"))
	}
	// A module that runs for its shapes alone adds nothing.
	if c.training && c.pass.shapes == nil && (loss.Device() != tensor.Meta || c.device == tensor.Meta) {
		c.pass.added = append(c.pass.added, loss.Reshape())
	}
}

// AddedLoss returns the sum of what modules have added by [Ctx.AddLoss] in the pass so far, nil
// for nothing.
func (c *Ctx) AddedLoss() *tensor.Tensor {
	var sum *tensor.Tensor
	for _, l := range c.pass.added {
		if sum == nil {
			sum = l
		} else {
			sum = sum.Add(l)
		}
	}
	return sum
}

// With returns a carrier of the same pass in which i steps in, inside the
// interceptors that are there already.
func (c *Ctx) With(i Interceptor) *Ctx {
	d := *c
	d.around = append(c.around[:len(c.around):len(c.around)], i)
	return &d
}

// Around is [Ctx.With] with i outside the interceptors that are there already, such as
// [Recompute].
func (c *Ctx) Around(i Interceptor) *Ctx {
	d := *c
	d.around = append([]Interceptor{i}, c.around...)
	return &d
}

// Call runs a child module.
func (c *Ctx) Call(m Module, x *tensor.Tensor) *tensor.Tensor {
	if len(c.around) > 0 {
		return c.intercept(m, []*tensor.Tensor{x}, func(c *Ctx, x []*tensor.Tensor) []*tensor.Tensor {
			return []*tensor.Tensor{m.Forward(c, x[0])}
		})[0]
	}
	tape := c.Tape()
	mark := tape.Mark()
	c.enter(m)
	y := m.Forward(c, x)
	c.leave()
	tape.FreeSince(mark, y)
	return y
}

// WantInputs panics with a *tensor.Error unless x, what the ForwardN of a module
// of type kind was given, has one of the counts of tensors, the first of which is
// not nil. takes tells what they are: "x, or x and a mask".
func WantInputs(kind string, x []*tensor.Tensor, takes string, counts ...int) {
	if !slices.Contains(counts, len(x)) {
		panic(tensor.NewError(kind, x, "takes %s; it got %d inputs", takes, len(x)))
	}
	if x[0] == nil {
		panic(tensor.NewError(kind, x, "takes %s; its first input is nil", takes))
	}
}

// CallN runs a child module with several inputs or outputs.
func (c *Ctx) CallN(m ModuleN, x ...*tensor.Tensor) []*tensor.Tensor {
	return c.intercept(m, x, func(c *Ctx, x []*tensor.Tensor) []*tensor.Tensor { return m.ForwardN(c, x...) })
}

func (c *Ctx) intercept(m any, x []*tensor.Tensor, forward func(*Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	tape := c.Tape() // which may be another one at the end; see ShapesOnly
	mark := tape.Mark()
	c.enter(m)
	next := forward
	for i := len(c.around) - 1; i >= 0; i-- {
		inner, around := next, c.around[i]
		next = func(c *Ctx, x []*tensor.Tensor) []*tensor.Tensor { return around.InterceptCall(c, m, x, inner) }
	}
	y := next(c, x)
	c.leave()
	tape.FreeSince(mark, y...)
	return y
}

func (c *Ctx) enter(m any) {
	c.pass.calls = append(c.pass.calls, m)
	if trace.On() {
		c.pass.traceEnter(m)
	}
}

func (c *Ctx) leave() {
	c.pass.calls = c.pass.calls[:len(c.pass.calls)-1]
	if trace.On() {
		c.pass.traceLeave()
	}
}

// Param returns the value of a parameter as a leaf of the pass's tape: its
// gradient goes to p. The same parameter gives the same leaf. A nil one panics with
// a *tensor.Error.
func (c *Ctx) Param(p *Parameter) *tensor.Tensor {
	if p == nil {
		panic(tensor.NewError("param", nil, "the module has no such parameter: it is nil, and nothing is computed without it"))
	}
	if s := c.pass.shapes; s != nil {
		return s.param(c, p)
	}
	if len(c.around) == 0 {
		return c.leaf(p)
	}
	next := func(c *Ctx) *tensor.Tensor { return c.leaf(p) }
	for i := len(c.around) - 1; i >= 0; i-- {
		inner, around := next, c.around[i]
		next = func(c *Ctx) *tensor.Tensor { return around.InterceptParam(c, p, inner) }
	}
	return next(c)
}

func (c *Ctx) leaf(p *Parameter) *tensor.Tensor {
	if t := c.pass.leaves[p]; t != nil {
		return t
	}
	if p.whole != nil && !c.pass.shards {
		panic(tensor.NewError("param", []*tensor.Tensor{p.data}, "this rank has a shard of the parameter, whose shape is %v: call the model by the strategy that has sharded it, such as parallel.FSDP", p.whole))
	}
	var sink tensor.Leaf
	switch {
	case p.Frozen:
	case c.pass.sink != nil:
		sink = c.pass.sink(p)
	default:
		sink = p
	}
	t := c.pass.tape.Watch(p.data, sink)
	c.pass.leaves[p] = t
	return t
}

// Bind makes t what [Ctx.Param] returns for p in this pass, once the interceptors have had
// their turn: a leaf of the pass's tape whose gradient goes elsewhere, such as the whole of
// a parameter of which p has a shard. It is for wrappers.
func (c *Ctx) Bind(p *Parameter, t *tensor.Tensor) { c.pass.leaves[p] = t }

// ReadShards makes [Ctx.Param] return what this rank has of a parameter of which it has a shard
// (see [Parameter.SetWhole]). It is for wrappers whose modules compute with shards, as those of
// tensor parallelism do.
func (c *Ctx) ReadShards() { c.pass.shards = true }

// HasLeaves reports whether [WithLeaves] takes the gradients of the pass elsewhere.
func (c *Ctx) HasLeaves() bool { return c.pass.sink != nil }

// paramOrNil reads a parameter that a layer may lack.
func paramOrNil(c *Ctx, p *Parameter) *tensor.Tensor {
	if p == nil {
		return nil
	}
	return c.Param(p)
}

// Leaf returns t as a leaf of the pass's tape, of which tensor.Tensor.Grad gives
// the gradient: an input, where a loss is made of that; see [tensor.Tape.Leaf].
func (c *Ctx) Leaf(t *tensor.Tensor) *tensor.Tensor { return c.Tape().Leaf(t) }

// Buffer returns the value of a buffer under the pass's tape.
func (c *Ctx) Buffer(b *Buffer) *tensor.Tensor {
	if s := c.pass.shapes; s != nil {
		return s.standIn(b.Data)
	}
	return c.pass.tape.Const(c.BufferData(b))
}

// ForwardError is a failure inside a forward pass, with the module it
// happened in. Err is a *tensor.Error, or what [Ctx.Fail] was given.
type ForwardError struct {
	Module string // the path of names from the model down; "" is the model itself
	Type   string // the module's Go type
	Err    error
}

func (e *ForwardError) Error() string {
	where := e.Type
	if e.Module != "" {
		where = e.Module + " (" + e.Type + ")"
	}
	return fmt.Sprintf("forward of %s: %v", where, e.Err)
}

// Unwrap returns the failure itself.
func (e *ForwardError) Unwrap() error { return e.Err }

// abort carries an error from inside a forward pass to the step's border.
type abort struct{ err error }

// Failure returns the error: for borders other than Recover, such as that of a call.
func (a abort) Failure() error { return a.err }

// Fail ends the forward pass with an error, such as that of a failed
// collective. [Ctx.Recover] at the border of the step returns it.
func (c *Ctx) Fail(err error) { panic(abort{err}) }

// Recover turns a failure of the forward or backward pass into an error with
// the module's name. A step defers it once:
//
//	func step(ctx context.Context) (err error) {
//		c := nn.Training(ctx)
//		defer c.Close()
//		defer c.Recover(&err)
//
// Panics that are not failures of tensor operations go on.
func (c *Ctx) Recover(err *error) {
	v := recover()
	if v == nil {
		return
	}
	var failure error
	calls := c.pass.calls
	switch v := v.(type) {
	case abort:
		failure = v.err
	case error:
		var te *tensor.Error
		if !errors.As(v, &te) {
			panic(v)
		}
		if failure = v; te.Late {
			calls = nil // the module that noticed is not the one that asked
		}
	default:
		panic(v)
	}
	if len(calls) == 0 {
		*err = failure
		return
	}
	inner := calls[len(calls)-1]
	*err = &ForwardError{Module: pathOf(calls), Type: fmt.Sprintf("%T", inner), Err: failure}
}
