// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// ContextConfig says how the ranks of axis cp share a sequence.
type ContextConfig struct {
	// Attention says how a token attends to tokens of other ranks: "ring" or "heads"; "" is
	// "ring".
	//
	// In a ring, keys and values go from rank to rank while each attends with its queries to
	// those that it has (Liu et al. 2023, "Ring Attention with Blockwise Transformers"). With
	// heads, the ranks exchange before and after attention, so that each has all tokens of some
	// of the heads (Jacobs et al. 2023, "DeepSpeed Ulysses"). The number of ranks must divide the
	// heads of queries and of keys then.
	Attention string
}

// The forms of attention of a ContextConfig.
const (
	ringAttention  = "ring"
	headsAttention = "heads"
)

// contextParallel is the part of a [Parallel] for axis cp: each rank has some of the tokens of
// every sequence ([zigzag]), in all modules but attention. It cuts the inputs of the model along
// dim 1, says where the tokens stand, steps in on attention and on the loss, and puts the outputs
// of an evaluation together again.
type contextParallel struct {
	model  any
	mesh   *mesh.Mesh
	group  *dist.Group
	rank   int
	form   string
	passes map[*tensor.Tape]*contextPass
	alike  bool  // the ranks were found to take the same samples
	sent   int64 // bytes that this rank has given to others, and on tensor.Meta would have given
	// inStep reports whether the pass is one of Strategy.Step, whose loss takes this rank's part
	// of the results. In other passes results are whole.
	inStep func(c *nn.Ctx) bool
}

// newContextParallel makes the part for a mesh with axis cp.
func newContextParallel(model any, m *mesh.Mesh, c ContextConfig) (*contextParallel, error) {
	p := &contextParallel{
		model: model, mesh: m, form: c.Attention, passes: map[*tensor.Tape]*contextPass{},
		inStep: func(c *nn.Ctx) bool { return c.Training() },
	}
	switch c.Attention {
	case "":
		p.form = ringAttention
	case ringAttention, headsAttention:
	default:
		return nil, fmt.Errorf("context parallelism: there is no attention %q: there is %q and %q", c.Attention, ringAttention, headsAttention)
	}
	i, err := m.Index(contextAxis)
	if err != nil {
		return nil, err
	}
	p.rank = m.Coordinate()[i]
	p.group, err = m.Group(contextAxis)
	return p, err
}

func (*contextParallel) axis() string { return contextAxis }

// lay cuts no parameter. It fails for modules that look at several tokens in another way than by
// attention.
func (p *contextParallel) lay() error {
	for name, m := range nn.Modules(p.model) {
		switch m := m.(type) {
		case *nn.MoE:
			if m.Options.Capacity != 0 {
				return fmt.Errorf("context parallelism: the experts of module %s have a capacity of %v, which counts the tokens of whole sequences, and a rank has a part of each: "+
					"let experts take all tokens (nn.MoEOptions.Capacity 0)", name, m.Options.Capacity)
			}
		case *nn.LSTM, *nn.GRU, *nn.Conv2d, *nn.ConvTranspose2d, *nn.BatchNorm, *nn.GroupNorm, *nn.InstanceNorm2d:
			return fmt.Errorf("context parallelism: module %s is a %T, which would see only a rank's part of each sequence: "+
				"take another axis than %q for this model", name, m, contextAxis)
		}
	}
	return nil
}

func (p *contextParallel) agreed() string { return "context parallelism: attention by " + p.form }

func (*contextParallel) join(context.Context) error { return nil }

// sentBytes implements meter.
func (p *contextParallel) sentBytes() int64 { return p.sent }

// allReduced counts the bytes of an all-reduce.
func (p *contextParallel) allReduced(dtype tensor.DType, numElems int) {
	n, err := p.group.PredictSent(operation.Call{Op: operation.AllReduce, DType: operation.DType(dtype), Count: numElems}, false)
	if err == nil {
		p.sent += n
	}
}

func (p *contextParallel) String() string { return "sequences, attention by " + p.form }

// contextPass is one run of the model under a tape.
type contextPass struct {
	*contextParallel
	z         zigzag
	documents *tensor.Tensor // int64 [batch, time] of the whole sequences; nil for none
	packed    *packing       // which chunks have documents in common; nil for no documents
	masks     map[*tensor.Tensor]*givenMask
	on        tensor.Device        // of the inputs
	inside    bool                 // the model is being run
	returned  bool                 // the model has returned this rank's part of its results
	share     *nn.CrossEntropyLoss // that is being computed of this rank's tokens
	lost      bool                 // a loss was computed that this part knows
}

// InterceptCall implements nn.Interceptor.
func (p *contextParallel) InterceptCall(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	pass := p.passes[c.Tape()]
	switch m := module.(type) {
	case *nn.CrossEntropyLoss:
		if pass != nil && (pass.inside || pass.returned) && m != pass.share {
			return []*tensor.Tensor{pass.crossEntropy(c, m, x)}
		}
	case *nn.ExpertLoad:
		if pass != nil && c.Training() {
			return []*tensor.Tensor{pass.expertLoad(c, next(c, x)[0])}
		}
	case *nn.Dropout:
		// Activations of tokens: [batch, time, width]. How many of them this rank has may
		// depend on parts inside of this one, and so the operation itself checks it.
		if pass != nil && c.Training() && len(x) == 1 && x[0].NumDims() == 3 {
			runs := pass.z.runs(p.rank)
			return next(c.WithCut(tensor.Cut{Dim: 1, Size: pass.z.time, Runs: runs[:]}), x)
		}
	default:
		if module == p.model && c.KVCache() == nil && (pass == nil || !pass.inside) {
			return p.run(c, x, next)
		}
	}
	return next(c, x)
}

