// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// pytorchReducer keeps step with PyTorch's DDP: it issues the collectives that
// PyTorch's issues. The index of a parameter means the same on every rank.
type pytorchReducer struct {
	o       PyTorchOptions
	group   *dist.Group
	limits  []int // sizes at which buckets are full
	params  []*nn.Parameter
	indexOf map[*nn.Parameter]int
	state   *coalesced    // what the ranks have in common after Join
	buffers *coalesced    // what forward passes broadcast, nil for nothing
	hook    *compressHook // nil for none

	buckets  []*pytorchBucket
	bucketOf []int // of each parameter
	offsetOf []int // in its bucket's views

	rebuilt  bool  // buckets follow the order of the backward pass
	order    []int // in which the gradients of the first pass came
	syncNext bool  // the next forward pass broadcasts buffers
	usedHere []bool
	used     *tensor.Tensor // how many ranks have used each parameter, int32
	unused   []bool         // in a static graph, by its first pass
	joining  *joinOptions   // nil outside of Join
	divisor  float64

	// of the backward pass under way
	reducing bool // from its start to its end, if it is synchronised
	ready    []bool
	launched int // buckets 0 … launched-1 have been handed to the group
}

// pytorchBucket is a run of gradients that are reduced together.
type pytorchBucket struct {
	indices []int
	flat    *tensor.Tensor
	views   []*tensor.Tensor
	low     *tensor.Tensor // what a hook sends; nil without one
	missing int
	work    *dist.Work
}

// newPyTorchReducer compares the models of the ranks, gives all of them rank 0's
// state and lays out the first buckets, as PyTorch's DDP does when it is made.
func newPyTorchReducer(ctx context.Context, model any, group *dist.Group, o *ddpOptions, pt PyTorchOptions) (made reducer, err error) {
	p := &pytorchReducer{
		o: pt, group: group, limits: []int{o.firstBucketBytes, o.bucketBytes},
		syncNext: true, indexOf: map[*nn.Parameter]int{}, divisor: float64(group.Size()),
	}
	free := o.takeHook()
	defer func() {
		if err != nil {
			free()
		}
	}()
	if err := o.checkHook(); err != nil {
		return nil, fmt.Errorf("ddp: %w", err)
	}
	if o.hook != nil {
		h, known := o.hook.(*compressHook)
		if !known {
			return nil, fmt.Errorf("ddp: WithHook(%s) beside PyTorch's ranks: give BF16Hook or FP16Hook, which both sides know; the order in which other hooks of PyTorch send depends on its threads", o.hook)
		}
		p.hook = h
	}
	params := inPyTorchOrder(nn.Parameters(model), (*nn.Parameter).Name)
	if err := p.train(params); err != nil {
		return nil, err
	}
	buffers := inPyTorchOrder(nn.Buffers(model), (*nn.Buffer).Name)
	if !o.localBuffers && len(buffers) > 0 {
		p.buffers = newCoalesced(buffers, func(b *nn.Buffer) (string, *tensor.Tensor) { return b.Name(), b.Data })
	}
	atFirst := p.shareState(params, buffers)
	if !p.o.SkipInitSync {
		if err := p.syncAtFirst(ctx, atFirst); err != nil {
			return nil, err
		}
	}
	p.setFirstBuckets()
	for _, param := range p.params {
		param.OnGradReady(p.gradReady)
	}
	return p, nil
}

// train notes the parameters that are trained.
func (p *pytorchReducer) train(all []*nn.Parameter) error {
	for _, param := range all {
		if param.Frozen {
			continue
		}
		if param.Sparse {
			return fmt.Errorf("ddp: %s takes its gradient by rows, which ranks of PyTorch reduce in a way that is not spoken here: leave Sparse unset, and sparse=False there", param.Name())
		}
		p.indexOf[param] = len(p.params)
		p.params = append(p.params, param)
	}
	if len(p.params) == 0 {
		return errors.New("ddp: no parameter of the model is trained, which PyTorch's DDP refuses: freeze less, or use no DDP on any rank")
	}
	p.ready, p.usedHere = make([]bool, len(p.params)), make([]bool, len(p.params))
	p.used = tensor.New(tensor.CPU(), tensor.Int32, len(p.params))
	return nil
}

