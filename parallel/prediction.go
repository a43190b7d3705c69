// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// Prediction is what a training step will take of this rank, in bytes. It is known before the
// first step.
type Prediction struct {
	// StateBytes is the parameters, gradients and optimizer state that the rank holds between
	// steps, the outer optimizer of a DiLoCo included. A gradient by rows (nn.Parameter.Sparse) has a size that depends on the batch, and
	// counts as none.
	StateBytes int64
	// PeakBytes is the most that the tensors of the rank hold at once in a step: the state,
	// buffers, the batch, and the values that the passes make. NoPeak says why it is not known. In a
	// pipeline the gradients that a rank has sent count until the end of the step, for the garbage
	// collector may come no earlier, and what messages hold under way is left out: some percent.
	PeakBytes int64
	NoPeak    error
	// IslandBytes is what the rank gives to other islands (DiLoCo) in the steps in which each parameter
	// is exchanged once.
	IslandBytes int64
	// SentBytes is the data that the rank gives to other ranks in a step whose gradients are
	// reduced, to the byte (dist.Traffic). NoSent says why it is not known.
	SentBytes int64
	NoSent    error
}

// PredictOptions say what a step is, besides its model and its strategy.
type PredictOptions struct {
	Optimizer optim.Optimizer // nil for none
	// Loss runs the model on a batch and returns the loss, as the step will. Predict calls it
	// once with values that have shapes and no data: the carrier's device is tensor.Meta, and
	// the batch must be there too. nil leaves the peak out.
	Loss       func(c *nn.Ctx, model any) *tensor.Tensor
	BatchBytes int64 // of the tensors of a batch
	// Microbatches is how many batches a step has, in a pipeline: each sends what it needs. 0 is
	// one. Other strategies send as much whatever their number is, but for FSDP, which gathers again
	// for each.
	Microbatches int
	Around       []nn.Interceptor  // of the step's passes, such as nn.Recompute
	Autocast     tensor.DType      // of the step's passes, 0 for none
	Generator    *tensor.Generator // nil for one of Predict's own
}

// forecast is what a strategy knows of its steps beforehand.
type forecast struct {
	model    any
	strategy any // what a dry run calls; nil for the model
	// shape is the shape of what this rank keeps of a parameter, whole that of its value.
	shape, whole func(p *nn.Parameter) []int
	calls        []plannedCall // of a step whose gradients are reduced
	noSent       error         // why calls are not all that is sent
	extra        int64         // bytes that are held all the time besides the state and the buffers
	outer        int64         // bytes of state besides that of the optimizer
	islands      int64         // what is given to other islands

	// Of a strategy whose passes tell what they need: binds reports whether it gives the model
	// a parameter itself, begin is told the tape of each of the dry runs, of which there are
	// so many passes, and result returns the calls of the last one, and bytes that are held
	// all the time.
	binds  func(p *nn.Parameter) bool
	begin  func(tape *tensor.Tape)
	passes int
	result func() (calls []plannedCall, held int64)

	// Of a model that is split over more axes: away reports whether this rank has nothing of a
	// parameter, within is the carrier under which the loss runs, and sent counts bytes besides
	// calls. noPeak says why the passes are not run.
	away   func(p *nn.Parameter) bool
	within func(c *nn.Ctx) *nn.Ctx
	sent   func() int64
	noPeak error
	// sends returns the bytes that a pipeline sends besides calls. It asks for them by the shapes of
	// a batch alone, and no pass is run.
	sends func(ctx context.Context, o PredictOptions) (int64, error)
	// peak returns the most that its passes hold.
	peak func(ctx context.Context, o PredictOptions) (int64, error)
}

// plannedCall is a collective that a step will make.
type plannedCall struct {
	group  *dist.Group
	call   operation.Call
	shared bool // its tensors lie in shared memory
}

// forecaster is a strategy of which a step can be predicted.
type forecaster interface{ forecast() forecast }

