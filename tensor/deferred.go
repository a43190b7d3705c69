// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"context"
	"fmt"
	"slices"
)

// DeferWeights splits a backward pass into two parts. The pass computes the gradients of
// what flows through the graph, and leaves out what only a leaf waits for: the gradients of
// the weights of matrix products, convolutions and embeddings. [Tape.BackwardWeights]
// computes those. A pipeline sends the gradient of a stage's input in between.
//
// Both parts together give the gradients of one pass bit for bit. What cannot be left out,
// such as the gradient of a norm's weight, is done in the first part. The operands of what
// is left out keep their memory until it is done.
func DeferWeights() BackwardOption { return func(b *backprop) { b.defers = true } }

// lateGrad is one thing that a pass has left for [Tape.BackwardWeights].
type lateGrad struct {
	to    int       // the node of a leaf
	holds []*Tensor // what run reads
	// run adds a part to the gradient of the leaf. It is nil where all parts have come: the
	// leaf then takes its gradient.
	run  func(b *backprop, to int)
	grad *Tensor // at the end of a leaf: what the first part of the pass has brought, nil for nothing
}

// later runs fn, which adds a part to the gradient of input i, now or in
// [Tape.BackwardWeights]. fn reads holds, and gives by giveTo and directTo.
func (b *backprop) later(i int, holds []*Tensor, fn func(b *backprop, to int)) {
	tp := b.tape
	to := tp.nodes[b.node].inputs[i]
	if n := &tp.nodes[to]; !b.defers || n.leaf == nil || b.retain || len(n.hooks) > 0 {
		fn(b, to)
		return
	}
	for _, t := range holds {
		tp.own(t.storage)
	}
	tp.late = append(tp.late, lateGrad{to: to, holds: holds, run: fn})
	if tp.waiting == nil {
		tp.waiting = make(map[int]int)
	}
	tp.waiting[to]++
}

// catchUp runs what was left for a leaf, before a part of its gradient comes that cannot be
// left: the parts are added in the order of a pass that leaves nothing.
func (b *backprop) catchUp(to int) {
	tp := b.tape
	if b.settles || tp.waiting[to] == 0 {
		return
	}
	b.settles = true
	defer func() { b.settles = false }()
	for k := range tp.late {
		if l := &tp.late[k]; l.to == to && l.run != nil {
			b.runLate(l)
		}
	}
	tp.late = slices.DeleteFunc(tp.late, func(l lateGrad) bool { return l.to == to })
	delete(tp.waiting, to)
}

// runLate does one thing that was left.
func (b *backprop) runLate(l *lateGrad) {
	l.run(b, l.to)
	for _, t := range l.holds {
		b.release(t.storage)
	}
	l.run, l.holds = nil, nil
}

// leaveLeaf leaves the end of a leaf whose parts have not all come.
func (b *backprop) leaveLeaf(to int, g *Tensor) {
	b.tape.late = append(b.tape.late, lateGrad{to: to, grad: g}) // which stays held
	b.grads[to] = nil
}

// BackwardWeights computes what a backward pass with [DeferWeights] has left out, in the
// order of that pass, and runs what [Tape.AfterBackward] has registered. Without such a pass
// it does nothing. The error is as that of [Tensor.Backward].
func (tp *Tape) BackwardWeights(ctx context.Context) error {
	if !tp.split {
		return nil
	}
	b := &backprop{ctx: ctx, tape: tp, grads: make([]*Tensor, len(tp.nodes)), born: tp.scope.born, settles: true}
	return b.guarded(func() error {
		recording := tp.recording
		tp.recording = false
		defer func() { tp.recording = recording }()
		late := tp.late
		tp.late, tp.waiting, tp.split = nil, nil, false
		for _, l := range late {
			if l.grad != nil {
				b.grads[l.to] = l.grad
			}
		}
		for k := range late {
			if err := context.Cause(ctx); err != nil {
				return fmt.Errorf("backward ended at the gradient of a weight: %w", err)
			}
			l := &late[k]
			if l.run == nil {
				if err := b.visit(l.to, b.grads[l.to], nil); err != nil {
					return err
				}
				continue
			}
			mark := len(tp.scope.live)
			b.runLate(l)
			tp.scope.sweep(min(mark, len(tp.scope.live)))
		}
		return b.finish()
	})
}

// BackwardFrom walks the tape from several values at once, with the gradients that came for
// them from elsewhere: grads[i], of the shape and dtype of values[i], stays the caller's and
// is not scaled by [Tape.ScaleGrads]. Where grads[i] is nil, values[i] is a loss of one
// element. Otherwise it is as [Tensor.Backward]. A value without gradient panics with an
// *Error.
func (tp *Tape) BackwardFrom(ctx context.Context, values, grads []*Tensor, opts ...BackwardOption) error {
	const op = "backward from"
	if len(values) == 0 || len(values) != len(grads) {
		fail(op, values, "wants a gradient for each value, and at least one value; there are %d values and %d gradients", len(values), len(grads))
	}
	if tp.observer != nil {
		tp.observer.Backward(slices.Clone(values))
	}
	dev := values[0].Device()
	b := &backprop{ctx: ctx, tape: tp, grads: make([]*Tensor, len(tp.nodes)), born: tp.scope.born}
	for _, o := range opts {
		o(b)
	}
	root := 0
	for i, t := range values {
		seed := grads[i]
		if seed == nil {
			t.wantLoss(op, tp)
			seed = t.firstGrad("backward")
		} else {
			t.wantSeed(op, tp, seed)
			tp.own(seed.storage) // it stays the caller's: the pass neither adds to it nor frees it
			seed = seed.detach() // it may have been computed under another tape
		}
		b.keep = append(b.keep, t.node)
		b.add(t.node, seed)
		root = max(root, t.node)
	}
	if err := b.pass(root); err != nil || !dev.Late() {
		return err
	}
	if err := deviceFault(dev, false); err != nil {
		return err
	}
	return nil
}

// wantSeed fails unless seed can be the gradient of t, a value under tp.
func (t *Tensor) wantSeed(op string, tp *Tape, seed *Tensor) {
	t.check(op)
	t.wantGradient(op)
	if t.tape != tp {
		fail(op, []*Tensor{t}, "the value was computed under another tape")
	}
	if !slices.Equal(seed.shape, t.shape) || seed.dtype != t.dtype {
		fail(op, []*Tensor{t, seed}, "the gradient must have the shape and dtype of the value")
	}
}