// shareState sets what the ranks have in common after Join, and returns what they
// have in common when a DDP is made. Whether buffers belong to it differs between
// PyTorch's releases.
func (p *pytorchReducer) shareState(params []*nn.Parameter, buffers []*nn.Buffer) (atFirst *coalesced) {
	var state []nn.NamedTensor
	for _, param := range params {
		state = append(state, nn.NamedTensor{Name: param.Name(), Tensor: param.Data()})
	}
	withBuffers := slices.Clone(state)
	for _, b := range buffers {
		withBuffers = append(withBuffers, nn.NamedTensor{Name: b.Name(), Tensor: b.Data})
	}
	named := func(s nn.NamedTensor) (string, *tensor.Tensor) { return s.Name, s.Tensor }
	p.state = newCoalesced(state, named)
	atFirst = p.state
	version := cmp.Or(p.o.Version, p.group.PyTorchVersion())
	old := version == "1.13" || strings.HasPrefix(version, "1.13.")
	if p.buffers != nil || old || p.o.InitBuffers {
		atFirst = newCoalesced(withBuffers, named)
		if p.buffers != nil || old {
			p.state = atFirst
		}
	}
	return atFirst
}

// syncAtFirst compares the models and takes over rank 0's state.
func (p *pytorchReducer) syncAtFirst(ctx context.Context, state *coalesced) error {
	if err := p.verify(ctx); err != nil {
		return err
	}
	if err := state.broadcast(ctx, p.group, 0); err != nil {
		return outOfStep(err, sameState)
	}
	if p.group.Rank() != 0 {
		if err := state.misread(0); err != nil {
			return err
		}
	}
	state.release()
	return nil
}

// forward issues what PyTorch issues before a forward pass.
func (p *pytorchReducer) forward(c *nn.Ctx, _, sync bool) error {
	recording := c.Tape().Recording() // a backward pass may follow
	if p.reducing {
		return errUnfinished
	}
	if p.joining != nil {
		if err := p.notify(c); err != nil {
			return err
		}
	}
	if recording && p.rebuildDue() {
		if err := p.rebuild(c); err != nil {
			return outOfStep(err, sameOptions)
		}
	}
	if p.syncNext && p.buffers != nil {
		src := 0
		if p.joining != nil {
			var err error
			if src, err = p.commonRank(c, p.group.Rank()); err != nil {
				return err
			}
		}
		if err := p.buffers.broadcast(c, p.group, src); err != nil {
			return outOfStep(err, sameOptions)
		}
	}
	if p.joining != nil {
		willSync := 0.0
		if sync {
			willSync = 1
		}
		if _, err := p.sumOf(c, willSync, "say whether gradients will be averaged"); err != nil {
			return err
		}
	}
	p.syncNext = recording && sync
	return nil
}

// unreached returns none: PyTorch's ranks do not tell which parameters they have used.
func (p *pytorchReducer) unreached() []string { return nil }

// syncBuffers fails: SyncBuffers has no counterpart in PyTorch.
func (p *pytorchReducer) syncBuffers(context.Context) error {
	return errors.New("ddp: SyncBuffers is not among the collectives of PyTorch's DDP, whose ranks broadcast buffers in their forward passes")
}

func (p *pytorchReducer) reduce(context.Context) error {
	return errors.New("ddp: PyTorch's ranks reduce gradients in backward passes, and at no other time")
}

// begin prepares a backward pass.
func (p *pytorchReducer) begin(sync bool) error {
	if p.reducing {
		return errUnfinished
	}
	for k, param := range p.params {
		d, view := param.Data(), p.buckets[p.bucketOf[k]].views[p.offsetOf[k]]
		if d.DType() != view.DType() || d.NumElems() != view.NumElems() {
			return fmt.Errorf("ddp: %s has another dtype or size than when NewDDP was called, by SetData, so its gradient does not fit the other ranks' buckets: call NewDDP again", param.Name())
		}
	}
	p.reducing, p.launched = sync, 0
	clear(p.ready)
	p.order = p.order[:0]
	for _, b := range p.buckets {
		b.missing = len(b.indices)
	}
	return nil
}

// firstOfStatic says whether the pass is the one that shows what a static graph
// uses. Its reductions wait for its end.
func (p *pytorchReducer) firstOfStatic() bool { return p.o.StaticGraph && p.unused == nil }

// gradReady is called by the backward pass for each parameter.
func (p *pytorchReducer) gradReady(ctx context.Context, param *nn.Parameter) error {
	k := p.indexOf[param]
	p.usedHere[k] = true // under NoSync too: it is accumulated
	if !p.reducing || p.firstOfStatic() {
		return nil
	}
	if !p.rebuilt && (p.o.StaticGraph || !p.o.FindUnused) {
		p.order = append(p.order, k)
	}
	p.bring(ctx, k)
	return nil
}

// bring puts a gradient into its bucket, zeros if there is none, and starts the
// reduction of buckets that are full, in their order.
func (p *pytorchReducer) bring(ctx context.Context, k int) {
	if p.ready[k] {
		return
	}
	p.ready[k] = true
	p.fill(k)
	p.buckets[p.bucketOf[k]].missing--
	p.launch(ctx)
}

func (p *pytorchReducer) fill(k int) {
	view := p.buckets[p.bucketOf[k]].views[p.offsetOf[k]]
	switch g := p.params[k].Grad(); {
	case g == nil:
		view.Fill(0)
	case p.hook != nil: // which divides
		view.CopyFrom(g)
	default:
		view.CopyScaled(1/p.divisor, g)
	}
}

