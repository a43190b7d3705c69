// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// forward issues what PyTorch issues before a forward pass. Recording says
// whether a backward pass may follow, sync whether it is to be synchronised.
func (p *pytorchDDP) forward(ctx context.Context, recording, sync bool) error {
	if p.reducing {
		return errUnfinished
	}
	if p.join != nil {
		if err := p.notify(ctx); err != nil {
			return err
		}
	}
	if recording && p.rebuildDue() {
		if err := p.rebuild(ctx); err != nil {
			return outOfStep(err, sameOptions)
		}
	}
	if p.syncNext && p.buffers != nil {
		src := 0
		if p.join != nil {
			var err error
			if src, err = p.commonRank(ctx, p.group.Rank()); err != nil {
				return err
			}
		}
		if err := p.buffers.broadcast(ctx, p.group, src); err != nil {
			return outOfStep(err, sameOptions)
		}
	}
	if p.join != nil {
		willSync := 0.0
		if sync {
			willSync = 1
		}
		if _, err := p.sumOf(ctx, willSync, "say whether gradients will be averaged"); err != nil {
			return err
		}
	}
	p.syncNext = recording && sync
	return nil
}

// begin prepares a backward pass.
func (p *pytorchDDP) begin(sync bool) error {
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
func (p *pytorchDDP) firstOfStatic() bool { return p.o.StaticGraph && p.unused == nil }

// gradReady is called by the backward pass for each parameter.
func (p *pytorchDDP) gradReady(ctx context.Context, param *nn.Parameter) error {
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
func (p *pytorchDDP) bring(ctx context.Context, k int) {
	if p.ready[k] {
		return
	}
	p.ready[k] = true
	p.fill(k)
	p.buckets[p.bucketOf[k]].missing--
	p.launch(ctx)
}

func (p *pytorchDDP) fill(k int) {
	view := p.buckets[p.bucketOf[k]].views[p.offsetOf[k]]
	if g := p.params[k].Grad(); g != nil {
		view.CopyScaled(1/p.divisor, g)
	} else {
		view.Fill(0)
	}
}

func (p *pytorchDDP) launch(ctx context.Context) {
	for p.launched < len(p.buckets) && p.buckets[p.launched].missing == 0 {
		b := p.buckets[p.launched]
		b.work = p.group.AllReduceAsync(ctx, b.flat, dist.Sum)
		p.launched++
	}
}

// finish ends a backward pass: it brings what is left, waits for all, and hands
// out the sums.
func (p *pytorchDDP) finish(ctx context.Context) error {
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
func (p *pytorchDDP) bringRest(ctx context.Context, firstOfStatic bool) error {
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
func (p *pytorchDDP) shareUsed(ctx context.Context) *dist.Work {
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
func (p *pytorchDDP) handOut() {
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

// broadcastInt32s replaces the numbers by rank 0's.
func (p *pytorchDDP) broadcastInt32s(ctx context.Context, v []int64) error {
	t := tensor.FromInt64(v).To(tensor.Int32)
	if err := p.group.Broadcast(ctx, t, 0); err != nil {
		return err
	}
	copy(v, t.Int64s())
	return nil
}
