// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// bucket is a run of gradients of one dtype that are reduced together.
type bucket struct {
	params  []*nn.Parameter
	ranks   ranks            // over which they are summed
	flat    *tensor.Tensor   // the gradients back to back, used, and behind
	grads   *tensor.Tensor   // the gradients in flat
	views   []*tensor.Tensor // of flat, one a parameter
	used    *tensor.Tensor   // in flat, or in counts: how many ranks have a gradient of each parameter
	behind  *tensor.Tensor   // the end of flat: what else travels with the gradients
	unused  []int            // the parameters that this rank has none of in the present pass
	missing int              // gradients that have not come yet
	work    reduction
	owing   []mesh.Tensor // flat, of which each rank holds a part of the sum
	reduced bool          // what it holds is the same on every rank
	hooked  *GradBucket   // what a hook gets; nil without one
}

// reduction is the averaging of a bucket, under way.
type reduction interface {
	wait(ctx context.Context) error
	ended() bool // nothing writes to the bucket any more
}

// allReduced is a reduction by an all-reduce of the whole bucket.
type allReduced struct{ *mesh.Pending }

func (s allReduced) wait(ctx context.Context) error {
	sums, err := s.Wait(ctx)
	if err == nil {
		err = sums[0].Expect(mesh.Replicate())
	}
	return err
}

func (s allReduced) ended() bool { return s.Ended() }

// nativeReducer averages gradients in buckets that the backward pass writes right
// into.
type nativeReducer struct {
	split    *split
	buckets  []*bucket
	bucketOf map[*nn.Parameter]*bucket
	shared   []*bufferSync  // nil when buffers are left alone
	rows     []*rowSync     // of the parameters that have no bucket
	unused   []string       // parameters of which no rank had a gradient in the last reduction
	hooks    *hooks         // average the buckets; nil for sums of gradients that are divided already
	counts   *tensor.Tensor // beside hooks: the used of all buckets, and what the ranks weigh
	joins    *joins         // the weights of the ranks; nil if all weigh the same
	static   *staticGraph   // nil if passes may differ

	// of the backward pass under way
	reducing bool // from its start to its end, unless under NoSync
	launched int  // buckets 0 … launched-1 have been handed to the group
	atEnd    bool // the pass is over
	allEnded bool // in a Join: the last reduction had no gradients

	grace time.Duration // how long a pass that has failed waits for reductions under way

	model  any             `name:"-"`
	params []*nn.Parameter `name:"-"` // of the model
	types  typeCheck
}

// newNativeReducer gives all ranks rank 0's state and lays out the buckets.
func newNativeReducer(ctx context.Context, model any, group *dist.Group, o *ddpOptions) (made reducer, err error) {
	if err := checkParams(model); err != nil {
		return nil, fmt.Errorf("ddp: %w", err)
	}
	free := o.takeHook()
	defer func() {
		if err != nil {
			free()
		}
	}()
	if err := verifySame(ctx, group, model, "ddp", o.String()); err != nil {
		return nil, besidePyTorch(err)
	}
	if err := o.checkHook(); err != nil { // the same on all ranks
		return nil, fmt.Errorf("ddp: %w", err)
	}
	all, err := newRanks(ctx, group, replicateAxis)
	if err == nil {
		err = all.shareState(ctx, model)
	}
	var s *split
	if err == nil {
		s, err = newSplit(ctx, all.mesh, all, model, plainLays(model, all.mesh))
	}
	if err != nil {
		return nil, besidePyTorch(fmt.Errorf("ddp: %w", err))
	}
	r := layOutBuckets(model, s, o)
	if o.join && len(r.buckets) == 0 {
		return nil, errors.New("ddp: WithJoin needs a trained parameter that is not sparse: the weights of the ranks travel with its gradient")
	}
	if o.hook == nil {
		return r, nil
	}
	if r.hooks, err = newHooks(ctx, group, o.hook); err != nil {
		return nil, err
	}
	return r, nil
}

