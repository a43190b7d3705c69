// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"weak"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// DDP is distributed data parallelism (Li et al. 2020, "PyTorch Distributed"):
// every rank holds the whole model and a share of the batch, and the gradients
// are averaged over the ranks.
//
// Parameters are put into buckets in the reverse of their order in the model,
// about the order in which the backward pass finishes their gradients. A
// gradient is computed right in its bucket; a full bucket is reduced while the
// pass goes on. Backward returns when all buckets have arrived, so that the
// optimizer sees the same gradients, bit for bit, on every rank.
//
// The division by the number of ranks is where the backward pass starts
// (tensor.Tape.ScaleGrads), so it is in every gradient of the pass: also in that
// of parameters outside the DDP, which nobody sums. Several DDPs may share a
// pass if their groups are of one size.
//
// Buffers, such as the running statistics of a batch norm, are each rank's own
// within a pass; every training pass begins with rank 0's on all ranks, except
// under NoSync.
//
// Sparse parameters have no bucket: the rows that the ranks have used are
// gathered at the end of the pass and added up in the order of the ranks.
//
// A parameter that a pass did not reach counts as a gradient of zero where another
// rank has reached it, so ranks that used different parts of a model stay together.
// One that no rank has reached keeps the gradient that it has, which is none after
// ZeroGrad, so that optimizers leave it alone.
//
// Parameters may be of several floating dtypes: a bucket has one, and is reduced in
// it. A backward pass that fails leaves the parameters without gradients that other
// ranks still write to; the DDP has to be made anew then.
//
// The ranks may be of PyTorch's DistributedDataParallel too: see [PyTorch].
type DDP struct {
	// Model is what was wrapped, an nn.Module or nn.ModuleN. Its parameters have
	// the same names in the DDP.
	Model any `name:""`

	group   *dist.Group
	buckets []*bucket
	frozen  []*nn.Parameter `name:"-"` // that have no bucket
	shared  []*bufferSync   // nil when buffers are left alone
	sparse  []*nn.Parameter `name:"-"` // nor these; see sparse.go
	sync    bool
	late    stragglerWatch
	pytorch *pytorchDDP // nil unless other ranks may be PyTorch's

	bucketOf map[*nn.Parameter]*bucket
	tapes    []weak.Pointer[tensor.Tape] // of the passes that Forward has prepared

	// of the backward pass under way
	reducing bool // from its start to its end, unless under NoSync
	launched int  // buckets 0 … launched-1 have been handed to the group

	rowsReduced bool // the rows of sparse parameters are the same on every rank

	grace time.Duration // how long a pass that has failed waits for reductions under way
}

// DDPOption is an option of [NewDDP].
type DDPOption func(*ddpOptions)

type ddpOptions struct {
	firstBucketBytes, bucketBytes int
	keepBuffers                   bool
	onStraggler                   func(Straggler)
	stragglerSaid                 bool // the option was given
	pytorch                       *PyTorchOptions
}

// BucketBytes sets the sizes at which buckets are full: that of the first one
// to be reduced, with the model's last layers (1 MiB by default), and those of
// the others (25 MiB). Smaller buckets start sooner, larger ones waste less on
// each start.
func BucketBytes(first, others int) DDPOption {
	return func(o *ddpOptions) { o.firstBucketBytes, o.bucketBytes = first, others }
}

// KeepBuffers leaves each rank its own buffers once training has begun: PyTorch's
// broadcast_buffers=False.
func KeepBuffers() DDPOption { return func(o *ddpOptions) { o.keepBuffers = true } }

// bucket is a run of gradients of one dtype that are reduced together.
type bucket struct {
	params  []*nn.Parameter
	flat    *tensor.Tensor   // the gradients back to back, and used
	views   []*tensor.Tensor // of flat, one a parameter
	used    *tensor.Tensor   // the end of flat: how many ranks have a gradient of each parameter
	unused  []int            // the parameters that this rank has none of in the present pass
	missing int              // gradients that have not come yet
	work    *dist.Work
	reduced bool // what it holds is the same on every rank
}