func (p *pytorchReducer) launch(ctx context.Context) {
	for p.launched < len(p.buckets) && p.buckets[p.launched].missing == 0 {
		b := p.buckets[p.launched]
		b.work = p.reduceBucket(ctx, b)
		p.launched++
	}
}

// reduceBucket starts the all-reduce of a bucket, in the dtype of the hook.
func (p *pytorchReducer) reduceBucket(ctx context.Context, b *pytorchBucket) *dist.Work {
	if p.hook == nil {
		return p.group.AllReduceAsync(ctx, b.flat, dist.Sum)
	}
	p.hook.compress(b.low, b.flat, p.group.Size())
	return p.group.AllReduceAsync(ctx, b.low, dist.Sum)
}

// finish ends a backward pass: it brings what is left, waits for all, and hands
// out the sums.
func (p *pytorchReducer) finish(ctx context.Context) error {
	usedFirst := p.firstOfStatic()
	var usage *dist.Work
	if usedFirst {
		usage = p.shareUsed(ctx)
		p.unused = make([]bool, len(p.params))
	}
	if err := p.bringRest(ctx, usedFirst); err != nil {
		return err
	}
	if p.o.FindUnused && !p.o.StaticGraph {
		usage = p.shareUsed(ctx)
	}
	var first error
	// The reductions end with ctx themselves, and then say for whom they waited.
	wait := context.WithoutCancel(ctx)
	for i, b := range p.buckets {
		if err := b.work.Wait(wait); err != nil && first == nil {
			params := make([]*nn.Parameter, len(b.indices))
			for j, k := range b.indices {
				params[j] = p.params[k]
			}
			first = otherDTypesOf(params, fmt.Errorf("ddp: average the gradients of bucket %d of %d (%s … %s): %w",
				i, len(p.buckets), params[0].Name(), params[len(params)-1].Name(), err))
		}
	}
	if usage != nil {
		if err := usage.Wait(wait); err != nil && first == nil {
			first = fmt.Errorf("ddp: tell the ranks which parameters were used: %w", err)
		}
	}
	if first != nil {
		return outOfStep(first, sameOptions)
	}
	p.reducing = false
	p.handOut()
	return nil
}

// bringRest brings the gradients that the pass did not reach, if the options
// allow it to leave them out.
func (p *pytorchReducer) bringRest(ctx context.Context, firstOfStatic bool) error {
	var left []string
	for k, param := range p.params {
		switch {
		case p.ready[k]:
			if p.o.StaticGraph && p.unused[k] {
				return fmt.Errorf("ddp: the pass reached %s, which the first pass did not, although StaticGraph says that all passes are alike", param.Name())
			}
		case firstOfStatic:
			p.unused[k] = !p.usedHere[k]
		case p.o.StaticGraph && p.unused[k]:
			if !p.rebuilt {
				p.order = append(p.order, k)
			}
		case p.o.StaticGraph || !p.o.FindUnused:
			left = append(left, param.Name())
		}
	}
	if len(left) > 0 {
		return &UnusedError{Params: left, Static: p.o.StaticGraph}
	}
	for k := range p.params {
		p.bring(ctx, k)
	}
	return nil
}

// shareUsed adds up over the ranks who has used which parameter since the last
// synchronised pass.
func (p *pytorchReducer) shareUsed(ctx context.Context) *dist.Work {
	marks := make([]int64, len(p.params))
	for k, used := range p.usedHere {
		if used {
			marks[k] = 1
		}
	}
	p.used.CopyFrom(tensor.FromInt64(marks).To(tensor.Int32))
	return p.group.AllReduceAsync(ctx, p.used, dist.Sum)
}

// handOut replaces the gradients by the sums. A parameter that no rank has used
// keeps what it has.
func (p *pytorchReducer) handOut() {
	if p.hook != nil {
		for _, b := range p.buckets {
			p.hook.restore(b.flat, b.low)
		}
	}
	var used []int64
	for k, param := range p.params {
		if (p.o.FindUnused || p.o.StaticGraph) && !p.usedHere[k] {
			if used == nil {
				used = p.used.Int64s()
			}
			if used[k] == 0 {
				continue
			}
		}
		grad, has := param.GradBuffer()
		grad.CopyFrom(p.buckets[p.bucketOf[k]].views[p.offsetOf[k]])
		if !has {
			param.SetGrad(grad) // hooks are for what this rank computes, as PyTorch's are
		}
	}
	if !p.o.StaticGraph {
		clear(p.usedHere)
	}
}

// abandon does nothing: reductions under way write to the buckets, which are not
// the gradients of the parameters.
func (p *pytorchReducer) abandon() {}