// layOutBuckets makes the buckets of a model that all ranks have alike.
func layOutBuckets(model any, s *split, o *ddpOptions) *nativeReducer {
	r := &nativeReducer{split: s, model: model, bucketOf: make(map[*nn.Parameter]*bucket), grace: abandonTime}
	if !o.localBuffers && s.world.group().Size() > 1 {
		r.shared = newBufferSyncs(model)
	}
	var trained, sparse []*nn.Parameter
	for _, p := range nn.Parameters(model) {
		if s.lays[p].away {
			continue
		}
		r.params = append(r.params, p)
		switch {
		case p.Frozen:
		case p.Sparse:
			sparse = append(sparse, p)
		case s.sums(p) != nil:
			trained = append(trained, p)
		}
	}
	r.rows = s.rows("ddp", sparse)
	for _, rows := range r.rows {
		rows.whole = o.hook != nil
	}
	slices.Reverse(trained)
	rest := o.bucketBytes
	if !o.bucketsSaid {
		total := 0
		for _, p := range trained {
			total += p.Data().NumElems() * p.Data().DType().Size()
		}
		rest = bucketSize(total)
	}
	for len(trained) > 0 {
		over := *s.sums(trained[0])
		var here, others []*nn.Parameter
		for _, p := range trained {
			if s.sums(p).axis == over.axis {
				here = append(here, p)
			} else {
				others = append(others, p)
			}
		}
		runs := fillBuckets(here, o.firstBucketBytes, rest)
		weighs := -1
		if o.join {
			r.joins = newJoins(over.group().Rank(), over.group().Size())
			weighs = weighingBucket(runs)
		}
		for i, params := range runs {
			behind := 0
			if i == weighs && o.hook == nil {
				behind = over.group().Size()
			}
			flag := 0
			if i == len(runs)-1 && o.static && o.hook == nil {
				flag = 1
			}
			b := r.newBucket(params, over, behind+flag)
			r.buckets = append(r.buckets, b)
			if behind > 0 {
				r.joins.bucket, r.joins.slots = i, b.behind.Narrow(0, 0, behind)
			}
			if flag > 0 {
				r.static = &staticGraph{flag: b.behind.Narrow(0, behind, flag)}
			}
		}
		trained = others
	}
	r.inOrder()
	if o.hook != nil {
		r.countApart(o.static)
	}
	return r
}

// countApart has the buckets hold gradients alone, as hooks get them.
func (r *nativeReducer) countApart(static bool) {
	total := 0
	for _, b := range r.buckets {
		total += len(b.params)
	}
	numUsed := total
	if r.joins != nil {
		total += r.split.world.group().Size()
	}
	weighed := total
	if static {
		total++
	}
	r.counts = tensor.New(tensor.CPU(), tensor.Float32, total)
	if r.joins != nil {
		r.joins.bucket, r.joins.slots = -1, r.counts.Narrow(0, numUsed, weighed-numUsed)
	}
	if static {
		r.static = &staticGraph{flag: r.counts.Narrow(0, weighed, 1)}
	}
	at := 0
	for i, b := range r.buckets {
		b.used = r.counts.Narrow(0, at, len(b.params))
		at += len(b.params)
		b.hooked = &GradBucket{Index: i, Grads: b.views, Params: b.params, IsLast: i == len(r.buckets)-1,
			Buffer: b.grads}
	}
}

// weighingBucket returns the first bucket in which weights travel exactly, of those that hold
// these parameters; 0 if there is none.
func weighingBucket(runs [][]*nn.Parameter) int {
	return max(0, slices.IndexFunc(runs, func(params []*nn.Parameter) bool { return params[0].Data().DType().Size() >= 4 }))
}

// inOrder puts the buckets of different ranks into the order in which they are full, about: that
// in which all ranks begin to reduce them.
func (r *nativeReducer) inOrder() {
	if !slices.ContainsFunc(r.buckets, func(b *bucket) bool { return b.ranks != r.buckets[0].ranks }) {
		return
	}
	place := map[*nn.Parameter]int{}
	for i, p := range r.params {
		place[p] = i
	}
	first := func(b *bucket) int { return place[b.params[len(b.params)-1]] }
	slices.SortStableFunc(r.buckets, func(a, b *bucket) int { return first(b) - first(a) })
}

// newBucket makes the memory of a bucket, with so many elements behind the gradients, and has the
// gradients of its parameters come to it.
func (r *nativeReducer) newBucket(params []*nn.Parameter, over ranks, behind int) *bucket {
	numElems := 0
	for _, p := range params {
		numElems += p.Data().NumElems()
	}
	like := params[0].Data()
	b := &bucket{params: params, ranks: over, flat: memoryFor(over.group())(like.Device(), like.DType(), numElems+len(params)+behind)}
	b.grads = b.flat.Narrow(0, 0, numElems)
	b.used = b.flat.Narrow(0, numElems, len(params))
	b.behind = b.flat.Narrow(0, numElems+len(params), behind)
	if len(params) == 1 {
		b.flat.SetName(params[0].Name() + ".grad")
	} else {
		b.flat.SetName(fmt.Sprintf("the gradients from %s to %s", params[0].Name(), params[len(params)-1].Name()))
	}
	b.owing = []mesh.Tensor{over.value(b.flat, mesh.Partial(dist.Sum), b.flat.Shape()...)}
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
			return r.gradReady(ctx, p)
		})
		b.views = append(b.views, view)
		r.bucketOf[p] = b
		offset += n
	}
	return b
}

