// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"context"
	"slices"
)

// Crossing is where a graph goes on under another tape, of this process or of
// another one. It is called once in a pass of [Tape.Backward], when the walk gets
// to its value, with the gradient that has come together there, nil if none has.
// What it returns takes that place, nil for none: a value that was sent away waits
// for the gradient of its copy and adds it, a value that was received gives its
// gradient to whoever sent it and returns nil. The gradient belongs to the pass: who
// keeps it copies it. An error ends the pass.
type Crossing func(ctx context.Context, g *Tensor) (*Tensor, error)

// AtGrad makes a value that gradients flow through a crossing. Several of one
// value are called in the order opposite to that in which they were added, as what was
// computed last comes first: a value that was received may be sent on. Passes of
// [Tensor.Backward] and [Tensor.Grad] stay under one tape: the first fails at a
// crossing that it gets to, the second goes past it.
//
// A value without gradient panics with an *Error.
func (t *Tensor) AtGrad(fn Crossing) {
	t.wantGradient("at grad")
	tp := t.tape
	if tp.crossings == nil {
		tp.crossings = make(map[int][]Crossing)
	}
	tp.crossings[t.node] = append(tp.crossings[t.node], fn)
}

// Backward walks the whole tape, from what was recorded last to its first leaf,
// with the gradients of losses, each of one element, and those that come in by
// crossings; there may be no losses. Otherwise it is as [Tensor.Backward].
func (tp *Tape) Backward(ctx context.Context, losses []*Tensor, opts ...BackwardOption) error {
	if tp.observer != nil {
		tp.observer.Backward(slices.Clone(losses))
	}
	b := &backprop{ctx: ctx, tape: tp, grads: make([]*Tensor, len(tp.nodes)), crosses: true, born: tp.scope.born}
	for _, o := range opts {
		o(b)
	}
	for _, t := range losses {
		t.wantLoss("backward", tp)
		b.keep = append(b.keep, t.node)
		b.add(t.node, t.firstGrad("backward"))
	}
	return b.pass(len(tp.nodes) - 1)
}

// wantLoss fails unless t is a value of one element with a gradient under tp.
func (t *Tensor) wantLoss(op string, tp *Tape) {
	t.check(op)
	t.wantGradient(op)
	if t.tape != tp {
		fail(op, []*Tensor{t}, "the loss was computed under another tape")
	}
	if t.NumElems() != 1 {
		fail(op, []*Tensor{t}, "wants a loss of one element")
	}
}

// cross calls the crossings of node i, and returns the gradient to go on with.
func (b *backprop) cross(i int) error {
	out := b.tape.nodes[i].out
	for _, fn := range slices.Backward(b.tape.crossings[i]) {
		g := b.grads[i]
		next, err := fn(b.ctx, g)
		if err != nil {
			return err
		}
		if next == g {
			continue
		}
		if next != nil {
			if !slices.Equal(next.shape, out.shape) {
				fail("at grad", []*Tensor{out, next}, "the crossing's gradient must have the value's shape")
			}
			next = next.To(out.dtype)
			b.hold(i, next)
		} else {
			b.grads[i] = nil
		}
		if g != nil {
			b.release(g.storage)
		}
	}
	return nil
}