// InterceptParam implements nn.Interceptor.
func (*contextParallel) InterceptParam(c *nn.Ctx, _ *nn.Parameter, next func(*nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}

// run runs the model on this rank's part of each sequence.
func (p *contextParallel) run(c *nn.Ctx, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	if !c.Training() && len(x) > 0 && x[0] != nil && x[0].NumDims() > 1 && (zigzag{x[0].Dim(1), p.group.Size()}).check() != nil {
		return next(c, x) // too short to share: each rank computes all of it
	}
	pass := p.begin(c, x)
	if err := p.sameSamples(c, pass, x); err != nil {
		c.Fail(err)
	}
	inner := c.WithPositions(pass.take(c, c.Positions(pass.z.time)))
	if pass.documents != nil {
		inner = inner.WithDocuments(pass.take(c, pass.documents))
	}
	sharding.Of(c.Tape()).Refuse(contextAxis, "a rank of axis \"cp\" has some of the tokens of each sequence, and this sees these alone: "+
		"call attention as an nn.DotProductAttention, and leave out other operations over tokens", "attention", "self attention", "lstm", "gru")
	pass.inside = true
	y := next(inner.With(pass), pass.cut(c, x))
	pass.inside, pass.returned = false, p.inStep(c)
	for i, t := range y {
		if t == nil || t.NumDims() < 2 || t.Dim(1) != pass.z.len(p.rank) {
			c.Fail(fmt.Errorf("context parallelism: result %d of the model has shape %v, and its dim 1 is not this rank's %d of %d tokens: "+
				"a model that is split over axis %q returns something for each token", i, shapeOf(t), pass.z.len(p.rank), pass.z.time, contextAxis))
		}
		if !pass.returned {
			y[i] = pass.whole(c, t)
		}
	}
	return y
}

// begin makes the state of a pass and checks its inputs, before anything is communicated.
func (p *contextParallel) begin(c *nn.Ctx, x []*tensor.Tensor) *contextPass {
	if len(x) == 0 || x[0] == nil || x[0].NumDims() < 2 {
		c.Fail(fmt.Errorf("context parallelism: the first input of the model must be [batch, time, …], and has shape %v", shapeOf(append(x, nil)[0])))
	}
	pass := &contextPass{
		contextParallel: p, z: zigzag{x[0].Dim(1), p.group.Size()},
		documents: c.Documents(), masks: map[*tensor.Tensor]*givenMask{}, on: x[0].Device(),
	}
	if err := pass.z.check(); err != nil {
		c.Fail(err)
	}
	for i, t := range x {
		switch {
		case t == nil:
		case t.NeedsGrad():
			c.Fail(fmt.Errorf("context parallelism: input %d of the model needs a gradient, and each rank would have that of its tokens alone: give it as a constant", i))
		case t.NumDims() > 1 && t.Dim(1) != pass.z.time && t.Dim(1) != 1:
			c.Fail(fmt.Errorf("context parallelism: input %d of the model has shape %v, and its dim 1 is neither 1 nor the %d tokens of input 0: "+
				"inputs are cut along dim 1", i, t.Shape(), pass.z.time))
		}
	}
	if d := pass.documents; d != nil && d.Dim(1) != pass.z.time {
		c.Fail(fmt.Errorf("context parallelism: the documents have shape %v, and the sequences %d tokens", d.Shape(), pass.z.time))
	}
	if pass.documents != nil && pass.documents.Device() != tensor.Meta {
		pass.packed = newPacking(pass.z, pass.documents)
	}
	tape := c.Tape()
	if p.passes[tape] == nil {
		tape.OnClose(func() { delete(p.passes, tape) })
		if c.Training() {
			tape.BeforeBackward(func(context.Context) error { return p.passes[tape].checkLoss() })
		}
	}
	p.passes[tape] = pass
	return pass
}

// checkLoss fails for a pass whose loss would be that of a part.
func (p *contextPass) checkLoss() error {
	if p.returned && !p.lost {
		return fmt.Errorf("context parallelism: the loss was not computed by an nn.CrossEntropyLoss that was called by Ctx.CallN. "+
			"Each rank of axis %q has some of the tokens, and another loss would be that of these alone: "+
			"write c.CallN(loss, logits, targets)[0], with the targets of whole sequences, in the function that Strategy.Step calls", contextAxis)
	}
	return nil
}

// take returns this rank's part of positions or documents, [time] or [batch, time].
func (p *contextPass) take(c *nn.Ctx, t *tensor.Tensor) *tensor.Tensor {
	return p.z.take(c.Tape().Const(t), t.NumDims()-1, p.rank)
}

// cut returns this rank's part of the inputs of the model. What has one entry along dim 1 is the
// same for all tokens.
func (p *contextPass) cut(c *nn.Ctx, x []*tensor.Tensor) []*tensor.Tensor {
	x = slices.Clone(x)
	for i, t := range x {
		if t != nil && t.NumDims() > 1 && t.Dim(1) == p.z.time {
			x[i] = p.z.take(c.Tape().Const(t), 1, p.rank)
		}
	}
	return x
}

// sameSamples compares the inputs of the first training pass with those of the other ranks. The
// error is the same on all of them.
func (p *contextParallel) sameSamples(c *nn.Ctx, pass *contextPass, x []*tensor.Tensor) error {
	if p.alike || !c.Training() || x[0].Device() == tensor.Meta {
		return nil
	}
	err := compareSamples(c, p.group, append(slices.Clone(x), pass.documents))
	if err != nil {
		return fmt.Errorf("context parallelism: axis %s: %w", contextAxis, err)
	}
	p.alike = true
	return nil
}

func shapeOf(t *tensor.Tensor) []int {
	if t == nil {
		return nil
	}
	return t.Shape()
}