func (r *nativeReducer) syncBuffers(ctx context.Context) error {
	if r.joins != nil && r.joins.inside {
		return errors.New("ddp: SyncBuffers in a Join: ranks that have ended would not take part; call it after the Join")
	}
	return r.shareBuffers(ctx)
}

// shareBuffers gives all ranks the buffers of rank 0, or in a Join of a rank that has not ended.
func (r *nativeReducer) shareBuffers(ctx context.Context) error {
	source := 0
	if r.joins != nil {
		source = r.joins.source
	}
	for _, s := range r.shared {
		if err := s.broadcastFrom(ctx, r.split.world, source); err != nil {
			return err
		}
	}
	return nil
}

// forward begins a training pass with rank 0's buffers.
func (r *nativeReducer) forward(c *nn.Ctx, first, sync bool) error {
	if !first {
		return nil
	}
	// The average is a sum of gradients that are small from the start.
	c.Tape().ScaleGrads(r.share(r.split.numSamplers()))
	r.checkTypes(c.Tape())
	if !sync {
		return nil
	}
	return r.shareBuffers(c)
}

// share is what the gradients of this rank are multiplied by before they are summed, or before a
// hook averages them.
func (r *nativeReducer) share(ranks int) float64 {
	share := 1 / float64(ranks)
	if r.joins != nil {
		share = r.joins.share()
	}
	if r.hooks != nil {
		share *= float64(ranks) // hooks divide
	}
	return share
}

var errUnfinished = errors.New("ddp: an earlier backward pass has not come to its end, so the ranks may be at different gradients: begin again from a checkpoint with a new group")

// begin prepares a backward pass.
func (r *nativeReducer) begin(sync bool) error {
	r.types.end()
	if r.reducing {
		return errUnfinished
	}
	if err := r.stillInBuckets(); err != nil {
		return err
	}
	for _, rows := range r.rows {
		if err := rows.begin(r.share(rows.ranks.group().Size())); err != nil {
			return err
		}
	}
	r.reducing, r.launched, r.atEnd = sync, 0, false
	if r.static != nil {
		r.static.begin()
	}
	if r.hooks != nil {
		r.hooks.last = nil
	}
	for _, b := range r.buckets {
		b.missing, b.unused = len(b.params), b.unused[:0]
		if !b.reduced {
			continue
		}
		// Averages that nobody has dropped are added to. All ranks have them:
		// in the next sum, each brings its share.
		b.reduced = false
		for i, p := range b.params {
			if p.Grad() != nil {
				b.views[i].Scale(r.share(b.ranks.group().Size()))
			}
		}
	}
	return nil
}

// stillInBuckets fails for a parameter whose gradient would not come to its bucket.
func (r *nativeReducer) stillInBuckets() error {
	for _, b := range r.buckets {
		for i, p := range b.params {
			if buf, _ := p.GradBuffer(); buf != b.views[i] {
				return fmt.Errorf("ddp: the gradient of %s has got other memory than its bucket since NewDDP, by SetData with another shape or dtype, SetGrad, SetGradBuffer or a later NewDDP, "+
					"so the ranks would not share it: call NewDDP again", p.Name())
			}
			if p.Sparse {
				return fmt.Errorf("ddp: %s was not sparse when NewDDP was called and is now, so its gradient would differ between ranks: call NewDDP again", p.Name())
			}
		}
	}
	return nil
}

// gradReady is called by the backward pass for each parameter.
func (r *nativeReducer) gradReady(ctx context.Context, p *nn.Parameter) error {
	if !r.reducing {
		return nil
	}
	if err := r.bring(ctx); err != nil {
		return err
	}
	if r.static.expects(p) {
		r.bucketOf[p].missing--
	}
	r.launch(ctx)
	return nil
}

