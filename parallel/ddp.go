// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"weak"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// DDP is distributed data parallelism (Li et al. 2020, "PyTorch Distributed"):
// every rank holds a replica of the whole model and computes a share of the batch,
// and the gradients are averaged over the ranks. It is a [Strategy].
//
// Parameters are put into buckets in the reverse of their order in the model.
// That is about the order in which the backward pass finishes their gradients. A
// gradient is computed right in its bucket, and a full bucket is reduced while
// the pass goes on. Backward returns when all buckets have arrived: the optimizer
// sees the same gradients, bit for bit, on every rank.
//
// The backward pass starts with 1/ranks (tensor.Tape.ScaleGrads). The division is
// therefore in every gradient of the pass, also in that of parameters outside the
// DDP, which nobody sums. Several DDPs may share a pass if their groups are of
// one size.
//
// Buffers, such as the running statistics of a batch norm, are each rank's own
// within a pass. Every training pass begins with rank 0's buffers on all ranks,
// except under NoSync.
//
// Sparse parameters have no bucket. The rows that the ranks have used are
// gathered at the end of the pass, and added up in the order of the ranks.
//
// Where a pass did not reach a parameter, but that of another rank did, its
// gradient counts as zero: ranks that used different parts of a model stay
// together. A parameter that no rank has reached keeps the gradient that it has.
// After ZeroGrad that is none, and optimizers leave the parameter alone.
//
// Parameters may be of several floating dtypes: a bucket has one, and is reduced
// in it. After a backward pass that has failed, the parameters have no gradients
// that other ranks still write to; the DDP has to be made anew then.
//
// The other ranks may be of PyTorch's DistributedDataParallel: see [WithPyTorch].
type DDP struct {
	// Model is what was wrapped, an nn.Module or nn.ModuleN. Its parameters have
	// the same names in the DDP.
	Model any `name:""`

	group   *dist.Group
	reducer reducer
	split   *split          `name:"-"` // nil without a mesh
	frozen  []*nn.Parameter `name:"-"` // when the DDP was made
	sync    bool            // false inside of NoSync
	late    stragglerWatch
	hook    Hook
	tapes   []weak.Pointer[tensor.Tape] // of the passes that Forward has prepared
}

// reducer keeps the replicas of a model alike: what is communicated, and when.
// There is a native one, and one that speaks with PyTorch's ranks.
type reducer interface {
	// forward is called before every forward pass of the model, in training and in
	// evaluation. first says that it is the first one under a tape that records.
	forward(c *nn.Ctx, first, sync bool) error
	// begin is called before a backward pass. sync says whether the gradients are
	// to be averaged in it; finish and abandon are called only then.
	begin(sync bool) error
	// finish ends a backward pass: the gradients are averages when it returns.
	finish(ctx context.Context) error
	// abandon ends a backward pass that has failed: nothing writes to the
	// gradients of the parameters afterwards.
	abandon()
	// unreached names the parameters to which no rank has come.
	unreached() []string
	// syncBuffers and join are SyncBuffers and Join of the DDP.
	syncBuffers(ctx context.Context) error
	join(ctx context.Context, fn func() error, o joinOptions) error
	// reduce averages gradients that passes under NoSync have left.
	reduce(ctx context.Context) error
}

// DDPOption is an option of [NewDDP].
type DDPOption func(*ddpOptions)

type ddpOptions struct {
	firstBucketBytes, bucketBytes int
	bucketsSaid                   bool // an option gave them
	localBuffers                  bool
	onStraggler                   func(Straggler)
	stragglerSaid                 bool // the option was given
	hook                          Hook // nil for none
	hookSaid                      bool // an option gave it
	hookOwned                     bool // another DDP has it
	join, static                  bool
	newReducer                    func(ctx context.Context, model any, group *dist.Group, o *ddpOptions) (reducer, error)
}

// String names the options that all ranks must have alike.
func (o *ddpOptions) String() string {
	var said []string
	switch {
	case o.hookOwned:
		said = append(said, fmt.Sprintf("WithHook(%s) with a hook that another DDP has", o.hook))
	case o.hook != nil:
		said = append(said, fmt.Sprintf("WithHook(%s)", o.hook))
	case o.hookSaid:
		said = append(said, "WithHook(nil)")
	}
	if o.join {
		said = append(said, "WithJoin()")
	}
	if o.static {
		said = append(said, "WithStaticGraph()")
	}
	if said == nil {
		return "no option"
	}
	return strings.Join(said, " and ")
}