// NewDDP prepares a model, an nn.Module or nn.ModuleN, for training on all ranks
// of a group. Every rank calls it with the same model; a difference in the parameters is an error on
// every rank that names the first one ([*MismatchError]). Parameters and
// buffers take rank 0's values.
func NewDDP(ctx context.Context, model any, group *dist.Group, opts ...DDPOption) (*DDP, error) {
	_, one := model.(nn.Module)
	_, several := model.(nn.ModuleN)
	if !one && !several {
		return nil, fmt.Errorf("ddp: a %T is no module: it needs a method Forward or ForwardN; see nn.Module and nn.ModuleN", model)
	}
	o := ddpOptions{firstBucketBytes: 1 << 20, bucketBytes: 25 << 20}
	for _, opt := range opts {
		opt(&o)
	}
	d := &DDP{Model: model, group: group, sync: true, late: watchStragglers(group, &o), bucketOf: make(map[*nn.Parameter]*bucket), grace: abandonTime}
	if o.pytorch != nil {
		for _, p := range nn.Parameters(model) {
			if p.Frozen {
				d.frozen = append(d.frozen, p)
			}
		}
		var err error
		if d.pytorch, err = newPyTorchDDP(ctx, model, group, &o); err != nil {
			return nil, err
		}
		return d, nil
	}
	if err := checkParams(model); err != nil {
		return nil, err
	}
	if err := verifySame(ctx, group, model); err != nil {
		return nil, besidePyTorch(err)
	}
	for _, s := range nn.StateDict(model) {
		if err := group.Broadcast(ctx, s.Tensor, 0); err != nil {
			return nil, besidePyTorch(fmt.Errorf("ddp: broadcast %s from rank 0: %w", s.Name, err))
		}
	}
	if !o.keepBuffers && group.Size() > 1 {
		d.shared = newBufferSyncs(model)
	}
	var trained []*nn.Parameter
	for _, p := range nn.Parameters(model) {
		switch {
		case p.Frozen:
			d.frozen = append(d.frozen, p)
		case p.Sparse:
			d.sparse = append(d.sparse, p)
		default:
			trained = append(trained, p)
		}
	}
	slices.Reverse(trained)
	for _, params := range fillBuckets(trained, o.firstBucketBytes, o.bucketBytes) {
		d.buckets = append(d.buckets, d.newBucket(params))
	}
	return d, nil
}

// checkParams fails for a model whose state cannot be communicated, or of which a
// parameter can have no gradient.
func checkParams(model any) error {
	for _, s := range nn.StateDict(model) {
		if s.Tensor.Device() == tensor.Meta {
			return fmt.Errorf("ddp: %s is on device %s, which has no data: build the model on one that has, or give it a value by SetData, before NewDDP", s.Name, tensor.Meta.Name())
		}
	}
	for _, p := range nn.Parameters(model) {
		if d := p.Data().DType(); !p.Frozen && !d.IsFloat() {
			return fmt.Errorf("ddp: %s is %v, which has no gradient: freeze it, or make it a buffer", p.Name(), d)
		}
	}
	return nil
}

// fillBuckets cuts the parameters of each dtype into runs that end when their bytes
// have reached the limit: first for the dtype's first run, then rest.
func fillBuckets(params []*nn.Parameter, first, rest int) [][]*nn.Parameter {
	numElems, dtypes, indices := make([]int, len(params)), make([]tensor.DType, len(params)), make([]int, len(params))
	for i, p := range params {
		numElems[i], dtypes[i], indices[i] = p.Data().NumElems(), p.Data().DType(), i
	}
	var runs [][]*nn.Parameter
	for _, run := range assignBuckets(numElems, dtypes, []int{first, rest}, indices) {
		ps := make([]*nn.Parameter, len(run))
		for i, k := range run {
			ps[i] = params[k]
		}
		runs = append(runs, ps)
	}
	return runs
}

// memoryFor returns what makes buckets: ranks of one node reduce each other's in place.
// Without others there, or where all goes over PyTorch's wire, the pool's memory is quicker.
func memoryFor(group *dist.Group) func(tensor.Device, tensor.DType, ...int) *tensor.Tensor {
	if group.LocalSize() > 1 && group.Transport() != "gloo" {
		return tensor.NewShared
	}
	return tensor.New
}

func (d *DDP) newBucket(params []*nn.Parameter) *bucket {
	numElems := 0
	for _, p := range params {
		numElems += p.Data().NumElems()
	}
	like := params[0].Data()
	b := &bucket{params: params, flat: memoryFor(d.group)(like.Device(), like.DType(), numElems+len(params))}
	b.used = b.flat.Narrow(0, numElems, len(params))
	offset := 0
	for _, p := range params {
		n := p.Data().NumElems()
		view := b.flat.Narrow(0, offset, n).Reshape(p.Data().Shape()...)
		view.SetName(p.Name() + ".grad")
		p.SetGradBuffer(view)
		var remove func()
		remove = p.OnGradReady(func(ctx context.Context, p *nn.Parameter) error {
			if buf, _ := p.GradBuffer(); buf != view {
				// A later NewDDP has taken the model over: begin no collectives
				// of this one, and let its buckets go.
				remove()
				return nil
			}
			return d.gradReady(ctx, p)
		})
		b.views = append(b.views, view)
		d.bucketOf[p] = b
		offset += n
	}
	return b
}