// launch starts the reduction of buckets that are full, in their order: all
// ranks must issue the same collectives in the same order.
func (r *nativeReducer) launch(ctx context.Context) {
	for r.launched < len(r.buckets) && r.buckets[r.launched].missing == 0 {
		b := r.buckets[r.launched]
		if r.static != nil && r.launched == len(r.buckets)-1 {
			if !r.atEnd {
				break // what it says of the pass is not known yet
			}
			r.static.fill()
		}
		b.used.Fill(1)
		for _, i := range b.unused {
			b.used.Narrow(0, i, 1).Fill(0)
		}
		if r.joins != nil && r.joins.bucket == r.launched {
			r.joins.fill()
		}
		if r.hooks != nil {
			b.work = r.hooks.average(ctx, b.hooked)
		} else {
			b.work = allReduced{mesh.AllReduceAsync(ctx, b.ranks.axis, b.owing...)}
		}
		r.launched++
	}
}

// finish ends a backward pass: it reduces what is left and waits for all.
func (r *nativeReducer) finish(ctx context.Context) error {
	for _, b := range r.buckets[r.launched:] {
		for i, p := range b.params {
			if p.Grad() != nil {
				continue
			}
			r.static.misses(p)
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
	if err := r.complete(ctx); err != nil {
		return err
	}
	if r.static != nil {
		r.learn()
	}
	return nil
}

// complete starts what is left to reduce, and waits for all of it.
func (r *nativeReducer) complete(ctx context.Context) error {
	r.atEnd = true
	r.launch(ctx)
	var counted *hooked
	if r.hooks != nil {
		if r.joins != nil {
			r.joins.fill()
		}
		counted = r.hooks.countUses(ctx, r.counts)
	}
	var first error
	for _, rows := range r.rows {
		if first == nil {
			first = rows.sum(ctx)
		}
	}
	// The reductions end with ctx themselves, and then say for whom they waited.
	wait := context.WithoutCancel(ctx)
	for i, b := range r.buckets {
		if err := b.work.wait(wait); err != nil && first == nil {
			first = fmt.Errorf("ddp: average the gradients of bucket %d of %d (%s … %s): %w",
				i, len(r.buckets), b.params[0].Name(), b.params[len(b.params)-1].Name(), err)
		}
		b.reduced = true
	}
	if counted != nil && first == nil {
		if err := counted.wait(wait); err != nil {
			first = fmt.Errorf("ddp: count the ranks that have used each parameter: %w", err)
		}
	}
	r.reducing = first != nil
	if first != nil {
		return first
	}
	if r.static != nil {
		if err := r.static.compare(ctx, r.split.world.group()); err != nil {
			return err
		}
	}
	r.dropUnused()
	if r.joins != nil {
		return r.weigh()
	}
	return nil
}

// weigh makes means of the sums, by the weights that the ranks had in the step.
func (r *nativeReducer) weigh() error {
	factor, err := r.joins.read()
	if err != nil {
		return err
	}
	r.allEnded = factor == 0
	if factor != 1 && factor != 0 {
		for _, b := range r.buckets {
			b.grads.Scale(factor)
		}
		for _, rows := range r.rows {
			rows.scale(factor)
		}
	}
	if ended := r.joins.ended(); ended >= 0 && r.joins.early && !r.allEnded {
		return &EarlyEndError{Rank: r.joins.rank, Ended: ended}
	}
	return nil
}

// dropUnused takes the gradients away that no rank has computed.
func (r *nativeReducer) dropUnused() {
	r.unused = r.unused[:0]
	for _, b := range r.buckets {
		if len(b.unused) == 0 {
			continue
		}
		used := b.used.Float32s()
		for _, i := range b.unused {
			if used[i] == 0 {
				b.params[i].ZeroGrad()
				if !b.params[i].Frozen {
					r.unused = append(r.unused, b.params[i].Name())
				}
			}
		}
	}
	slices.Reverse(r.unused) // as they come in the model
}

// reduce averages the gradients that passes under NoSync have left.
func (r *nativeReducer) reduce(ctx context.Context) error {
	err := r.begin(true)
	if err == nil {
		err = r.finish(ctx)
	}
	if err != nil {
		r.abandon()
	}
	return err
}

func (r *nativeReducer) unreached() []string { return r.unused }

// abandonTime is the usual grace. The other ranks come to the reductions within a
// step, or have failed too.
const abandonTime = 2 * time.Second

// abandon ends a backward pass that has failed: nothing writes to the parameters'
// gradients afterwards.
func (r *nativeReducer) abandon() {
	if !r.reducing {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.grace)
	defer cancel()
	for _, b := range r.buckets[:r.launched] {
		_ = b.work.wait(ctx) // the pass has an error
		if b.work.ended() {
			continue
		}
		for i, p := range b.params { // the bucket keeps its memory to itself
			if buf, _ := p.GradBuffer(); buf == b.views[i] {
				p.SetGradBuffer(nil)
			}
		}
	}
}