// WithBucketBytes sets the sizes at which buckets are full. first is that of the
// first bucket to be reduced, which has the model's last layers (1 MiB by
// default). others is that of all others. By default it is an eighth of all gradients,
// but at least 1 MiB and at most 25 MiB; with [WithPyTorch] it is 25 MiB. Smaller
// buckets start sooner; larger ones waste less on each start.
func WithBucketBytes(first, others int) DDPOption {
	return func(o *ddpOptions) { o.firstBucketBytes, o.bucketBytes, o.bucketsSaid = first, others, true }
}

const (
	// leastBucket and mostBucket are the sizes of PyTorch's first bucket, and of its others.
	leastBucket = 1 << 20
	mostBucket  = 25 << 20
	// numBuckets is into about how many buckets gradients of a medium size are divided. The
	// last bucket is full when the backward pass is over, so nothing hides its reduction.
	numBuckets = 8
)

// bucketSize returns at how many bytes a bucket of the native reducer is full, of so many in
// all.
func bucketSize(total int) int { return min(mostBucket, max(leastBucket, total/numBuckets)) }

// WithLocalBuffers leaves each rank its own buffers once training has begun:
// PyTorch's broadcast_buffers=False.
func WithLocalBuffers() DDPOption { return func(o *ddpOptions) { o.localBuffers = true } }

// NewDDP prepares a model, an nn.Module or nn.ModuleN, for training on all ranks
// of a group. Every rank calls it with the same model. A difference in the
// parameters is an error on every rank, which names the first one
// ([*MismatchError]). Parameters and buffers take rank 0's values.
func NewDDP(ctx context.Context, model any, group *dist.Group, opts ...DDPOption) (*DDP, error) {
	if err := checkModule(model); err != nil {
		return nil, fmt.Errorf("ddp: %w", err)
	}
	o := ddpOptions{firstBucketBytes: leastBucket, bucketBytes: mostBucket, newReducer: newNativeReducer}
	for _, opt := range opts {
		opt(&o)
	}
	d := newDDP(model, group, &o)
	var err error
	if d.reducer, err = o.newReducer(ctx, model, group, &o); err != nil {
		return nil, err
	}
	return d, nil
}

// newDDP returns a DDP without a reducer.
func newDDP(model any, group *dist.Group, o *ddpOptions) *DDP {
	d := &DDP{Model: model, group: group, hook: o.hook, sync: true, late: watchStragglers(group, o)}
	for _, p := range nn.Parameters(model) {
		if p.Frozen {
			d.frozen = append(d.frozen, p)
		}
	}
	return d
}

// replicate returns a DDP of a model that is the same on all ranks already, but for what the axes
// beside cut.
func replicate(model any, s *split, opts []DDPOption) (*DDP, error) {
	o := ddpOptions{firstBucketBytes: leastBucket, bucketBytes: mostBucket}
	for _, opt := range opts {
		opt(&o)
	}
	if o.newReducer != nil {
		return nil, errors.New("WithPyTorch: PyTorch's ranks know no mesh: use NewDDP with it")
	}
	if o.hook != nil || o.join || o.static {
		return nil, fmt.Errorf("%s: gradients of a mesh are summed over several groups, and this needs one: use NewDDP with it", &o)
	}
	d := newDDP(model, s.world.group(), &o)
	d.reducer = layOutBuckets(model, s, &o)
	d.split = s
	return d, nil
}

// Forward runs a model that is an nn.Module. In a training pass, the Backward
// that follows averages the gradients.
func (d *DDP) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	m, ok := d.Model.(nn.Module)
	if !ok {
		c.Fail(fmt.Errorf("ddp: a %T has several inputs or results: call the DDP by CallN", d.Model))
	}
	d.prepare(c)
	return d.split.innermost(c).Call(m, x)
}

// ForwardN is Forward for an nn.ModuleN.
func (d *DDP) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	m, ok := d.Model.(nn.ModuleN)
	if !ok {
		c.Fail(fmt.Errorf("ddp: a %T has one input and one result: call the DDP by Call", d.Model))
	}
	d.prepare(c)
	return d.split.innermost(c).CallN(m, x...)
}