// Predict returns what a training step of a strategy will take, from the second one on: an FSDP
// gathers more in its first step, in which it learns the order of the units. Predict computes nothing and sends
// nothing. The state and the bytes that are sent are pure functions of the shapes of the model
// and of how it is spread. The peak comes from a pass on tensor.Meta, in which the memory of
// every value is counted. Models that read values on the host, or that keep tensors outside of
// parameters and buffers, have no such pass. Their peak is not predicted.
func Predict(ctx context.Context, s Strategy, o PredictOptions) Prediction {
	of, ok := s.(forecaster)
	if !ok {
		err := fmt.Errorf("predict: a %T does not say beforehand what its steps take", s)
		return Prediction{NoPeak: err, NoSent: err}
	}
	f := of.forecast()
	if z, ok := o.Optimizer.(*ZeroRedundancyOptimizer); ok {
		f.calls = append(f.calls, z.planned()...)
	}
	p := Prediction{StateBytes: f.stateBytes(o.Optimizer) + f.outer, IslandBytes: f.islands}
	held, err := f.dryRuns(ctx, o)
	if p.NoPeak = err; err == nil {
		p.PeakBytes = p.StateBytes + f.extra + bufferBytes(f.model) + o.BatchBytes + held
	}
	switch {
	case f.sends != nil && f.noSent == nil:
		var messages int64
		if messages, p.NoSent = f.sends(ctx, o); p.NoSent == nil {
			p.SentBytes, p.NoSent = f.sentBytes()
			p.SentBytes += messages
		}
	case (f.result != nil || f.sent != nil) && err != nil:
		p.NoSent = err
	default:
		p.SentBytes, p.NoSent = f.sentBytes()
	}
	return p
}

// dryRuns returns the most bytes that a step holds besides what is held all the time, and adds
// the calls that the passes make.
func (f *forecast) dryRuns(ctx context.Context, o PredictOptions) (held int64, err error) {
	if f.noPeak != nil {
		return 0, f.noPeak
	}
	if f.peak != nil {
		return f.peak(ctx, o)
	}
	for range max(1, f.passes) {
		if held, err = f.dryRun(ctx, o); err != nil {
			return 0, err
		}
	}
	if f.result != nil {
		calls, kept := f.result()
		f.calls = append(f.calls, calls...)
		held += kept
	}
	return held, nil
}

// stateBytes returns the bytes of this rank's parameters, gradients and optimizer state.
func (f *forecast) stateBytes(o optim.Optimizer) int64 {
	sum := int64(0)
	for _, p := range nn.Parameters(f.model) {
		if f.away != nil && f.away(p) {
			continue
		}
		bytes := sizeOf(f.shape(p), p.Data().DType())
		sum += bytes
		if p.Frozen {
			continue
		}
		if !p.Sparse {
			sum += bytes
		}
		if o == nil {
			continue
		}
		if n := int64(optim.NumStates(o, p)); n > 0 {
			const counter = 4 // how often the parameter was updated
			sum += n*bytes + counter
		}
	}
	return sum
}

// sentBytes returns the bytes that this rank gives to others in a step.
func (f *forecast) sentBytes() (int64, error) {
	sum := int64(0)
	for _, c := range f.calls {
		n, err := c.group.PredictSent(c.call, c.shared)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	if f.sent != nil {
		sum += f.sent()
	}
	return sum, f.noSent
}

// dryRun returns the most bytes that the values of a forward and a backward pass hold at once.
func (f *forecast) dryRun(ctx context.Context, o PredictOptions) (peak int64, err error) {
	if o.Loss == nil {
		return 0, errors.New("predict: no loss was given to run on device meta")
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%v", v)
		}
		if err != nil {
			err = fmt.Errorf("predict: the model cannot be run on device meta, so the peak is not known: %w", err)
		}
	}()
	defer onMeta(nn.Buffers(f.model))()
	c := o.carrier(ctx)
	defer c.Close()
	defer c.Recover(&err)
	inner := o.inside(c)
	if f.begin != nil {
		f.begin(c.Tape())
	}
	model := f.strategy
	if model == nil {
		model = f.model
	}
	if f.within != nil {
		inner = f.within(inner)
	} else {
		inner = inner.With(&shapesOnly{whole: f.whole, binds: f.binds, leaves: map[*nn.Parameter]*tensor.Tensor{}})
	}
	loss := o.Loss(inner, model)
	if added := c.AddedLoss(); added != nil {
		loss = loss.Reshape().Add(added)
	}
	if err := loss.Backward(ctx); err != nil {
		return 0, err
	}
	return c.Tape().PeakBytes(), nil
}