// SyncBuffers gives every rank rank 0's buffers. Training passes begin with it;
// before an evaluation on several ranks, call it on all of them. With
// [KeepBuffers] it does nothing.
func (d *DDP) SyncBuffers(ctx context.Context) error {
	if d.pytorch != nil {
		return errors.New("ddp: SyncBuffers is not among the collectives of PyTorch's DDP, whose ranks broadcast buffers in their forward passes")
	}
	for _, s := range d.shared {
		if err := s.broadcast(ctx, d.group); err != nil {
			return err
		}
	}
	return nil
}

// Forward runs a model that is an nn.Module. In a training pass, the Backward
// that follows averages the gradients.
func (d *DDP) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	m, ok := d.Model.(nn.Module)
	if !ok {
		c.Fail(fmt.Errorf("ddp: a %T has several inputs or results: call the DDP by CallN", d.Model))
	}
	d.prepare(c)
	return c.Call(m, x)
}

// ForwardN is Forward for an nn.ModuleN.
func (d *DDP) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	m, ok := d.Model.(nn.ModuleN)
	if !ok {
		c.Fail(fmt.Errorf("ddp: a %T has one input and one result: call the DDP by Call", d.Model))
	}
	d.prepare(c)
	return c.CallN(m, x...)
}

// prepare makes a training pass average its gradients. A pass may run the model
// several times, but is prepared once.
func (d *DDP) prepare(c *nn.Ctx) {
	tape := c.Tape()
	if d.pytorch != nil {
		if err := d.pytorch.forward(c, tape.Recording(), d.sync); err != nil {
			c.Fail(err)
		}
	}
	if !tape.Recording() || !d.isNew(tape) {
		return
	}
	if d.pytorch != nil {
		d.preparePyTorch(tape, d.sync)
		return
	}
	// The average is a sum of gradients that are small from the start.
	tape.ScaleGrads(1 / float64(d.group.Size()))
	sync := d.sync
	if sync {
		if err := d.SyncBuffers(c); err != nil {
			c.Fail(err)
		}
	}
	tape.BeforeBackward(func(context.Context) error { return d.begin(sync) })
	if sync {
		tape.AfterBackward(d.finish)
		tape.AfterFailure(d.abandon)
	}
}

// preparePyTorch is the end of prepare for ranks that keep step with PyTorch's.
func (d *DDP) preparePyTorch(tape *tensor.Tape, sync bool) {
	tape.BeforeBackward(func(context.Context) error {
		if err := d.stillFrozen(); err != nil {
			return err
		}
		return d.pytorch.begin(sync)
	})
	if sync {
		tape.AfterBackward(func(ctx context.Context) error {
			err := d.pytorch.finish(ctx)
			if err == nil {
				d.late.look(d.group)
			}
			return err
		})
	}
}

// isNew says whether the model is run under a tape for the first time. Several passes may
// be under way at once.
func (d *DDP) isNew(tape *tensor.Tape) bool {
	d.tapes = slices.DeleteFunc(d.tapes, func(p weak.Pointer[tensor.Tape]) bool {
		tp := p.Value()
		return tp == nil || !tp.Recording() // closed
	})
	p := weak.Make(tape)
	if slices.Contains(d.tapes, p) {
		return false
	}
	d.tapes = append(d.tapes, p)
	return true
}

// NoSync runs fn with averaging off: its backward passes add up gradients on
// this rank alone, already divided by the number of ranks, and the first one
// afterwards sums them over the ranks. For gradient accumulation over
// microbatches: fn runs the forward passes (what counts is when a pass was
// begun) and their backward passes. Inside another NoSync it changes nothing.
func (d *DDP) NoSync(fn func() error) error {
	outside := d.sync
	d.sync = false
	defer func() { d.sync = outside }()
	return fn()
}

var errUnfinished = errors.New("ddp: an earlier backward pass has not come to its end, so the ranks may be at different gradients: begin again from a checkpoint with a new group")