// prepare makes a training pass average its gradients. A pass may run the model
// several times, but is prepared once.
func (d *DDP) prepare(c *nn.Ctx) {
	tape, sync := c.Tape(), d.sync
	first := tape.Recording() && d.isNew(tape)
	if err := d.reducer.forward(c, first, sync); err != nil {
		c.Fail(err)
	}
	if !first {
		return
	}
	tape.BeforeBackward(func(context.Context) error {
		if err := d.stillFrozen(); err != nil {
			return err
		}
		return d.reducer.begin(sync)
	})
	if sync {
		tape.AfterBackward(d.finish)
		tape.AfterFailure(d.reducer.abandon)
	}
}

// isNew says whether the model is run under a tape for the first time. Several
// passes may be under way at once.
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

// stillFrozen fails for a parameter that nobody reduces and that is trained now.
func (d *DDP) stillFrozen() error {
	for _, p := range d.frozen {
		if !p.Frozen {
			return fmt.Errorf("ddp: %s was frozen when NewDDP was called and is not any more, so its gradient would differ between ranks: call NewDDP again", p.Name())
		}
	}
	return nil
}

// finish ends a synchronised backward pass.
func (d *DDP) finish(ctx context.Context) error {
	if err := d.reducer.finish(ctx); err != nil {
		return err
	}
	d.late.look(d.group)
	return nil
}

// NoSync runs fn with averaging off: its backward passes add up gradients on
// this rank alone, already divided by the number of ranks, and the first one
// afterwards sums them over the ranks. It is for gradient accumulation over
// microbatches: fn runs the forward passes (what counts is when a pass was
// begun) and their backward passes. Inside another NoSync it changes nothing.
func (d *DDP) NoSync(fn func() error) error {
	outside := d.sync
	d.sync = false
	defer func() { d.sync = outside }()
	return fn()
}

// reduce averages the gradients that passes under NoSync have left.
func (d *DDP) reduce(ctx context.Context) error {
	if err := d.reducer.reduce(ctx); err != nil {
		return err
	}
	d.late.look(d.group)
	return nil
}

// Step runs the passes one after the other, and averages the gradients in the last.
func (d *DDP) Step(ctx context.Context, microbatches []Microbatch) (loss *tensor.Tensor, err error) {
	if loss, err = runPasses(ctx, d, microbatches, true, nil); err == nil {
		err = balanceExperts(ctx, d.Model, d.group)
	}
	return loss, err
}

// ClipGradNorm is optim.ClipGradNorm: every rank has all gradients.
func (*DDP) ClipGradNorm(_ context.Context, params []*nn.Parameter, maxNorm float64) (norm, scale *tensor.Tensor, err error) {
	norm, scale = optim.ClipGradNorm(params, maxNorm)
	return norm, scale, nil
}

// SyncBuffers gives every rank rank 0's buffers. Training passes begin with it;
// before an evaluation on several ranks, call it on all of them. With
// [WithLocalBuffers] it does nothing. With [WithPyTorch] it is an error: PyTorch's
// ranks make no such call, and share buffers in their forward passes.
func (d *DDP) SyncBuffers(ctx context.Context) error { return d.reducer.syncBuffers(ctx) }

// Unused returns the names of the parameters of which no rank has a gradient after the
// last synchronised pass, in the order of the model: those that no pass since ZeroGrad
// has reached on any rank. The pass needs no option for them, and optimizers leave them
// alone. With [WithPyTorch] it returns none.
func (d *DDP) Unused() []string { return slices.Clone(d.reducer.unreached()) }

// StateDict returns the parameters and buffers of the model by name. All of them
// are whole on every rank.
func (d *DDP) StateDict() nn.NamedTensors { return nn.StateDict(d.Model) }

// Layout says that the parameter is whole on every rank.
func (*DDP) Layout(p *nn.Parameter) mesh.Layout { return mesh.Layout{Shape: p.Data().Shape()} }

// String says over how many ranks the model is replicated.
// It names the hook.
func (d *DDP) String() string {
	s := fmt.Sprintf("DDP over %s", countRanks(d.group.Size()))
	if d.hook != nil {
		s += fmt.Sprintf(", hook %s", d.hook)
	}
	return s
}