// onMeta gives buffers values without data. The function that it returns puts theirs back.
func onMeta(buffers []*nn.Buffer) (restore func()) {
	data := make([]*tensor.Tensor, len(buffers))
	for i, b := range buffers {
		data[i] = b.Data
		b.Data = tensor.New(tensor.Meta, b.Data.DType(), b.Data.Shape()...)
	}
	return func() {
		for i, b := range buffers {
			b.Data = data[i]
		}
	}
}

// shapesOnly is an interceptor under which parameters have their shapes and no data.
type shapesOnly struct {
	whole  func(p *nn.Parameter) []int
	binds  func(p *nn.Parameter) bool
	leaves map[*nn.Parameter]*tensor.Tensor
}

func (*shapesOnly) InterceptCall(c *nn.Ctx, _ any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	return next(c, x)
}

func (s *shapesOnly) InterceptParam(c *nn.Ctx, p *nn.Parameter, next func(*nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	if s.binds != nil && s.binds(p) {
		return next(c)
	}
	if t := s.leaves[p]; t != nil {
		return t
	}
	value := tensor.New(tensor.Meta, p.Data().DType(), s.whole(p)...)
	value.SetName(p.Name())
	var leaf tensor.Leaf
	if !p.Frozen {
		leaf = shapeLeaf{tensor.New(tensor.Meta, value.DType(), value.Shape()...)}
	}
	t := c.Tape().Watch(value, leaf)
	s.leaves[p] = t
	return t
}

// shapeLeaf takes a gradient that has no data. What it takes counts as state.
type shapeLeaf struct{ grad *tensor.Tensor }

func (l shapeLeaf) GradBuffer() (*tensor.Tensor, bool) { return l.grad, false }
func (shapeLeaf) GradReady(context.Context) error      { return nil }

// sizeOf returns the bytes of a tensor.
func sizeOf(shape []int, dtype tensor.DType) int64 {
	n := int64(dtype.Size())
	for _, s := range shape {
		n *= int64(s)
	}
	return n
}

// bufferBytes returns the bytes of a model's buffers.
func bufferBytes(model any) int64 {
	sum := int64(0)
	for _, b := range nn.Buffers(model) {
		sum += sizeOf(b.Data.Shape(), b.Data.DType())
	}
	return sum
}

// whole is the shape of a parameter of which every rank has all.
func whole(p *nn.Parameter) []int { return p.Data().Shape() }

func (s *Single) forecast() forecast { return forecast{model: s.Model, shape: whole, whole: whole} }

// forecast is that of the model on the first device. The others have copies of the parameters, and
// each replica has gradients of its own until they are added up.
func (d *DataParallel) forecast() forecast {
	f := forecast{model: d.Model, shape: whole, whole: whole}
	if n := int64(len(d.devices)); n > 1 {
		for _, p := range nn.Parameters(d.Model) {
			size := sizeOf(p.Data().Shape(), p.Data().DType())
			f.extra += (n - 1) * size
			if !p.Frozen {
				f.extra += n * size
			}
		}
	}
	return f
}

// forecast is that of the island, with the state of the outer optimizer. The values that are exchanged
// are no tensors.
func (d *DiLoCo) forecast() forecast {
	of, ok := d.inner.(forecaster)
	if !ok {
		err := fmt.Errorf("predict: a %T does not say beforehand what its steps take", d.inner)
		return forecast{model: d.Model, shape: whole, whole: whole, noPeak: err, noSent: err}
	}
	f := of.forecast()
	f.outer = sizeOf(d.counts.Shape(), d.counts.DType())
	for _, p := range d.params {
		f.outer += 3 * sizeOf(p.outer.Shape(), p.outer.DType())
		if d.sharded || d.speaks() {
			f.islands += int64(d.code.size(p.outer.NumElems()))
		}
	}
	return f
}

func (d *DDP) forecast() forecast {
	f := forecast{model: d.Model, shape: whole, whole: whole}
	r, ok := d.reducer.(*nativeReducer)
	if !ok {
		f.noSent = fmt.Errorf("predict: what PyTorch's ranks are sent is not counted")
		return f
	}
	for _, s := range r.shared {
		f.extra += sizeOf(s.flat.Shape(), s.flat.DType())
		f.calls = append(f.calls, broadcastOf(d.group, s))
	}
	f.countHooks(r)
	for _, b := range r.buckets {
		if r.hooks != nil {
			break
		}
		flat := b.flat
		f.extra += sizeOf(flat.Shape(), flat.DType()) - sizeOf(b.grads.Shape(), flat.DType()) // used and behind
		f.calls = append(f.calls, plannedCall{b.ranks.group(), operation.Call{Op: operation.AllReduce, Reduce: dist.Sum, DType: operation.DType(flat.DType()), Count: flat.NumElems()}, b.ranks.group().LocalSize() > 1})
	}
	if len(r.rows) > 0 {
		f.noSent = fmt.Errorf("predict: %s is sparse, so the bytes that are sent depend on the rows that a batch uses", r.rows[0].sparse[0].Name())
	}
	return f
}

// countHooks adds what the hook of a DDP sends, and keeps.
func (f *forecast) countHooks(r *nativeReducer) {
	if r.hooks == nil {
		return
	}
	g := r.hooks.group
	add := func(t *tensor.Tensor, d tensor.DType, shared bool) {
		call := operation.Call{Op: operation.AllReduce, Reduce: dist.Sum, DType: operation.DType(d), Count: t.NumElems()}
		f.calls = append(f.calls, plannedCall{g, call, shared})
	}
	if h, keeps := r.hooks.hook.(*powerSGD); keeps {
		for _, b := range r.buckets {
			f.extra += sizeOf([]int{h.kept(b.hooked)}, tensor.Float32)
		}
	}
	h, compresses := r.hooks.hook.(*compressHook)
	if !compresses {
		f.noSent = fmt.Errorf("predict: the hook %s decides what is sent", r.hooks.hook)
		return
	}
	for _, b := range r.buckets {
		add(b.hooked.Buffer, h.dtype, g.LocalSize() > 1)
		f.extra += sizeOf(b.hooked.Buffer.Shape(), h.dtype)
	}
	add(r.counts, r.counts.DType(), false)
}

// forecast is that of the engine, with the parts stepping in on tensor.Meta.
func (p *Parallel) forecast() forecast {
	f := p.engine.forecast()
	q := *p
	switch engine := f.strategy.(type) {
	case *FSDP:
		q.engine = engine
	default: // replicas, which have their parameters all the time
		q.engine = &Single{Model: p.Model}
	}
	f.strategy, f.away, f.within = &q, p.IsAway, q.within
	q.shapes = &shapesOnly{whole: f.whole, binds: f.binds}
	begin, before := f.begin, int64(0)
	f.begin = func(tape *tensor.Tape) {
		q.shapes.leaves = map[*nn.Parameter]*tensor.Tensor{}
		before = p.sentBytes()
		if begin != nil {
			begin(tape)
		}
	}
	f.sent = func() int64 { return p.sentBytes() - before }
	for _, part := range p.parts {
		if part == splitter(p.pipe) {
			continue
		}
		if _, ok := part.(meter); !ok {
			f.noSent = fmt.Errorf("predict: what axis %s sends is not counted beforehand", part.axis())
		}
	}
	if p.pipe != nil {
		f.sends = p.pipe.predictSent
		f.peak = func(ctx context.Context, o PredictOptions) (int64, error) { return p.pipe.predictPeak(ctx, &q, o) }
		if _, shards := p.engine.(*FSDP); shards || len(p.parts) > 1 {
			f.noSent = fmt.Errorf("predict: what the passes of a stage send on the axes beside %s is not counted beforehand", p.pipe.axis())
			f.noPeak = fmt.Errorf("predict: what the passes of a stage hold is not known where there are axes beside %s that cut more than samples", p.pipe.axis())
		}
	}
	return f
}

// sentBytes returns what the parts have counted themselves.
func (p *Parallel) sentBytes() int64 {
	sum := int64(0)
	for _, part := range p.parts {
		if m, ok := part.(meter); ok {
			sum += m.sentBytes()
		}
	}
	return sum
}

// broadcastOf is the call that gives all ranks rank 0's buffers.
func broadcastOf(group *dist.Group, s *bufferSync) plannedCall {
	return plannedCall{group: group, call: operation.Call{Op: operation.Broadcast, DType: operation.DType(s.flat.DType()), Count: s.flat.NumElems()}}
}