// begin prepares a backward pass.
func (d *DDP) begin(sync bool) error {
	if d.reducing {
		return errUnfinished
	}
	if err := d.stillFrozen(); err != nil {
		return err
	}
	if err := d.stillInBuckets(); err != nil {
		return err
	}
	if err := d.beginRows(); err != nil {
		return err
	}
	d.reducing, d.launched = sync, 0
	for _, b := range d.buckets {
		b.missing, b.unused = len(b.params), b.unused[:0]
		if !b.reduced {
			continue
		}
		// Averages that nobody has dropped are added to. All ranks have them:
		// in the next sum, each brings its share.
		b.reduced = false
		for i, p := range b.params {
			if p.Grad() != nil {
				b.views[i].Scale(1 / float64(d.group.Size()))
			}
		}
	}
	return nil
}

func (d *DDP) stillFrozen() error {
	for _, p := range d.frozen {
		if !p.Frozen {
			return fmt.Errorf("ddp: %s was frozen when NewDDP was called and is not any more, so its gradient would differ between ranks: call NewDDP again", p.Name())
		}
	}
	return nil
}

// stillInBuckets fails for a parameter whose gradient would not come to its bucket.
func (d *DDP) stillInBuckets() error {
	for _, b := range d.buckets {
		for i, p := range b.params {
			if buf, _ := p.GradBuffer(); buf != b.views[i] {
				return fmt.Errorf("ddp: the gradient of %s has got other memory than its bucket since NewDDP, by SetData with another shape or dtype, SetGrad, SetGradBuffer or a later NewDDP, "+
					"so the ranks would not share it: call NewDDP again", p.Name())
			}
		}
	}
	return nil
}

// gradReady is called by the backward pass for each parameter.
func (d *DDP) gradReady(ctx context.Context, p *nn.Parameter) error {
	if !d.reducing {
		return nil
	}
	d.bucketOf[p].missing--
	d.launch(ctx)
	return nil
}

// launch starts the reduction of buckets that are full, in their order: all
// ranks must issue the same collectives in the same order.
func (d *DDP) launch(ctx context.Context) {
	for d.launched < len(d.buckets) && d.buckets[d.launched].missing == 0 {
		b := d.buckets[d.launched]
		b.used.Fill(1)
		for _, i := range b.unused {
			b.used.Narrow(0, i, 1).Fill(0)
		}
		b.work = d.group.AllReduceAsync(ctx, b.flat, dist.Sum)
		d.launched++
	}
}

// finish ends a backward pass: it reduces what is left and waits for all.
func (d *DDP) finish(ctx context.Context) error {
	for _, b := range d.buckets[d.launched:] {
		for i, p := range b.params {
			if p.Grad() != nil {
				continue
			}
			b.views[i].Fill(0)
			b.unused = append(b.unused, i)
			if p.Frozen { // since NewDDP
				continue
			}
			// Hooks change what this rank brings, not the sum, which is every rank's.
			if err := p.GradReady(ctx); err != nil {
				return err
			}
		}
		b.missing = 0
	}
	d.launch(ctx)
	first := d.sumRows(ctx)
	// The reductions end with ctx themselves, and then say for whom they waited.
	wait := context.WithoutCancel(ctx)
	for i, b := range d.buckets {
		if err := b.work.Wait(wait); err != nil && first == nil {
			first = fmt.Errorf("ddp: average the gradients of bucket %d of %d (%s … %s): %w",
				i, len(d.buckets), b.params[0].Name(), b.params[len(b.params)-1].Name(), err)
		}
		b.reduced = true
	}
	d.reducing = first != nil
	if first != nil {
		return first
	}
	d.dropUnused()
	d.late.look(d.group)
	return nil
}

// dropUnused takes the gradients away that no rank has computed.
func (d *DDP) dropUnused() {
	for _, b := range d.buckets {
		if len(b.unused) == 0 {
			continue
		}
		used := b.used.Float32s()
		for _, i := range b.unused {
			if used[i] == 0 {
				b.params[i].ZeroGrad()
			}
		}
	}
}

// abandonTime is the usual grace. The other ranks come to the reductions within a
// step, or have failed too.
const abandonTime = 2 * time.Second

// abandon ends a backward pass that has failed: nothing writes to the parameters'
// gradients afterwards.
func (d *DDP) abandon() {
	if !d.reducing {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.grace)
	defer cancel()
	for _, b := range d.buckets[:d.launched] {
		_ = b.work.Wait(ctx) // the pass has an error
		select {
		case <-b.work.Done():
		default: // the bucket keeps its memory to itself
			for i, p := range b.params {
				if buf, _ := p.GradBuffer(); buf == b.views[i] {
					p.SetGradBuffer(nil)
				}
			}
		}
	}
}
